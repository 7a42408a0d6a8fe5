// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/native_gate.h"

#include <algorithm>

#include "csrc/cpu/native.h"
#include "csrc/cpu/native_times.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

// Gradients. Positions of x, beyond which packed weights are faster, by measurement: of any weights, and of some that are read
// from memory, unless they are bf16 that others multiply as pairs. Those of gradients of weights are written by other kernels as
// fast, tap by tap, unless taps are many, or they need conversion. Products with what lies outside of y are made here in vain:
// where these are more than a quarter, others are faster from a few positions on (256 to 128 channels, k9 s1, 10x10: 0.5 to 0.7
// of the time), but of so many weights that writing them takes longer (384 to 384, k8 s4, 3x3: 0.53).
constexpr int64_t kMaxPositions = 16, kMaxDotPositions = 6, kMaxPositionsInVain = 4;
constexpr int64_t kMaxPositionsOfManyInVain = 49, kManyInVain = 12 << 20;  // bytes of reals
// Of gradients of data, dot products with many weights last (256 to 256 channels, k4 s2, 4x4: 0.8 of the time; k2 s2, 6x6: 0.9),
// unless channels of x are few, as bringing y in order takes as long as they do, most where its taps lie inside. Gradients of
// weights that stay in cache are written by other kernels as fast (256 to 128 channels, k2 s2, 4x4: 0.7).
constexpr int64_t kManyWeightsDotted = 128 << 10, kMaxPositionsDottedMany = 16;
constexpr int64_t kFewTapsDotted = 4, kMaxPositionsDottedFewTaps = 36, kLongRowOfChannels = 128;
constexpr int64_t kLeastChannelsDotted = 64, kLeastChannelsDottedOfTaps = 128;
// Long vectors are left partly empty elsewhere, most by few channels of x (12 to 512, k4 s4, 4x4: 0.5 of the time; 24 to 256, k7
// s1, four of 2x2, NXC: 0.25; 39 layers drawn at random: 0.66, with 8 lanes 1.3).
constexpr int64_t kMaxDotPositionsOfLong = 12, kMaxPositionsOfFewDots = 36;
constexpr int64_t kMaxPositionsWrittenInCache = 9, kLeastColumnsWritten = 64;
constexpr int64_t kMaxPositionsOfLarge = 128, kMaxPositionsWritten = 48, kMaxPositionsOfLinesWritten = 100;
constexpr int64_t kLeastRowsWritten = 128;
constexpr double kLeastInside = 0.75;
// Of weights that are read from memory: fewer where rows are few (256 to 256 channels, k5 s2, 9x9: 0.75 of the time without these
// in NCX, 0.68 in NXC), or where many taps do not lie side by side (64 to 256, k8 s4, 4x4, NXC: 0.19; 128 to 256, 9x9: 0.34).
constexpr int64_t kManyRowsDotted = 512, kMaxPositionsOfRowsDotted = 50;
constexpr int64_t kMaxPositionsOfTapsApart = 8;
// Without AVX-512, of weights that are read from memory (512 to 512 channels, k4 s2: gradient of data 0.73 of the time at 36
// positions without these; gradient of weights 0.8 at 36, NXC, while of NCX it is 0.7 to 0.9 with these at 50 to 100).
constexpr int64_t kMaxPositionsOfLargeDotted = 30;
constexpr int64_t kMaxPositionsOfLargeWritten = 100, kMaxPositionsOfLargeWrittenByTap = 20;
// Where vectors multiply pairs of bf16, here too: positions up to which these products are faster than those of packed pairs, by
// measurement. Dot products need nothing transposed (0.5 of the time at 16 positions, 0.7 to 0.8 at 48; with many taps side by
// side 0.8 to 0.9 at 64), most where taps are few (256 to 256 channels, k2 s2: 0.53 at 49, 0.67 at 81; k3 s1 0.9 at 49), but for
// weights that are packed in no time; of gradients of weights, that is so of weights that are far from cache (at 48 positions 0.8
// of the time), of lines of many taps and of the hundreds of taps of a vocoder (0.55 at 8 to 128 positions).
constexpr int64_t kMaxPositionsDotted = 48, kMaxPositionsDottedOfTaps = 64, kTapsDotted = 16, kLeastWeightsDotted = 256 << 10;
constexpr int64_t kMaxPositionsDottedOfFewTaps = 81, kLeastWeightsDottedFew = 64 << 10, kFewTapsOfPairs = 9;
constexpr int64_t kMaxPositionsDottedOfChannels = 24, kMaxPositionsDottedInVain = 30;
// Where they are no faster, they still read half as many bytes as float32 has (1 position: 0.5 to 0.9 of the time; gradients of
// data 0.6 at 4 and 0.8 at 8).
constexpr int64_t kMaxPositionsOfSlow = 2, kMaxPositionsOfSlowDots = 8;
constexpr int64_t kMaxPositionsOfHugeWritten = 64, kHugeWeights = 16 << 20, kLeastTapsOfLine = 4;

// Whether all taps of a channel lie in one line, and are not too few.
bool of_line(const Geometry& g) { return g.w_positions() >= kLeastTapsOfLine && g.w_positions() == g.axis[kAxes - 1].w; }

// Whether rows of weights are contiguous: all of (channel, taps), or at least the channels of a tap.
bool contiguous_rows(const Problem& p) {
  const Geometry& g = p.geometry;
  if (p.w.channel == 1) return true;
  int64_t taps = 1;
  for (int a = kAxes - 1; a >= 0; taps *= g.axis[a--].w)
    if (g.axis[a].w > 1 && p.w.axis[a] != taps) return false;
  return p.w.channel == taps;
}

int64_t most_positions_dotted(const Geometry& g, bool taps_inside, int64_t lanes) {
  const int64_t weights = g.w_size() / g.groups;
  if (weights < kManyWeightsDotted || g.x_channels < (taps_inside ? kLeastChannelsDottedOfTaps : kLeastChannelsDotted)) {
    if (lanes < kMaxLanes) return kMaxDotPositions;
    return g.x_channels < lanes ? kMaxPositionsOfFewDots : kMaxDotPositionsOfLong;
  }
  if (lanes < kMaxLanes && inside(g) < kLeastInside) return kMaxDotPositions;
  const bool few_taps = g.w_positions() <= kFewTapsDotted && g.y_channels >= kLongRowOfChannels;
  return few_taps && weights >= 2 * kManyWeightsDotted ? kMaxPositionsDottedFewTaps : kMaxPositionsDottedMany;
}
int64_t most_positions_written(const Geometry& g) {
  return g.y_channels < kLeastColumnsWritten ? kMaxPositions : kMaxPositionsWrittenInCache;
}

int64_t most_positions_in_vain(const Problem& p) {
  const int64_t real = std::max(bytes_of(p.type), int64_t(sizeof(float)));
  return p.geometry.w_size() * real < kManyInVain ? kMaxPositionsInVain : kMaxPositionsOfManyInVain;
}

// More of them where a row is one long line (512 to 256 channels, k16 s8, 100: 0.85 of the time), or has many taps and rows are
// enough for bringing y in their order (32 to 512 channels, k9 s1, 7x7: 1.5).
int64_t most_positions_of_large_written(const Problem& p) {
  const Geometry& g = p.geometry;
  if (g.w_positions() >= kTapsOfPanels) return kMaxPositionsOfLarge;
  if (g.x_channels < kLeastRowsWritten) return kMaxPositionsWritten;
  if (g.w_positions() >= kManyTaps) return kMaxPositionsOfLarge;
  const bool line = p.w.channel != 1 && of_line(g) && g.w_size() * bytes_of(p.type) >= 2 * kLargeWeights;
  return line ? kMaxPositionsOfLinesWritten : kMaxPositionsWritten;
}

int64_t most_positions_of_large_dotted(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool taps_inside = p.w.channel != 1;
  if (!taps_inside && g.w_positions() >= kManyTaps) return kMaxPositionsOfTapsApart;
  return g.x_channels >= kManyRowsDotted || (taps_inside && g.w_positions() >= kTapsOfPanels) ? kMaxPositionsOfLarge
                                                                                              : kMaxPositionsOfRowsDotted;
}

// Of large weights. Sixteen registers make tiles so low that other kernels are as fast sooner.
int64_t most_positions_of_large(const Problem& p, Isa isa) {
  const Geometry& g = p.geometry;
  const bool taps_inside = p.w.channel != 1, written = p.operation == Operation::backward_weights;
  if (isa >= Isa::avx512) return written ? most_positions_of_large_written(p) : most_positions_of_large_dotted(p);
  if (g.w_positions() >= kTapsOfPanels) return kMaxPositionsOfLarge;
  if (p.operation == Operation::backward_data) return kMaxPositionsOfLargeDotted;
  return taps_inside ? kMaxPositionsOfLargeWritten : kMaxPositionsOfLargeWrittenByTap;
}

// Positions of x up to which weights are better multiplied as they lie.
int64_t most_positions(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  const bool taps_inside = p.w.channel != 1, pairs = multiplies_pairs(p.type, request.isa);
  const bool written = p.operation == Operation::backward_weights;
  const int64_t run = taps_inside ? g.y_channels * g.w_positions() : g.y_channels;  // side by side in a row of weights
  const int64_t bytes = g.w_size() * bytes_of(p.type);
  const bool read_whole = bytes >= kLargeWeights && run >= kLongRun;
  int64_t most = kMaxPositions;
  if (!written) {
    most = pairs ? kMaxDotPositions : most_positions_dotted(g, taps_inside, lanes_of(p.type, request.isa));
  } else if (bytes < (bytes_of(p.type) == 2 ? 2 : 1) * kLargeWeights) {
    most = most_positions_written(g);
  }
  if (read_whole && (g.w_positions() >= kTapsOfPanels || !(pairs || (written && bytes_of(p.type) == 2))))
    most = std::max(most, most_positions_of_large(p, request.isa));
  if (inside(g) >= kLeastInside) return most;
  return std::min(most, written ? most_positions_in_vain(p) : kMaxPositions);
}

// Of pairs of bf16.
int64_t most_pairs_dotted(const Geometry& g, bool taps_inside) {
  const int64_t taps = g.w_positions(), weights = g.w_size() / g.groups, bytes = 2 * g.w_size();
  const bool deep = g.x_channels >= kLeastChannelsDottedOfTaps;
  const bool rows = g.x_channels >= kLeastChannelsDotted && g.y_channels * taps >= kLongRun;
  if (inside(g) < kLeastInside) return taps_inside && deep ? kMaxPositionsDottedInVain : kMaxPositions;
  if (taps_inside && taps >= kTapsOfPanels) return kMaxPositionsOfLarge;
  if (!taps_inside && taps >= kManyTaps) return kMaxDotPositions;
  if (taps_inside && taps <= kFewTapsDotted && rows)
    return weights >= kLeastWeightsDottedFew ? kMaxPositionsDottedOfFewTaps : kMaxPositionsDottedFewTaps;
  if (taps_inside && taps <= kFewTapsOfPairs && deep)
    return weights >= kLeastWeightsDotted ? kMaxPositionsDottedOfTaps : kMaxPositionsDottedFewTaps;
  if (weights < kLeastWeightsDotted) return weights >= kLeastWeightsDottedFew && rows ? kMaxPositions : kMaxDotPositions;
  if (!taps_inside) return bytes < kLargeWeights ? kMaxPositionsDottedOfChannels : kMaxPositionsDotted;
  return taps >= kTapsDotted ? kMaxPositionsDottedOfTaps : kMaxPositionsDotted;
}
int64_t most_pairs_written(const Problem& p, bool taps_inside) {
  const Geometry& g = p.geometry;
  const int64_t taps = g.w_positions(), bytes = 2 * g.w_size();
  if (inside(g) < kLeastInside) return most_positions_in_vain(p);
  if (taps_inside && taps >= kTapsOfPanels) return kMaxPositionsOfLarge;
  if (!taps_inside && taps >= kManyTaps) return kMaxPositions;
  if (bytes >= (taps_inside && of_line(g) ? kLargeWeights : kHugeWeights)) return kMaxPositionsOfHugeWritten;
  return bytes < 2 * kLargeWeights ? most_positions_written(g) : kMaxPositions;
}
int64_t most_positions_of_pairs(const Problem& p) {
  const Geometry& g = p.geometry;
  const bool taps_inside = p.w.channel != 1;
  return p.operation == Operation::backward_data ? most_pairs_dotted(g, taps_inside) : most_pairs_written(p, taps_inside);
}

// Whether there are few enough positions for that many weights.
bool few_positions(const Problem& p, int64_t most) {
  const Geometry& g = p.geometry;
  const bool packs_nothing = !p.prepacked || g.w_positions() >= kTapsOfPanels;
  return packs_nothing && g.batch * g.x_positions() <= most && g.w_size() >= kMinWeights * g.groups;
}

}  // namespace

bool native_takes(const Problem& p) {
  const Geometry& g = p.geometry;
  if (g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0 || !contiguous_rows(p)) return false;
  const int64_t positions = g.batch * g.x_positions();
  return positions <= kMaxLinks / g.w_positions() && g.batch * g.y_positions() <= kMaxResults;
}

bool native_pays(const Problem& p, const Request& request) {
  if (p.operation != Operation::conv_transpose) return few_positions(p, most_positions(p, request));
  // Pairs have a kernel of their own.
  return !vectors_multiply_pairs(p.type, request.isa) && native_is_faster(p, request, false);
}

bool native_of_pairs_pays(const Problem& p, const Request& request) {
  const bool dotted = p.operation == Operation::backward_data;
  if (p.type != Type::bf16 || request.isa < Isa::avx512_bf16) return false;
  if (!pairs_are_fast()) return few_positions(p, dotted ? kMaxPositionsOfSlowDots : kMaxPositionsOfSlow);
  if (request.isa >= Isa::amx) return false;
  return p.operation == Operation::conv_transpose ? native_is_faster(p, request, true)
                                                  : few_positions(p, most_positions_of_pairs(p));
}

}  // namespace torch_ext::cpu
