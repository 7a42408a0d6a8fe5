// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/overlap_gate.h"

#include "csrc/cpu/gather.h"
#include "csrc/cpu/overlap_blocks.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/wide_times.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kManyPositions = 256;  // of a plane of x

// Whether the output channels fill one vector and leave most of a second one empty, on planes of many positions in long lines
// (256 to 20 channels of 28x28: 0.6 to 0.75 of the time of `gather` in NCX, 0.75 to 0.9 in NXC; with 8 lanes less, and 1.3 in
// NXC). Of 24 channels `gather` takes a vector and a half where that is faster than two: 0.75 to 1.05 of the time. Where planes
// have few channels, `wide` adds their short sums in registers (21 to 21 channels, k16 s8, 32x32: 0.77 of the time; 32 to 24, k2
// s2, 64x64: 0.75; 32 to 20, 1-D k16 s8: 0.78; 64 to 20, k3 s1: 1.03).
template <class Real>
bool little_over_a_vector(const Problem& p, const Tiles<Real>& tiles) {
  constexpr int64_t kFewPlanes = 32;
  const Geometry& g = p.geometry;
  const int64_t lanes = tiles.lanes;
  const bool planes = p.x.axis[2] == 1 && p.y.axis[2] == 1, wide = lanes == kMaxLanes;
  const int64_t quarters = planes && tiles.whole_vectors() ? 6 : 5;
  if (planes && wide && g.x_channels <= kFewPlanes) return false;
  return g.y_channels > lanes && g.y_channels <= lanes * quarters / 4 && g.x_positions() >= kManyPositions &&
         g.axis[kAxes - 1].x >= lanes && (planes || (wide && g.w_positions() > 1));
}

// Whether sums are so short that a line of products for each channel and tap costs more to write and add up than they do: `wide`
// adds in registers, from four results on in full tiles. (64x64, 4 to 4 channels, k4 s2: 0.7 of the time, 8 to 8, k3 s1: 0.8, 4
// to 8, k2 s2: 0.65; 4 to 3, k3 s1, 1.1; 16 to 4, k3 s1, 0.95 to 1.05; pairs, 8 to 4 channels, 1-D k4 s2: 0.85, 8 to 4, k3
// s1: 1.2.) Tiles of shorter vectors are full with three (240 layers of 8 lanes: 0.7 to 0.9 of the time; of 24 terms to one or
// two results 1.1 to 1.25).
template <class In>
bool short_sums(const Problem& p, const Tiles<typename Operand<In>::Real>& tiles) {
  constexpr int64_t kFullTile = 4, kLeastLineOfWide = 32, kMostShort = 12, kMostShortOfPairs = 8;
  constexpr int64_t kFullTileOfShort = 3, kMostTerms = 12, kMostTermsOfFullTile = 48;
  const Geometry& g = p.geometry;
  if (!tiles.asks && g.y_channels <= tiles.lanes * 3 / 4)
    return terms_of_line(g) <= (g.y_channels < kFullTileOfShort ? kMostTerms : kMostTermsOfFullTile);
  if (tiles.matrices || tiles.lanes < kMaxLanes || g.y_channels < kFullTile || g.y_channels > tiles.lanes / 2) return false;
  if (g.axis[kAxes - 1].x < kLeastLineOfWide) return false;
  if (Operand<In>::terms == 1) return g.x_channels * parts_of(g.axis[0].w, g.axis[0].stride) <= kMostShort;
  return g.x_channels <= kMostShortOfPairs && g.axis[0].w <= g.axis[0].stride && g.axis[1].w <= g.axis[1].stride;
}

// Of fewer input channels than those, whether taps of the outer axes make sums long: of few lines of results, with the lanes of
// AVX-512 (3 to 3 channels, k11 s1, 64x64: 0.61 of the time of `wide`; 2 to 1, k4 s1, 128x128: 0.78; 3 to 1, k5 s2: 0.76; volumes
// 0.15 to 0.9; but 3 to 4, k6 s1: 1.3; 1 to 2, volumes, k4 s1: 1.6; with 8 lanes 1.1).
template <class Real>
bool sums_many_taps(const Problem& p, const Tiles<Real>& tiles) {
  constexpr int64_t kLeastTerms = 8, kMostResults = 3;
  const Geometry& g = p.geometry;
  const bool few = g.groups == 1 && g.x_channels > 1 && g.y_channels <= kMostResults;
  return few && tiles.lanes == kMaxLanes && g.axis[2].stride <= (g.y_channels == 1 ? 2 : 1) && terms_of_line(g) >= kLeastTerms;
}

// Whether tiles of short vectors read planes of x in place, whose lines fill one.
template <class Real>
bool in_place_of_short_vectors(const Problem& p, const Tiles<Real>& tiles) {
  return !tiles.asks && bytes_of(p.type) == int64_t(sizeof(Real)) && p.x.axis[kAxes - 1] == 1 && p.y.axis[kAxes - 1] == 1 &&
         p.geometry.axis[kAxes - 1].x >= tiles.lanes;
}

}  // namespace

// Worth it where a vector of output channels would be at least half empty, on planes of many positions a quarter. Few channels of
// groups that lie side by side are left to the wide kernel, which reads several groups at once (4 to 1 channels 0.3 to 0.5 of the
// time, 16 to 1 1.1 to 1.4, 128 to 1 twice; bf16 twice to five times).
template <class In>
bool overlap_pays(const Problem& p, const Tiles<typename Operand<In>::Real>& tiles, const Request& request) {
  constexpr int64_t kMinDepth = 4;             // input channels: below it the overlap-add costs as much as a short product
  constexpr int64_t kMinDepthSideBySide = 16;  // of groups whose channels lie side by side
  constexpr double kLeastGainOfGather = 0.9;   // less is not known so well (17 layers of 12 to 20 results: 0.67 to 0.89)
  const Geometry& g = p.geometry;
  const bool side_by_side = g.groups > 1 && g.x_channels < kMinDepthSideBySide && (p.x.channel == 1 || p.y.channel == 1);
  const bool pairs = multiplies_pairs(p.type, request.isa);  // which `gather` does, with as many lanes
  const int64_t quarters = !pairs && g.x_positions() >= kManyPositions ? 3 : 2;
  const bool deep = g.x_channels >= kMinDepth || sums_many_taps(p, tiles);
  if (!deep || side_by_side || short_sums<In>(p, tiles) || gather_takes_matrices(p, request)) return false;
  const std::optional<WideTimes> times = wide_times(p, request);
  const bool few = g.y_channels <= std::max<int64_t>(1, tiles.lanes * quarters / 4) ||
                   (!pairs && little_over_a_vector(p, tiles)) ||
                   (times && in_place_of_short_vectors(p, tiles) && g.y_channels <= 2 * tiles.lanes);
  if (!few) return false;
  if (!times) return true;
  return !times->beats(times->overlap) && times->gather >= kLeastGainOfGather * times->overlap;
}

// Of a single channel of results along one axis, from long sums on, while tiles of rows are few: there are lines of all its taps,
// and of phases as channels the planes would be brought in order (512 to 1 channel, k16 s8, 300 positions: 0.6 of the time, k8
// s8: 0.5, k16 s16: 0.73; 64 to 1, k8 s8: 0.68; but k16 s16 1.06, 512 to 1, k64 s32: 1.1, k128 s64: 1.4).
bool lines_suit(const Problem& p, Isa isa) {
  constexpr int64_t kTermsOfStride = 8, kMostTaps = 32, kMostPhases = 16;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  const bool single = g.groups == 1 && g.y_channels == 1 && g.w_positions() == line.w && line.w <= kMostTaps;
  return p.operation == Operation::conv_transpose && p.type == Type::f32 && single && line.stride <= kMostPhases &&
         g.x_channels >= kTermsOfStride * line.stride && in_place_of_short_vectors(p, tiles<float>(isa));
}

template bool overlap_pays<float>(const Problem&, const Tiles<float>&, const Request&);
template bool overlap_pays<double>(const Problem&, const Tiles<double>&, const Request&);
template bool overlap_pays<bf16>(const Problem&, const Tiles<float>&, const Request&);

}  // namespace torch_ext::cpu
