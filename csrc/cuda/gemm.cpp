// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/gemm.h"

#include <algorithm>

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

constexpr int64_t kRowBytes = 2 * 8 + 4 * 4;  // what a block keeps of each row of its tile, see gemm.cu
constexpr int64_t kMinChannels = 16;          // fewer leave most of a tile to zeros

}  // namespace

std::shared_ptr<Plan> make_gemm(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation == Operation::backward_weights || p.type == Type::f64) return nullptr;
  if (g.batch == 0 || g.x_channels == 0 || g.y_channels == 0 || g.x_positions() == 0 || g.y_positions() == 0) return nullptr;
  const bool forward = p.operation == Operation::conv_transpose;
  const int64_t size = bytes_of(p.type), step = kGemmStepBytes / size;
  const auto math = p.type == Type::bf16   ? GemmMath::bf16
                    : p.type == Type::f16  ? GemmMath::f16
                    : request.setting.tf32 ? GemmMath::tf32
                                           : GemmMath::fma;
  GemmArguments a{};
  a.forward = forward;
  a.batch = g.batch, a.groups = g.groups;
  a.weights_depth = a.depth = forward ? g.x_channels : g.y_channels, a.columns = forward ? g.y_channels : g.x_channels;
  if (!request.by_name && std::min(a.depth, a.columns) < kMinChannels) return nullptr;
  a.depth_room = round_up(a.depth, step), a.columns_room = round_up(a.columns, kGemmColumns);
  a.column_tiles = a.columns_room / kGemmColumns;
  a.from = forward ? p.x : p.y, a.to = forward ? p.y : p.x, a.weights = p.w;
  int64_t positions = g.batch, phases = 1;
  for (int k = 0; k < kAxes; ++k) {
    a.phases[k] = phases_of(p.operation, g.axis[k]);
    if (a.phases[k] > kGemmPhases) return nullptr;
    for (int64_t r = 0; r < a.phases[k]; ++r) a.axis[k][r] = gather_axis(p.operation, g.axis[k], r);
    positions *= a.axis[k][0].count;  // the first phase is the largest
    phases *= a.phases[k];
    a.source_extent[k] = forward ? g.axis[k].x : g.axis[k].y;
    a.kernel[k] = g.axis[k].w;
    // Source positions, also those outside, are 32-bit numbers.
    constexpr int64_t kFar = int64_t(1) << 29;
    for (int64_t r = 0; r < a.phases[k]; ++r) {
      const GatherAxis& axis = a.axis[k][r];
      for (int64_t far : {axis.from, axis.from + (axis.count - 1) * axis.from_step, (axis.taps - 1) * axis.from_tap})
        if (far <= -kFar || far >= kFar) return nullptr;
    }
  }
  a.tiles = divide_up(positions, kGemmRows);
  a.vectors = whole_vectors(p.type, a.to, a.columns, request.setting.aligned);

  auto plan = std::make_shared<Plan>();
  // Rows that cp.async cannot read as they are pass through the workspace.
  const Rows rows(p.type, a.from, g.batch, a.source_extent, g.groups, a.depth, request.setting.aligned);
  const int64_t weights_bytes = round_up(g.groups * g.w_positions() * a.columns_room * a.depth_room * size, 256);
  a.from = rows.strides, a.depth = rows.group_room;
  constexpr int64_t kFlagBytes = 4 * kGemmThreads;
  plan->workspace_bytes = weights_bytes + rows.copy_bytes + kFlagBytes;
  const int64_t blocks = phases * a.tiles * a.column_tiles * g.groups;
  if (blocks > kMaxBlocks) return nullptr;
  const Launch products{blocks, kGemmThreads,
                        kGemmStages * (kGemmRows + kGemmColumns) * int64_t(kGemmStepBytes) + kGemmRows * kRowBytes};

  plan->description = std::string(math == GemmMath::fma ? "multiply-adds" : "matrix instructions") + ", " +
                      std::to_string(blocks) + " tiles of " + std::to_string(kGemmRows) + "x" + std::to_string(kGemmColumns) +
                      (rows.in_place ? "" : ", source transposed");
  const auto bound = [a, forward, flags = weights_bytes + rows.copy_bytes](const Buffers& b) {
    GemmArguments bound = a;
    bound.not_finite = reinterpret_cast<int32_t*>(static_cast<char*>(b.workspace) + flags);
    bound.source = forward ? b.x : b.y, bound.w = b.w, bound.bias = b.bias, bound.packed = b.workspace;
    bound.result = forward ? b.y : b.x;
    return bound;
  };
  const Type type = p.type;
  plan->steps.push_back(
      {"gemm weights", {kGemmThreads, 256, 256 * 4}, [bound, type](const Buffers& b, const Launch& shape, Stream stream) {
         return launch_gemm_weights(bound(b), type, shape, stream);
       }});
  if (!rows.in_place)
    plan->steps.push_back(
        {"transpose", rows.launch(),
         [copy = rows.copy, forward, weights_bytes, type](const Buffers& b, const Launch& shape, Stream stream) {
           TransposeArguments bound = copy;
           bound.source = forward ? b.x : b.y;
           bound.result = static_cast<char*>(b.workspace) + weights_bytes;
           return launch_transpose(bound, type, shape, stream);
         }});
  plan->steps.push_back(
      {"gemm", products,
       [bound, in_place = rows.in_place, weights_bytes, math](const Buffers& b, const Launch& shape, Stream stream) {
         GemmArguments arguments = bound(b);
         if (!in_place) arguments.source = static_cast<const char*>(b.workspace) + weights_bytes;
         return launch_gemm(arguments, math, shape, stream);
       }});
  return plan;
}

}  // namespace torch_ext::cuda
