// SPDX-License-Identifier: Apache-2.0
// The model of `wide_times` for gradients of data, by the blocks that the kernels cut: fitted to 840 layers drawn at random, with
// 8 lanes 680, it misses by 14 % (`wide`), 15 (`gather`) and 23 (`fold`), with 8 lanes by 10, 13 and 18. 16-bit types that are
// widened have the same prices: of 454 layers of bf16, those chosen by them take 0.95 of the time of those chosen without (8
// lanes: 0.98). With 8 lanes `wide` asked for the next block then: its prices are 0.93 of those fitted. They suit groups, too
// (137 layers that had no part in the fit: what they choose takes 1 % longer than the faster kernel, with 8 lanes 3; by rules 9
// and 15), and one tap, but with 8 lanes (70 of 9 to 24 channels: 3 %, by rules 20; with 8 lanes 9 and 6). Where channels lie
// side by side, of 287 layers of 3 to 24 channels of x it chooses what takes 4 % longer (by rules 7), with 8 lanes of 241 3 (6).
#include <algorithm>
#include <limits>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/wide_gate.h"
#include "csrc/cpu/wide_times.h"

namespace torch_ext::cpu {
namespace {

struct Prices {
  struct {
    double product, copied, line, brought, weight, weight_of_block, tile;  // of y: a line, and an element, that planes have
    double result = 0;                                                     // an element of x
  } wide;
  struct {
    double product, sum, read, x, weight_of_block, line;  // of y, an element that a block reads; of a tap and a line of x
  } gather;
  struct {
    double product, sum, y, more_of_large, x, weight;
  } fold;
};
constexpr Prices kPlanes = {{0.0128, 0.0724, 3.91, 0.234, 0.546, 0.197, 23.2},
                            {0.0114, 0.0276, 0.273, 0.148, 0.306, 18.3},
                            {0.0124, 0.0061, 0.461, 0.309, 0.0841, 0.719}};
constexpr Prices kPlanesOf8Lanes = {{0.0232, 0.0762, 3.6, 0.28, 0.538, 0.221, 8.4},
                                    {0.0233, 0.0262, 0.306, 0.231, 0.316, 16.6},
                                    {0.023, 0.0045, 0.483, 0.361, 0.184, 0.948}};
// Where channels lie side by side, and `fold` is another kernel.
constexpr Prices kRows = {{0.0161, 0, 2.25, 0.218, 0, 0, 29.9, 0.4}, {0.0202, 0.0454, 0.0588, 0.0122, 0.32, 7.2}, {}};
constexpr Prices kRowsOf8Lanes = {{0.0204, 0, 5.4, 0.225, 0, 0, 44, 0}, {0.0217, 0.021, 0.122, 0.0882, 0.172, 10.4}, {}};
constexpr int64_t kLargeBytes = 8 << 20;

double time_of_gather(const Geometry& g, const GatherAxis* axis, double vectors, double products, const Prices& prices) {
  int64_t of_cell = g.y_channels * int64_t(sizeof(float)), cells[kAxes];
  for (int a = 0; a < kAxes; ++a) of_cell *= std::min(axis[a].in_step, axis[a].in_extent);
  const auto extent_of_x = [&](int a) { return g.axis[a].x; };
  const int64_t room = cut_axes(extent_of_x, std::clamp<int64_t>(kGatherBoxBytes / of_cell, 1, kGatherCells), cells);
  const double blocks = double(g.batch * piece_count(extent_of_x, cells)) / double(even_part(g.batch, room));
  double read = double(g.batch * g.y_channels);
  for (int a = 0; a < kAxes; ++a) read *= double(axis[a].reached(cells[a]) * parts_of(g.axis[a].x, cells[a]));
  const auto& price = prices.gather;
  return products * vectors * (price.product * double(g.y_channels) + price.sum) + price.read * read +
         price.x * double(g.x_size()) + price.weight_of_block * blocks * double(g.y_channels * g.w_positions()) * vectors +
         price.line * double(g.batch * g.axis[0].x * g.axis[1].x * g.w_positions());
}

double time_of_wide(const Problem& p, const GatherAxis* axis, const Tiles<float>& tiles, const Prices& prices) {
  const Geometry& g = p.geometry;
  const PlaneAxis plane_axis[kAxes] = {PlaneAxis(axis[0]), PlaneAxis(axis[1]), PlaneAxis(axis[2])};
  const bool unfolds = unfolds_planes(p);
  int64_t planes = g.y_channels;
  for (const PlaneAxis& a : plane_axis) planes *= int64_t(a.residues.size());
  const int64_t copies = unfolds ? g.y_channels * g.w_positions() : 0;
  int64_t cells[kAxes], extent[kAxes];  // of a block, and of its planes
  const auto extent_of_x = [&](int a) { return g.axis[a].x; };
  cut_axes(extent_of_x, std::max<int64_t>(1, kWideBoxBytes / (std::max({planes, copies, g.x_channels}) * int64_t(sizeof(float)))),
           cells);
  // Positions between those that taps read are read with them.
  const double residues = double(plane_axis[2].residues.size()), skipped = std::max(residues, double(axis[2].in_step)) / residues;
  for (int a = 0; a < kAxes; ++a) extent[a] = plane_axis[a].reached(cells[a]);
  const double blocks = double(g.batch * piece_count(extent_of_x, cells)), lanes = double(tiles.lanes);
  const double lines = blocks * double(planes * extent[0] * extent[1]) * skipped;
  const int64_t positions = cells[0] * cells[1] * cells[2];
  const double vectors = unfolds ? double(parts_of(positions, tiles.lanes))
                                 : double(cells[0] * parts_of((cells[1] - 1) * extent[2] + cells[2], tiles.lanes));
  const auto& price = prices.wide;
  return blocks * vectors *
             (price.product * lanes * double(g.w_size()) + price.tile * double(parts_of(g.x_channels, tiles.max_wide_rows))) +
         lines * (price.line + price.brought * lanes * double(parts_of(extent[2], tiles.lanes))) +
         double(g.w_size()) * (price.weight + price.weight_of_block * blocks) +
         price.copied * blocks * double(positions * copies) + price.result * double(g.x_size());
}

double time_of_fold(const Geometry& g, double vectors, double products, const Prices& prices) {
  const auto& price = prices.fold;
  const double y = double(g.y_size()), of_y = y * sizeof(float) > kLargeBytes ? price.y + price.more_of_large : price.y;
  return products * vectors * (price.product * double(g.y_channels) + price.sum) + price.weight * double(g.w_size()) +
         price.x * double(g.x_size()) + of_y * y;
}

}  // namespace

WideTimes wide_times_of_data(Problem p, Isa isa) {
  const Tiles<float>& tiles = ::torch_ext::cpu::tiles<float>(isa);
  const bool rows = p.x.channel == 1, folds = !rows && p.geometry.groups == 1;
  p.geometry.groups = 1;  // each of them, as the times of all have the same ratios
  const Geometry& g = p.geometry;
  const Prices& prices = tiles.lanes < kMaxLanes ? (rows ? kRowsOf8Lanes : kPlanesOf8Lanes) : rows ? kRows : kPlanes;
  const GatherAxis axis[kAxes] = {{g.axis[0], p.operation}, {g.axis[1], p.operation}, {g.axis[2], p.operation}};
  const double vectors = lanes_timed(p.type, isa, g.x_channels), products = products_of(g);
  WideTimes times{};
  times.wide = time_of_wide(p, axis, tiles, prices);
  times.gather = time_of_gather(g, axis, vectors, products, prices);
  // Groups were folded faster than both on none of those measured.
  times.fold = folds ? time_of_fold(g, vectors, products, prices) : std::numeric_limits<double>::infinity();
  return times;
}

}  // namespace torch_ext::cpu
