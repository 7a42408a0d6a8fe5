// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/few.h"

#include <algorithm>

#include "csrc/cuda/pack.h"
#include "csrc/cuda/parts.h"
#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

constexpr int64_t kManyChannels = 16;           // from here on matrix products are faster
constexpr int64_t kWeightsBytes = 40 * 1024;    // of shared memory
constexpr int64_t kBlocksOfMultiprocessor = 8;  // a round of blocks, about
constexpr int64_t kMaxPositions = (int64_t(1) << 31) - (int64_t(1) << 20);

// Threads of a block along `count` neighbours: a power of two.
int lanes_of(int64_t count) {
  int lanes = 1;
  while (lanes < count && lanes < 32) lanes *= 2;
  return lanes;
}

// Positions of a part, whole passes of a block, so that `blocks` times the parts fill the GPU.
int64_t part_of(int64_t positions, int64_t pass, int64_t blocks, const Device& device) {
  const int64_t parts = std::max<int64_t>(device.multiprocessors * kBlocksOfMultiprocessor / blocks, 1);
  return round_up(divide_up(positions, parts), pass);
}

std::shared_ptr<Plan> make_gather(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  const bool forward = p.operation == Operation::conv_transpose;
  FewArguments a{};
  a.batch = g.batch, a.groups = g.groups;
  a.depth = forward ? g.x_channels : g.y_channels, a.columns = forward ? g.y_channels : g.x_channels;
  const bool matrix = tile_math(p.type, request.setting.tf32) != TileMath::fma;
  if (!request.by_name && (matrix ? a.depth : std::min(a.depth, a.columns)) >= kManyChannels) return nullptr;
  a.from = forward ? p.x : p.y, a.to = forward ? p.y : p.x, a.weights = p.w;
  int64_t taps = 1, phases = 1;
  a.positions = g.batch;
  for (int k = 0; k < kAxes; ++k) {
    a.gather[k] = Gather(p.operation, g.axis[k]);
    const int64_t count = a.gather[k].phase(0).count;  // the first phase is the largest
    a.by_count[k] = Divider(count), a.positions *= count;
    phases *= a.gather[k].phases, taps *= a.gather[k].most_taps();
    if (a.positions > kMaxPositions) return nullptr;
  }
  const int64_t vector = 16 / bytes_of(p.type);
  const bool aligned = request.setting.aligned;
  const FewChannels channels = a.depth * a.columns == 1 && whole_vectors(p.type, a.from, g.groups, aligned) &&
                                       whole_vectors(p.type, a.to, g.groups, aligned)
                                   ? FewChannels::own
                               : a.columns > 1 ? FewChannels::of_group
                                               : FewChannels::one;
  const int64_t width = channels == FewChannels::one ? 1 : vector;
  a.vector_stores = channels == FewChannels::of_group && whole_vectors(p.type, a.to, a.columns, aligned);
  a.vectors = channels == FewChannels::own ? g.groups / vector : g.groups * divide_up(a.columns, width);
  a.lanes = a.to.channel < a.to.axis[kAxes - 1] ? lanes_of(a.vectors) : 1;
  const auto weights_bytes = [&] { return taps * a.depth * a.lanes * width * int64_t(sizeof(float)); };
  while (a.lanes > 1 && weights_bytes() > kWeightsBytes) a.lanes /= 2;
  if (weights_bytes() > kWeightsBytes) return nullptr;
  a.chunks = divide_up(a.vectors, a.lanes);
  constexpr int64_t kPositionsOfThread = 4;  // at least
  a.part_positions = part_of(a.positions, kFewThreads / a.lanes * kPositionsOfThread, a.chunks * phases, request.setting.device);
  const int64_t blocks = a.chunks * phases * divide_up(a.positions, a.part_positions);
  if (blocks > kMaxBlocks) return nullptr;

  auto plan = std::make_shared<Plan>();
  plan->description = std::to_string(width) + " channels a thread, " + std::to_string(a.lanes) + " threads along them";
  plan->steps.push_back({"few",
                         {blocks, kFewThreads, round_up(kAxes * sizeof(GatherAxis), 16) + weights_bytes()},
                         [a, forward, channels, type = p.type](const Buffers& b, const Launch& shape, Stream stream) {
                           FewArguments bound = a;
                           bound.source = forward ? b.x : b.y, bound.w = b.w, bound.bias = b.bias;
                           bound.result = forward ? b.y : b.x;
                           return launch_few(bound, channels, type, shape, stream);
                         }});
  return plan;
}

std::shared_ptr<Plan> make_weights(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (!request.by_name && g.x_channels >= kManyChannels) return nullptr;
  FewWeightsArguments a{};
  a.geometry = g, a.x_strides = p.x, a.y_strides = p.y;
  a.positions = g.batch * g.x_positions(), a.pairs = g.groups * g.x_channels * g.y_channels;
  if (a.positions > kMaxPositions) return nullptr;
  for (int k = 0; k < kAxes; ++k) a.by_extent[k] = Divider(g.axis[k].x);
  a.lanes = p.y.channel < p.y.axis[kAxes - 1] ? lanes_of(a.pairs) : 1;
  a.chunks = divide_up(a.pairs, a.lanes), a.tap_chunks = divide_up(g.w_positions(), kFewTaps);
  const Device& device = request.setting.device;
  constexpr int64_t kPositionsOfThread = 8;  // at least
  a.part_positions = part_of(a.positions, kFewThreads / a.lanes * kPositionsOfThread, a.chunks * a.tap_chunks, device);
  const int64_t parts = divide_up(a.positions, a.part_positions), blocks = a.chunks * a.tap_chunks * parts;
  if (blocks > kMaxBlocks) return nullptr;

  auto plan = std::make_shared<Plan>();
  plan->workspace_bytes = parts * g.w_size() * int64_t(sizeof(float));
  plan->description = std::to_string(a.lanes) + " threads along pairs of channels, " + std::to_string(parts) + " parts";
  plan->steps.push_back({"few weights",
                         {blocks, kFewThreads, kFewTaps * (int64_t(sizeof(float)) * kFewThreads + 4 * int64_t(sizeof(int64_t)))},
                         [a, type = p.type](const Buffers& b, const Launch& shape, Stream stream) {
                           FewWeightsArguments bound = a;
                           bound.x = b.x, bound.y = b.y, bound.sums = static_cast<float*>(b.workspace);
                           return launch_few_weights(bound, type, shape, stream);
                         }});
  const int64_t pairs = g.x_channels * g.y_channels, group = pairs * g.w_positions();
  plan->steps.push_back(
      parts_step({g, p.w, parts, g.w_size(), group, pairs, g.y_channels, 1, nullptr, nullptr}, p.type, 0, device));
  return plan;
}

}  // namespace

std::shared_ptr<Plan> make_few(const Problem& p, const Request& request) {
  if (p.type == Type::f64 || is_empty(p.geometry) || is_far(p.geometry)) return nullptr;
  return p.operation == Operation::backward_weights ? make_weights(p, request) : make_gather(p, request);
}

}  // namespace torch_ext::cuda
