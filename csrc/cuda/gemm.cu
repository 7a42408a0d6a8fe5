// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/gemm.h"

#include "csrc/cuda/take.h"
#include "csrc/cuda/tile.h"

namespace torch_ext::cuda {
namespace {

// Of each row of a tile: where its result goes (-1: nowhere), and where the source of tap 0 would lie, in memory and along the
// axes. And the phase that all have.
struct RowTable {
  int64_t* to;
  int64_t* from;
  int* at;  // [axis][row]
  GatherAxis* axis;

  TORCH_EXT_DEVICE explicit RowTable(char* memory)
      : to(reinterpret_cast<int64_t*>(memory)),
        from(to + kTileRows),
        at(reinterpret_cast<int*>(from + kTileRows)),
        axis(reinterpret_cast<GatherAxis*>(at + kAxes * kTileRows)) {}
};

// What a block computes.
struct TileOf {
  int64_t index, phase[kAxes], group, row, column, part;
};

// The phases of the same positions of the source are neighbours: what they read is in the cache, and so is what their results
// have in common.
TORCH_EXT_DEVICE TileOf tile_of(const GemmArguments& a) {
  TileOf t;
  int64_t block = block_index();
  t.index = take(block, a.part_tiles);
  t.part = block;
  block = t.index;
  t.column = take(block, a.column_tiles) * kTileColumns;
  for (int k = kAxes - 1; k >= 0; --k) t.phase[k] = take(block, a.gather[k].phases);
  t.row = take(block, a.tiles) * kTileRows;
  t.group = block;
  return t;
}

// Finds the phase and the rows of the tile; whether there are any.
TORCH_EXT_DEVICE bool find_rows(const GemmArguments& a, const TileOf& t, const RowTable& table) {
  if (thread_index() < kAxes) table.axis[thread_index()] = a.gather[thread_index()].phase(t.phase[thread_index()]);
  sync_block();
  const int row = thread_index();
  int64_t index = t.row + row, to = 0, from = 0, rows = a.batch;
  for (int k = kAxes - 1; k >= 0; --k) {
    const GatherAxis& g = table.axis[k];
    const int64_t j = take(index, g.count), at = g.from + j * g.from_step;
    to += (g.to + j * g.to_step) * a.to.axis[k];
    from += at * a.from.axis[k];
    table.at[k * kTileRows + row] = int(at);
    rows *= g.count;
  }
  table.to[row] = index < a.batch ? to + index * a.to.outer : -1;
  table.from[row] = from + index * a.from.outer;
  sync_block();
  return t.row < rows;
}

// The steps of the depth: taps of the phase, and of each the channels. What a tap determines is found once.
struct Step {
  int64_t q[kAxes], channel, tap, offset;
  int shift[kAxes];

  TORCH_EXT_DEVICE Step(const GemmArguments& a, const RowTable& table, int64_t index, int64_t by) {
    channel = take(index, a.depth_room / by) * by;
    for (int k = kAxes - 1; k >= 0; --k) q[k] = take(index, table.axis[k].taps);
    find_tap(a, table);
  }
  TORCH_EXT_DEVICE void find_tap(const GemmArguments& a, const RowTable& table) {
    tap = 0, offset = 0;
    for (int k = 0; k < kAxes; ++k) {
      const GatherAxis& g = table.axis[k];
      tap = tap * a.gather[k].axis.w + g.tap + q[k] * g.tap_step;
      shift[k] = int(q[k] * g.from_tap);
      offset += shift[k] * a.from.axis[k];
    }
  }
  TORCH_EXT_DEVICE void advance(const GemmArguments& a, const RowTable& table, int64_t by) {
    channel += by;
    if (channel < a.depth_room) return;
    channel = 0;
    for (int k = kAxes - 1; k >= 0; --k) {
      if (++q[k] < table.axis[k].taps) break;
      q[k] = 0;
    }
    find_tap(a, table);
  }
};

template <class T>
TORCH_EXT_DEVICE void load_step(const GemmArguments& a, const TileOf& t, const RowTable& table, const Step& step, char* stage) {
  constexpr int kVector = 16 / int(sizeof(T));
  const int chunk = thread_index() % kTileChunks, first = thread_index() / kTileChunks;
  const int64_t channel = step.channel + chunk * kVector, offset = t.group * a.depth + channel + step.offset;
  const T* source = static_cast<const T*>(a.source);
  TORCH_EXT_UNROLL for (int i = 0; i < kTileRows / kTileLoaders; ++i) {
    const int row = first + i * kTileLoaders;
    bool inside = table.to[row] >= 0 && channel < a.depth;
    for (int k = 0; k < kAxes; ++k) {
      const int at = table.at[k * kTileRows + row] + step.shift[k];
      inside = inside && at >= 0 && at < a.gather[k].source_extent();
    }
    async_copy16(chunk_of(stage, row, chunk), inside ? source + table.from[row] + offset : source, inside);
  }
  const int64_t taps = a.gather[0].axis.w * a.gather[1].axis.w * a.gather[2].axis.w;
  const int64_t column = (t.group * taps + step.tap) * a.columns_room + t.column;
  load_weights(static_cast<const T*>(a.packed) + column * a.depth_room + channel, a.depth_room, stage);
}

// Whether some tap of a row lies outside of the source.
TORCH_EXT_DEVICE bool reads_zeros(const GemmArguments& a, const RowTable& table, int row) {
  for (int k = 0; k < kAxes; ++k) {
    const int64_t first = table.at[k * kTileRows + row], last = first + (table.axis[k].taps - 1) * table.axis[k].from_tap;
    if (first < 0 || last < 0 || first >= a.gather[k].source_extent() || last >= a.gather[k].source_extent()) return true;
  }
  return false;
}

// One result without its bias, from what it reads and no zeros.
template <class T>
TORCH_EXT_DEVICE float sum_exactly(const GemmArguments& a, const TileOf& t, const RowTable& table, int row, int64_t column) {
  const T* weights = static_cast<const T*>(a.packed);
  int64_t taps = 1, phase_taps = 1;
  for (int k = 0; k < kAxes; ++k) taps *= a.gather[k].axis.w, phase_taps *= table.axis[k].taps;
  float sum = 0;
  for (int64_t index = 0; index < phase_taps; ++index) {
    int64_t rest = index, tap = 0, step = 1, from = table.from[row] + t.group * a.depth;
    bool inside = true;
    for (int k = kAxes - 1; k >= 0; --k) {
      const GatherAxis& g = table.axis[k];
      const int64_t q = take(rest, g.taps), at = table.at[k * kTileRows + row] + q * g.from_tap;
      inside = inside && at >= 0 && at < a.gather[k].source_extent();
      from += q * g.from_tap * a.from.axis[k];
      tap += (g.tap + q * g.tap_step) * step, step *= a.gather[k].axis.w;
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
  const auto value = [&](int row, int column) {
    float sum = results[row * kResultPitch + column];
    if (!(sum - sum == 0) && reads_zeros(a, table, row)) sum = sum_exactly<T>(a, t, table, row, t.column + column);
    if (bias) sum += float(to_sum(bias[t.group * a.columns + t.column + column]));
    T rounded;
    from_sum(sum, rounded);
    return rounded;
  };
  if (a.vectors) {
    for (int index = thread_index(); index < kTileRows * (kTileColumns / kVector); index += kTileThreads) {
      const int row = index / (kTileColumns / kVector), column = index % (kTileColumns / kVector) * kVector;
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
  for (int index = thread_index(); index < kTileRows * kTileColumns; index += kTileThreads) {
    const int row = by_channel ? index / kTileColumns : index % kTileRows;
    const int column = by_channel ? index % kTileColumns : index / kTileRows;
    if (table.to[row] >= 0 && t.column + column < a.columns)
      to[table.to[row] + (t.column + column) * a.to.channel] = value(row, column);
  }
}

template <class T, class Sums>
TORCH_EXT_DEVICE void compute_tile(const GemmArguments& a) {
  constexpr int64_t kDepth = kTileStepBytes / int64_t(sizeof(T));
  const TileOf t = tile_of(a);
  char* stages = shared_memory();
  const RowTable table(stages + kTileBytes);
  if (!find_rows(a, t, table)) return;  // the whole block: its phase is smaller than the largest
  int64_t steps = a.depth_room / kDepth;
  for (int k = 0; k < kAxes; ++k) steps *= table.axis[k].taps;
  const int64_t begin = steps * t.part / a.parts, end = steps * (t.part + 1) / a.parts;
  Sums sums;
  if (begin < end) {
    Step next(a, table, begin, kDepth);
    const auto load = [&](int stage) {
      load_step<T>(a, t, table, next, stages + stage * kTileStageBytes);
      next.advance(a, table, kDepth);
    };
    run_pipeline<kTileStages>(end - begin, load, [&](int stage) { sums.add(stages + stage * kTileStageBytes); });
  }
  if (a.parts > 1) {
    float* to = a.sums + (t.part * a.part_tiles + t.index) * (kTileRows * kTileColumns);
    sums.for_each([&](int row, int column, float sum) { to[row * kTileColumns + column] = sum; });
    return;
  }
  sync_block();
  float* results = reinterpret_cast<float*>(stages);
  sums.for_each([&](int row, int column, float sum) { results[row * kResultPitch + column] = sum; });
  sync_block();
  store_tile<T>(a, t, table, results);
}

template <class T>
TORCH_EXT_KERNEL(kTileThreads, 3)
gemm_matrix(const GemmArguments a) {
  compute_tile<T, MatrixSums<T>>(a);
}

TORCH_EXT_KERNEL(kTileThreads, 3)
gemm_fma(const GemmArguments a) { compute_tile<float, FloatSums>(a); }

template <class T>
TORCH_EXT_KERNEL(kTileThreads, 4)
gemm_sum(const GemmArguments a) {
  const TileOf t = tile_of(a);
  char* memory = shared_memory();
  const RowTable table(memory + kTileBytes);
  if (!find_rows(a, t, table)) return;
  float* results = reinterpret_cast<float*>(memory);
  for (int index = thread_index(); index < kTileRows * kTileColumns; index += kTileThreads) {
    const float* from = a.sums + t.index * (kTileRows * kTileColumns) + index;
    float sum = *from;
    for (int64_t part = 1; part < a.parts; ++part) sum += from[part * a.part_tiles * (kTileRows * kTileColumns)];
    results[index / kTileColumns * kResultPitch + index % kTileColumns] = sum;
  }
  sync_block();
  store_tile<T>(a, t, table, results);
}

}  // namespace

const char* launch_gemm(const GemmArguments& a, TileMath math, const Launch& shape, Stream stream) {
  return with_math(
      math, [&](auto value) { return launch(gemm_matrix<decltype(value)>, shape, stream, a); },
      [&] { return launch(gemm_fma, shape, stream, a); });
}

const char* launch_gemm_sum(const GemmArguments& a, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) { return launch(gemm_sum<decltype(value)>, shape, stream, a); });
}

}  // namespace torch_ext::cuda
