// SPDX-License-Identifier: Apache-2.0
// The model: what a call adds up besides products, each kind at a price that was fitted (least squares of the relative error) to
// the times of 900 layers drawn at random, of 4 to 512 channels, along one, two and three axes, of all kinds of phases, in both
// layouts. It misses by 8, 10 and 17 % along one, two and three axes, and by half as much again with 8 lanes (gradients of
// weights there by 15, 19 and 26 %): what it chooses takes 2 to 3 % longer than the faster kernel always would.
// Processors that multiply whole vectors of 16 are twice as far from their memory, and have prices of their own, of 550 such
// layers of 3 to 512 channels: it misses by 8, 15 and 15 %, and chooses what takes 1 % longer, of gradients of weights 1.5 (by
// the other prices 2 and 5 %). What is of 16 bits has the same prices: of 197 layers, with 8 lanes, 1 to 4 %.
#include "csrc/cpu/winograd_gate.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/winograd_panels.h"

namespace torch_ext::cpu {
namespace {

// In multiply-adds of the direct kernels.
struct Prices {
  double product;        // a multiply-add
  double input, result;  // a number to transform: of the input, or of x; of the results, in whole vectors, or of y
  double weight, far;    // a transformed weight, and the block that reads it, where all of them stay in cache, and where not;
  double read;           // and for each further block that reads it, or for the first one where it has been transformed ahead
};
using PricesOfAxes = Prices[kAxes];  // of one, two and three that are transformed
constexpr PricesOfAxes kData = {{1.08, 5.2, 6.8, 3, 10, 0}, {1.09, 6.4, 6.6, 3.6, 5.6, 2.6}, {1.35, 7.2, 3.4, 6, 6.5, 4.5}};
constexpr PricesOfAxes kDataOfWholeVectors = {
    {1.05, 8.2, 10, 10, 10, 3}, {1.17, 6.8, 6.8, 7, 7, 6.5}, {1.17, 7.2, 8.2, 18, 18, 10}};
constexpr PricesOfAxes kDataOf8Lanes = {{1.16, 4, 10, 3.2, 3.2, 1.1}, {1.2, 6.5, 8.5, 2, 5, 2}, {1.84, 4, 2, 5.6, 5.6, 5.6}};
constexpr PricesOfAxes kSums = {{1.07, 4.8, 4.9, 2.5, 2.5, 0}, {1.18, 5.2, 3.3, 2.7, 2.7, 0}, {1.5, 9.6, 6, 0.5, 0.5, 0}};
constexpr PricesOfAxes kSumsOfWholeVectors = {
    {1.09, 6.9, 7.6, 9.8, 9.8, 0}, {1.31, 3.3, 11.2, 6.1, 0.2, 0}, {1.42, 7.8, 10.7, 12.2, 12.2, 0}};
constexpr PricesOfAxes kSumsOf8Lanes = {{0.99, 6.9, 7.6, 7.2, 7.2, 0}, {1.06, 5.5, 8, 5.5, 10, 0}, {1.7, 18, 5, 8, 8, 0}};

const PricesOfAxes& prices_of(const Problem& p, const Tiles<float>& tiles) {
  const bool sums = p.operation == Operation::backward_weights;
  if (tiles.lanes < kMaxLanes) return sums ? kSumsOf8Lanes : kDataOf8Lanes;
  if (tiles.whole_vectors()) return sums ? kSumsOfWholeVectors : kDataOfWholeVectors;
  return sums ? kSums : kData;
}

}  // namespace

double winograd_share(const Problem& p, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles_of_isa,
                      int64_t tiles_of_block) {
  const Geometry& g = p.geometry;
  const PricesOfAxes& prices = prices_of(p, tiles_of_isa);
  const Prices& price = prices[classes[0].axes - 1];
  const bool sums = p.operation == Operation::backward_weights, backward = p.operation == Operation::backward_data;
  const double depth = double(backward ? g.y_channels : g.x_channels);
  const int64_t columns = backward ? g.x_channels : g.y_channels;
  const double written = double(sums ? columns : round_up(columns, tiles_of_isa.lanes));  // for a result
  double products = 0, work = 0, weights = 0;
  for (const WinogradTiles& c : classes) {
    const double segments = double(c.first_taps.size()), summed = double(c.summed(p.operation)), points = double(c.points),
                 tiles = double(c.count(g.batch)), of_class = points * segments * depth * double(columns);
    weights += of_class, products += of_class * tiles;
    work += of_class * tiles * prices[std::max(c.axes - 1, 0)].product;
    work += points * tiles * (price.input * summed * depth + price.result * segments / summed * written);
  }
  const double blocks = double(parts_of(classes[0].count(g.batch), tiles_of_block));
  const double once = p.prepacked ? price.read : weights * sizeof(float) > double(kFarWeightsBytes) ? price.far : price.weight;
  work += weights * (once + (blocks - 1) * price.read);
  return work / products / WinogradTiles::saved(g, backward ? p.operation : Operation::conv_transpose);
}

double winograd_pays_below(const Problem& p, const Request& request, bool matrices) {
  if (p.type != Type::f32 && (matrices || vectors_multiply_pairs(p.type, request.isa))) return 0;  // twice as many at a time
  // Six products in matrix registers run at 1.15 to 2 times the speed of multiply-adds.
  return matrices ? 0.75 : 0.97;
}

bool winograd_allowed(const Problem& p, Isa isa, const Request& request) {
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_EXT_WINOGRAD");
    return !value || std::strcmp(value, "0") != 0;
  }();
  const bool fewer_products = isa == Isa::avx512 && request.isa >= Isa::amx && p.precision != Precision::full;
  return request.by_name || (enabled && p.transforms_allowed && !fewer_products);
}

}  // namespace torch_ext::cpu
