// SPDX-License-Identifier: Apache-2.0
// The tiles of Winograd's F(3, 2) along the axes of conv_transpose and backward_data, without any arithmetic on data.
#pragma once
#include <array>
#include <vector>

#include "csrc/core/geometry.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

inline constexpr int64_t kPoints = 4, kResults = 3;  // of a tile along an axis
inline constexpr int64_t kMostPoints = kPoints * kPoints * kPoints;

// One axis: transformed (kernel = 2*stride), or of no extent in the kernel (kernel = stride = 1). Tile t reads point e of phase r
// at read(t, e, r), and writes result j of phase r at write(t, j, r); only the side of y has phases.
struct WinogradAxis {
  bool transformed = false, forward = true;
  int64_t stride = 1, offset = 0, in_extent = 1, out_extent = 1;
  int64_t points = 1, results = 1;  // of a tile
  int64_t first = 0, tiles = 1;     // cell of the first result, tiles along the axis

  WinogradAxis() = default;
  WinogradAxis(const Axis& a, Operation operation)
      : transformed(a.w == 2 * a.stride),
        forward(operation == Operation::conv_transpose),
        stride(a.stride),
        offset(a.offset),
        in_extent(forward ? a.x : a.y),
        out_extent(forward ? a.y : a.x),
        points(transformed ? kPoints : 1),
        results(transformed ? kResults : 1),
        first(forward ? a.offset / a.stride : 0) {
    tiles = parts_of(forward ? (a.y - 1 + a.offset) / a.stride + 1 - first : a.x, results);
  }
  int64_t read(int64_t tile, int64_t point, int64_t phase) const {
    const int64_t cell = first + tile * results + point;
    return forward ? cell - (transformed ? 1 : 0) : cell * stride + phase - offset;
  }
  int64_t write(int64_t tile, int64_t result, int64_t phase) const {
    const int64_t cell = first + tile * results + result;
    return forward ? cell * stride + phase - offset : cell;
  }
  // Positions from one cell to the next.
  int64_t in_step() const { return forward ? 1 : stride; }
  int64_t out_step() const { return forward ? stride : 1; }
};

using Coordinates = std::array<int64_t, kAxes>;

// The coordinates of all indices of a box.
inline std::vector<Coordinates> coordinates_of(const Coordinates& extent) {
  std::vector<Coordinates> all;
  for (int64_t i = 0; i < extent[0]; ++i)
    for (int64_t j = 0; j < extent[1]; ++j)
      for (int64_t k = 0; k < extent[2]; ++k) all.push_back({i, j, k});
  return all;
}

}  // namespace torch_ext::cpu
