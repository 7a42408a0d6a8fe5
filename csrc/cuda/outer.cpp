// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/outer.h"

#include <algorithm>

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

constexpr int64_t kMinChannels = 16;            // fewer leave most of a tile to zeros
constexpr int64_t kBlocksOfMultiprocessor = 6;  // two rounds of the blocks that are there at a time
constexpr int64_t kStepsOfPart = 8;             // at least: storing and adding a part costs about as much as two

}  // namespace

std::shared_ptr<Plan> make_outer(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || p.type == Type::f64) return nullptr;
  if (g.batch == 0 || g.w_size() == 0 || g.x_positions() == 0 || g.y_positions() == 0) return nullptr;
  if (!request.by_name && std::min(g.x_channels, g.y_channels) < kMinChannels) return nullptr;
  OuterArguments a{};
  int64_t x_extent[kAxes], y_extent[kAxes];
  for (int k = 0; k < kAxes; ++k) a.axis[k] = g.axis[k], x_extent[k] = g.axis[k].x, y_extent[k] = g.axis[k].y;
  a.batch = g.batch, a.groups = g.groups, a.x_channels = g.x_channels, a.y_channels = g.y_channels, a.w_strides = p.w;
  const Rows x(p.type, p.x, g.batch, x_extent, g.groups, g.x_channels, request.setting.aligned);
  const Rows y(p.type, p.y, g.batch, y_extent, g.groups, g.y_channels, request.setting.aligned);
  a.x_room = x.group_room, a.y_room = y.group_room, a.x_strides = x.strides, a.y_strides = y.strides;
  a.x_tiles = divide_up(g.x_channels, kOuterSide), a.y_tiles = divide_up(g.y_channels, kOuterSide);

  const Device& device = request.setting.device;
  const int64_t tiles = a.x_tiles * a.y_tiles * g.w_positions() * g.groups, step = outer_step(p.type);
  const int64_t positions = g.batch * g.x_positions(), most = divide_up(positions, kStepsOfPart * step);
  a.parts = std::clamp<int64_t>(divide_up(device.multiprocessors * kBlocksOfMultiprocessor, tiles), 1, most);
  a.part_positions = round_up(divide_up(positions, a.parts), step);
  a.parts = divide_up(positions, a.part_positions);
  if (tiles * a.parts > kMaxBlocks) return nullptr;
  const int64_t sums_bytes = a.parts * tiles * kOuterSide * kOuterSide * int64_t(sizeof(float));

  auto plan = std::make_shared<Plan>();
  plan->workspace_bytes = sums_bytes + x.copy_bytes + y.copy_bytes;
  plan->description = std::string(p.type == Type::f32 ? "multiply-adds" : "matrix instructions") + ", " + std::to_string(tiles) +
                      " tiles of " + std::to_string(kOuterSide) + "x" + std::to_string(kOuterSide) + " in " +
                      std::to_string(a.parts) + " parts" + (x.in_place ? "" : ", x transposed") +
                      (y.in_place ? "" : ", y transposed");
  const Type type = p.type;
  const int64_t x_offset = sums_bytes, y_offset = sums_bytes + x.copy_bytes;
  const auto transposed = [&](const Rows& rows, void* Buffers::*tensor, int64_t offset) {
    if (!rows.in_place)
      plan->steps.push_back({"transpose", rows.launch(),
                             [copy = rows.copy, tensor, offset, type](const Buffers& b, const Launch& shape, Stream stream) {
                               TransposeArguments bound = copy;
                               bound.source = b.*tensor, bound.result = static_cast<char*>(b.workspace) + offset;
                               return launch_transpose(bound, type, shape, stream);
                             }});
  };
  transposed(x, &Buffers::x, x_offset);
  transposed(y, &Buffers::y, y_offset);
  const auto bound = [a, x_offset, y_offset, x_in_place = x.in_place, y_in_place = y.in_place](const Buffers& b) {
    OuterArguments bound = a;
    bound.x = x_in_place ? b.x : static_cast<char*>(b.workspace) + x_offset;
    bound.y = y_in_place ? b.y : static_cast<char*>(b.workspace) + y_offset;
    bound.sums = static_cast<float*>(b.workspace), bound.w = b.w;
    return bound;
  };
  const int64_t stage_bytes = 2 * step * kOuterSide * bytes_of(type);
  plan->steps.push_back({"outer",
                         {tiles * a.parts, kOuterThreads, kOuterStages * stage_bytes},
                         [bound, type](const Buffers& b, const Launch& shape, Stream stream) {
                           return launch_outer(bound(b), type, shape, stream);
                         }});
  plan->steps.push_back(
      {"outer sum", walk(g.w_size(), 256, device), [bound, type](const Buffers& b, const Launch& shape, Stream stream) {
         return launch_outer_sum(bound(b), type, shape, stream);
       }});
  return plan;
}

}  // namespace torch_ext::cuda
