// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/gemm.h"

#include <algorithm>

#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {
namespace {

constexpr int64_t kRowBytes = 3 * 8 + 3 * 4;     // what a block keeps of each row of its tile, see gemm.cu
constexpr int64_t kMinChannels = 16;             // fewer leave most of a tile to zeros
constexpr int64_t kBlocksOfMultiprocessor = 32;  // of kernels that walk over what is left

Launch walk(int64_t work, int threads, const Device& device) {
  return {std::clamp<int64_t>(divide_up(work, threads), 1, device.multiprocessors * kBlocksOfMultiprocessor), threads, 0};
}

bool multiples(const Strides& s, int64_t of) {
  return s.channel == 1 && s.outer % of == 0 && s.axis[0] % of == 0 && s.axis[1] % of == 0 && s.axis[2] % of == 0;
}

}  // namespace

std::shared_ptr<Plan> make_gemm(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation == Operation::backward_weights || p.type == Type::f64) return nullptr;
  if (g.batch == 0 || g.x_channels == 0 || g.y_channels == 0 || g.x_positions() == 0 || g.y_positions() == 0) return nullptr;
  const bool forward = p.operation == Operation::conv_transpose;
  const int64_t size = bytes_of(p.type), vector = 16 / size, step = kGemmStepBytes / size;
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
  int64_t positions = g.batch, phases = 1, source_positions = g.batch;
  for (int k = 0; k < kAxes; ++k) {
    a.phases[k] = phases_of(p.operation, g.axis[k]);
    if (a.phases[k] > kGemmPhases) return nullptr;
    for (int64_t r = 0; r < a.phases[k]; ++r) a.axis[k][r] = gather_axis(p.operation, g.axis[k], r);
    positions *= a.axis[k][0].count;  // the first phase is the largest
    phases *= a.phases[k];
    a.source_extent[k] = forward ? g.axis[k].x : g.axis[k].y;
    source_positions *= a.source_extent[k];
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
  a.vectors = request.setting.aligned && a.columns % vector == 0 && multiples(a.to, vector);

  auto plan = std::make_shared<Plan>();
  const Device& device = request.setting.device;
  // Rows that cp.async cannot read as they are pass through the workspace.
  const bool in_place = request.setting.aligned && a.depth % vector == 0 && multiples(a.from, vector);
  const int64_t weights_bytes = round_up(g.groups * g.w_positions() * a.columns_room * a.depth_room * size, 256);
  TransposeArguments t{};
  if (!in_place) {
    t.from = a.from, t.batch = g.batch, t.group_channels = a.depth, t.group_room = round_up(a.depth, vector);
    for (int k = 0; k < kAxes; ++k) t.extent[k] = a.source_extent[k];
    t.room = g.groups * t.group_room;
    const int64_t line = a.source_extent[2] * t.room, plane = a.source_extent[1] * line;
    a.from = {a.source_extent[0] * plane, 1, {plane, line, t.room}};
    a.depth = t.group_room;
    plan->workspace_bytes = weights_bytes + source_positions * t.room * size;
  } else {
    plan->workspace_bytes = weights_bytes;
  }
  const int64_t blocks = phases * a.tiles * a.column_tiles * g.groups;
  if (blocks > kMaxBlocks) return nullptr;
  const Launch products{blocks, kGemmThreads,
                        kGemmStages * (kGemmRows + kGemmColumns) * int64_t(kGemmStepBytes) + kGemmRows * kRowBytes};

  plan->description = std::string(math == GemmMath::fma ? "multiply-adds" : "matrix instructions") + ", " +
                      std::to_string(blocks) + " tiles of " + std::to_string(kGemmRows) + "x" + std::to_string(kGemmColumns) +
                      (in_place ? "" : ", source transposed");
  const auto bound = [a, forward](const Buffers& b) {
    GemmArguments bound = a;
    bound.source = forward ? b.x : b.y, bound.w = b.w, bound.bias = b.bias, bound.packed = b.workspace;
    bound.result = forward ? b.y : b.x;
    return bound;
  };
  const Type type = p.type;
  plan->steps.push_back({"gemm weights", walk(weights_bytes / size, 256, device),
                         [bound, type](const Buffers& b, const Launch& shape, Stream stream) {
                           return launch_gemm_weights(bound(b), type, shape, stream);
                         }});
  if (!in_place) {
    // Blocks of 32 positions by 32 channels.
    const int64_t positions_of_sample = source_positions / g.batch;
    const Launch shape{std::min(g.batch * divide_up(positions_of_sample, 32) * divide_up(t.room, 32), kMaxBlocks), 256,
                       32 * 33 * 4};
    plan->steps.push_back(
        {"transpose", shape, [t, forward, weights_bytes, type](const Buffers& b, const Launch& shape, Stream stream) {
           TransposeArguments bound = t;
           bound.source = forward ? b.x : b.y;
           bound.result = static_cast<char*>(b.workspace) + weights_bytes;
           return launch_transpose(bound, type, shape, stream);
         }});
  }
  plan->steps.push_back(
      {"gemm", products, [bound, in_place, weights_bytes, math](const Buffers& b, const Launch& shape, Stream stream) {
         GemmArguments arguments = bound(b);
         if (!in_place) arguments.source = static_cast<const char*>(b.workspace) + weights_bytes;
         return launch_gemm(arguments, math, shape, stream);
       }});
  return plan;
}

}  // namespace torch_ext::cuda
