// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/pack.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

constexpr int kSide = 32, kPitch = kSide + 1;

// Of a row of the packed weights: which one it is, and where its first channel lies among the weights (-1: it is zeros).
struct Row {
  int64_t to, from;
};

// Rows in the order in which their weights follow each other in memory, as far as that is simple.
TORCH_EXT_DEVICE Row find_row(const PackArguments& a, int64_t index) {
  const bool forward = a.gather[0].forward;
  const int64_t column_step = forward ? a.weights.channel : a.weights.outer;
  int64_t group = index;
  int64_t rest = take(group, a.rows), to = rest, column = 0, tap[kAxes];
  bool inside = true;
  if (a.boxed) {
    int64_t box = rest / kTileColumns, phase[kAxes];
    rest %= kTileColumns;
    column = take(rest, a.columns);
    for (int k = kAxes - 1; k >= 0; --k) tap[k] = take(rest, a.boxes.taps[k]);
    for (int k = kAxes - 1; k >= 0; --k)
      phase[k] = take(rest, a.boxes.phases[k]) + take(box, a.boxes.count[k]) * a.boxes.phases[k];
    inside = rest == 0;
    for (int k = 0; k < kAxes && inside; ++k) {
      inside = phase[k] < a.gather[k].phases;
      const GatherAxis g = a.gather[k].phase(inside ? phase[k] : 0);
      inside = inside && tap[k] < g.taps;
      tap[k] = g.tap + tap[k] * g.tap_step;
    }
  } else {
    const bool taps_fastest = a.weights.axis[kAxes - 1] < column_step;
    if (!taps_fastest) column = take(rest, a.columns_room);
    int64_t taps = 1, flat = 0;
    for (int k = kAxes - 1; k >= 0; --k) {
      tap[k] = take(rest, a.gather[k].axis.w);
      flat += tap[k] * taps, taps *= a.gather[k].axis.w;
    }
    if (taps_fastest) column = rest;
    to = flat * a.columns_room + column;
    inside = column < a.columns;
  }
  int64_t from = (forward ? group * a.depth : group * a.columns) * a.weights.outer + column * column_step;
  for (int k = 0; k < kAxes; ++k) from += tap[k] * a.weights.axis[k];
  return {group * a.rows + to, inside ? from : -1};
}

// Tiles of 32 rows by 32 channels through shared memory, so that both sides are read and written along their lines.
template <class T>
TORCH_EXT_KERNEL(256, 4)
pack(const PackArguments a) {
  Row* rows = reinterpret_cast<Row*>(shared_memory());
  T* tile = reinterpret_cast<T*>(rows + kSide);
  const bool forward = a.gather[0].forward;
  const int64_t depth_step = forward ? a.weights.outer : a.weights.channel;
  // Neighbouring threads take neighbouring rows, or channels where those lie closer together.
  const bool by_rows = !(depth_step < (forward ? a.weights.channel : a.weights.outer) && depth_step < a.weights.axis[kAxes - 1]);
  const int64_t row_tiles = (a.groups * a.rows + kSide - 1) / kSide, depth_tiles = (a.depth_room + kSide - 1) / kSide;
  const int x = thread_index() % kSide, y = thread_index() / kSide, step = block_threads() / kSide;
  for (int64_t block = block_index(); block < row_tiles * depth_tiles; block += block_count()) {
    int64_t rest = block;
    const int64_t depth = take(rest, depth_tiles) * kSide, row = rest * kSide;
    if (y == 0) rows[x] = row + x < a.groups * a.rows ? find_row(a, row + x) : Row{-1, -1};
    sync_block();
    for (int i = y; i < kSide; i += step) {
      const int r = by_rows ? x : i, c = by_rows ? i : x;
      T value{};
      if (rows[r].from >= 0 && depth + c < a.depth) value = static_cast<const T*>(a.w)[rows[r].from + (depth + c) * depth_step];
      tile[r * kPitch + c] = value;
    }
    sync_block();
    for (int r = y; r < kSide; r += step)
      if (rows[r].to >= 0 && depth + x < a.depth_room)
        static_cast<T*>(a.packed)[rows[r].to * a.depth_room + depth + x] = tile[r * kPitch + x];
    sync_block();
  }
}

}  // namespace

const char* launch_pack(const PackArguments& a, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) { return launch(pack<decltype(value)>, shape, stream, a); });
}

}  // namespace torch_ext::cuda
