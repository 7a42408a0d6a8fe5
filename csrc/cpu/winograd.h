// SPDX-License-Identifier: Apache-2.0
// The tiles of Winograd's F(3, 2) along the axes of conv_transpose and backward_data, without any arithmetic on data.
#pragma once
#include <algorithm>
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
  // Of all points or results of a tile, `step` reals from one position to the next; negative for positions that do not exist.
  using Offsets = int64_t[kPoints];
  void reads(int64_t tile, int64_t phase, int64_t step, Offsets& at) const {
    for (int64_t e = 0; e < points; ++e) at[e] = offset_of(read(tile, e, phase), in_extent, step);
  }
  void writes(int64_t tile, int64_t phase, int64_t step, Offsets& at) const {
    for (int64_t e = 0; e < results; ++e) at[e] = offset_of(write(tile, e, phase), out_extent, step);
  }
  // Positions from one cell to the next.
  int64_t in_step() const { return forward ? 1 : stride; }
  int64_t out_step() const { return forward ? stride : 1; }

 private:
  static int64_t offset_of(int64_t i, int64_t extent, int64_t step) { return i >= 0 && i < extent ? i * step : -1; }
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

// The rows of a tile, the innermost axis fastest, from offsets along each axis; `elsewhere` for one that does not exist.
template <class Real>
void list_rows(const WinogradAxis::Offsets (&at)[kAxes], const Coordinates& extent, Real* origin, Real* elsewhere, Real** rows) {
  for (int64_t i = 0; i < extent[0]; ++i)
    for (int64_t j = 0; j < extent[1]; ++j)
      for (int64_t k = 0; k < extent[2]; ++k) {
        const int64_t a = at[0][i], b = at[1][j], c = at[2][k];
        *rows++ = (a | b | c) < 0 ? elsewhere : origin + a + b + c;
      }
}

}  // namespace torch_ext::cpu
