// SPDX-License-Identifier: Apache-2.0
// backward_weights as matrix products of (channels of x) x (positions) by (positions) x (taps and channels of y), the positions
// cut into parts whose sums are added in their order afterwards. Where y has fewer channels than a tile is wide, a tile has
// several taps: then zeros of the border of y may meet an infinity or a NaN of x, and weights that are not finite are computed
// again without them.
#pragma once
#include "csrc/cuda/pack.h"

namespace torch_ext::cuda {

// Channels of a tile, on both sides.
inline constexpr int kOuterSide = 64, kOuterStages = 3, kOuterThreads = 128;
// Positions of a step.
constexpr int outer_step(int64_t bytes_of_type) { return bytes_of_type == 4 ? 16 : 32; }

struct OuterArguments {
  Axis axis[kAxes];
  int64_t batch, groups;
  int64_t x_room, y_room;  // channels of a group in memory, whole vectors
  int64_t tap_room;        // columns of a tap
  int64_t x_tiles, y_tiles, parts, part_positions;
  Strides x_strides, y_strides;
  const void* x;
  const void* y;
  float* sums;  // [part][group][x_tiles * kOuterSide][y_tiles * kOuterSide]
};

const char* launch_outer(const OuterArguments& arguments, TileMath math, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
