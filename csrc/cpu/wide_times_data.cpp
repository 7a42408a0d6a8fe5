// SPDX-License-Identifier: Apache-2.0
// The model of `wide_times` for gradients of data, by the blocks that the kernels cut: fitted to 840 layers drawn at random, with
// 8 lanes 680, it misses by 14 % (`wide`), 15 (`gather`) and 23 (`fold`), with 8 lanes by 10, 13 and 18. 16-bit types that are
// widened have the same prices: of 454 layers of bf16, those chosen by them take 0.95 of the time of those chosen without (8
// lanes: 0.98). With 8 lanes `wide` asked for the next block then: its prices are 0.93 of those fitted.
#include <algorithm>

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
  } wide;
  struct {
    double product, sum, read, x, weight_of_block, line;  // of y, an element that a block reads; of a tap and a line of x
  } gather;
  struct {
    double product, sum, y, more_of_large, x, weight;
  } fold;
};
constexpr Prices kPrices = {{0.0128, 0.0724, 3.91, 0.234, 0.546, 0.197, 23.2},
                            {0.0114, 0.0276, 0.273, 0.148, 0.306, 18.3},
                            {0.0124, 0.0061, 0.461, 0.309, 0.0841, 0.719}};
constexpr Prices kPricesOf8Lanes = {{0.0232, 0.0762, 3.6, 0.28, 0.538, 0.221, 8.4},
                                    {0.0233, 0.0262, 0.306, 0.231, 0.316, 16.6},
                                    {0.023, 0.0045, 0.483, 0.361, 0.184, 0.948}};
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
         price.copied * blocks * double(positions * copies);
}

}  // namespace

WideTimes wide_times_of_data(const Problem& p, const Tiles<float>& tiles) {
  const Geometry& g = p.geometry;
  const Prices& prices = tiles.lanes < kMaxLanes ? kPricesOf8Lanes : kPrices;
  const GatherAxis axis[kAxes] = {{g.axis[0], p.operation}, {g.axis[1], p.operation}, {g.axis[2], p.operation}};
  const double vectors = double(round_up(g.x_channels, tiles.column_step)), products = products_of(g), y = double(g.y_size());
  const auto& fold = prices.fold;
  WideTimes times{};
  times.wide = time_of_wide(p, axis, tiles, prices);
  times.gather = time_of_gather(g, axis, vectors, products, prices);
  times.fold = products * vectors * (fold.product * double(g.y_channels) + fold.sum) + fold.weight * double(g.w_size()) +
               fold.x * double(g.x_size()) + (y * sizeof(float) > kLargeBytes ? fold.y + fold.more_of_large : fold.y) * y;
  return times;
}

}  // namespace torch_ext::cpu
