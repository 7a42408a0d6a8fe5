// SPDX-License-Identifier: Apache-2.0
// The innermost loops, once for each instruction set: everything that touches vector registers, and nothing else.
// Real is the type that is computed in: float for f32, bf16 and f16, double for f64.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/cpu.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

inline constexpr int kMaxLanes = 16;   // of any instruction set
inline constexpr int kMaxVectors = 4;  // vectors of a tile's row
inline constexpr int kMaxRows = 32;    // rows of a tile

// Whether channels fill the widest tiles of any instruction set, to the end of a vector.
inline bool fill_tiles(int64_t channels) { return channels >= kMaxVectors * kMaxLanes && channels % kMaxLanes == 0; }

// Tiles sum from zero and add to init, or to what `out` holds, in the end: the shorter the sums, the smaller their rounding
// errors, so long ones are made of several calls, of so many terms each.
inline constexpr int64_t kMaxTerms = 128;
// Of a panel, which stays in L1 while tiles pass over it.
inline constexpr int64_t kPanelBytes = 32 << 10;

// A gather tile: out[m][n] = init[n] + sum over t < taps, c < depth of rows[t][m][first + c] * panels[t][(first + c)*width + n]
// for m < rows of the tile and n < columns <= width = vectors * lanes. A null `init` stands for what `out` holds.
template <class Real>
struct GatherTile {
  int count;                // rows of the tile
  const Real* const* rows;  // rows[t * row_pitch + m]
  int64_t row_pitch;
  const Real* const* panels;  // panels[t], width reals for each channel, zero beyond the last column
  int64_t taps, first, depth;
  Real* const* out;  // out[m] + out_offset
  int64_t out_offset;
  const Real* init;  // width reals
  int64_t columns;
  int64_t next = 0;  // rows to where those of the next tile are, which are asked for in advance; 0: none
  // Where given, the results are rounded to `type` and stored at narrow[m] + narrow_offset (bytes) instead of `out`.
  void* const* narrow = nullptr;
  int64_t narrow_offset = 0;
  Type type = Type::f32;
  // Of tables whose reals are pairs of bf16 alone: rows are planes of parts of the values, `plane` reals each, the largest first,
  // and panels are such planes, the smallest first. Summed are the products of part i of a row and part j of a panel where
  // i + j < orders, rows[t][m][i*plane + first + c] * panels[t][((parts - 1 - j)*plane + first + c)*width + n].
  int parts = 1, orders = 1;
  int64_t plane = 0;
  // Of tables that ask: what is to be read soon, in bytes. At every 64 bytes of a row the next step is asked for.
  const char* soon = nullptr;
  int64_t soon_step = 0;
  // Of gather_chains of one chain: sums of so many terms are added to `out` one after the other.
  int64_t terms = std::numeric_limits<int64_t>::max();
  int64_t asked_results = 0;  // rows from those of the tile to those whose results are asked for

  // Has so many tiles like this one ask for the next weights, as many as these, of panels that wide: each for a share. Returns
  // how far shares are apart.
  int64_t ask_for(const Real* next, int64_t width, int64_t tiles) {
    const int64_t asks = taps * parts_of(depth * int64_t(sizeof(Real)), kCacheLine);
    soon = reinterpret_cast<const char*>(next);
    soon_step = round_up(taps * depth * width * int64_t(sizeof(Real)) / (tiles * asks), kCacheLine);
    return asks * soon_step;
  }
};

// An outer-product tile: out[m*out_pitch + n] (+)= sum over runs r, p < count of a[r][p*a_pitch + m] * b[r][p*b_pitch + n], added
// to what is there where `add`.
template <class Real>
struct OuterRun {
  const Real *a, *b;
  int64_t count;
};
template <class Real>
struct OuterTile {
  const OuterRun<Real>* runs;
  int64_t run_count, a_offset, b_offset, a_pitch, b_pitch;
  Real* out;
  int64_t out_pitch, columns;
  bool add = true;
  int rows = 0;  // of the tile
  // Of tables that ask: what is to be read soon, in bytes. At every term the next step is asked for.
  const void* next = nullptr;
  int64_t next_step = 0;
  // Of tables of matrices alone, where a_pitch is 1: from a[m] to a[m + 1], which are there up to a multiple of 16 rows.
  // Counts of runs are multiples of 16, and columns of b are there up to whole vectors. Rows hold parts of values, the largest
  // first, so far apart; as in a gather tile.
  int64_t a_step = 1;
  int parts = 1, orders = 1;
  int64_t a_plane = 0, b_plane = 0;
  int64_t terms = std::numeric_limits<int64_t>::max();  // of outer_chains, as of gather_chains
};

// Long rows of b that a few positions share: out[m*out_pitch + n] = sum over r < rows of a[r*a_pitch + m] * b[r*b_pitch + n] for
// the positions m of the tile, n < columns. b is of some type, or of pairs as a is. Few rows at a time are read side by side to
// their ends, as processors do best.
inline constexpr int kRowsPositions = 2;
template <class Real>
struct RowsTile {
  const Real* a;
  const void* b;
  Type type;
  int64_t a_pitch, b_pitch, rows;
  Real* out;
  int64_t out_pitch, columns;
};

// A wide tile, lanes along positions: out[m*out_pitch + p] = init[m] (a null `init`: what `out` holds) + sum over t < taps, c <
// depth of weights[t][(first + c)*rows + m] * in[c*in_pitch + offsets[t] + p] for m < rows of the tile and p < columns <= vectors
// * lanes; `out` has room for whole vectors. With a `step` of 2 or 4 so many rows one after the other are woven into a line:
// out[m/step*out_pitch + p*step + m%step] = init[m/step] + ..., and `out` need have no more room; where lines begin with cache
// lines and `init` is given they may go past the caches (`streams`, publish_streamed). Tables of matrices read
// weights[t][m*weights_pitch + first + c]; there, `step` is 1, `depth` a multiple of depth_step, `init` zeros, and weights, `in`
// and `out` are there up to 16 rows and whole vectors.
inline constexpr int kWideRows = 16, kWideVectors = 12;
inline constexpr int64_t kAskedChannels = 8;
template <class Real>
struct WideTile {
  const Real* in;
  int64_t in_pitch, first, depth, taps;
  const int64_t* offsets;
  const Real* const* weights;
  const Real* init;
  Real* out;
  int64_t out_pitch, columns;
  int64_t weights_pitch = 0;
  Upcoming* next = nullptr;  // of tables that ask: a step for every kAskedChannels of depth
  int64_t step = 1;
  bool streams = false;
  int64_t ahead = 0;  // of tables that do not: from `in` to what is read next, asked for line by line of depth; 0: nothing is
};

// Lines of an overlap-add, or parts of them: to[l*to_pitch + j*step + r] = init + sum over the taps of phase r, of those for
// which 0 <= i < extent where i = j + delta + shift, of from[l*from_pitch + offset + i], for l < lines, j*step + r < count, r <
// step.
struct OverlapTap {
  int64_t offset, delta;
};
struct OverlapPhase {
  const OverlapTap* taps;
  int64_t count;
};
template <class Real>
struct OverlapLines {
  const Real* from;
  int64_t from_pitch, extent, shift;
  const OverlapPhase* phases;  // step of them
  int64_t step;
  Real init;
  Real* to;
  int64_t to_pitch, lines, count;
  Real* room;  // for `step` lines of whole vectors
};

// A dot tile: out[m*out_pitch + t] += sum over runs r, p < count of a[r][m*a_pitch + p] * b[r][offsets[t] + p] for m < rows and
// t < taps of the tile.
inline constexpr int kDotRows = 4, kDotTaps = 8;
template <class Real, class Element = Real>
struct DotTile {
  const OuterRun<Element>* runs;
  int64_t run_count, a_offset, a_pitch;
  const int64_t* offsets;
  Real* out;
  int64_t out_pitch;
  // Of tables that ask, for several rows: from a to what is to be read soon, as much of it as there is of a row, and whether of
  // as many rows as the tile has.
  int64_t next = 0;
  bool next_of_all = false;
};

// What is soon to be read or written: while position p is computed, its channels at from[p*step] are asked for.
template <class Real>
struct Ahead {
  const Real* from;
  int64_t step;
};

// Depthwise tiles, lanes along channels: out[p*out_step + c] = init[c] (a null `init`: what `out` holds) + sum over t < terms of
// in[t][p*in_step + c] * weights[t][c], and, of the weights, sums[t][c] += sum over p of a[p*a_step + c] * b[t][p*b_step + c],
// for p < count, c < channels. What `init`, `in` and `b` point to repeats after `period`, at least a vector, which channel c then
// reads at c % period: it is there from each multiple of a vector's lanes, modulo the period, for a whole vector.
inline constexpr int64_t kNoPeriod = INT64_MAX;
template <class Real>
struct DepthwiseTile {
  const Real* const* in;
  const Real* const* weights;
  int64_t terms, in_step, count, channels;
  const Real* init;
  Real* out;
  int64_t out_step;
  const Ahead<Real>* ahead = nullptr;
  int64_t ahead_count = 0;
  int64_t period = kNoPeriod;
};
template <class Real>
struct DepthwiseSums {
  const Real* a;
  int64_t a_step;
  const Real* const* b;
  int64_t b_step;
  Real* const* sums;
  int64_t terms, count, channels;
  const Ahead<Real>* ahead = nullptr;
  int64_t ahead_count = 0;
  int64_t period = kNoPeriod;
};

// Lines of a plane brought in order: to[l*to_pitch + r*slot + j] = from[l*from_pitch + j*step + r], converted from `type`, for
// l < lines, j*step + r < count, r < step. Returns whether all is finite.
inline constexpr int kLineSteps = 4;  // the longest step, also of results
template <class Real>
struct LinesIn {
  Type type;
  const void* from;
  int64_t from_pitch, lines, count;
  Real* to;
  int64_t to_pitch, slot;
};
// Lines of results of a plane, of `type` and in `step` phases: to[l*to_pitch + j*step + r] = init + sum over the terms of phase r
// of a weight * in[l*in_pitch + offset + j] for l < lines, j*step + r < count. First come `shared` terms that all phases have,
// with `step` weights each, then the own[r] terms of each phase alone. `in` is there up to whole vectors.
template <class Real>
struct LinesTile {
  const Real* in;
  int64_t in_pitch;
  const int64_t* offsets;
  const Real* weights;
  int64_t shared;
  const int64_t* own;
  Real init;
  int64_t lines, count;
  Type type;
  void* to;
  int64_t to_pitch;  // in elements
};
// Their products: the lanes of sums[t] += those of the sum over l < lines, j < count of x[l*x_pitch + j] *
// y[l*y_pitch + offsets[t] + j] for the terms t of the tile.
inline constexpr int kLineTerms = 9;  // as many offsets as other registers hold
template <class Real>
struct LineSums {
  const Real* x;
  int64_t x_pitch;
  const Real* y;
  int64_t y_pitch;
  const int64_t* offsets;
  int64_t lines, count;
  Real* sums;
};

// Of Winograd's F(3, 2) and F(2, 3) along some axes of rows of `count` reals, the innermost axis fastest: of weights
// (g0, (g0+g1)/2, (g0-g1)/2, g1) and (g0, (g0+g1+g2)/2, (g0-g1+g2)/2, g2), of products (m0+m1+m2, m1-m2, m1+m2-m3) and
// (m0+m1+m2, m1-m2-m3); those of inputs (d0-d2, d1+d2, d2-d1, d1-d3) are the same for both. Rows of points are `pitch` apart. A
// vector of `check` stays zero while all that is written to `to` is finite. `add`: to what is there.
template <class Real>
struct WinogradTransforms {
  void (*weights)(const Real* const* from, Real* to, int64_t pitch, int64_t count);
  void (*output)(const Real* from, int64_t pitch, Real* const* to, int64_t count, bool add);
  // The transposed transforms: of the gradient of results (y0, y0+y1+y2, y0-y1+y2, -y2) and (y0, y0+y1, y0-y1, -y1), and of that
  // of the transformed weights (m0 + (m1+m2)/2, (m1-m2)/2 + m3) and (m0 + (m1+m2)/2, (m1-m2)/2, (m1+m2)/2 + m3).
  void (*output_gradient)(const Real* const* from, Real* to, int64_t pitch, int64_t count, Real* check);
  void (*weights_gradient)(const Real* from, int64_t pitch, Real* const* to, int64_t count, bool add);
};
// The taps along each axis that is transformed: 1 for none, then one axis at a time, the innermost last.
inline constexpr int winograd_shape(int of_outer_axes, int taps) { return 2 * of_outer_axes + (taps == 3 ? 1 : 0); }
inline constexpr int kWinogradShapes = 2 << kAxes;

// Vectors that sums of memory are added to in turn.
inline constexpr int kSumVectors = 8;

// Elements tap + e of row m of columns, and y + e of a channel, e < count (columns.h).
struct Link {
  int64_t m, tap, y, count;
};
// Of some channels: columns[m*pitch + c*of_channel + ...], y[c*y_pitch + ...].
template <class C, class Y>
struct Linked {
  const Link* links;
  int64_t count, channels;
  C* columns;
  int64_t pitch, of_channel;
  Y* y;
  int64_t y_pitch;
};

template <class Real>
struct Tiles {
  int lanes;                                                               // reals in a vector
  int max_vectors;                                                         // vectors of the widest tile
  int max_rows[kMaxVectors + 1];                                           // rows of the tallest tile, by vectors
  void (*gather[kMaxVectors + 1][kMaxRows + 1])(const GatherTile<Real>&);  // [vectors][rows]
  // Of gather tiles, by vectors: in how many sums of their own terms take turns, so that as many times more are summed at once
  // without erring more.
  int chains[kMaxVectors + 1];
  void (*outer[kMaxVectors + 1][kMaxRows + 1])(const OuterTile<Real>&);
  // Tables of float alone: tiles that err less. In two chains every second term is in a sum of its own, which leaves room for
  // half as many rows; those of one chain add to `out` after some terms instead.
  int chain_count, max_chain_rows[kMaxVectors + 1];
  void (*gather_chains[kMaxVectors + 1][kMaxRows + 1])(const GatherTile<Real>&);
  void (*outer_chains[kMaxVectors + 1][kMaxRows + 1])(const OuterTile<Real>&);  // ask for nothing
  // Gather, outer and wide tiles are of matrix registers: how they read `a` and weights. Their gather tiles take any number of
  // rows.
  bool matrices = false;
  int depth_step = 1;  // the depth of gather tiles is a multiple of it
  int row_step = 1;    // rows up to a multiple of it cost the same
  int column_step;     // and columns: the lanes of a vector, or half of them
  // Of 16 lanes, on a processor that computes them at once.
  bool whole_vectors() const { return lanes == kMaxLanes && column_step == lanes; }
  bool asks = false;  // outer and wide tiles ask for `next`, gather tiles for `soon`
  // Before and after those tiles of a thread, where given (ForTiles).
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
  int max_wide_rows;
  int max_wide_vectors[kWideRows + 1];                                   // by rows
  void (*wide[kWideRows + 1][kWideVectors + 1])(const WideTile<Real>&);  // [rows][vectors]
  int max_dot_taps[kDotRows + 1];                                        // by rows
  void (*dot[kDotRows + 1][kDotTaps + 1])(const DotTile<Real>&);         // [rows][taps]
  // The same of operands of 16 bits, in tables whose reals are pairs of bf16 alone.
  void (*dot_halves[kDotRows + 1][kDotTaps + 1])(const DotTile<Real, bf16>&);
  // to[offsets[j] + i] = from[i*pitch + j] for i < rows <= lanes, j < columns; zero for rows <= i < lanes.
  void (*transpose)(const Real* from, int64_t pitch, int rows, int64_t columns, Real* to, const int64_t* offsets);
  // Tables of float alone: the transforms of Winograd's algorithm.
  void (*winograd_input[kAxes + 1])(const Real* const* from, Real* to, int64_t pitch, int64_t count, Real* check);  // [axes]
  WinogradTransforms<Real> winograd[kWinogradShapes];                                                               // [shape]
  // to[i*to_pitch + j] = from[j*from_pitch + i] for i < rows, j < columns; the second for any type of 16 bits.
  void (*transpose_rows)(const Real* from, int64_t from_pitch, Real* to, int64_t to_pitch, int64_t rows, int64_t columns);
  void (*transpose_halves)(const uint16_t* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch, int64_t rows,
                           int64_t columns);  // in the tables of float alone
  // to[j*step + r] = from[r*pitch + j] for j*step + r < count, r < step.
  void (*weave)(const Real* from, int64_t pitch, int64_t step, Real* to, int64_t count);
  // The inverse: to[r*pitch + j] = from[j*step + r] for j < count, r < step.
  void (*unweave)(const Real* from, int64_t step, Real* to, int64_t pitch, int64_t count);
  // to[l*length + i] = from[l*pitch + i] for l < lines, i < length. Reads and writes up to a vector's lanes past the last of
  // them.
  void (*join_lines)(const Real* from, int64_t pitch, int64_t lines, int64_t length, Real* to);
  // Tables of vectors of 64 bytes alone, whose masks suit pieces of any length: of all links, in their order, y += columns, and
  // columns = y.
  void (*add_links)(const Linked<const Real, Real>&) = nullptr;
  void (*copy_links)(const Linked<Real, const Real>&) = nullptr;
  void (*overlap)(const OverlapLines<Real>&);
  void (*depthwise)(const DepthwiseTile<Real>&);
  void (*depthwise_sums)(const DepthwiseSums<Real>&);
  bool (*load_lines[kLineSteps + 1])(const LinesIn<Real>&);  // [step]
  void (*lines_of[kLineSteps + 1])(const LinesTile<Real>&);
  void (*line_sums[kLineTerms + 1])(const LineSums<Real>&);  // [terms]
  // to[j] = from[j*step] for j < count, step from 2 to 4; reads nothing past the last of them.
  void (*every)(const Real* from, int64_t step, Real* to, int64_t count);
  // to[i] = the pair (even[i], odd[i]), zeros for what is null; in tables whose reals are pairs of bf16 alone. Returns whether
  // all is finite.
  bool (*pair)(const uint16_t* even, const uint16_t* odd, Real* to, int64_t count);
  // to[i*pitch + j] = the pair (rows[2*i][offset + j], rows[2*i + 1][offset + j]) for i < pairs, j < count.
  void (*pair_rows)(const uint16_t* const* rows, int64_t offset, int64_t pairs, int64_t count, Real* to, int64_t pitch);
  // Splits floats into the bf16 that they are the sum of, to[i*pitch + j] for i < parts, the largest first; what `parts` of them
  // cannot hold is rounded. Returns whether all parts are what they should be: not for infinities, NaN and magnitudes above
  // 2^120, nor below 2^-103, of which the matrix instructions would take parts for zero. In tables whose reals are pairs of bf16
  // alone.
  bool (*split)(const float* from, int64_t count, int parts, uint16_t* to, int64_t pitch);
  void (*rows[kRowsPositions + 1])(const RowsTile<Real>&);  // [positions]
  // sums[c] += sum over r < rows of from[r*pitch + c], converted from `type`, for c < columns.
  void (*add_rows)(Type type, const void* from, int64_t pitch, int64_t rows, int64_t columns, Real* sums);
  // The sum of values of `type`.
  Real (*sum)(Type type, const void* from, int64_t count);
  // Whether none of the values is an infinity or a NaN.
  bool (*finite)(const Real* values, int64_t count);
  // Contiguous conversion between the stored type (one that computes in Real) and Real.
  void (*widen)(Type type, const void* from, Real* to, int64_t count);
  void (*narrow)(Type type, const Real* from, void* to, int64_t count);
  // Copies what is not read again soon: whole cache lines go past the caches, which then need not read them first
  // (publish_streamed).
  void (*stream)(const void* from, void* to, int64_t bytes);
};

// A result of so many bytes does not stay in the caches: depthwise planes take half of the time where these need not read it
// first.
inline constexpr int64_t kStreamedResultBytes = 16 << 20;
// After Tiles::stream or tiles that do the same, before another thread reads what this one wrote.
inline void publish_streamed() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// While it lives, its thread may call gather, outer and wide tiles.
template <class Real>
class ForTiles {
 public:
  explicit ForTiles(const Tiles<Real>& tiles) : tiles_(tiles) {
    if (tiles_.enter) tiles_.enter();
  }
  ~ForTiles() {
    if (tiles_.leave) tiles_.leave();
  }
  ForTiles(const ForTiles&) = delete;
  ForTiles& operator=(const ForTiles&) = delete;

 private:
  const Tiles<Real>& tiles_;
};

// The best tiles for the instruction set.
template <class Real>
const Tiles<Real>& tiles(Isa isa);

// Reals of a vector that values of a type are computed in.
inline int64_t lanes_of(Type type, Isa isa) { return type == Type::f64 ? tiles<double>(isa).lanes : tiles<float>(isa).lanes; }

// Columns that cost the same, up to a multiple of them.
inline int64_t column_step_of(Type type, Isa isa) {
  return type == Type::f64 ? tiles<double>(isa).column_step : tiles<float>(isa).column_step;
}

// Lanes of whole vectors that take as long as so many columns: half a vector, where it pays at all, takes 0.7 of the time of one.
// (Counted as half, tiles of 8 columns seemed a third faster than they are, and of 24 a sixth.)
inline double lanes_timed(Type type, Isa isa, int64_t columns) {
  constexpr double kHalf = 0.7;
  const int64_t lanes = lanes_of(type, isa), step = column_step_of(type, isa), rest = columns % lanes;
  const double last = rest == 0 ? 0 : rest <= step && step < lanes ? kHalf : 1;
  return double(columns - rest) + last * double(lanes);
}

// Gather, outer and dot tiles whose reals are pairs of bf16 for rows and panels, and floats for all else.
const Tiles<float>& pair_tiles();  // Isa::avx512_bf16
const Tiles<float>& amx_tiles();   // Isa::amx
// Whether kernels with those multiply the values of such a type: in matrix registers, of layers that suit these, or in vectors.
inline bool matrices_multiply_pairs(Type type, Isa isa) { return type == Type::bf16 && isa >= Isa::amx; }
inline bool vectors_multiply_pairs(Type type, Isa isa) {
  return type == Type::bf16 && isa == Isa::avx512_bf16 && pairs_are_fast();
}
inline bool multiplies_pairs(Type type, Isa isa) {
  return matrices_multiply_pairs(type, isa) || vectors_multiply_pairs(type, isa);
}
// How many times more multiply-adds matrix instructions make than vectors of float32 do, with operands in the L1 cache; measured
// once.
double matrix_speed();

}  // namespace torch_ext::cpu
