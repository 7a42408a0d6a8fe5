// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/outer.h"

#include <algorithm>

#include "csrc/cuda/direct.h"
#include "csrc/cuda/parts.h"
#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

constexpr int64_t kMinChannels = 16;            // of x: fewer leave most of a tile to zeros
constexpr int64_t kBlocksOfMultiprocessor = 6;  // two rounds of the blocks that are there at a time
constexpr int64_t kStepsOfPart = 8;             // at least: storing and adding a part costs about as much as two

}  // namespace

std::shared_ptr<Plan> make_outer(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || p.type == Type::f64 || is_empty(g)) return nullptr;
  if (!request.by_name && g.x_channels < kMinChannels) return nullptr;
  const Device& device = request.setting.device;
  const TileMath math = tile_math(p.type, request.setting.tf32);
  const Rows x(p, &Buffers::x, request.setting.aligned), y(p, &Buffers::y, request.setting.aligned);
  OuterArguments a{};
  std::copy_n(g.axis, kAxes, a.axis);
  a.batch = g.batch, a.groups = g.groups;
  a.x_room = x.group_room, a.y_room = y.group_room, a.x_strides = x.strides, a.y_strides = y.strides;
  a.tap_room = a.y_room < kOuterSide ? a.y_room : round_up(a.y_room, kOuterSide);
  a.x_tiles = divide_up(g.x_channels, kOuterSide), a.y_tiles = divide_up(g.w_positions() * a.tap_room, kOuterSide);

  const int64_t tiles = a.x_tiles * a.y_tiles * g.groups, step = outer_step(bytes_of(p.type));
  const int64_t positions = g.batch * g.x_positions(), most = divide_up(positions, kStepsOfPart * step);
  a.parts = std::clamp<int64_t>(divide_up(device.multiprocessors * kBlocksOfMultiprocessor, tiles), 1, most);
  a.part_positions = round_up(divide_up(positions, a.parts), step);
  a.parts = divide_up(positions, a.part_positions);
  if (tiles * a.parts > kMaxBlocks) return nullptr;
  const int64_t pitch = a.y_tiles * kOuterSide, group = a.x_tiles * kOuterSide * pitch;

  auto plan = std::make_shared<Plan>();
  // The workspace: the sums, x and y transposed.
  const int64_t x_at = a.parts * g.groups * group * int64_t(sizeof(float)), y_at = x_at + x.copy_bytes;
  plan->workspace_bytes = y_at + y.copy_bytes;
  plan->description = std::string(math == TileMath::fma ? "multiply-adds" : "matrix instructions") + ", " +
                      std::to_string(tiles) + " tiles of " + std::to_string(kOuterSide) + "x" + std::to_string(kOuterSide) +
                      " in " + std::to_string(a.parts) + " parts" + (x.in_place ? "" : ", x transposed") +
                      (y.in_place ? "" : ", y transposed");
  if (!x.in_place) plan->steps.push_back(x.step(x_at));
  if (!y.in_place) plan->steps.push_back(y.step(y_at));
  const int64_t stage_bytes = 2 * step * kOuterSide * bytes_of(p.type);
  plan->steps.push_back({"outer",
                         {tiles * a.parts, kOuterThreads, kOuterStages * stage_bytes},
                         [a, x, y, x_at, y_at, math](const Buffers& b, const Launch& shape, Stream stream) {
                           OuterArguments bound = a;
                           bound.x = x.of(b, x_at), bound.y = y.of(b, y_at), bound.sums = static_cast<float*>(b.workspace);
                           return launch_outer(bound, math, shape, stream);
                         }});
  const PartsArguments parts{g, p.w, a.parts, g.groups * group, group, a.tap_room, pitch, 1, nullptr, nullptr};
  plan->steps.push_back(parts_step(parts, p.type, 0, device));
  if (a.tap_room < kOuterSide) plan->steps.push_back(direct_step(p, device, true));
  return plan;
}

}  // namespace torch_ext::cuda
