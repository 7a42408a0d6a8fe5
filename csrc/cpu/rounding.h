// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <cstdint>

#include "csrc/core/geometry.h"

namespace torch_ext::cpu {

// What lies from `begin` up to `end`.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// How many parts of at most `part` make up `value`.
inline int64_t parts_of(int64_t value, int64_t part) { return (value + part - 1) / part; }
inline int64_t round_up(int64_t value, int64_t multiple) { return parts_of(value, multiple) * multiple; }
// The size of the parts where `value` is cut evenly into as few of at most `most` as there can be.
inline int64_t even_part(int64_t value, int64_t most) { return value > 0 ? parts_of(value, parts_of(value, most)) : 0; }

// Part `index` of some that have `size` of `all`, the last maybe less.
inline Range part(int64_t index, int64_t size, int64_t all) { return {index * size, std::min((index + 1) * size, all)}; }
// Part `index` of so many of about the same size.
inline Range even_range(int64_t index, int64_t parts, int64_t all) { return {index * all / parts, (index + 1) * all / parts}; }
// Whether so many are cut evenly into so many pieces, or nearly.
inline bool even(int64_t count, int64_t pieces) { return 8 * parts_of(count, pieces) * pieces <= 9 * count; }

inline constexpr int64_t kCacheLine = 64;
// From one row to the next of `count` elements of `size` bytes: whole cache lines, and no multiple of 2 KB, which would put the
// rows of a tile into a few sets of the L1 cache.
inline int64_t row_pitch(int64_t count, int64_t size) {
  const int64_t bytes = round_up(count * size, kCacheLine);
  return (bytes % 2048 ? bytes : bytes + kCacheLine) / size;
}

// The first i >= 0 for which i*step + shift is at least `value`.
inline int64_t first_reaching(int64_t value, int64_t shift, int64_t step) {
  return value > shift ? parts_of(value - shift, step) : 0;
}

// Products of the formula along an axis: positions of x and taps that meet in y.
inline int64_t products_of(const Axis& a) {
  int64_t products = 0;
  for (int64_t k = 0; k < a.w; ++k) {
    const int64_t shift = k * a.dilation - a.offset;
    products += std::min(first_reaching(a.y, shift, a.stride), a.x) - std::min(first_reaching(0, shift, a.stride), a.x);
  }
  return products;
}
// And along all of them, for a channel of x and one of y.
inline double products_of(const Geometry& g) {
  double products = double(g.batch);
  for (const Axis& axis : g.axis) products *= double(products_of(axis));
  return products;
}

// The share of products that are not with what lies outside of y.
inline double inside(const Geometry& g) {
  double share = 1;
  for (const Axis& axis : g.axis) share *= double(products_of(axis)) / double(axis.x * axis.w);
  return share;
}

// Whether the positions are those of a single line.
inline bool x_is_line(const Geometry& g) { return g.x_positions() == g.axis[kAxes - 1].x; }
inline bool y_is_line(const Geometry& g) { return g.y_positions() == g.axis[kAxes - 1].y; }

// Positions of y for each of x. Strides may be longer than any axis, and their product than any integer.
inline double strides_of(const Geometry& g) {
  return double(g.axis[0].stride) * double(g.axis[1].stride) * double(g.axis[2].stride);
}
inline int64_t longest_stride(const Geometry& g) { return std::max({g.axis[0].stride, g.axis[1].stride, g.axis[2].stride}); }
// How many taps meet an element of y, rounded down.
inline int64_t taps_met(const Geometry& g) { return int64_t(double(g.w_positions()) / strides_of(g)); }
// Elements of y that a position of x meets and the one before it does not.
inline int64_t newly_met(const Geometry& g) {
  int64_t count = g.y_channels;
  for (const Axis& axis : g.axis) count *= std::min(axis.stride, axis.w);
  return count;
}

// Cuts axes of extent(a) into even pieces, the innermost ones first, of which one has at most about `room` positions; pieces of
// the innermost axis are multiples of `multiple`. Returns how many samples there is room for.
template <class Extent>
int64_t cut_axes(Extent extent, int64_t room, int64_t* piece, int64_t multiple = 1) {
  for (int a = kAxes - 1; a >= 0; --a, multiple = 1) {
    piece[a] = round_up(std::max<int64_t>(1, even_part(extent(a), room)), multiple);
    room = std::max<int64_t>(1, room / piece[a]);
  }
  return room;
}

// How many pieces that leaves of all axes.
template <class Extent>
int64_t piece_count(Extent extent, const int64_t* piece) {
  int64_t count = 1;
  for (int a = 0; a < kAxes; ++a) count *= parts_of(extent(a), piece[a]);
  return count;
}

// f(piece) for the pieces of one axis.
template <class F>
void for_each_piece(int64_t extent, int64_t piece, F f) {
  const int64_t parts = parts_of(extent, piece);
  for (int64_t i = 0; i < parts; ++i) f(even_range(i, parts, extent));
}

// Takes the piece of each axis out of an index that counts them, the innermost axis fastest; what counts them all remains.
template <class Extent>
void take_piece(int64_t& index, Extent extent, const int64_t* piece, Range* taken) {
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t parts = parts_of(extent(a), piece[a]);
    taken[a] = even_range(index % parts, parts, extent(a));
    index /= parts;
  }
}

// From which on work is worth being shared by more than 16 threads, up to 64.
inline constexpr double kManyThreadsFlops = 4e9;

// Whether equal items keep threads busy for at least 7/8 of the time, two of them 15/16, as many threads as the work is worth, of
// those that there are. Where the bits of a result depend on how work is cut, it is cut for any number of threads, by the shape
// alone.
inline constexpr int64_t kAnyThreads = 64;
inline bool shared_evenly(int64_t items, double flops, int64_t threads = kAnyThreads) {
  struct Share {
    int64_t threads;
    double flops;  // from which on: some fifty microseconds a thread, or more where finer items would cost more than they gain
  };
  for (const Share& share : {Share{2, 32e6}, Share{8, 128e6}, Share{16, 256e6}, Share{kAnyThreads, kManyThreadsFlops}}) {
    const int64_t by = std::min(share.threads, threads), of = by <= 2 ? 16 : 8;
    if (flops >= share.flops && (of - 1) * round_up(items, by) > of * items) return false;
  }
  return true;
}

}  // namespace torch_ext::cpu
