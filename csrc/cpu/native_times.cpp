// SPDX-License-Identifier: Apache-2.0
// The model: what a call adds up, each kind at a price that was fitted (least squares of the logarithm of the time) to the times
// of 600 layers drawn at random, of 1 to 1024 channels and 1 to 1200 positions of x, in three layouts. It misses by 23 %
// (`native`, `gather`) and 32 % (`overlap`), half of all by less than a tenth: what it chooses takes 2 % longer than the faster
// kernel always would.
#include "csrc/cpu/native_times.h"

#include <algorithm>

#include "csrc/cpu/native.h"
#include "csrc/cpu/native_gate.h"
#include "csrc/cpu/overlap_gate.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/wide_times.h"

namespace torch_ext::cpu {
namespace {

// In nanoseconds, of which only the ratios matter.
struct Prices {
  struct {
    double call, weight, product;      // a weight that is read, and its product with a position
    double column, column_of_channel;  // a column that is added to y, where taps or channels of weights lie side by side
    double run;                        // of channels, of a position and a tap
    double result;                     // an element of y
  } native;
  struct {
    double call, weight, weight_of_channel;  // packed, where taps or channels lie side by side
    double product;                          // of whole vectors, without those with what lies outside of y
    double sum, tap, result;                 // results of a tap and a position; a tap; an element of y
  } gather;
  struct {
    double weight, product, column, result;  // products of lines of whole vectors
  } overlap;
};
constexpr Prices kFloats = {
    {800, 0.026, 0.021, 0.30, 0.124, 2.05, 0.32}, {360, 0.355, 0.347, 0.020, 0.041, 132, 0.20}, {0.69, 0.0143, 0.142, 0.98}};
constexpr Prices kFloatsOf8Lanes = {
    {1310, 0.045, 0.025, 0.345, 0.152, 2.7, 0.30}, {680, 0.341, 0.665, 0.021, 0.073, 137, 0.215}, {0.70, 0.0323, 0.164, 1.99}};
// `overlap` of planes that it reads in place.
constexpr Prices kFloatsOf8LanesInPlanes = {kFloatsOf8Lanes.native, kFloatsOf8Lanes.gather, {0.7, 0.0248, 0.176, 1.33}};
constexpr Prices kPairs = {
    {1050, 0.068, 0.0102, 0.30, 0.104, 2.5, 0.29}, {1000, 0.19, 0.177, 0.0097, 0.054, 128, 0.153}, {1.14, 0.0069, 0.153, 1.66}};
// Floats here, and matrix registers there.
constexpr Prices kFloatsBesideMatrices = {
    {800, 0.05, 0.021, 0.30, 0.124, 2.05, 0.32}, {1000, 0.4, 0.4, 0.004, 0.054, 128, 0.153}, {1.14, 0.012, 0.153, 1.66}};

// Channels of so many taps lie so far apart that packing a line of them takes as many times as long (80 to 80 channels, 63
// positions, k128 s32: 1.2 of the time of `native`; k256: 1.4, k512: 1.8, k1024: 2.3).
constexpr int64_t kTapsOfPages = 128;

const Prices& prices_of(const Problem& p, Isa isa, bool pairs) {
  if (pairs) return kPairs;
  if (matrices_multiply_pairs(p.type, isa)) return kFloatsBesideMatrices;
  if (isa >= Isa::avx512) return kFloats;
  return p.type == Type::f32 && p.x.axis[kAxes - 1] == 1 ? kFloatsOf8LanesInPlanes : kFloatsOf8Lanes;
}

bool overlaps(const Problem& p, const Request& request, bool pairs) {
  if (p.type == Type::f64) return overlap_pays<double>(p, tiles<double>(request.isa), request);
  return pairs ? overlap_pays<bf16>(p, pair_tiles(), request) : overlap_pays<float>(p, tiles<float>(request.isa), request);
}

// Taps that connect some position of x with one of y.
int64_t taps_reaching(const Axis& axis) {
  int64_t count = 0;
  for (int64_t k = 0; k < axis.w; ++k) {
    const int64_t first = first_reaching(0, k * axis.dilation - axis.offset, axis.stride);
    count += first < axis.x && axis.reach(first, k) < axis.y;
  }
  return count;
}

// What all of them count.
struct Counts {
  double positions, groups, depth, taps, channels, results;  // depth: channels of x of all groups; channels: of y of one
  double inside;                                             // products of positions and taps that meet in y
  explicit Counts(const Geometry& g)
      : positions(double(g.batch * g.x_positions())),
        groups(double(g.groups)),
        depth(double(g.groups * g.x_channels)),
        taps(double(g.w_positions())),
        channels(double(g.y_channels)),
        results(double(g.y_size())),
        inside(products_of(g)) {}
};

double time_of_native(const Problem& p, const Counts& n, const Prices& prices) {
  const auto& price = prices.native;
  const bool of_channels = p.w.channel == 1;
  double taps = 1;  // that are read: of rows of channels those that reach y
  for (const Axis& axis : p.geometry.axis) taps *= double(of_channels ? taps_reaching(axis) : axis.w);
  const double columns = n.groups * n.channels * taps * n.positions, runs = of_channels ? n.groups * taps * n.positions : 0;
  return price.call + n.depth * n.channels * taps * (price.weight + price.product * n.positions) +
         columns * (of_channels ? price.column_of_channel : price.column) + runs * price.run + n.results * price.result;
}

double time_of_gather(const Problem& p, const Counts& n, Isa isa, const Prices& prices) {
  const auto& price = prices.gather;
  const double vectors = matrices_multiply_pairs(p.type, isa) ? double(round_up(p.geometry.y_channels, kMaxLanes))
                                                              : lanes_timed(p.type, isa, p.geometry.y_channels);
  const double weight = p.prepacked && n.taps < double(kTapsOfPanels) ? 0
                        : p.w.channel == 1                            ? price.weight_of_channel
                                           : price.weight * std::max(1., n.taps / double(kTapsOfPages));
  return price.call + vectors * (n.depth * (n.taps * weight + n.inside * price.product) + n.groups * n.inside * price.sum) +
         n.groups * n.taps * price.tap + n.results * price.result;
}

double time_of_overlap(const Problem& p, const Counts& n, Isa isa, const Prices& prices) {
  const auto& price = prices.overlap;
  const int64_t line = p.geometry.axis[kAxes - 1].x;
  const double positions = n.positions * double(round_up(line, lanes_of(p.type, isa))) / double(line);  // of whole vectors
  return n.channels * n.taps *
             (n.depth * ((p.prepacked ? 0 : price.weight) + positions * price.product) + n.groups * n.positions * price.column) +
         n.results * price.result;
}

}  // namespace

bool native_is_faster(const Problem& p, const Request& request, bool pairs) {
  constexpr int64_t kMostPositions = 1024, kMostOfOverlap = 512;
  constexpr int64_t kLine = 16, kLeastPairs = 64, kShortLine = 8, kPairsOfShort = 12, kFew = 4;
  const Geometry& g = p.geometry;
  const int64_t positions = g.batch * g.x_positions();
  const bool overlap = overlaps(p, request, pairs);
  if (positions > (overlap ? kMostOfOverlap : kMostPositions)) return false;
  // Of groups so narrow a product is not worth the call of its tile, where lines fill those of others (32 groups of 8 to 2
  // channels, k3 s2, 2 lines of 200: 2.2 times the time; 64 of 24 to 2, k3 s1, 16x16: 1.6; but 8 of 12 to 2, k4 s4, 16x16: 0.65,
  // 32 of 12 to 2, k2 s2, 4x4x4: 0.5).
  const int64_t both = g.x_channels * g.y_channels, line = g.axis[kAxes - 1].x;
  const bool narrow =
      line >= kLine && taps_met(g) > 1 ? both < kLeastPairs : line >= kShortLine && both <= kPairsOfShort && g.x_channels <= kFew;
  if (g.groups > 1 && narrow) return false;
  // Channels of a tap make short runs unless all columns are made at a time (384 to 80, k11 s2, 14x14: 2.4 times the time).
  const int64_t columns = positions * g.groups * g.y_channels * g.w_positions();
  if (p.w.channel == 1 && columns * (p.type == Type::f64 ? 8 : 4) > kMostColumnBytes) return false;
  const Prices& prices = prices_of(p, request.isa, pairs);
  const Counts counts(g);
  const double of_gather = time_of_gather(p, counts, request.isa, prices);
  double of_other = overlap ? time_of_overlap(p, counts, request.isa, prices) : of_gather;
  if (const auto times = wide_times(p, request)) {
    // The price of a product here is that of small planes, whose last tiles are not full (33 to 33 channels, k6 s5, 20x20,
    // channels side by side: `gather` takes 0.65 of the time).
    if (p.x.channel == 1) of_other = std::min(of_other, times->gather);
    if (times->beats(times->gather)) of_other = std::min(of_other, of_gather * times->wide / times->gather);
  }
  return time_of_native(p, counts, prices) < of_other;
}

}  // namespace torch_ext::cpu
