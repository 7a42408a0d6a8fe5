// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/outer.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

constexpr int kSide = kOuterSide, kStages = kOuterStages, kThreads = kOuterThreads;

// Of one type: rows of kSide channels, kStep of x and as many of y in a stage.
template <class T>
struct Shape {
  static constexpr int kStep = sizeof(T) == 4 ? 16 : 32;
  static constexpr int kVector = 16 / int(sizeof(T));
  static constexpr int kRowBytes = kSide * int(sizeof(T));
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kLoaders = kThreads / kChunks;  // rows that the threads load at a time
  static constexpr int kStageBytes = 2 * kStep * kRowBytes;

  // Eight rows that follow each other have their chunks in different banks.
  TORCH_EXT_DEVICE static char* chunk_of(char* rows, int row, int chunk) {
    return rows + row * kRowBytes + (chunk ^ (row % 8)) * 16;
  }
};

// What a block computes.
struct TileOf {
  int64_t x_channel, y_channel, tap[kAxes], tap_index, group, part;
};

TORCH_EXT_DEVICE TileOf tile_of(const OuterArguments& a) {
  TileOf t;
  int64_t block = block_index();
  t.y_channel = take(block, a.y_tiles) * kSide;
  t.x_channel = take(block, a.x_tiles) * kSide;
  t.tap_index = take(block, a.axis[0].w * a.axis[1].w * a.axis[2].w);
  int64_t tap = t.tap_index;
  for (int k = kAxes - 1; k >= 0; --k) t.tap[k] = take(tap, a.axis[k].w);
  t.group = take(block, a.groups);
  t.part = block;
  return t;
}

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

// Brings the rows of x and of y at positions that start at `left` before the end of the part.
template <class T>
TORCH_EXT_DEVICE void load_step(const OuterArguments& a, const TileOf& t, const Position* positions, int64_t left, char* stage) {
  using S = Shape<T>;
  const int chunk = thread_index() % S::kChunks, first = thread_index() / S::kChunks;
  const int64_t x_channel = t.x_channel + chunk * S::kVector, y_channel = t.y_channel + chunk * S::kVector;
  TORCH_EXT_UNROLL for (int i = 0; i < S::kStep / S::kLoaders; ++i) {
    const int row = first + i * S::kLoaders;
    const Position& p = positions[i];
    bool inside = row < left;
    int64_t x = p.sample * a.x_strides.outer, y = p.sample * a.y_strides.outer;
    for (int k = 0; k < kAxes; ++k) {
      const int64_t o = a.axis[k].reach(p.at[k], t.tap[k]);
      inside = inside && o >= 0 && o < a.axis[k].y;
      x += p.at[k] * a.x_strides.axis[k], y += o * a.y_strides.axis[k];
    }
    const bool x_inside = inside && x_channel < a.x_room, y_inside = inside && y_channel < a.y_room;
    const T* from_x = static_cast<const T*>(a.x) + (x_inside ? x + t.group * a.x_room + x_channel : 0);
    const T* from_y = static_cast<const T*>(a.y) + (y_inside ? y + t.group * a.y_room + y_channel : 0);
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
    const int lane = thread_index() % 32;
    char* y = stage + S::kStageBytes / 2;
    TORCH_EXT_UNROLL for (int p = 0; p < S::kStep; p += 16) {
      uint32_t a[kHigh][4], b[kWide / 2][4];
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
        load_matrices_transposed(a[i], S::chunk_of(stage, p + lane / 16 * 8 + lane % 8, row() / 8 + 2 * i + lane / 8 % 2));
      TORCH_EXT_UNROLL for (int j = 0; j < kWide / 2; ++j)
        load_matrices_transposed(b[j], S::chunk_of(y, p + lane / 8 % 2 * 8 + lane % 8, column() / 8 + 2 * j + lane / 16));
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
        TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
          multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
    }
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
template <>
struct MatrixSums<float> {
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

template <class T>
TORCH_EXT_KERNEL(kThreads, 3)
outer(const OuterArguments a) {
  using S = Shape<T>;
  constexpr int kRowsOfThread = S::kStep / S::kLoaders;
  const TileOf t = tile_of(a);
  const int64_t positions = a.batch * a.axis[0].x * a.axis[1].x * a.axis[2].x, begin = t.part * a.part_positions;
  const int64_t end = begin + a.part_positions < positions ? begin + a.part_positions : positions;
  const int64_t steps = (end - begin + S::kStep - 1) / S::kStep;
  const int64_t first = begin + thread_index() / S::kChunks;
  static_assert(kRowsOfThread == 2);
  Position at[kRowsOfThread] = {Position(a, first), Position(a, first + S::kLoaders)};
  char* stages = shared_memory();
  const auto load = [&](int64_t step, int stage) {
    if (step < steps) {
      load_step<T>(a, t, at, end - begin - step * S::kStep, stages + stage * S::kStageBytes);
      for (Position& p : at) p.advance(a, S::kStep);
    }
    async_commit();
  };
  TORCH_EXT_UNROLL for (int s = 0; s < kStages - 1; ++s) load(s, s);
  MatrixSums<T> sums;
  int reading = 0, writing = kStages - 1;
  for (int64_t s = 0; s < steps; ++s) {
    async_wait<kStages - 2>();
    sync_block();  // all have this step, and are done with the one that is overwritten
    load(s + kStages - 1, writing);
    sums.add(stages + reading * S::kStageBytes);
    reading = reading + 1 == kStages ? 0 : reading + 1;
    writing = writing + 1 == kStages ? 0 : writing + 1;
  }
  async_wait<0>();
  const int64_t taps = a.axis[0].w * a.axis[1].w * a.axis[2].w, pitch = a.y_tiles * kSide, rows = a.x_tiles * kSide;
  sums.store(a.sums + (((t.part * a.groups + t.group) * taps + t.tap_index) * rows + t.x_channel) * pitch + t.y_channel, pitch);
}

// Adds the parts in their order, and rounds once.
template <class T>
TORCH_EXT_KERNEL(256, 4)
outer_sum(const OuterArguments a) {
  const int64_t taps = a.axis[0].w * a.axis[1].w * a.axis[2].w, pitch = a.y_tiles * kSide, rows = a.x_tiles * kSide;
  const int64_t size = a.groups * taps * a.x_channels * a.y_channels, part = a.groups * taps * rows * pitch;
  for (int64_t index = block_index() * block_threads() + thread_index(); index < size; index += block_count() * block_threads()) {
    int64_t rest = index;
    const int64_t y_channel = take(rest, a.y_channels), x_channel = take(rest, a.x_channels);
    const int64_t from = (rest * rows + x_channel) * pitch + y_channel;
    int64_t to = y_channel * a.w_strides.channel;
    for (int k = kAxes - 1; k >= 0; --k) to += take(rest, a.axis[k].w) * a.w_strides.axis[k];
    to += (rest * a.x_channels + x_channel) * a.w_strides.outer;
    float sum = a.sums[from];
    for (int64_t p = 1; p < a.parts; ++p) sum += a.sums[p * part + from];
    from_sum(sum, static_cast<T*>(a.w)[to]);
  }
}

}  // namespace

const char* launch_outer(const OuterArguments& a, Type type, const Launch& shape, Stream stream) {
  return type == Type::bf16  ? launch(outer<bf16>, shape, stream, a)
         : type == Type::f16 ? launch(outer<f16>, shape, stream, a)
                             : launch(outer<float>, shape, stream, a);
}

const char* launch_outer_sum(const OuterArguments& a, Type type, const Launch& shape, Stream stream) {
  return type == Type::bf16  ? launch(outer_sum<bf16>, shape, stream, a)
         : type == Type::f16 ? launch(outer_sum<f16>, shape, stream, a)
                             : launch(outer_sum<float>, shape, stream, a);
}

}  // namespace torch_ext::cuda
