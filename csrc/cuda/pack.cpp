// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/pack.h"

#include <algorithm>

namespace torch_ext::cuda {

TileMath tile_math(Type type, bool tf32) {
  return type == Type::bf16 ? TileMath::bf16 : type == Type::f16 ? TileMath::f16 : tf32 ? TileMath::tf32 : TileMath::fma;
}

PackArguments pack_by_taps(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool forward = p.operation == Operation::conv_transpose;
  PackArguments a{};
  for (int k = 0; k < kAxes; ++k) a.gather[k] = Gather(p.operation, g.axis[k]);
  a.weights = p.w, a.groups = g.groups;
  a.depth = forward ? g.x_channels : g.y_channels, a.columns = forward ? g.y_channels : g.x_channels;
  a.depth_room = round_up(a.depth, kTileStepBytes / bytes_of(p.type)), a.columns_room = round_up(a.columns, kTileColumns);
  a.rows = g.w_positions() * a.columns_room;
  return a;
}

// Blocks of 32 rows by 32 channels.
Step pack_step(const PackArguments& a, Type type, const Device& device) {
  constexpr int64_t kSide = 32, kBlocksOfMultiprocessor = 32;
  const int64_t blocks = divide_up(a.groups * a.rows, kSide) * divide_up(a.depth_room, kSide);
  return {"pack",
          {std::clamp<int64_t>(blocks, 1, device.multiprocessors * kBlocksOfMultiprocessor), 256,
           2 * 8 * kSide + 4 * kSide * (kSide + 1)},
          [a, type](const Buffers& b, const Launch& shape, Stream stream) {
            PackArguments bound = a;
            bound.w = b.w, bound.packed = b.workspace;
            return launch_pack(bound, type, shape, stream);
          }};
}

}  // namespace torch_ext::cuda
