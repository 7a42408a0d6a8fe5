// SPDX-License-Identifier: Apache-2.0
// backward_weights as matrix products: for each tap one of (channels of x) x (positions) by (positions) x (channels of y), the
// positions cut into parts whose sums are added in their order afterwards.
#pragma once
#include "csrc/cuda/cuda.h"

namespace torch_ext::cuda {

// Channels of a tile, on both sides, and the bytes that a step adds along the positions: `kOuterStep` rows of each side.
inline constexpr int kOuterSide = 64, kOuterStages = 3, kOuterThreads = 128;
constexpr int outer_step(Type type) { return type == Type::f32 ? 16 : 32; }

struct OuterArguments {
  Axis axis[kAxes];
  int64_t batch, groups, x_channels, y_channels;  // of a group
  int64_t x_room, y_room;                         // of a group in memory, whole vectors
  int64_t x_tiles, y_tiles, parts, part_positions;
  Strides x_strides, y_strides, w_strides;
  const void* x;
  const void* y;
  float* sums;  // [part][group][tap][x_tiles * kOuterSide][y_tiles * kOuterSide]
  void* w;
};

const char* launch_outer(const OuterArguments& arguments, Type type, const Launch& shape, Stream stream);
const char* launch_outer_sum(const OuterArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
