// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/fold.h"

#include <algorithm>

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {
namespace {

// What a block keeps of the rows of its tile and of the phases of its box: see Tables in fold.cu.
constexpr int64_t kTableBytes = kTileRows * (sizeof(int64_t) + sizeof(int)) + kAxes * kTileColumns * 3 * sizeof(int);
constexpr int64_t kMinChannels = 16;  // of x: fewer are no depth for a product

// As many phases as the columns of a tile hold, whole lines of them first; none where one phase alone is too much.
bool find_boxes(const PackArguments& pack, Boxes& boxes) {
  int64_t columns = pack.columns;
  for (int k = 0; k < kAxes; ++k) columns *= boxes.taps[k] = pack.gather[k].most_taps();
  if (columns > kTileColumns) return false;
  int64_t fit = kTileColumns / columns;
  for (int k = kAxes - 1; k >= 0; --k) {
    boxes.count[k] = divide_up(pack.gather[k].phases, fit);
    boxes.phases[k] = divide_up(pack.gather[k].phases, boxes.count[k]);
    fit = boxes.phases[k] == pack.gather[k].phases ? fit / boxes.phases[k] : 1;
  }
  return true;
}

// The patch of which the fewest tiles cover everything, for this many positions of last terms of each axis.
bool find_patch(const int64_t (&tops)[kAxes], FoldArguments& a) {
  int64_t best = 0;
  for (int j0 = 1; j0 <= tops[0] && j0 + a.halo[0] <= kTileRows; ++j0)
    for (int j1 = 1; j1 <= tops[1] && (j0 + a.halo[0]) * (j1 + a.halo[1]) <= kTileRows; ++j1)
      for (int j2 = 1; j2 <= tops[2]; ++j2) {
        const int patch[kAxes] = {j0 + a.halo[0], j1 + a.halo[1], j2 + a.halo[2]};
        const int positions = patch[0] * patch[1] * patch[2];
        if (positions > kTileRows) break;
        const int64_t samples = std::min<int64_t>(a.batch, kTileRows / positions);
        const int64_t tiles[kAxes] = {divide_up(tops[0], j0), divide_up(tops[1], j1), divide_up(tops[2], j2)};
        const int64_t all = divide_up(a.batch, samples) * tiles[0] * tiles[1] * tiles[2];
        if (best && all >= best) continue;
        best = all;
        a.samples = int(samples), a.sample_tiles = divide_up(a.batch, samples);
        std::copy_n(patch, kAxes, a.patch), std::copy_n(tiles, kAxes, a.tiles);
      }
  return best > 0;
}

}  // namespace

std::shared_ptr<Plan> make_fold(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::conv_transpose || p.type == Type::f64 || is_empty(g) || is_far(g)) return nullptr;
  const Setting& setting = request.setting;
  const TileMath math = tile_math(p.type, setting.tf32);
  PackArguments pack = pack_by_taps(p);
  const Rows rows(p, &Buffers::x, setting.aligned);
  // By multiply-adds the products are not so much faster that x may be transposed for them.
  if (!request.by_name && (g.x_channels < kMinChannels || (math == TileMath::fma && !rows.in_place))) return nullptr;
  if (!find_boxes(pack, pack.boxes)) return nullptr;
  FoldArguments a{};
  a.batch = g.batch, a.groups = g.groups, a.channels = g.y_channels, a.boxes = pack.boxes;
  a.depth = rows.group_room, a.depth_room = pack.depth_room, a.from = rows.strides, a.to = p.y;
  a.channels_fastest = p.y.channel < p.y.axis[kAxes - 1];
  a.by_channels = Divider(a.channels);
  int64_t tops[kAxes], positions = g.batch, products = 1, column_tiles = 1;
  for (int k = 0; k < kAxes; ++k) {
    const Gather& gather = a.gather[k] = pack.gather[k];
    int64_t low = gather.phase(0).from, high = low;
    for (int64_t phase = 0; phase < gather.phases; ++phase) {
      const GatherAxis of = gather.phase(phase);
      low = std::min(low, of.from), high = std::max(high, of.from + of.count - 1);
    }
    const int64_t halo = (a.boxes.taps[k] - 1) * (g.axis[k].dilation / gather.gcd);
    if (halo >= kTileRows) return nullptr;
    a.first[k] = int(low), a.halo[k] = int(halo), tops[k] = high - low + 1;
    positions *= gather.phase(0).count, products *= gather.phases * a.boxes.taps[k];
    column_tiles *= a.boxes.count[k];
  }
  if (!find_patch(tops, a)) return nullptr;
  const int64_t tiles = a.sample_tiles * a.tiles[0] * a.tiles[1] * a.tiles[2] * column_tiles;
  const int64_t tiles_of_gemm = divide_up(positions, kTileRows) * pack.columns_room / kTileColumns * products;
  if (!request.by_name && tiles * 4 > tiles_of_gemm * 3) return nullptr;
  if (tiles * g.groups > kMaxBlocks) return nullptr;
  for (int k = 0; k < kAxes; ++k) a.by_phases[k] = Divider(a.boxes.phases[k]), a.by_tops[k] = Divider(a.patch[k] - a.halo[k]);
  pack.boxed = true, pack.rows = column_tiles * kTileColumns;

  auto plan = std::make_shared<Plan>();
  plan->description = std::string(math == TileMath::fma ? "multiply-adds" : "matrix instructions") + ", patches of " +
                      std::to_string(a.samples) + "x" + std::to_string(a.patch[0]) + "x" + std::to_string(a.patch[1]) + "x" +
                      std::to_string(a.patch[2]) + (rows.in_place ? "" : ", source transposed");
  // The workspace: packed weights, the transposed source.
  const int64_t source_at = pack.bytes(p.type);
  plan->workspace_bytes = source_at + rows.copy_bytes;
  plan->steps.push_back(pack_step(pack, p.type, setting.device));
  if (!rows.in_place) plan->steps.push_back(rows.step(source_at));
  plan->steps.push_back({"fold",
                         {tiles * g.groups, kTileThreads, kTileBytes + kTableBytes},
                         [a, rows, source_at, math](const Buffers& b, const Launch& shape, Stream stream) {
                           FoldArguments bound = a;
                           bound.packed = b.workspace, bound.source = rows.of(b, source_at);
                           bound.bias = b.bias, bound.result = b.y;
                           return launch_fold(bound, math, shape, stream);
                         }});
  return plan;
}

}  // namespace torch_ext::cuda
