// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/outer.h"

#include "csrc/cuda/pipeline.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

constexpr int kSide = kOuterSide;

// Of one type: rows of kSide channels, kStep of x and as many of y in a stage.
template <class T>
struct Shape {
  static constexpr int kStep = outer_step(sizeof(T));
  static constexpr int kVector = 16 / int(sizeof(T));
  static constexpr int kRowBytes = kSide * int(sizeof(T));
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kLoaders = kOuterThreads / kChunks;  // rows that the threads load at a time
  static constexpr int kStageBytes = 2 * kStep * kRowBytes;

  // Rows that are read together have their chunks in different banks: eight chunks of 16-bit elements, one of each row, or, of
  // float32, two chunks of each of four rows.
  TORCH_EXT_DEVICE static char* chunk_of(char* rows, int row, int chunk) {
    return rows + row * kRowBytes + (chunk ^ (sizeof(T) == 4 ? row % 4 * 2 : row % 8)) * 16;
  }
};

// What a block computes, and the tap and the channels of which this thread copies chunks.
struct TileOf {
  int64_t row, column, group, part;
  int64_t x_channel, y_channel, tap[kAxes];
  bool x_inside, y_inside;

  template <class T>
  TORCH_EXT_DEVICE static TileOf make(const OuterArguments& a) {
    TileOf t;
    int64_t block = block_index();
    t.column = take(block, a.y_tiles) * kSide;
    t.row = take(block, a.x_tiles) * kSide;
    t.group = take(block, a.groups);
    t.part = block;
    const int64_t chunk = thread_index() % Shape<T>::kChunks * Shape<T>::kVector;
    int64_t tap = t.column + chunk;
    t.x_channel = t.row + chunk, t.y_channel = take(tap, a.tap_room);
    for (int k = kAxes - 1; k >= 0; --k) t.tap[k] = take(tap, a.axis[k].w);
    t.x_inside = t.x_channel < a.x_room, t.y_inside = t.y_channel < a.y_room && tap == 0;
    return t;
  }
};

// A position of x that walks on.
struct Position {
  int64_t sample, at[kAxes];

  TORCH_EXT_DEVICE Position(const OuterArguments& a, int64_t index) {
    for (int k = kAxes - 1; k >= 0; --k) at[k] = take(index, a.axis[k].x);
    sample = index;
  }
  TORCH_EXT_DEVICE void advance(const OuterArguments& a, int64_t by) {
    at[2] += by;
    while (at[2] >= a.axis[2].x) {
      at[2] -= a.axis[2].x;
      if (++at[1] < a.axis[1].x) continue;
      at[1] = 0;
      if (++at[0] < a.axis[0].x) continue;
      at[0] = 0, ++sample;
    }
  }
};

// Brings the rows of x and of y at positions that start at `left` before the end of the part. A tile of one tap leaves out
// positions that this tap does not reach.
template <class T>
TORCH_EXT_DEVICE void load_step(const OuterArguments& a, const TileOf& t, const Position* positions, int64_t left, char* stage) {
  using S = Shape<T>;
  const bool one_tap = a.tap_room % kSide == 0;
  const int chunk = thread_index() % S::kChunks, first = thread_index() / S::kChunks;
  TORCH_EXT_UNROLL for (int i = 0; i < S::kStep / S::kLoaders; ++i) {
    const int row = first + i * S::kLoaders;
    const Position& p = positions[i];
    bool reached = true;
    int64_t x = p.sample * a.x_strides.outer, y = p.sample * a.y_strides.outer;
    for (int k = 0; k < kAxes; ++k) {
      const int64_t o = a.axis[k].reach(p.at[k], t.tap[k]);
      reached = reached && o >= 0 && o < a.axis[k].y;
      x += p.at[k] * a.x_strides.axis[k], y += o * a.y_strides.axis[k];
    }
    const bool x_inside = row < left && t.x_inside && (reached || !one_tap), y_inside = row < left && t.y_inside && reached;
    const T* from_x = static_cast<const T*>(a.x) + (x_inside ? x + t.group * a.x_room + t.x_channel : 0);
    const T* from_y = static_cast<const T*>(a.y) + (y_inside ? y + t.group * a.y_room + t.y_channel : 0);
    async_copy16(S::chunk_of(stage, row, chunk), from_x, x_inside);
    async_copy16(S::chunk_of(stage + S::kStageBytes / 2, row, chunk), from_y, y_inside);
  }
}

// Sums of a tile as the matrix instructions hold them: each warp has 32 x 32 of it.
template <class T>
struct MatrixSums {
  static constexpr int kHigh = 2, kWide = 4;  // 16 x 8 each
  float sum[kHigh][kWide][4] = {};

  TORCH_EXT_DEVICE static int row() { return thread_index() / 32 % 2 * 32; }
  TORCH_EXT_DEVICE static int column() { return thread_index() / 64 * 32; }

  // Both sides lie by positions, and are transposed on their way into registers.
  TORCH_EXT_DEVICE void add(char* stage) {
    using S = Shape<T>;
    char* y = stage + S::kStageBytes / 2;
    if constexpr (sizeof(T) == 4) {
      for (int p = 0; p < S::kStep; p += 8) add_tf32(stage, y, p);
    } else {
      TORCH_EXT_UNROLL for (int p = 0; p < S::kStep; p += 16) add_16(stage, y, p);
    }
  }
  TORCH_EXT_DEVICE static uint32_t tf32_at(char* rows, int position, int channel) {
    return to_tf32(reinterpret_cast<const uint32_t*>(Shape<float>::chunk_of(rows, position, channel / 4))[channel % 4]);
  }
  TORCH_EXT_DEVICE void add_tf32(char* x, char* y, int p) {
    const int across = thread_index() % 32 / 4, along = p + thread_index() % 4;
    uint32_t a[kHigh][4], b[kWide][2];
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e)
        a[i][e] = tf32_at(x, along + e / 2 * 4, row() + 16 * i + e % 2 * 8 + across);
    TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
      TORCH_EXT_UNROLL for (int e = 0; e < 2; ++e) b[j][e] = tf32_at(y, along + e * 4, column() + 8 * j + across);
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j) multiply(sum[i][j], a[i], b[j][0], b[j][1], T{});
  }
  TORCH_EXT_DEVICE void add_16(char* stage, char* y, int p) {
    using S = Shape<T>;
    const int lane = thread_index() % 32;
    uint32_t a[kHigh][4], b[kWide / 2][4];
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      load_matrices_transposed(a[i], S::chunk_of(stage, p + lane / 16 * 8 + lane % 8, row() / 8 + 2 * i + lane / 8 % 2));
    TORCH_EXT_UNROLL for (int j = 0; j < kWide / 2; ++j)
      load_matrices_transposed(b[j], S::chunk_of(y, p + lane / 8 % 2 * 8 + lane % 8, column() / 8 + 2 * j + lane / 16));
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
        multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
  }
  TORCH_EXT_DEVICE void store(float* to, int64_t pitch) const {
    const int lane = thread_index() % 32;
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e)
          to[(row() + 16 * i + lane / 4 + e / 2 * 8) * pitch + column() + 8 * j + lane % 4 * 2 + e % 2] = sum[i][j][e];
  }
};

// The same by multiply-adds: each thread has 8 rows by 4 columns.
struct FloatSums {
  float sum[8][4] = {};

  TORCH_EXT_DEVICE static int row() { return thread_index() / 16 * 8; }
  TORCH_EXT_DEVICE static int column() { return thread_index() % 16 * 4; }

  TORCH_EXT_DEVICE void add(char* stage) {
    using S = Shape<float>;
    char* y = stage + S::kStageBytes / 2;
    TORCH_EXT_UNROLL for (int p = 0; p < S::kStep; ++p) {
      const Bytes16 a[2] = {load16(S::chunk_of(stage, p, row() / 4)), load16(S::chunk_of(stage, p, row() / 4 + 1))};
      const Bytes16 b = load16(S::chunk_of(y, p, column() / 4));
      TORCH_EXT_UNROLL for (int i = 0; i < 8; ++i)
        TORCH_EXT_UNROLL for (int j = 0; j < 4; ++j) sum[i][j] += as_float(a[i / 4].word[i % 4]) * as_float(b.word[j]);
    }
  }
  TORCH_EXT_DEVICE void store(float* to, int64_t pitch) const {
    TORCH_EXT_UNROLL for (int i = 0; i < 8; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < 4; ++j) to[(row() + i) * pitch + column() + j] = sum[i][j];
  }
};

template <class T, class Sums>
TORCH_EXT_DEVICE void compute_tile(const OuterArguments& a) {
  using S = Shape<T>;
  constexpr int kRowsOfThread = S::kStep / S::kLoaders;
  const TileOf t = TileOf::make<T>(a);
  const int64_t positions = a.batch * a.axis[0].x * a.axis[1].x * a.axis[2].x, begin = t.part * a.part_positions;
  const int64_t end = begin + a.part_positions < positions ? begin + a.part_positions : positions;
  const int64_t first = begin + thread_index() / S::kChunks;
  static_assert(kRowsOfThread == 2);
  Position at[kRowsOfThread] = {Position(a, first), Position(a, first + S::kLoaders)};
  int64_t left = end - begin;
  char* stages = shared_memory();
  const auto load = [&](int stage) {
    load_step<T>(a, t, at, left, stages + stage * S::kStageBytes);
    left -= S::kStep;
    for (Position& p : at) p.advance(a, S::kStep);
  };
  Sums sums;
  run_pipeline<kOuterStages>((end - begin + S::kStep - 1) / S::kStep, load,
                             [&](int stage) { sums.add(stages + stage * S::kStageBytes); });
  const int64_t pitch = a.y_tiles * kSide, rows = a.x_tiles * kSide;
  sums.store(a.sums + ((t.part * a.groups + t.group) * rows + t.row) * pitch + t.column, pitch);
}

template <class T>
TORCH_EXT_KERNEL(kOuterThreads, 3)
outer_matrix(const OuterArguments a) {
  compute_tile<T, MatrixSums<T>>(a);
}

TORCH_EXT_KERNEL(kOuterThreads, 3)
outer_fma(const OuterArguments a) { compute_tile<float, FloatSums>(a); }

}  // namespace

const char* launch_outer(const OuterArguments& a, TileMath math, const Launch& shape, Stream stream) {
  return with_math(
      math, [&](auto value) { return launch(outer_matrix<decltype(value)>, shape, stream, a); },
      [&] { return launch(outer_fma, shape, stream, a); });
}

}  // namespace torch_ext::cuda
