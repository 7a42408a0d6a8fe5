// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/gemm.h"

#include <algorithm>

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

// What a block keeps of the rows of its tile, and of its phase: see RowTable in gemm.cu.
constexpr int64_t kTableBytes = kTileRows * (2 * sizeof(int64_t) + kAxes * sizeof(int)) + kAxes * sizeof(GatherAxis);
constexpr int64_t kStepsOfPart = 8;             // at least: storing and adding a part costs about as much as two
constexpr int64_t kBlocksOfMultiprocessor = 3;  // that are there at a time

}  // namespace

std::shared_ptr<Plan> make_gemm(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation == Operation::backward_weights || p.type == Type::f64 || is_empty(g)) return nullptr;
  if (is_far(g)) return nullptr;
  const bool forward = p.operation == Operation::conv_transpose;
  const Setting& setting = request.setting;
  const TileMath math = tile_math(p.type, setting.tf32);
  const PackArguments pack = pack_by_taps(p);
  GemmArguments a{};
  a.batch = g.batch, a.groups = g.groups;
  a.weights_depth = pack.depth, a.columns = pack.columns;
  a.depth_room = pack.depth_room, a.columns_room = pack.columns_room, a.column_tiles = a.columns_room / kTileColumns;
  a.to = forward ? p.y : p.x;
  const Rows rows(p, forward ? &Buffers::x : &Buffers::y, setting.aligned);
  a.from = rows.strides, a.depth = rows.group_room;
  a.vectors = whole_vectors(p.type, a.to, a.columns, setting.aligned);
  int64_t positions = g.batch, phases = 1, steps = a.depth_room * bytes_of(p.type) / kTileStepBytes;
  for (int k = 0; k < kAxes; ++k) {
    a.gather[k] = pack.gather[k];
    positions *= a.gather[k].phase(0).count;  // the first phase is the largest
    phases *= a.gather[k].phases;
    steps *= a.gather[k].most_taps();
  }
  a.tiles = divide_up(positions, kTileRows);
  a.part_tiles = phases * a.tiles * a.column_tiles * g.groups;
  a.parts = std::clamp<int64_t>(setting.device.multiprocessors * kBlocksOfMultiprocessor / a.part_tiles, 1,
                                std::max<int64_t>(steps / kStepsOfPart, 1));
  if (a.part_tiles * a.parts > kMaxBlocks) return nullptr;

  auto plan = std::make_shared<Plan>();
  plan->description = std::string(math == TileMath::fma ? "multiply-adds" : "matrix instructions") + ", " +
                      std::to_string(a.part_tiles) + " tiles of " + std::to_string(kTileRows) + "x" +
                      std::to_string(kTileColumns) + " in " + std::to_string(a.parts) + " parts" +
                      (rows.in_place ? "" : ", source transposed");
  // The workspace: packed weights, the transposed source, the sums of the parts.
  const int64_t source_at = pack.bytes(p.type), sums_at = source_at + rows.copy_bytes;
  plan->workspace_bytes = sums_at + (a.parts > 1 ? a.parts * a.part_tiles * kTileRows * kTileColumns * 4 : 0);
  plan->steps.push_back(pack_step(pack, p.type, setting.device));
  if (!rows.in_place) plan->steps.push_back(rows.step(source_at));
  const auto bound = [a, forward, rows, source_at, sums_at](const Buffers& b) {
    GemmArguments bound = a;
    bound.packed = b.workspace, bound.source = rows.of(b, source_at), bound.bias = b.bias;
    bound.result = forward ? b.y : b.x;
    bound.sums = reinterpret_cast<float*>(static_cast<char*>(b.workspace) + sums_at);
    return bound;
  };
  const Type type = p.type;
  plan->steps.push_back({"gemm",
                         {a.part_tiles * a.parts, kTileThreads, kTileBytes + kTableBytes},
                         [bound, math](const Buffers& b, const Launch& shape, Stream stream) {
                           return launch_gemm(bound(b), math, shape, stream);
                         }});
  if (a.parts > 1)
    plan->steps.push_back({"gemm sum",
                           {a.part_tiles, kTileThreads, kTileBytes + kTableBytes},
                           [bound, type](const Buffers& b, const Launch& shape, Stream stream) {
                             return launch_gemm_sum(bound(b), type, shape, stream);
                           }});
  return plan;
}

}  // namespace torch_ext::cuda
