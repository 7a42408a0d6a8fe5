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

// Transforms a tile, one transformed axis after the other, the innermost first: every `From` of its rows along an axis become
// `To`. At first there are From^axes rows, with the innermost axis fastest, and in the end `rows` leads to To^axes results.
// into(last, used, k) is where result k of an axis goes: whether that axis is the last one, and how many results came before.
template <int64_t From, int64_t To, class Into, class Transform>
void along_each_axis(const float** rows, int64_t count, Into into, Transform transform) {
  int64_t used = 0;
  for (int64_t outer = count / From, inner = 1; outer > 0; outer /= From, inner *= To) {
    const float* next[kMostPoints];
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) {
        const float* from[From];
        float* to[To];
        for (int64_t e = 0; e < From; ++e) from[e] = rows[(o * From + e) * inner + i];
        for (int64_t e = 0; e < To; ++e) {
          const int64_t k = (o * To + e) * inner + i;
          next[k] = to[e] = into(outer == 1, used++, k);
        }
        transform(from, to);
      }
    std::copy_n(next, outer * inner * To, rows);
  }
}

}  // namespace torch_ext::cpu
