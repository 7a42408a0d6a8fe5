// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/wide_gate.h"

#include <algorithm>

#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/wide_times.h"

namespace torch_ext::cpu {
namespace {

// Whether tensors whose channels are planes are brought in order of their channels, and back, for more than the tiles of `gather`
// gain then: those here take a quarter longer for a multiply-add, or little where they weave whole long vectors, of which moving
// an element costs as much as there are lanes, or 8 where other kernels round as they store; by measurement. Vectors of some
// channels may be partly empty there, those of a line here. With one tap, the tiles there gain where channels are many, and for
// many channels of the result, but where those here weave: blocks of so many planes are short (8 to 192 channels, k8 s4, 200
// positions: 0.6 of the time; 24 to 512, k4 s4, 32x32: 0.2).
bool beats_gather(const Problem& p, Isa isa) {
  constexpr double kSlowness = 1.25, kSlownessOfWoven = 1.05;
  constexpr int64_t kLeastLine = 32, kMostPairsOfTap = 1024, kMostResults = 40;
  const Geometry& g = p.geometry;
  if (g.w_positions() == 1 && g.x_channels * g.y_channels >= kMostPairsOfTap) return false;
  if (g.y_channels > kMostResults && !weaves(p)) return false;
  double results = double(g.y_channels);  // for a position of x
  for (const Axis& axis : g.axis) results *= double(std::min(axis.stride, axis.y));
  const int64_t lanes = lanes_of(p.type, isa);
  const double moved = double(std::min<int64_t>(lanes, p.type == Type::f32 ? 16 : 8)) * (double(g.x_channels) + results);
  const int64_t line = g.axis[kAxes - 1].x;
  const double of_line = double(round_up(line, lanes)) / double(line), of_channels = lanes_timed(p.type, isa, g.y_channels);
  const double taps = double(g.x_channels * g.w_positions()),
               slowness = isa >= Isa::avx512 && weaves(p) && line % lanes == 0 ? kSlownessOfWoven : kSlowness;
  return isa >= Isa::avx2 && line >= kLeastLine && taps * (slowness * of_line * double(g.y_channels) - of_channels) < moved;
}

// Whether backward_data to few channels leaves so little of the many planes of y in the box that weights are read too often, or
// cuts its lines too short. (8 to 512 channels, k9 s1, 8x8: 0.25 of the time in `gather`; 4 to 256, k8 s4, 32x32: 0.4.)
bool overfills_box(const Problem& p, int64_t lanes) {
  constexpr int64_t kLeastCells = 64, kWeightsOfPosition = 140;
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_data || g.groups > 1) return false;
  return newly_met(g) * kLeastCells * int64_t(sizeof(float)) > kWideBoxBytes ||
         (g.x_channels > lanes / 4 && g.w_size() >= kWeightsOfPosition * g.batch * g.x_positions());
}

// Whether channels of y that lie side by side are brought to planes for one product each.
bool met_once(const Problem& p) {
  const Geometry& g = p.geometry;
  return p.y.axis[kAxes - 1] != 1 && g.y_channels > 1 && double(g.w_positions()) == strides_of(g);
}

// Where tiles of half a vector take half of the time, `gather` computes backward_data to as few channels faster, but along lines
// that fill vectors where neighbours of x read neighbours of y, or where rows of few channels make short sums, or where they
// leave a quarter of it empty. (8 to 64 channels, k4 s2, 14x14: 0.5 of the time in NCX, 0.7 in NXC; k5 s1, 28x28: 1.1 and 1.2; 6
// to 20, k6 s2, 4000 positions: 1.9 and 1.3.)
bool halves_fill(const Problem& p, Isa isa, int64_t lanes) {
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  if (p.operation != Operation::backward_data || g.x_channels <= lanes / 4 || column_step_of(p.type, isa) == lanes) return false;
  const bool partly = g.x_channels <= lanes * 3 / 8, planes = p.x.axis[kAxes - 1] == 1 && p.y.axis[kAxes - 1] == 1;
  const bool long_rows = partly ? g.y_channels > 4 * lanes || met_once(p) : planes || g.y_channels > lanes;
  return line.x < lanes || (line.stride > 1 && long_rows);
}

// Whether conv_transpose of so few channels has sums too short to bring them to vectors of result channels, a quarter of which
// would be empty, or none where pairs would be in a box. (64x64, k3 s1, 1 to 12 channels: 0.5 of the time in NXC; pairs in NCX, 1
// to 16: 0.4, 3 to 16: 0.8, but in NXC 2 to 16: 1.4.)
bool short_sums(const Problem& p, Isa isa, bool pairs_of_planes) {
  constexpr int64_t kMostSummed = 3, kLeastLine = 16;
  const Geometry& g = p.geometry;
  const int64_t lanes = lanes_of(p.type, isa), most = pairs_of_planes ? lanes : lanes * 3 / 4;
  return isa == Isa::avx512 && p.operation == Operation::conv_transpose && g.groups == 1 && g.x_channels <= kMostSummed &&
         g.y_channels <= most && g.axis[kAxes - 1].x >= kLeastLine;
}

// Whether gradients of data are sums over so few channels that short vectors are filled with positions rather than with channels,
// which `gather` sums one row of y at a time (240 layers of 5 to 32 channels to 1 to 48, 8 lanes: 0.75 of the time in NCX, 0.80
// in NXC; lines of 6 to 10 positions 1.2 to 2.5, strides of many channels 1.3, 4 lanes 1.07).
bool short_gradients(const Problem& p, Isa isa, bool planes) {
  constexpr int64_t kMostPairs = 48, kMostPairsOfPlanes = 192, kLeastLine = 16, kMostNewlyMet = 200;
  const Geometry& g = p.geometry;
  if (isa >= Isa::avx512 || p.type == Type::f64 || p.operation != Operation::backward_data || g.groups > 1) return false;
  return g.axis[kAxes - 1].x >= kLeastLine && newly_met(g) <= kMostNewlyMet &&
         g.x_channels * g.y_channels <= (planes ? kMostPairsOfPlanes : kMostPairs);
}

// Whether a vector of result channels would be at least half empty, of short vectors a quarter for few inputs of conv_transpose;
// or sums over a single channel fill one, whose rows `gather` takes for one number each (gradients of data of 10 to 1 channels,
// NXC, k16 s8: 0.46 of the time, k4 s4 0.61, pairs 0.13 and 0.16). Of one tap, many channels that lie side by side make sums as
// they are (gradients of data, NXC, 6 to 160 channels, 1x1 s2, 64x64: 2.2 of the time, 8 to 160, s1: 1.3; 4 to 8: 0.7; bf16 0.3).
bool few_results(const Problem& p, Isa isa, bool planes) {
  constexpr int64_t kFewInputs = 48, kLongRow = 32;
  const Geometry& g = p.geometry;
  const int64_t lanes = lanes_of(p.type, isa), half = std::max<int64_t>(1, lanes / 2);
  if (p.operation == Operation::conv_transpose)
    return g.y_channels <= (isa < Isa::avx512 && g.x_channels <= kFewInputs ? lanes * 3 / 4 : half);
  const bool single = g.groups == 1 && g.y_channels == 1 && g.x_channels <= lanes;
  const bool as_they_are = !planes && g.w_positions() == 1 && g.y_channels >= kLongRow && bytes_of(p.type) >= 4;
  return (g.x_channels <= half || single || short_gradients(p, isa, planes)) && !as_they_are && !overfills_box(p, lanes) &&
         !halves_fill(p, isa, lanes);
}

// Whether groups are so narrow that `gather` has short rows, and vectors of results that are partly empty. (Gradients of data of
// 32 groups of 8 to 2 channels, k3 s2, 200 positions: 0.4 of the time in NCX; 16 of 12 to 1, k9 s1, 28x28: 0.17, in NXC 0.57; 8
// of 12 to 4, k2 s2, 32x32: 0.54, pairs 0.8; conv_transpose of 8 of 1 to 16, k9 s1, 16x16: 0.35 and 0.41.)
bool narrow_groups(const Problem& p, bool planes, bool pairs) {
  constexpr int64_t kMostSummed = 4, kMostResults = 16, kShortLine = 14, kLeastMet = 4, kManyTaps = 25;
  constexpr int64_t kLine = 16, kLongLine = 1000, kMostPairs = 96, kPairsOfPosition = 7;
  const Geometry& g = p.geometry;
  const int64_t line = g.axis[kAxes - 1].x, taps = g.w_positions(), met = taps_met(g), both = g.x_channels * g.y_channels;
  if (g.groups == 1 || taps == 1) return false;
  if (p.operation == Operation::conv_transpose)
    return g.x_channels <= (planes ? kMostSummed : kMostSummed / 2) && g.y_channels <= kMostResults && line >= kShortLine &&
           met >= (pairs ? taps : kLeastMet);
  if (!planes)
    return g.x_channels <= kMostResults && g.y_channels < kMostSummed && line >= kShortLine / 2 && taps >= kManyTaps &&
           (met == taps || g.y_channels == 1);
  if (pairs) return g.x_channels <= kMostResults && g.y_channels <= kMostSummed && line >= kLine;
  if (met == 1 && g.y_channels > kMostSummed) return false;
  return both < kPairsOfPosition * line && (both <= kMostPairs || line >= kLongLine) &&
         (line >= kLine || (met == taps && g.x_channels <= kMostResults && g.y_channels < kMostSummed && taps >= kManyTaps));
}

// Whether gradients of data of few channels are sums of pairs that are so long that they are worth their empty lanes in `gather`
// (4 to 80 channels, k9 s3, 10x10: 0.34 of the time in NCX and 0.39 in NXC; 6 to 48, k4 s2, 400 positions: 0.55; 8 to 128, k4 s1,
// 4000: 0.7 and 0.54; but 3 to 16, k4 s2: 1.3, 4 to 32, k7 s1, 100x100: 1.5).
bool sums_of_pairs(const Problem& p, bool planes) {
  constexpr int64_t kManyPairs = 54, kManyPairsOfDense = 100, kInputsOfDense = 6, kShortLine = 16;
  const Geometry& g = p.geometry;
  const int64_t both = g.x_channels * g.y_channels;
  if (p.operation != Operation::backward_data || g.groups > 1 || g.x_channels < 2) return false;
  if (taps_met(g) < g.w_positions()) return both >= kManyPairs;
  const bool long_sums = g.x_channels >= kInputsOfDense || g.axis[kAxes - 1].x < kShortLine || (g.w_positions() == 1 && !planes);
  return both >= kManyPairsOfDense && long_sums;
}

}  // namespace

// Whether all phases of the innermost axis read alike, so that a tile of them can weave their results into lines of the tensor:
// with sums that are long enough for memory to have come by then (k2 s2, 64 to 32 channels, 48x48x48: 0.83 of the time, 256x256:
// 0.92; 32 to 32, 1.25).
bool weaves(const Problem& p) {
  constexpr int64_t kLeastSum = 64;
  const Axis& line = p.geometry.axis[kAxes - 1];
  return p.operation == Operation::conv_transpose && (p.type == Type::f32 || p.type == Type::f64) && p.y.axis[kAxes - 1] == 1 &&
         p.geometry.x_channels >= kLeastSum && (line.stride == 2 || line.stride == 4) && line.w % line.stride == 0 &&
         line.offset % line.stride == 0 && line.dilation == 1 && line.y % line.stride == 0;
}

// Copies of what each tap reads cost less than the borders that lines have in planes where they are fewer than twice the results,
// or some times as many where lines are short (16 channels of x, 3 of y, k5 s2, 14x14: 0.7 of the time, 150x130: 1.1; 6 channels
// of x, 128 of y, k7 s1, 16x16: 7).
bool unfolds_planes(const Problem& p) {
  constexpr int64_t kShortLine = 32, kMostCopies = 2, kMostCopiesOfShort = 8;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  const bool in_place = (p.type == Type::f32 || p.type == Type::f64) && (p.x.axis[kAxes - 1] == 1 || line.x == 1);
  const bool pays = g.y_channels * g.w_positions() <= (line.x < kShortLine ? kMostCopiesOfShort : kMostCopies) * g.x_channels;
  return p.operation == Operation::backward_data && pays && g.groups == 1 && in_place && positions_follow(p);
}

// Worth it for few results, where a row of few channels is too short to be summed over by itself while all taps together make a
// sum that is worth bringing the planes in order for (a short one where they are, by measurement; not where it meets each y
// once), for results that do not fill the tiles of `gather`, and where the planes would not stay as they are elsewhere.
bool wide_pays(const Problem& p, Isa isa, const Request& request) {
  constexpr int64_t kFewChannels = 4, kLongSum = 32, kLongSumOfPlanes = 8, kFewResults = 32, kFewResultsOfPairs = 16,
                    kSmallPlane = 128;
  const Geometry& g = p.geometry;
  const bool forward = p.operation == Operation::conv_transpose;
  const std::optional<WideTimes> times = wide_times(p, request);
  // What `unfold` leaves to this kernel with short vectors, this takes.
  if (times && !forward) return times->beats(times->gather) || (request.isa < Isa::avx512 && positions_suit(p, request.isa));
  const int64_t columns = forward ? g.y_channels : g.x_channels, depth = forward ? g.x_channels : g.y_channels;
  const bool planes = p.x.axis[2] == 1 && p.y.axis[2] == 1;
  const bool pairs = vectors_multiply_pairs(p.type, request.isa), one_or_two = depth <= 2 && g.x_positions() > kSmallPlane;
  const bool by_pairs = pairs && sums_of_pairs(p, planes);
  const bool fills_tiles = columns > (pairs ? kFewResultsOfPairs : kFewResults) && (pairs || !one_or_two);
  const bool short_rows = !forward && !by_pairs && g.groups == 1 && depth <= kFewChannels && !fills_tiles && !met_once(p) &&
                          depth * g.w_positions() >= (planes ? kLongSumOfPlanes : kLongSum);
  const bool kept = times ? times->beats(times->gather) : forward && planes && !pairs && beats_gather(p, isa);
  const bool few_inputs = short_sums(p, isa, pairs && planes);
  return (few_results(p, isa, planes) && !by_pairs) || short_rows || kept || few_inputs || narrow_groups(p, planes, pairs) ||
         positions_suit(p, request.isa);
}

}  // namespace torch_ext::cpu
