// SPDX-License-Identifier: Apache-2.0
// The tiles of Winograd's F(3, 2) and F(2, 3) along the axes of conv_transpose and backward_data, without any arithmetic on data.
#pragma once
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "csrc/cpu/cpu.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/rows.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

inline constexpr int64_t kPoints = 4;  // of a tile along an axis, for three results of two taps or two of three
inline constexpr int64_t kMostPoints = kPoints * kPoints * kPoints;

using Coordinates = std::array<int64_t, kAxes>;

// Terms of a chain of products, where so many axes are transformed: with each of them the errors of sums weigh more.
inline int64_t terms_of_chain(int axes) { return kMaxTerms / 2 >> std::max(axes - 1, 0); }

// One axis in the phases that have most taps, or in the others, which have one tap less: where taps are several they are cut into
// segments of two or of three, which are transformed. Segments are known by their first kernel position k: that of the phase, and
// so many strides on for each segment before as it has taps. Tile t reads point e at read(t, e, k) and writes result j at
// write(t, j, k); only the side of y depends on the phase, and only that of the input on the segment.
//
// What stride and dilation have in common is the spacing of the positions of y that are reached at all: strides, phases and taps
// are those of these positions.
struct WinogradAxis {
  int64_t taps = 1;  // of a segment
  bool forward = true;
  int64_t spacing = 1, stride = 1, offset = 0, in_extent = 1, out_extent = 1;
  int64_t segments = 1;             // of a phase
  int64_t points = 1, results = 1;  // of a tile
  int64_t first = 0, cells = 1;     // that results are in: the first one, and how many
  int64_t tiles = 1;                // along the axis

  WinogradAxis() = default;
  WinogradAxis(const Axis& a, Operation operation, bool of_most)
      : taps(segment_of(taps_of(a, of_most))),
        forward(operation == Operation::conv_transpose),
        spacing(spacing_of(a)),
        stride(a.stride / spacing),
        offset(a.offset),
        in_extent(forward ? a.x : a.y),
        out_extent(forward ? a.y : a.x),
        segments(taps_of(a, of_most) / taps),
        points(transformed() ? kPoints : 1),
        results(points + 1 - taps),
        first(forward ? parts_of(a.offset, spacing) / stride : 0),
        cells(forward ? (a.y - 1 + a.offset) / spacing / stride + 1 - first : a.x),
        tiles(parts_of(cells, results)) {}
  bool transformed() const { return taps > 1; }
  // The taps of those phases; of the others there may be none.
  static int64_t taps_of(const Axis& a, bool of_most) { return (a.w + (of_most ? strides_of(a) - 1 : 0)) / strides_of(a); }
  static int64_t phases_of(const Axis& a, bool of_most) {
    const int64_t most = a.w - (parts_of(a.w, strides_of(a)) - 1) * strides_of(a);
    return of_most ? most : strides_of(a) - most;
  }
  // Taps of a segment, where taps can be cut into those; else 0.
  static int64_t segment_of(int64_t taps) { return taps < 2 ? taps : taps % 2 == 0 ? 2 : taps % 3 == 0 ? 3 : 0; }
  static int64_t spacing_of(const Axis& a) { return a.w > 1 ? std::gcd(a.stride, a.dilation) : a.stride; }
  static int64_t strides_of(const Axis& a) { return a.stride / spacing_of(a); }
  // To tiles of so many results, one in each of their cells.
  void widen(int64_t to) { results = to, points = to - 1 + taps, tiles = parts_of(cells, to); }
  int64_t read(int64_t tile, int64_t point, int64_t k) const {
    const int64_t cell = first + tile * results + point;
    return forward ? cell - (taps - 1) - k / (taps * stride) * taps : (cell * stride + k) * spacing - offset;
  }
  int64_t write(int64_t tile, int64_t result, int64_t k) const {
    const int64_t cell = first + tile * results + result;
    return forward ? (cell * stride + k % stride) * spacing - offset : cell;
  }
  // What the points of a tile and the segments of a phase reach beyond its results, in cells.
  int64_t reach() const { return taps * segments - 1; }
  // Of all points or results of a tile, `step` reals from one position to the next; negative for positions that do not exist.
  using Offsets = int64_t[kPoints];
  void reads(int64_t tile, int64_t k, int64_t step, Offsets& at) const {
    for (int64_t e = 0; e < points; ++e) at[e] = offset_of(read(tile, e, k), in_extent, step);
  }
  void writes(int64_t tile, int64_t k, int64_t step, Offsets& at) const {
    for (int64_t e = 0; e < results; ++e) at[e] = offset_of(write(tile, e, k), out_extent, step);
  }
  // Positions from one cell to the next.
  int64_t in_step() const { return forward ? 1 : stride * spacing; }
  int64_t out_step() const { return forward ? stride * spacing : 1; }
  bool reached(int64_t y) const { return (y + offset) % spacing == 0; }

 private:
  static int64_t offset_of(int64_t i, int64_t extent, int64_t step) { return i >= 0 && i < extent ? i * step : -1; }
};

// Some tiles of some samples.
struct TileBlock {
  Range sample, tile[kAxes];

  int64_t tiles() const { return sample.size() * tile[0].size() * tile[1].size() * tile[2].size(); }
};

// Transformed rows of tiles from one point to the next: one more than there are, as multiples of a page would put all points into
// the same sets of the L1 cache.
inline int64_t rows_of_point(const TileBlock& block) { return block.tiles() + 1; }

// What blocks are cut from: tiles of so many cells along each axis.
struct WinogradGrid {
  WinogradAxis axis[kAxes];
  int64_t results = 1;  // of a tile

  int64_t count(int64_t batch) const { return batch * axis[0].tiles * axis[1].tiles * axis[2].tiles; }
  // Blocks of about so many cells, cut evenly into whole tiles.
  TileBlock cut(int64_t batch, int64_t cells) const;
  int64_t block_count(int64_t batch, const TileBlock& shape) const;
  // Takes a block out of an index that counts them, the innermost axis fastest; what counts them all remains.
  TileBlock take_block(int64_t& index, int64_t batch, const TileBlock& shape) const;
  // The positions that a block reads, and writes, in all phases.
  Region positions_read(const TileBlock& block) const;
  Region positions_written(const TileBlock& block) const;
  // Those of some channels, to ask for.
  static Patch patch(const TileBlock& block, Range channels, const Region& positions);
  // As many along each axis, of the largest block; and all that there are.
  void most_read(const TileBlock& largest, int64_t* lengths) const;
  void most_written(const TileBlock& largest, int64_t* lengths) const;
  Region whole_input() const;
  Region whole_output() const;
};

// The tiles of the phases that have most taps along the same axes, and one less along the others: of all phases where the kernel
// is a multiple of the stride.
struct WinogradTiles : WinogradGrid {
  WinogradTiles(const Geometry& geometry, Operation operation, const bool* of_most);
  // Of all phases, the ones with most taps first. None where a phase has no tap along an axis, where taps cannot be cut into
  // segments, where segments are too many, or where all phases have one tap.
  static std::vector<WinogradTiles> of_all_phases(const Geometry& geometry, Operation operation);
  // The smallest tiles that those of all classes fill; all cells along an axis that has less than two of these.
  static WinogradGrid grid_of(const std::vector<WinogradTiles>& classes);
  // How many products of the formula one of all classes replaces. The formula has none at borders.
  static double saved(const Geometry& geometry, Operation operation);

  bool of_twos() const { return shape == 1 << axes; }  // all segments
  int64_t phases() const { return int64_t(first_taps.size()) / segments; }
  // How many segments a result sums over: those of its phase, or of backward_data those of all phases.
  int64_t summed(Operation operation) const {
    return operation == Operation::backward_data ? int64_t(first_taps.size()) : segments;
  }
  // The tiles that cover those of a block of the grid.
  TileBlock cover(const TileBlock& block, const WinogradGrid& grid) const;
  // visit(rows) for one tile of a block after the other, with the rows of its points, or results, of some taps, the innermost
  // axis fastest; `elsewhere` for one that does not exist. Sample 0 begins at `origin`.
  template <class Real, class Visit>
  void each_points(const TileBlock& block, const Coordinates& k, Real* origin, int64_t sample, const int64_t* step,
                   Real* elsewhere, Visit visit) const {
    const auto find = [&](size_t a, int64_t tile, WinogradAxis::Offsets& at) { axis[a].reads(tile, k[a], step[a], at); };
    each_tile(block, point_extent, find, origin, sample, elsewhere, visit);
  }
  template <class Real, class Visit>
  void each_results(const TileBlock& block, const Coordinates& k, Real* origin, int64_t sample, const int64_t* step,
                    Real* elsewhere, Visit visit) const {
    const auto find = [&](size_t a, int64_t tile, WinogradAxis::Offsets& at) { axis[a].writes(tile, k[a], step[a], at); };
    each_tile(block, result_extent, find, origin, sample, elsewhere, visit);
  }
  int axes = 0;          // that are transformed,
  int shape = 1;         // as the tables of transforms have them
  int64_t points = 1;    // of a tile
  int64_t segments = 1;  // of a phase
  Coordinates point_extent, result_extent;
  // The first taps of all segments of all phases, those of a phase one behind the other, and the kernel positions of all of a
  // segment's taps, in the order in which they meet the inputs.
  std::vector<Coordinates> first_taps;
  std::vector<std::vector<int64_t>> tap_positions;

 private:
  // find(axis, tile, at) are the offsets along an axis.
  template <class Find, class Real, class Visit>
  static void each_tile(const TileBlock& block, const Coordinates& extent, Find find, Real* origin, int64_t sample,
                        Real* elsewhere, Visit visit) {
    WinogradAxis::Offsets at[kAxes];
    for (int64_t n = block.sample.begin; n < block.sample.end; ++n)
      for (int64_t t0 = block.tile[0].begin; t0 < block.tile[0].end; ++t0) {
        find(0, t0, at[0]);
        for (int64_t t1 = block.tile[1].begin; t1 < block.tile[1].end; ++t1) {
          find(1, t1, at[1]);
          for (int64_t t2 = block.tile[2].begin; t2 < block.tile[2].end; ++t2) {
            find(2, t2, at[2]);
            Real* rows[kMostPoints];
            Real** row = rows;
            for (int64_t i = 0; i < extent[0]; ++i)
              for (int64_t j = 0; j < extent[1]; ++j)
                for (int64_t k = 0; k < extent[2]; ++k) {
                  const int64_t a = at[0][i], b = at[1][j], c = at[2][k];
                  *row++ = (a | b | c) < 0 ? elsewhere : origin + n * sample + a + b + c;
                }
            visit(rows);
          }
        }
      }
  }
};

}  // namespace torch_ext::cpu
