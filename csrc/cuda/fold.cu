// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/fold.h"

#include "csrc/cuda/take.h"
#include "csrc/cuda/tile.h"

namespace torch_ext::cuda {
namespace {

// Of a phase, as results need it.
struct Phase {
  int from, count, taps;  // no count: there is no such phase
};

// Where the rows of the tile lie, whether they are inside of x, and the phases of the box, axis by axis.
struct Tables {
  int64_t* from;
  int* inside;
  Phase* phases;  // [axis][kTileColumns]

  TORCH_EXT_DEVICE explicit Tables(char* memory)
      : from(reinterpret_cast<int64_t*>(memory)),
        inside(reinterpret_cast<int*>(from + kTileRows)),
        phases(reinterpret_cast<Phase*>(inside + kTileRows)) {}
};

// What a block computes.
struct TileOf {
  int64_t columns, phase[kAxes], sample, group;
  int top[kAxes];  // the first last term

  TORCH_EXT_DEVICE explicit TileOf(const FoldArguments& a) {
    int64_t block = block_index(), box = take(block, a.boxes.count[0] * a.boxes.count[1] * a.boxes.count[2]);
    columns = box * kTileColumns;
    for (int k = kAxes - 1; k >= 0; --k) phase[k] = take(box, a.boxes.count[k]) * a.boxes.phases[k];
    for (int k = kAxes - 1; k >= 0; --k) top[k] = a.first[k] + int(take(block, a.tiles[k])) * (a.patch[k] - a.halo[k]);
    sample = take(block, a.sample_tiles) * a.samples;
    group = block;
  }
};

TORCH_EXT_DEVICE void find_tables(const FoldArguments& a, const TileOf& t, const Tables& tables) {
  const int row = thread_index();
  int rest = row;
  int64_t from = 0;
  bool inside = true;
  for (int k = kAxes - 1; k >= 0; --k) {
    const int at = t.top[k] - a.halo[k] + rest % a.patch[k];
    rest /= a.patch[k];
    inside = inside && at >= 0 && at < a.gather[k].source_extent();
    from += at * a.from.axis[k];
    if (row >= a.boxes.phases[k]) continue;
    Phase phase{};
    if (t.phase[k] + row < a.gather[k].phases) {
      const GatherAxis g = a.gather[k].phase(t.phase[k] + row);
      phase = {int(g.from), int(g.count), int(g.taps)};
    }
    tables.phases[k * kTileColumns + row] = phase;
  }
  tables.from[row] = from + (t.sample + rest) * a.from.outer;
  tables.inside[row] = inside && rest < a.samples && t.sample + rest < a.batch;
}

template <class T>
TORCH_EXT_DEVICE void load_step(const FoldArguments& a, const TileOf& t, const Tables& tables, int64_t step, char* stage) {
  constexpr int kVector = 16 / int(sizeof(T)), kDepth = kTileStepBytes / int(sizeof(T));
  const int chunk = thread_index() % kTileChunks, first = thread_index() / kTileChunks;
  const int64_t channel = step * kDepth + chunk * kVector;
  const T* source = static_cast<const T*>(a.source);
  TORCH_EXT_UNROLL for (int i = 0; i < kTileRows / kTileLoaders; ++i) {
    const int row = first + i * kTileLoaders;
    const bool inside = tables.inside[row] && channel < a.depth;
    const T* from = inside ? source + tables.from[row] + t.group * a.depth + channel : source;
    async_copy16(chunk_of(stage, row, chunk), from, inside);
  }
  const int64_t columns = a.boxes.count[0] * a.boxes.count[1] * a.boxes.count[2] * kTileColumns;
  load_weights(static_cast<const T*>(a.packed) + (t.group * columns + t.columns) * a.depth_room + channel, a.depth_room, stage);
}

// Which result of the patch: of each axis the phase of the box, and the last term counted from the patch's first one.
struct Place {
  int channel, sample, phase[kAxes], top[kAxes];

  TORCH_EXT_DEVICE Place(const FoldArguments& a, int index) {
    if (a.channels_fastest) channel = a.by_channels.take(index);
    for (int k = kAxes - 1; k >= 0; --k) phase[k] = a.by_phases[k].take(index), top[k] = a.by_tops[k].take(index);
    if (!a.channels_fastest) channel = a.by_channels.take(index);
    sample = index;
  }
};

// Sums the terms of one result out of the products of the tile, and stores it with its bias.
template <class T>
TORCH_EXT_DEVICE void store(const FoldArguments& a, const TileOf& t, const Tables& tables, const float* products, const Place& p) {
  Phase phase[kAxes];
  int step[kAxes], row = p.sample, column = 0;
  int64_t to = (t.sample + p.sample) * a.to.outer + (t.group * a.channels + p.channel) * a.to.channel;
  for (int k = 0; k < kAxes; ++k) {
    phase[k] = tables.phases[k * kTileColumns + p.phase[k]];
    const int j = t.top[k] + p.top[k] - phase[k].from;
    if (j < 0 || j >= phase[k].count) return;
    to += (t.phase[k] + p.phase[k] + j * a.gather[k].axis.stride) * a.to.axis[k];
    step[k] = int(a.gather[k].axis.dilation / a.gather[k].gcd);
    row = row * a.patch[k] + a.halo[k] + p.top[k];
    column = column * int(a.boxes.phases[k]) + p.phase[k];
  }
  float sum = 0;
  for (int q0 = 0; q0 < phase[0].taps; ++q0)
    for (int q1 = 0; q1 < phase[1].taps; ++q1)
      for (int q2 = 0; q2 < phase[2].taps; ++q2) {
        const int term = row - ((q0 * step[0]) * a.patch[1] + q1 * step[1]) * a.patch[2] - q2 * step[2];
        const int tap = (int(q0 * a.boxes.taps[1]) + q1) * int(a.boxes.taps[2]) + q2;
        const int taps = int(a.boxes.taps[0] * a.boxes.taps[1] * a.boxes.taps[2]);
        if (tables.inside[term]) sum += products[term * kResultPitch + (column * taps + tap) * int(a.channels) + p.channel];
      }
  if (a.bias) sum += float(to_sum(static_cast<const T*>(a.bias)[t.group * a.channels + p.channel]));
  from_sum(sum, static_cast<T*>(a.result)[to]);
}

template <class T, class Sums>
TORCH_EXT_DEVICE void compute_tile(const FoldArguments& a) {
  const TileOf t(a);
  char* stages = shared_memory();
  const Tables tables(stages + kTileBytes);
  find_tables(a, t, tables);
  sync_block();
  Sums sums;
  int64_t next = 0;
  run_pipeline<kTileStages>(
      a.depth_room / (kTileStepBytes / int64_t(sizeof(T))),
      [&](int stage) { load_step<T>(a, t, tables, next++, stages + stage * kTileStageBytes); },
      [&](int stage) { sums.add(stages + stage * kTileStageBytes); });
  sync_block();
  float* products = reinterpret_cast<float*>(stages);
  sums.for_each([&](int row, int column, float sum) { products[row * kResultPitch + column] = sum; });
  sync_block();
  int results = int(a.channels * (a.batch - t.sample < a.samples ? a.batch - t.sample : a.samples));
  for (int k = 0; k < kAxes; ++k) results *= int(a.boxes.phases[k]) * (a.patch[k] - a.halo[k]);
  for (int index = thread_index(); index < results; index += kTileThreads) store<T>(a, t, tables, products, Place(a, index));
}

template <class T>
TORCH_EXT_KERNEL(kTileThreads, 3)
fold_matrix(const FoldArguments a) {
  compute_tile<T, MatrixSums<T>>(a);
}

TORCH_EXT_KERNEL(kTileThreads, 3)
fold_fma(const FoldArguments a) { compute_tile<float, FloatSums>(a); }

}  // namespace

const char* launch_fold(const FoldArguments& a, TileMath math, const Launch& shape, Stream stream) {
  return with_math(
      math, [&](auto value) { return launch(fold_matrix<decltype(value)>, shape, stream, a); },
      [&] { return launch(fold_fma, shape, stream, a); });
}

}  // namespace torch_ext::cuda
