// SPDX-License-Identifier: Apache-2.0
// The matrix product that gemm and fold have in common: a tile of kTileRows rows of the source by kTileColumns rows of the packed
// weights, both with their channels in chunks of 16 bytes.
#pragma once
#include "csrc/cuda/device.h"
#include "csrc/cuda/pack.h"
#include "csrc/cuda/pipeline.h"

namespace torch_ext::cuda {

constexpr int kTileChunks = kTileStepBytes / 16;                              // of a row of a stage
constexpr int kTileStageBytes = (kTileRows + kTileColumns) * kTileStepBytes;  // the source's rows, then the weights'
constexpr int kTileLoaders = kTileThreads / kTileChunks;                      // rows that the threads load at a time
constexpr int kResultPitch = kTileColumns + 1;                                // floats, of a row of results on their way out
static_assert(kTileRows * kResultPitch * 4 <= kTileStages * kTileStageBytes && kTileThreads == kTileRows);

// Where a chunk of a row of a stage lies: eight rows that follow each other have their chunks in different banks.
TORCH_EXT_DEVICE char* chunk_of(char* rows, int row, int chunk) {
  return rows + row * kTileStepBytes + ((chunk ^ (row >> 1)) % kTileChunks) * 16;
}

// What this thread copies of the weights for one step: `weights` is where its channels of the tile's first column begin.
template <class T>
TORCH_EXT_DEVICE void load_weights(const T* weights, int64_t depth_room, char* stage) {
  const int chunk = thread_index() % kTileChunks, first = thread_index() / kTileChunks;
  TORCH_EXT_UNROLL for (int i = 0; i < kTileColumns / kTileLoaders; ++i) {
    const int row = first + i * kTileLoaders;
    async_copy16(chunk_of(stage + kTileRows * kTileStepBytes, row, chunk), weights + row * depth_room, true);
  }
}

// Sums of a tile as the matrix instructions hold them: each warp has 64 x 32 of it.
template <class T>
struct MatrixSums {
  static constexpr int kHigh = 4, kWide = 4;  // 16 x 8 each
  float sum[kHigh][kWide][4] = {};

  TORCH_EXT_DEVICE static int row() { return thread_index() / 32 % 2 * 64; }
  TORCH_EXT_DEVICE static int column() { return thread_index() / 64 * 32; }

  TORCH_EXT_DEVICE void add(char* stage) {
    const int lane = thread_index() % 32;
    char* weights = stage + kTileRows * kTileStepBytes;
    TORCH_EXT_UNROLL for (int half = 0; half < 2; ++half) {
      uint32_t a[kHigh][4], b[kWide / 2][4];
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
          load_matrices(a[i], chunk_of(stage, row() + 16 * i + lane % 16, 2 * half + lane / 16));
      TORCH_EXT_UNROLL for (int j = 0; j < kWide / 2; ++j)
          load_matrices(b[j], chunk_of(weights, column() + 16 * j + lane / 16 * 8 + lane % 8, 2 * half + lane / 8 % 2));
      if constexpr (sizeof(T) == 4) {
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e) {
          TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) a[i][e] = to_tf32(a[i][e]);
          TORCH_EXT_UNROLL for (int j = 0; j < kWide / 2; ++j) b[j][e] = to_tf32(b[j][e]);
        }
      }
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
          multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
    }
  }
  // f(row, column, sum) for each.
  template <class F>
  TORCH_EXT_DEVICE void for_each(const F& f) const {
    const int lane = thread_index() % 32;
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e)
            f(row() + 16 * i + lane / 4 + e / 2 * 8, column() + 8 * j + lane % 4 * 2 + e % 2, sum[i][j][e]);
  }
};

// The same by multiply-adds: each thread has 8 x 8, rows 16 apart and columns 8 apart.
struct FloatSums {
  static constexpr int kHigh = 8, kWide = 8;
  float sum[kHigh][kWide] = {};

  TORCH_EXT_DEVICE void add(char* stage) {
    const int x = thread_index() % 8, y = thread_index() / 8;
    char* weights = stage + kTileRows * kTileStepBytes;
    for (int chunk = 0; chunk < kTileChunks; ++chunk) {
      Bytes16 a[kHigh];
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) a[i] = load16(chunk_of(stage, y + 16 * i, chunk));
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j) {
        const Bytes16 b = load16(chunk_of(weights, x + 8 * j, chunk));
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e) TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) sum[i][j] +=
            as_float(a[i].word[e]) * as_float(b.word[e]);
      }
    }
  }
  template <class F>
  TORCH_EXT_DEVICE void for_each(const F& f) const {
    const int x = thread_index() % 8, y = thread_index() / 8;
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
        f(y + 16 * i, x + 8 * j, sum[i][j]);
  }
};

}  // namespace torch_ext::cuda
