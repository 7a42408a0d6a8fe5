// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/wide_lines.h"

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

double WideLines::products(int64_t lines, int64_t width) const {
  constexpr int64_t kNearBytes = 1 << 20, kWaitingBytes = 24 << 10, kLongStride = 4;
  constexpr double kNear = 0.25, kFar = 1.6, kBrought = 4, kFetched = 10, kTile = 150;
  const int64_t pitch = plane_axis_[2].reached(width);
  const int64_t vectors = parts_of((lines - 1) * pitch + width, lanes_), step = axis_[2].out_step;
  const double tiles = row_tiles_ * double(parts_of(vectors, most_vectors_));
  const bool fetched = step >= kLongStride && step * rows_ * vectors * lanes_ * real_ > kWaitingBytes;
  const double brought = double(depth_ * plane_axis_[1].reached(lines) * parts_of(pitch, lanes_));
  return weights_ * (double(vectors) + (weights_ * double(real_) > kNearBytes ? kFar : kNear)) + kTile * tiles +
         (fetched ? kFetched * results_ * double(vectors) : 0) + kBrought * brought;
}

// (21 to 21 channels, 32x32, k12 s6: one line at a time takes 0.8 of the time of two; 20x20, k16 s8: three 0.75 of one; 16x16,
// k64 s32, weights of 7 MB: eight 0.12 of an eighth of one.)
int64_t WideLines::at_once(int64_t most, int64_t width) const {
  int64_t best = 1;
  double least = 0;
  for (int64_t lines = 1; lines <= most; ++lines) {
    const double all = products(lines, width) * double(parts_of(axis_[1].cells, lines));
    if (lines == 1 || all < least) best = lines, least = all;
  }
  return best;
}

}  // namespace torch_ext::cpu
