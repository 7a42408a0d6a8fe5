// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/gemm.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

constexpr int kRows = kGemmRows, kColumns = kGemmColumns, kStages = kGemmStages, kThreads = kGemmThreads;
constexpr int kChunks = kGemmStepBytes / 16;                          // of 16 bytes, of a row of a stage
constexpr int kStageBytes = (kRows + kColumns) * kGemmStepBytes;      // the source's rows, then the weights'
constexpr int kLoaders = kThreads / kChunks;                          // rows that the threads load at a time
constexpr int kResultPitch = kColumns + 4;                            // floats, of a row of results on their way out
static_assert(kRows * kResultPitch * 4 <= kStages * kStageBytes);

// Where a chunk of a row of a stage lies: eight rows that follow each other have their chunks in different banks.
TORCH_EXT_DEVICE char* chunk_of(char* rows, int row, int chunk) {
  return rows + row * kGemmStepBytes + ((chunk ^ (row >> 1)) % kChunks) * 16;
}

// Of each row of a tile: where its result goes (-1: nowhere), and where the source of tap 0 would lie, in memory and along the axes.
struct RowTable {
  int64_t* to;
  int64_t* from;
  int* at;  // [axis][row]
  int* not_finite;
};

// What a block computes.
struct TileOf {
  int64_t phase[kAxes], group, row, column;
};

TORCH_EXT_DEVICE TileOf tile_of(const GemmArguments& a) {
  TileOf t;
  int64_t block = block_index();
  t.column = take(block, a.column_tiles) * kColumns;
  t.row = take(block, a.tiles) * kRows;
  for (int k = kAxes - 1; k >= 0; --k) t.phase[k] = take(block, a.phases[k]);
  t.group = block;
  return t;
}

TORCH_EXT_DEVICE void find_row(const GemmArguments& a, const TileOf& t, int row, const RowTable& table) {
  int64_t index = t.row + row, to = 0, from = 0;
  for (int k = kAxes - 1; k >= 0; --k) {
    const GatherAxis& g = a.axis[k][t.phase[k]];
    const int64_t j = take(index, g.count), at = g.from + j * g.from_step;
    to += (g.to + j * g.to_step) * a.to.axis[k];
    from += at * a.from.axis[k];
    table.at[k * kRows + row] = int(at);
  }
  table.to[row] = index < a.batch ? to + index * a.to.outer : -1;
  table.from[row] = from + index * a.from.outer;
  table.not_finite[row] = a.not_finite[row];
}

// The steps of the depth: taps of the phase, and of each the channels.
struct Step {
  int64_t q[kAxes], channel;

  TORCH_EXT_DEVICE void advance(const GemmArguments& a, const TileOf& t, int64_t by) {
    channel += by;
    if (channel < a.depth_room) return;
    channel = 0;
    for (int k = kAxes - 1; k >= 0; --k) {
      if (++q[k] < a.axis[k][t.phase[k]].taps) return;
      q[k] = 0;
    }
  }
};

template <class T>
TORCH_EXT_DEVICE void load_step(const GemmArguments& a, const TileOf& t, const RowTable& table, const Step& step, char* stage) {
  constexpr int kVector = 16 / int(sizeof(T));
  const int chunk = thread_index() % kChunks, first = thread_index() / kChunks;
  const int64_t channel = step.channel + chunk * kVector;
  int64_t tap = 0, offset = t.group * a.depth + channel;
  int shift[kAxes];
  for (int k = 0; k < kAxes; ++k) {
    const GatherAxis& g = a.axis[k][t.phase[k]];
    tap = tap * a.kernel[k] + g.tap + step.q[k] * g.tap_step;
    shift[k] = int(step.q[k] * g.from_tap);
    offset += shift[k] * a.from.axis[k];
  }
  const T* source = static_cast<const T*>(a.source);
  TORCH_EXT_UNROLL for (int i = 0; i < kRows / kLoaders; ++i) {
    const int row = first + i * kLoaders;
    bool inside = table.to[row] >= 0 && channel < a.depth;
    for (int k = 0; k < kAxes; ++k) {
      const int at = table.at[k * kRows + row] + shift[k];
      inside = inside && at >= 0 && at < a.source_extent[k];
    }
    async_copy16(chunk_of(stage, row, chunk), inside ? source + table.from[row] + offset : source, inside);
  }
  const T* weights = static_cast<const T*>(a.packed);
  const int64_t taps = a.kernel[0] * a.kernel[1] * a.kernel[2];
  TORCH_EXT_UNROLL for (int i = 0; i < kColumns / kLoaders; ++i) {
    const int row = first + i * kLoaders;
    const int64_t at = ((t.group * taps + tap) * a.columns_room + t.column + row) * a.depth_room + channel;
    async_copy16(chunk_of(stage + kRows * kGemmStepBytes, row, chunk), weights + at, true);
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
    char* weights = stage + kRows * kGemmStepBytes;
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
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
        TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
          multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T{});
    }
  }
  TORCH_EXT_DEVICE void store(float* results) const {
    const int lane = thread_index() % 32;
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j)
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e)
          results[(row() + 16 * i + lane / 4 + e / 2 * 8) * kResultPitch + column() + 8 * j + lane % 4 * 2 + e % 2] = sum[i][j][e];
  }
};

// The same by multiply-adds: each thread has 8 x 8, rows 16 apart and columns 8 apart.
struct FloatSums {
  static constexpr int kHigh = 8, kWide = 8;
  float sum[kHigh][kWide] = {};

  TORCH_EXT_DEVICE void add(char* stage) {
    const int x = thread_index() % 8, y = thread_index() / 8;
    char* weights = stage + kRows * kGemmStepBytes;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Bytes16 a[kHigh];
      TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i) a[i] = load16(chunk_of(stage, y + 16 * i, chunk));
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j) {
        const Bytes16 b = load16(chunk_of(weights, x + 8 * j, chunk));
        TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e)
          TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
            sum[i][j] += as_float(a[i].word[e]) * as_float(b.word[e]);
      }
    }
  }
  TORCH_EXT_DEVICE void store(float* results) const {
    const int x = thread_index() % 8, y = thread_index() / 8;
    TORCH_EXT_UNROLL for (int i = 0; i < kHigh; ++i)
      TORCH_EXT_UNROLL for (int j = 0; j < kWide; ++j) results[(y + 16 * i) * kResultPitch + x + 8 * j] = sum[i][j];
  }
};

// One result without its bias, from what it reads and no zeros.
template <class T>
TORCH_EXT_DEVICE float sum_exactly(const GemmArguments& a, const TileOf& t, const RowTable& table, int row, int64_t column) {
  const T* weights = static_cast<const T*>(a.packed);
  const int64_t taps = a.kernel[0] * a.kernel[1] * a.kernel[2];
  int64_t phase_taps = 1;
  for (int k = 0; k < kAxes; ++k) phase_taps *= a.axis[k][t.phase[k]].taps;
  float sum = 0;
  for (int64_t index = 0; index < phase_taps; ++index) {
    int64_t rest = index, tap = 0, step = 1, from = table.from[row] + t.group * a.depth;
    bool inside = true;
    for (int k = kAxes - 1; k >= 0; --k) {
      const GatherAxis& g = a.axis[k][t.phase[k]];
      const int64_t q = take(rest, g.taps), at = table.at[k * kRows + row] + q * g.from_tap;
      inside = inside && at >= 0 && at < a.source_extent[k];
      from += q * g.from_tap * a.from.axis[k];
      tap += (g.tap + q * g.tap_step) * step, step *= a.kernel[k];
    }
    if (!inside) continue;
    const int64_t of_tap = ((t.group * taps + tap) * a.columns_room + column) * a.depth_room;
    for (int64_t c = 0; c < a.weights_depth; ++c)
      sum += float(to_sum(static_cast<const T*>(a.source)[from + c])) * float(to_sum(weights[of_tap + c]));
  }
  return sum;
}

// From sums in shared memory to the result: the bias added, rounded once, neighbouring threads to neighbouring addresses.
template <class T>
TORCH_EXT_DEVICE void store_tile(const GemmArguments& a, const TileOf& t, const RowTable& table, const float* results) {
  constexpr int kVector = 16 / int(sizeof(T));
  T* to = static_cast<T*>(a.result) + t.group * a.columns * a.to.channel;
  const T* bias = static_cast<const T*>(a.bias);
  int not_finite = 0;
  for (int row = 0; row < kRows; ++row) not_finite |= table.not_finite[row];
  const auto value = [&](int row, int column) {
    const float start = bias ? float(to_sum(bias[t.group * a.columns + t.column + column])) : 0.f;
    const float sum = not_finite ? sum_exactly<T>(a, t, table, row, t.column + column) : results[row * kResultPitch + column];
    T rounded;
    from_sum(start + sum, rounded);
    return rounded;
  };
  if (a.vectors) {
    for (int index = thread_index(); index < kRows * (kColumns / kVector); index += kThreads) {
      const int row = index / (kColumns / kVector), column = index % (kColumns / kVector) * kVector;
      if (table.to[row] < 0 || t.column + column >= a.columns) continue;
      union {
        T value[kVector];
        Bytes16 bytes;
      } vector;
      TORCH_EXT_UNROLL for (int e = 0; e < kVector; ++e) vector.value[e] = value(row, column + e);
      store16(to + table.to[row] + t.column + column, vector.bytes);
    }
    return;
  }
  const bool by_channel = a.to.channel == 1;
  for (int index = thread_index(); index < kRows * kColumns; index += kThreads) {
    const int row = by_channel ? index / kColumns : index % kRows, column = by_channel ? index % kColumns : index / kRows;
    if (table.to[row] >= 0 && t.column + column < a.columns)
      to[table.to[row] + (t.column + column) * a.to.channel] = value(row, column);
  }
}

template <class T, class Sums>
TORCH_EXT_DEVICE void compute_tile(const GemmArguments& a) {
  const TileOf t = tile_of(a);
  int64_t rows = a.batch, taps = 1;
  for (int k = 0; k < kAxes; ++k) rows *= a.axis[k][t.phase[k]].count, taps *= a.axis[k][t.phase[k]].taps;
  if (t.row >= rows) return;  // the whole block: its phase is smaller than the largest
  char* stages = shared_memory();
  const RowTable table{reinterpret_cast<int64_t*>(stages + kStages * kStageBytes),
                       reinterpret_cast<int64_t*>(stages + kStages * kStageBytes) + kRows,
                       reinterpret_cast<int*>(stages + kStages * kStageBytes + 16 * kRows),
                       reinterpret_cast<int*>(stages + kStages * kStageBytes + (16 + 4 * kAxes) * kRows)};
  find_row(a, t, thread_index(), table);
  static_assert(kThreads == kRows);
  sync_block();

  constexpr int64_t kDepth = kGemmStepBytes / int64_t(sizeof(T));
  const int64_t steps = taps * (a.depth_room / kDepth);
  Step next{};
  TORCH_EXT_UNROLL for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) {
      load_step<T>(a, t, table, next, stages + s * kStageBytes);
      next.advance(a, t, kDepth);
    }
    async_commit();
  }
  Sums sums;
  int reading = 0, writing = kStages - 1;
  for (int64_t s = 0; s < steps; ++s) {
    async_wait<kStages - 2>();
    sync_block();  // all have this step, and are done with the one that is overwritten
    if (s + kStages - 1 < steps) {
      load_step<T>(a, t, table, next, stages + writing * kStageBytes);
      next.advance(a, t, kDepth);
    }
    async_commit();
    sums.add(stages + reading * kStageBytes);
    reading = reading + 1 == kStages ? 0 : reading + 1;
    writing = writing + 1 == kStages ? 0 : writing + 1;
  }
  async_wait<0>();
  sync_block();
  float* results = reinterpret_cast<float*>(stages);
  sums.store(results);
  sync_block();
  store_tile<T>(a, t, table, results);
}

template <class T>
TORCH_EXT_KERNEL(kThreads, 3)
gemm_matrix(const GemmArguments a) {
  compute_tile<T, MatrixSums<T>>(a);
}

TORCH_EXT_KERNEL(kThreads, 2)
gemm_fma(const GemmArguments a) { compute_tile<float, FloatSums>(a); }

// [group][tap][column][channel], zeros where there is no such column or channel; and whether the block has met what is not finite.
template <class T>
TORCH_EXT_KERNEL(256, 4)
gemm_weights(const GemmArguments a) {
  const int64_t taps = a.kernel[0] * a.kernel[1] * a.kernel[2], size = a.groups * taps * a.columns_room * a.depth_room;
  const T* w = static_cast<const T*>(a.w);
  T* to = static_cast<T*>(const_cast<void*>(a.packed));
  int* found = reinterpret_cast<int*>(shared_memory());
  found[thread_index()] = 0;
  for (int64_t index = block_index() * block_threads() + thread_index(); index < size; index += block_count() * block_threads()) {
    int64_t rest = index;
    const int64_t channel = take(rest, a.depth_room), column = take(rest, a.columns_room);
    int64_t at = 0;
    for (int k = kAxes - 1; k >= 0; --k) at += take(rest, a.kernel[k]) * a.weights.axis[k];
    const int64_t inputs = a.forward ? channel : column, outputs = a.forward ? column : channel;
    const bool inside = channel < a.weights_depth && column < a.columns;
    at += (rest * (a.forward ? a.weights_depth : a.columns) + inputs) * a.weights.outer + outputs * a.weights.channel;
    T value{};
    if (inside) value = w[at];
    to[index] = value;
    const float wide = float(to_sum(value));
    if (!(wide - wide == 0)) found[thread_index()] = 1;
  }
  sync_block();
  if (thread_index() > 0) return;
  int any = 0;
  for (int i = 0; i < block_threads(); ++i) any |= found[i];
  a.not_finite[block_index()] = any;
}

}  // namespace

const char* launch_gemm(const GemmArguments& a, GemmMath math, const Launch& shape, Stream stream) {
  switch (math) {
    case GemmMath::bf16:
      return launch(gemm_matrix<bf16>, shape, stream, a);
    case GemmMath::f16:
      return launch(gemm_matrix<f16>, shape, stream, a);
    case GemmMath::tf32:
      return launch(gemm_matrix<float>, shape, stream, a);
    default:
      return launch(gemm_fma, shape, stream, a);
  }
}

const char* launch_gemm_weights(const GemmArguments& a, Type type, const Launch& shape, Stream stream) {
  return type == Type::bf16  ? launch(gemm_weights<bf16>, shape, stream, a)
         : type == Type::f16 ? launch(gemm_weights<f16>, shape, stream, a)
                             : launch(gemm_weights<float>, shape, stream, a);
}

}  // namespace torch_ext::cuda
