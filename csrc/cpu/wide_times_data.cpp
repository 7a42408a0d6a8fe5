// SPDX-License-Identifier: Apache-2.0
// The same for gradients of data, by the blocks that the kernels cut: it misses by 12 % (`wide`), 11 (`gather`) and 15 (`fold`),
// with 8 lanes by 10, 10 and 12.
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
    double product, sum, read, weight_of_block, line;  // of y, an element that a block reads; of a tap and a line of x
  } gather;
  struct {
    double product, sum, y, more_of_large, weight;
  } fold;
};
constexpr Prices kPrices = {
    {0.0129, 0.0188, 4.68, 0.187, 0.552, 0.206, 19}, {0.011, 0.0365, 0.264, 0.294, 19.1}, {0.0124, 0.0167, 0.418, 0.318, 0.59}};
constexpr Prices kPricesOf8Lanes = {
    {0.0255, 0.0356, 3.41, 0.31, 0.256, 0.223, 0}, {0.0226, 0.0383, 0.317, 0.196, 19.3}, {0.0242, 0.0135, 0.413, 0.282, 0.606}};
constexpr int64_t kLargeBytes = 8 << 20;

// Pieces of x of so many cells, in samples and all.
double pieces(const Geometry& g, const int64_t* cells) {
  double count = double(g.batch);
  for (int a = 0; a < kAxes; ++a) count *= double(parts_of(g.axis[a].x, cells[a]));
  return count;
}

double time_of_gather(const Geometry& g, const GatherAxis* axis, double vectors, double products, const Prices& prices) {
  constexpr int64_t kBoxBytes = 768 << 10, kMostCells = 512;
  int64_t of_cell = g.y_channels * int64_t(sizeof(float)), cells[kAxes];
  for (int a = 0; a < kAxes; ++a) of_cell *= std::min(axis[a].in_step, axis[a].in_extent);
  const int64_t room =
      cut_axes([&](int a) { return g.axis[a].x; }, std::clamp<int64_t>(kBoxBytes / of_cell, 1, kMostCells), cells);
  const double blocks = pieces(g, cells) / double(std::min(even_part(g.batch, room), g.batch));
  double read = double(g.batch * g.y_channels);
  for (int a = 0; a < kAxes; ++a) read *= double(axis[a].reached(cells[a]) * parts_of(g.axis[a].x, cells[a]));
  const auto& price = prices.gather;
  return products * vectors * (price.product * double(g.y_channels) + price.sum) + price.read * read +
         price.weight_of_block * blocks * double(g.y_channels * g.w_positions()) * vectors +
         price.line * double(g.batch * g.axis[0].x * g.axis[1].x * g.w_positions());
}

double time_of_wide(const Problem& p, const GatherAxis* axis, const Tiles<float>& tiles, const Prices& prices) {
  const Geometry& g = p.geometry;
  const PlaneAxis plane_axis[kAxes] = {PlaneAxis(axis[0]), PlaneAxis(axis[1]), PlaneAxis(axis[2])};
  const bool unfolds = unfolds_planes(p);
  double residues = 1;
  for (const PlaneAxis& a : plane_axis) residues *= double(a.residues.size());
  const int64_t planes = g.y_channels * int64_t(residues), copies = unfolds ? g.y_channels * g.w_positions() : 0;
  int64_t cells[kAxes], extent[kAxes];  // of a block, and of its planes
  cut_axes([&](int a) { return g.axis[a].x; },
           std::max<int64_t>(1, kWideBoxBytes / (std::max({planes, copies, g.x_channels}) * int64_t(sizeof(float)))), cells);
  for (int a = 0; a < kAxes; ++a) extent[a] = cells[a] + plane_axis[a].q_max - plane_axis[a].q_min;
  const double blocks = pieces(g, cells), lines = blocks * double(planes * extent[0] * extent[1]), lanes = double(tiles.lanes);
  const double positions = double(cells[0] * cells[1] * cells[2]);
  const double vectors = unfolds ? double(parts_of(cells[0] * cells[1] * cells[2], tiles.lanes))
                                 : double(cells[0] * parts_of((cells[1] - 1) * extent[2] + cells[2], tiles.lanes));
  const auto& price = prices.wide;
  return blocks * vectors *
             (price.product * lanes * double(g.w_size()) + price.tile * double(parts_of(g.x_channels, tiles.max_wide_rows))) +
         lines * (price.line + price.brought * lanes * double(parts_of(extent[2], tiles.lanes))) +
         double(g.w_size()) * (price.weight + price.weight_of_block * blocks) +
         price.copied * blocks * positions * double(copies);
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
               (y * sizeof(float) > kLargeBytes ? fold.y + fold.more_of_large : fold.y) * y;
  return times;
}

}  // namespace torch_ext::cpu
