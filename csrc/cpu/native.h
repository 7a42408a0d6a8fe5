// SPDX-License-Identifier: Apache-2.0
// What both kernels share that multiply weights where they lie: `native`, whose rows of weights are those of input channels, and
// `native_xoi`, whose rows are those of taps and output channels.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

inline constexpr int64_t kMinWeights = 16 << 10;      // below this packing costs nothing
inline constexpr int64_t kLargeWeights = 4 << 20;     // bytes, which are read from memory
inline constexpr int64_t kLongRun = 256;              // of weights: many short runs in a row take longer than packing
inline constexpr int64_t kMostColumnBytes = 4 << 20;  // of columns that are all made before they are added
inline constexpr int64_t kMaxLinks = 64 << 10;        // pairs of a position and a tap
inline constexpr int64_t kMaxResults = 64 << 10;      // positions of y

// The largest even part of some channels, of at most `most`, such that threads share items(how many parts) evenly.
template <class Items>
int64_t shared_part(int64_t channels, int64_t most, double flops, Items items) {
  for (int64_t part = std::min(most, channels); part > 0; --part)
    if (shared_evenly(items(parts_of(channels, part)), flops)) return even_part(channels, part);
  return std::min(most, channels);
}

// Of the positions of x, of all samples, in elements.
inline std::vector<int64_t> position_offsets(const Problem& p) {
  const Geometry& g = p.geometry;
  std::vector<int64_t> offsets;
  for (int64_t m = 0; m < g.batch * g.x_positions(); ++m) {
    int64_t rest = m, offset = 0;
    for (int a = kAxes - 1; a >= 0; rest /= g.axis[a--].x) offset += rest % g.axis[a].x * p.x.axis[a];
    offsets.push_back(offset + rest * p.x.outer);
  }
  return offsets;
}

// f(first, count, step) for positions that lie in even steps.
template <class F>
void for_each_run(const std::vector<int64_t>& offsets, F f) {
  const int64_t positions = int64_t(offsets.size());
  const auto step_to = [&](int64_t m) { return offsets[size_t(m)] - offsets[size_t(m - 1)]; };
  for (int64_t first = 0, end; first < positions; first = end) {
    end = first + 1;
    const int64_t step = end < positions ? step_to(end) : 1;
    while (end < positions && step_to(end) == step) ++end;
    f(first, end - first, step);
  }
}

// Channels first + i of x, i < count, as planes to[i*pitch + m] or as rows to[m*pitch + i] of all positions m, and back.
template <class Real>
void load_positions(const Tiles<Real>& tiles, const Problem& p, const std::vector<int64_t>& offsets, const void* x, int64_t first,
                    int64_t count, bool planes, Real* to, int64_t pitch) {
  for_each_run(offsets, [&](int64_t m, int64_t positions, int64_t step) {
    const void* from = element(x, p.type, offsets[size_t(m)] + first * p.x.channel);
    if (planes) return load_planes(tiles, p.type, from, step, positions, p.x.channel, count, to + m, pitch);
    load_box<Real>(tiles, p.type, from, {{1, 1, positions}, {0, 0, step}, count, p.x.channel}, to + m * pitch, pitch);
  });
}
template <class Real>
void store_positions(const Tiles<Real>& tiles, const Problem& p, const std::vector<int64_t>& offsets, const Real* from,
                     int64_t pitch, bool planes, void* x, int64_t first, int64_t count) {
  for_each_run(offsets, [&](int64_t m, int64_t positions, int64_t step) {
    void* to = element(x, p.type, offsets[size_t(m)] + first * p.x.channel);
    if (planes) return store_planes(tiles, p.type, from + m, pitch, to, step, positions, p.x.channel, count);
    store_box(tiles, p.type, from + m * pitch, pitch, to, {{1, 1, positions}, {0, 0, step}, count, p.x.channel});
  });
}

// The same of bf16, as planes of pairs of channels, of which the first is even, or rows of pairs of positions. The last of an odd
// number has a zero beside it.
inline void load_pairs_of_positions(const Tiles<float>& tiles, const Problem& p, const std::vector<int64_t>& offsets,
                                    const void* x, int64_t first, int64_t count, bool planes, float* to, int64_t pitch) {
  const auto* from = static_cast<const uint16_t*>(x) + first * p.x.channel;
  if (planes)
    return for_each_run(offsets, [&](int64_t m, int64_t positions, int64_t step) {
      load_pairs(tiles, from + offsets[size_t(m)], step, positions, p.x.channel, count, to + m, pitch);
    });
  const size_t positions = offsets.size();
  for (size_t m = 0; m < positions; m += 2, to += pitch) {
    const uint16_t *even = from + offsets[m], *odd = m + 1 < positions ? from + offsets[m + 1] : nullptr;
    if (p.x.channel == 1 || count == 1) {
      tiles.pair(even, odd, to, count);
    } else {
      auto* halves = reinterpret_cast<uint16_t*>(to);
      for (int64_t i = 0; i < count; ++i)
        halves[2 * i] = even[i * p.x.channel], halves[2 * i + 1] = odd ? odd[i * p.x.channel] : 0;
    }
  }
}

// The channels i < count of x[m][i] that hold an infinity or a NaN at some position; of In = bf16, each real x[m][i] is the pair
// of two positions.
template <class In, class Real>
std::vector<int64_t> not_finite(const Tiles<Real>& tiles, const Real* x, int64_t pitch, int64_t positions, int64_t count) {
  constexpr int64_t terms = Operand<In>::terms;
  std::vector<int64_t> channels;
  for (int64_t m = 0; m < parts_of(positions, terms); ++m) {
    if (tiles.finite(x + m * pitch, count)) continue;
    const In* values = reinterpret_cast<const In*>(x + m * pitch);
    for (int64_t i = 0; i < count * terms; ++i)
      if (!std::isfinite(widen(values[i]))) channels.push_back(i / terms);
  }
  std::sort(channels.begin(), channels.end());
  channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
  return channels;
}

// What is read or written next: rows of so many bytes, a step apart, and among how many tiles a line of all of them is shared,
// each of which asks for as many rows as it has terms; 0: each tile asks for as many rows as it has itself.
struct NextRows {
  const char* first = nullptr;
  int64_t step = 0, bytes = 0, shares = 1;
};

// out[r*out_pitch + n] (+)= sum over p < run.count of run.a[p*a_pitch + r] * run.b[p*b_pitch + n] for r < rows, n < columns, no
// more than a tile has. Where tiles ask, they do so for `next`, and what no tile is left for is asked for at once: a processor
// reads nothing ahead in rows this far apart (1024 to 512 channels, k4 s2, 2x2 to 4x4: 0.5 to 0.85 of the time of some lines that
// tiles asked for alone; of weights in cache up to 1.05). Shorter vectors gain nothing by it.
template <class Real>
void add_products(const Tiles<Real>& tiles, int64_t rows, const OuterRun<Real>& run, int64_t a_pitch, int64_t b_pitch, Real* out,
                  int64_t out_pitch, int64_t columns, bool add, const NextRows& next = {}) {
  const int64_t vectors = parts_of(columns, tiles.lanes), parts = parts_of(rows, tiles.max_rows[vectors]);
  const auto asked_by = [&](int64_t share) {
    return next.first + share / next.shares * kCacheLine + share % next.shares * run.count * next.step;
  };
  const int64_t shares = next.first ? next.shares * parts_of(next.bytes, kCacheLine) : 0;
  for (int64_t share = parts; tiles.asks && share < shares; ++share)
    for (int64_t p = 0; p < run.count; ++p) ask_for(asked_by(share) + p * next.step, kCacheLine);
  for (int64_t part = 0, r = 0; part < parts; ++part) {
    const int64_t height = (rows - r) / (parts - part);
    const char* asked = part < shares ? asked_by(part) : nullptr;
    if (next.first && !next.shares) {
      for (int64_t i = r; i < r + height; ++i)
        for (int64_t l = 0; l < next.bytes; l += kCacheLine) __builtin_prefetch(next.first + i * next.step + l, 1, 2);
    }
    for (int64_t p = 0; p < run.count; p += kMaxTerms) {
      const OuterRun<Real> some{run.a + p * a_pitch, run.b + p * b_pitch, std::min(kMaxTerms, run.count - p)};
      tiles.outer[vectors][height]({&some, 1, r, 0, a_pitch, b_pitch, out + r * out_pitch, out_pitch, columns, add || p > 0, 0,
                                    asked, asked ? next.step : 0});
    }
    r += height;
  }
}

// Where more positions than kShared share the weights, copies of them lie tile by tile, as rows that are a multiple of a page
// apart would meet in a few sets of the L1 cache. Rows of weights that are multiplied at a time then, all or parts of many, and
// else; elements of them. (All 80 rows of a vocoder, k1024 s256: 0.82 of the time of 64 and 16.) Of many rows so few that those
// that are asked for meanwhile stay in L2, where rows a power of two apart share sets, too (1024 to 512 channels, k4 s2, 5x4 to
// 7x7, from memory: 48 take 0.8 of the time of 80, from the cache 0.97 to 1.04).
inline constexpr int64_t kShared = 16, kRowsShared = 128, kRowsOfPart = 48, kRowsOfFew = 16, kPiece = 512;
inline int64_t rows_at_once(int64_t rows, int64_t positions, int64_t terms = 1) {
  if (positions <= kShared) return terms * kRowsOfFew;
  return rows <= terms * kRowsShared ? rows : round_up(even_part(rows, terms * kRowsOfPart), terms);
}

// out[m*out_pitch + n] (+)= sum over r < rows of a[r*a_pitch + m] * weights[r*pitch + n] for m < positions, n < length; where
// there is `more`, as many rows follow. `stage` has room for kRowsShared rows of kPiece. Of In = bf16, a real a[r*a_pitch + m] is
// that of the rows 2*r and 2*r + 1.
template <class In, class Real>
void multiply_rows(const Tiles<Real>& tiles, Type type, const void* weights, int64_t pitch, int64_t rows, int64_t length,
                   const Real* a, int64_t a_pitch, int64_t positions, Real* out, int64_t out_pitch, bool add, bool more,
                   Real* stage) {
  constexpr int64_t terms = Operand<In>::terms;
  const int64_t units = parts_of(rows, terms);
  const bool shared = positions > kShared, copied = bytes_of(type) != int64_t(sizeof(Real)) || shared;
  const int64_t width = tiles.max_vectors * tiles.lanes, whole = kPiece / width * width, strip = shared ? width : whole;
  // Rows that tiles have asked for are copied where they are used, others in long runs.
  const int64_t step = tiles.asks ? strip : whole;
  const RowsAhead ahead(type, strip, pitch);
  for (int64_t piece = 0; piece < length; piece += step) {
    const int64_t end = std::min(piece + step, length);
    for (int64_t u = 0; copied && u < units; ++u)
      for (int64_t n = piece; n < end; n += strip) {
        const void* from = element(weights, type, u * terms * pitch + n);
        Real* to = stage + (n - piece) * units + u * strip;
        ahead.ask(from);
        if constexpr (terms == 1) {
          tiles.widen(type, from, to, std::min(strip, end - n));
        } else {
          const auto* even = static_cast<const uint16_t*>(from);
          ahead.ask(even + pitch);
          tiles.pair(even, 2 * u + 1 < rows ? even + pitch : nullptr, to, std::min(strip, end - n));
        }
      }
    for (int64_t n = piece; n < end; n += width) {
      const int64_t inside = (n - piece) % strip, columns = std::min(width, end - n);
      const Real* b = copied ? stage + (n - piece - inside) * units + inside : static_cast<const Real*>(weights) + n;
      // The same columns of the next rows; where these are all, the next columns.
      NextRows next;
      if (more || !add)
        next = {static_cast<const char*>(element(weights, type, more ? rows * pitch + n : n + width)), pitch * bytes_of(type),
                columns * bytes_of(type), terms};
      add_products(tiles, positions, {a, b, units}, a_pitch, copied ? strip : pitch, out + n, out_pitch, columns, add, next);
    }
  }
}

// The same with lanes along positions, which are whole vectors and no more than a tile has: turned[n*positions + m] (+)= sum over
// r < rows of weights[r*pitch + n] * a[r*positions + m]. Weights are read where they lie and once, however far apart their rows.
inline constexpr int64_t kTurned = 64;  // elements of rows at a time
// And rows: all, if what they are multiplied with leaves room for them in L1, else as above (2048 to 256 channels, k4 s2, 8x6,
// from memory: 0.74 of the time of twice as many, from the cache 0.98).
template <class Real>
int64_t rows_turned(int64_t rows, int64_t positions) {
  constexpr int64_t kBytes = 24 << 10, kOfPart = 64;
  const int64_t most = std::min(kMaxTerms, kBytes / (positions * int64_t(sizeof(Real))));
  return rows <= most ? rows : even_part(rows, std::min(kOfPart, most));
}
template <class Real>
void multiply_turned(const Tiles<Real>& tiles, const Real* weights, int64_t pitch, int64_t rows, int64_t length, const Real* a,
                     int64_t positions, Real* turned, bool add, bool more) {
  for (int64_t n = 0; n < length; n += kTurned) {
    NextRows next{nullptr, pitch * int64_t(sizeof(Real)), kTurned * int64_t(sizeof(Real))};
    if (n + kTurned < length) {
      next.first = reinterpret_cast<const char*>(weights + n + kTurned);
    } else if (more) {
      next.first = reinterpret_cast<const char*>(weights + rows * pitch);
    } else {
      next = {};
    }
    add_products(tiles, std::min(kTurned, length - n), {weights + n, a, rows}, pitch, positions, turned + n * positions,
                 positions, positions, add, next);
  }
}

// Rows of weights that are written at a time.
inline constexpr int64_t kWritten = 24;
// Many weights from few positions take as long as memory does, which would read them all before they are written: from so many
// bytes on, and up to so many positions, they go past the caches, in which they would not stay.
inline constexpr int64_t kStreamedWeightBytes = 4 << 20, kStreamedPositions = 4;
inline bool streams_weights(const Problem& p) {
  const Geometry& g = p.geometry;
  return g.w_size() * bytes_of(p.type) >= kStreamedWeightBytes && g.batch * g.x_positions() <= kStreamedPositions;
}

// What write_rows does, past the caches (Tiles::stream).
template <class Real>
void stream_rows(const Tiles<Real>& tiles, Type type, void* weights, int64_t pitch, int64_t rows, int64_t length, const Real* a,
                 int64_t a_pitch, const Real* b, int64_t b_pitch, int64_t positions, Real* stage) {
  constexpr Type real = sizeof(Real) == sizeof(double) ? Type::f64 : Type::f32;
  Real* rounded = stage + kRowsPositions * kPiece;
  for (int64_t r = 0; r < rows; r += kRowsPositions) {
    const int64_t some = std::min<int64_t>(kRowsPositions, rows - r);
    for (int64_t n = 0; n < length; n += kPiece) {
      const int64_t count = std::min(kPiece, length - n);
      tiles.rows[some]({a + r, b + n, real, a_pitch, b_pitch, positions, stage, kPiece, count});
      for (int64_t i = 0; i < some; ++i) {
        Real* row = stage + i * kPiece;
        if (type != real) tiles.narrow(type, row, rounded, count), row = rounded;
        tiles.stream(row, element(weights, type, (r + i) * pitch + n), count * bytes_of(type));
      }
    }
  }
}

// weights[r*pitch + n] = sum over m < positions of a[m*a_pitch + r] * b[m*b_pitch + n] for r < rows, n < length; where there is
// `more`, as many rows follow. `stage` has room for kWritten rows of kPiece. What streams is to be published (publish_streamed).
template <class Real>
void write_rows(const Tiles<Real>& tiles, Type type, void* weights, int64_t pitch, int64_t rows, int64_t length, const Real* a,
                int64_t a_pitch, const Real* b, int64_t b_pitch, int64_t positions, bool more, Real* stage, bool streams) {
  if (streams) return stream_rows(tiles, type, weights, pitch, rows, length, a, a_pitch, b, b_pitch, positions, stage);
  const bool in_place = bytes_of(type) == int64_t(sizeof(Real));
  const int64_t width = tiles.max_vectors * tiles.lanes;
  // Stores wait for their lines, of which memory brings a few at a time, unless tiles have asked for them: for what is written
  // after these columns, in these rows or the next (1024 to 512 channels, k4 s2: 0.55 to 0.7 of the time of 6 to 48 positions).
  // In between their products, where those are enough, that is faster still.
  const auto written_next = [&](int64_t n) -> NextRows {
    const int64_t written = in_place ? width : kPiece;
    const bool same_rows = n + written < length;
    if (!(same_rows || more)) return {};
    const int64_t first = same_rows ? n + written : n % written;
    return {static_cast<const char*>(element(weights, type, (same_rows ? 0 : rows * pitch) + first)), pitch * bytes_of(type),
            std::min(width, length - first) * bytes_of(type), tiles.asks && positions >= rows};
  };
  for (int64_t piece = 0; piece < length; piece += kPiece) {
    const int64_t end = std::min(piece + kPiece, length);
    for (int64_t n = piece; n < end; n += width)
      add_products(tiles, rows, {a, b + n, positions}, a_pitch, b_pitch,
                   in_place ? static_cast<Real*>(weights) + n : stage + n - piece, in_place ? pitch : kPiece,
                   std::min(width, end - n), false, written_next(n));
    for (int64_t r = 0; !in_place && r < rows; ++r)
      tiles.narrow(type, stage + r * kPiece, element(weights, type, r * pitch + piece), end - piece);
  }
}

}  // namespace torch_ext::cpu
