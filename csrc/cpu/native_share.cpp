// SPDX-License-Identifier: Apache-2.0
// The model: what a call adds up, each kind at a price that was fitted (least squares of the logarithm of the time) to the times
// of 600 layers drawn at random, of 1 to 1024 channels and 1 to 1200 positions of x, in three layouts. It misses by 23 %
// (`native`, `gather`) and 32 % (`overlap`), half of all by less than a tenth: what it chooses takes 2 % longer than the faster
// kernel always would.
#include "csrc/cpu/native_share.h"

#include <algorithm>

#include "csrc/cpu/native.h"
#include "csrc/cpu/overlap_gate.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

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
  if (p.type == Type::bf16 && isa >= Isa::amx) return kFloatsBesideMatrices;
  return isa >= Isa::avx512 ? kFloats : kFloatsOf8Lanes;
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

// The time of `native` as a share of the other's.
double share(const Problem& p, const Request& request, bool pairs) {
  const Geometry& g = p.geometry;
  const Prices& price = prices_of(p, request.isa, pairs);
  const bool of_channels = p.w.channel == 1;
  const double groups = double(g.groups), taps = double(g.w_positions()), positions = double(g.batch * g.x_positions()),
               channels = double(g.y_channels), results = double(g.y_size());
  double inside = double(g.batch), reaching = 1;  // products of positions and taps; taps
  for (const Axis& axis : g.axis) inside *= double(products_of(axis)), reaching *= double(taps_reaching(axis));
  if (!of_channels) reaching = taps;  // rows of weights are read whole

  const double depth = groups * double(g.x_channels), columns = groups * channels * reaching * positions;
  double native = price.native.call + depth * channels * reaching * (price.native.weight + price.native.product * positions) +
                  columns * (of_channels ? price.native.column_of_channel : price.native.column) + results * price.native.result;
  if (of_channels) native += groups * reaching * positions * price.native.run;

  const double packed = p.prepacked ? 0 : depth * taps;
  if (overlaps(p, request, pairs)) {
    const double line = double(g.axis[kAxes - 1].x), lanes = double(lanes_of(p.type, request.isa)),
                 whole = double(round_up(g.axis[kAxes - 1].x, int64_t(lanes))) / line;
    return native /
           (packed * channels * price.overlap.weight + depth * channels * taps * positions * whole * price.overlap.product +
            groups * channels * taps * positions * price.overlap.column + results * price.overlap.result);
  }
  const bool matrices = p.type == Type::bf16 && request.isa >= Isa::amx;
  const double vectors = double(round_up(g.y_channels, matrices ? kMaxLanes : column_step_of(p.type, request.isa)));
  const double weight =
      of_channels ? price.gather.weight_of_channel : price.gather.weight * std::max(1., taps / double(kTapsOfPages));
  return native /
         (price.gather.call + packed * vectors * weight + depth * vectors * inside * price.gather.product +
          groups * vectors * inside * price.gather.sum + groups * taps * price.gather.tap + results * price.gather.result);
}

}  // namespace

bool native_is_faster(const Problem& p, const Request& request, bool pairs) {
  constexpr int64_t kMostPositions = 1024, kMostOfOverlap = 512;
  const Geometry& g = p.geometry;
  const int64_t positions = g.batch * g.x_positions();
  // Channels of a tap make short runs unless all columns are made at a time (384 to 80, k11 s2, 14x14: 2.4 times the time).
  const int64_t columns = positions * g.groups * g.y_channels * g.w_positions() * int64_t(sizeof(float));
  if (p.w.channel == 1 && columns > kMostColumnBytes) return false;
  return positions <= kMostPositions && (positions <= kMostOfOverlap || !overlaps(p, request, pairs)) &&
         share(p, request, pairs) < 1;
}

}  // namespace torch_ext::cpu
