// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/transpose.h"

#include <algorithm>

namespace torch_ext::cuda {

bool whole_vectors(Type type, const Strides& tensor, int64_t channels, bool aligned) {
  const int64_t vector = 16 / bytes_of(type);
  const auto whole = [vector](int64_t elements) { return elements % vector == 0; };
  return aligned && tensor.channel == 1 && whole(channels) && whole(tensor.outer) &&
         std::all_of(tensor.axis, tensor.axis + kAxes, whole);
}

Launch walk(int64_t work, int threads, const Device& device) {
  constexpr int64_t kBlocksOfMultiprocessor = 32;
  return {std::clamp<int64_t>(divide_up(work, threads), 1, device.multiprocessors * kBlocksOfMultiprocessor), threads, 0};
}

Rows::Rows(const Problem& p, void* Buffers::*of, bool aligned) : type(p.type), tensor(of), copy{} {
  const Geometry& g = p.geometry;
  const bool is_x = of == &Buffers::x;
  strides = is_x ? p.x : p.y, group_room = is_x ? g.x_channels : g.y_channels;
  in_place = whole_vectors(type, strides, group_room, aligned);
  if (in_place) return;
  copy.from = strides, copy.batch = g.batch, copy.group_channels = group_room;
  group_room = round_up(group_room, 16 / bytes_of(type));
  copy.group_room = group_room, copy.room = g.groups * group_room;
  for (int k = 0; k < kAxes; ++k) copy.extent[k] = is_x ? g.axis[k].x : g.axis[k].y;
  const int64_t line = copy.extent[2] * copy.room, plane = copy.extent[1] * line;
  strides = {copy.extent[0] * plane, 1, {plane, line, copy.room}};
  copy_bytes = round_up(g.batch * strides.outer * bytes_of(type), 256);
}

const void* Rows::of(const Buffers& buffers, int64_t offset) const {
  return in_place ? buffers.*tensor : static_cast<const char*>(buffers.workspace) + offset;
}

// Blocks of 32 positions by 32 channels.
Step Rows::step(int64_t offset) const {
  constexpr int64_t kSide = 32;
  const int64_t positions = copy.extent[0] * copy.extent[1] * copy.extent[2];
  const int64_t blocks = copy.batch * divide_up(positions, kSide) * divide_up(copy.room, kSide);
  return {"transpose",
          {std::clamp<int64_t>(blocks, 1, kMaxBlocks), 256, kSide * (kSide + 1) * 4},
          [copy = copy, tensor = tensor, type = type, offset](const Buffers& b, const Launch& shape, Stream stream) {
            TransposeArguments bound = copy;
            bound.source = b.*tensor, bound.result = static_cast<char*>(b.workspace) + offset;
            return launch_transpose(bound, type, shape, stream);
          }};
}

}  // namespace torch_ext::cuda
