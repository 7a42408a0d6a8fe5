// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/few.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

template <class T>
union Vector {
  static constexpr int kCount = 16 / int(sizeof(T));
  T value[kCount];
  Bytes16 bytes;
};

// ---- conv_transpose, backward_data -------------------------------------------------------------------------------------------

// What a block computes: a phase, and of it a chunk of the channels and a part of the positions.
struct Chunk {
  int64_t vector, phase[kAxes], begin, end;

  TORCH_EXT_DEVICE explicit Chunk(const FewArguments& a) {
    int64_t block = block_index();
    vector = take(block, a.chunks) * a.lanes;
    for (int k = kAxes - 1; k >= 0; --k) phase[k] = take(block, a.gather[k].phases);
    begin = block * a.part_positions;
    end = begin + a.part_positions < a.positions ? begin + a.part_positions : a.positions;
  }
};

// Channels of the result, of one vector of them.
struct Columns {
  int64_t group, first;  // the group of the first one, and which one of the group it is
  int count;             // none beyond the last vector

  template <FewChannels channels, int width>
  TORCH_EXT_DEVICE static Columns make(const FewArguments& a, int64_t vector) {
    if (channels == FewChannels::own) return {vector * width, 0, vector < a.vectors ? width : 0};
    const int64_t of_group = (a.columns + width - 1) / width, first = vector % of_group * width;
    const int64_t left = a.columns - first;
    return {vector / of_group, first, vector < a.vectors ? int(left < width ? left : width) : 0};
  }
};

// The weights of the phase and of the block's channels: [tap][channel of the source][lane][channel of the result].
template <class T, FewChannels channels, int width>
TORCH_EXT_DEVICE void keep_weights(const FewArguments& a, const Chunk& chunk, const GatherAxis* axis, float* weights) {
  const bool forward = a.gather[0].forward;
  const int64_t depth_step = forward ? a.weights.outer : a.weights.channel;
  const int64_t column_step = forward ? a.weights.channel : a.weights.outer;
  const int row = a.lanes * width, count = int(axis[0].taps * axis[1].taps * axis[2].taps * a.depth) * row;
  for (int index = thread_index(); index < count; index += kFewThreads) {
    int64_t rest = index / row;
    const int of_row = index % row, element = of_row % width;
    const Columns c = Columns::make<channels, width>(a, chunk.vector + of_row / width);
    const int64_t group = c.group + (channels == FewChannels::own ? element : 0);
    const int64_t column = c.first + (channels == FewChannels::own ? 0 : element);
    const int64_t depth = take(rest, a.depth);
    int64_t at = group * (forward ? a.depth : a.columns) * a.weights.outer + depth * depth_step + column * column_step;
    for (int k = kAxes - 1; k >= 0; --k) at += (axis[k].tap + take(rest, axis[k].taps) * axis[k].tap_step) * a.weights.axis[k];
    weights[index] = element < c.count ? float(to_sum(static_cast<const T*>(a.w)[at])) : 0.f;
  }
}

// Where the source of tap 0 of a result is, and whether there is such a result.
struct Place {
  int64_t from;
  int at[kAxes];
  bool exists;

  TORCH_EXT_DEVICE void find(const FewArguments& a, const GatherAxis* axis, int64_t index, int64_t end) {
    int rest = int(index < end ? index : 0);
    exists = index < end, from = 0;
    for (int k = kAxes - 1; k >= 0; --k) {
      const int j = a.by_count[k].take(rest);
      exists = exists && j < axis[k].count;
      at[k] = int(axis[k].from + j * axis[k].from_step);
      from += at[k] * a.from.axis[k];
    }
    from += rest * a.from.outer;
  }
};

// Where a result goes. Found after the sum: a register less while it is computed.
TORCH_EXT_DEVICE int64_t target_of(const FewArguments& a, const GatherAxis* axis, int64_t index) {
  int rest = int(index);
  int64_t to = 0;
  for (int k = kAxes - 1; k >= 0; --k) to += (axis[k].to + a.by_count[k].take(rest) * axis[k].to_step) * a.to.axis[k];
  return to + rest * a.to.outer;
}

template <class T, FewChannels channels>
TORCH_EXT_KERNEL(kFewThreads, 4)
few_gather(const FewArguments a) {
  constexpr int kWidth = channels == FewChannels::one ? 1 : Vector<T>::kCount, kResults = kWidth > 4 ? 2 : 4;
  GatherAxis* axis = reinterpret_cast<GatherAxis*>(shared_memory());
  float* weights = reinterpret_cast<float*>(shared_memory() + (kAxes * sizeof(GatherAxis) + 15) / 16 * 16);
  const Chunk chunk(a);
  if (thread_index() < kAxes) axis[thread_index()] = a.gather[thread_index()].phase(chunk.phase[thread_index()]);
  sync_block();
  keep_weights<T, channels, kWidth>(a, chunk, axis, weights);
  sync_block();

  const int lane = thread_index() % a.lanes, pass = kFewThreads / a.lanes, row = a.lanes * kWidth;
  const Columns c = Columns::make<channels, kWidth>(a, chunk.vector + lane);
  if (c.count == 0) return;
  const int64_t channel = c.group * a.columns + c.first;
  const T* source = static_cast<const T*>(a.source) + c.group * a.depth * a.from.channel;
  T* result = static_cast<T*>(a.result) + channel * a.to.channel;
  float bias[kWidth] = {};
  if (a.bias)
    TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v)
      if (v < c.count) bias[v] = float(to_sum(static_cast<const T*>(a.bias)[channel + v]));
  int extent[kAxes], taps[kAxes], shift[kAxes];
  TORCH_EXT_UNROLL for (int k = 0; k < kAxes; ++k)
    extent[k] = int(a.gather[k].source_extent()), taps[k] = int(axis[k].taps), shift[k] = int(axis[k].from_tap);
  const int64_t across = shift[2] * a.from.axis[2];

  for (int64_t first = chunk.begin + thread_index() / a.lanes; first < chunk.end; first += pass * kResults) {
    Place place[kResults];
    float sum[kResults][kWidth];
    TORCH_EXT_UNROLL for (int r = 0; r < kResults; ++r) {
      place[r].find(a, axis, first + r * pass, chunk.end);
      TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v) sum[r][v] = 0;
    }
    const float* w = weights + lane * kWidth;
    TORCH_EXT_NO_UNROLL for (int q0 = 0; q0 < taps[0]; ++q0)
      TORCH_EXT_NO_UNROLL for (int q1 = 0; q1 < taps[1]; ++q1) {
        bool inside[kResults];
        int64_t from[kResults];
        TORCH_EXT_UNROLL for (int r = 0; r < kResults; ++r) {
          const int s0 = place[r].at[0] + q0 * shift[0], s1 = place[r].at[1] + q1 * shift[1];
          inside[r] = place[r].exists && unsigned(s0) < unsigned(extent[0]) && unsigned(s1) < unsigned(extent[1]);
          from[r] = place[r].from + q0 * shift[0] * a.from.axis[0] + q1 * shift[1] * a.from.axis[1];
        }
        TORCH_EXT_NO_UNROLL for (int q2 = 0; q2 < taps[2]; ++q2) {
          bool reads[kResults];
          TORCH_EXT_UNROLL for (int r = 0; r < kResults; ++r)
            reads[r] = inside[r] && unsigned(place[r].at[2] + q2 * shift[2]) < unsigned(extent[2]);
          TORCH_EXT_NO_UNROLL for (int d = 0; d < a.depth; ++d, w += row) {
            float weight[kWidth];
            if constexpr (kWidth == 1) {
              weight[0] = *w;
            } else {
              TORCH_EXT_UNROLL for (int v = 0; v < kWidth; v += 4) {
                const Bytes16 four = load16(w + v);
                TORCH_EXT_UNROLL for (int e = 0; e < 4; ++e) weight[v + e] = as_float(four.word[e]);
              }
            }
            TORCH_EXT_UNROLL for (int r = 0; r < kResults; ++r) {
              if (!reads[r]) continue;
              const T* at = source + from[r] + q2 * across + d * a.from.channel;
              if constexpr (channels == FewChannels::own) {
                Vector<T> vector;
                vector.bytes = load16(at);
                TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v) sum[r][v] += float(to_sum(vector.value[v])) * weight[v];
              } else {
                const float value = float(to_sum(*at));
                TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v) sum[r][v] += value * weight[v];
              }
            }
          }
        }
      }
    TORCH_EXT_UNROLL for (int r = 0; r < kResults; ++r) {
      if (!place[r].exists) continue;
      Vector<T> vector;
      TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v) from_sum(sum[r][v] + bias[v], vector.value[v]);
      T* to = result + target_of(a, axis, first + r * pass);
      if (kWidth > 1 && (channels == FewChannels::own || a.vector_stores)) {
        store16(to, vector.bytes);
      } else {
        TORCH_EXT_UNROLL for (int v = 0; v < kWidth; ++v)
          if (v < c.count) to[v * a.to.channel] = vector.value[v];
      }
    }
  }
}

// ---- backward_weights --------------------------------------------------------------------------------------------------------

template <class T>
TORCH_EXT_KERNEL(kFewThreads, 8)
few_weights(const FewWeightsArguments a) {
  // Of each tap: how far the position of y is from that of tap 0, along the axes and in memory.
  struct Tap {
    int64_t offset;
    int shift[kAxes];
  };
  static_assert(sizeof(Tap) <= 4 * sizeof(int64_t));
  const Geometry& g = a.geometry;
  Tap* taps = reinterpret_cast<Tap*>(shared_memory());
  float* results = reinterpret_cast<float*>(shared_memory() + kFewTaps * 4 * sizeof(int64_t));  // [tap][thread]
  int64_t block = block_index();
  const int64_t first_pair = take(block, a.chunks) * a.lanes, first_tap = take(block, a.tap_chunks) * kFewTaps;
  const int64_t all_taps = g.w_positions(), begin = block * a.part_positions;
  const int64_t end = begin + a.part_positions < a.positions ? begin + a.part_positions : a.positions;
  const int count = int(all_taps - first_tap < kFewTaps ? all_taps - first_tap : kFewTaps);
  if (thread_index() < count) {
    int64_t rest = first_tap + thread_index();
    Tap tap{};
    for (int k = kAxes - 1; k >= 0; --k) {
      tap.shift[k] = int(take(rest, g.axis[k].w) * g.axis[k].dilation);
      tap.offset += tap.shift[k] * a.y_strides.axis[k];
    }
    taps[thread_index()] = tap;
  }
  sync_block();

  const int lane = thread_index() % a.lanes, pass = kFewThreads / a.lanes;
  const int64_t pair = first_pair + lane;
  float sum[kFewTaps] = {};
  if (pair < a.pairs) {
    int64_t group = pair;
    const int64_t y_channel = take(group, g.y_channels), x_channel = take(group, g.x_channels);
    const T* x = static_cast<const T*>(a.x) + (group * g.x_channels + x_channel) * a.x_strides.channel;
    const T* y = static_cast<const T*>(a.y) + (group * g.y_channels + y_channel) * a.y_strides.channel;
    for (int64_t position = begin + thread_index() / a.lanes; position < end; position += pass) {
      int rest = int(position), at[kAxes];
      int64_t from_x = 0, from_y = 0;
      bool interior = true;
      for (int k = kAxes - 1; k >= 0; --k) {
        const Axis& axis = g.axis[k];
        const int i = a.by_extent[k].take(rest);
        at[k] = int(axis.reach(i, 0));
        interior = interior && at[k] >= 0 && at[k] + (axis.w - 1) * axis.dilation < axis.y;
        from_x += i * a.x_strides.axis[k], from_y += at[k] * a.y_strides.axis[k];
      }
      const float value = float(to_sum(x[from_x + rest * a.x_strides.outer]));
      const T* from = y + from_y + rest * a.y_strides.outer;
      TORCH_EXT_UNROLL for (int t = 0; t < kFewTaps; ++t) {
        if (t >= count) break;
        bool inside = true;
        if (!interior)
          for (int k = 0; k < kAxes; ++k) inside = inside && unsigned(at[k] + taps[t].shift[k]) < unsigned(g.axis[k].y);
        if (inside) sum[t] += value * float(to_sum(from[taps[t].offset]));
      }
    }
  }
  TORCH_EXT_UNROLL for (int t = 0; t < kFewTaps; ++t) results[t * kFewThreads + thread_index()] = sum[t];
  sync_block();
  // The sums of the threads of a pair, in their order.
  for (int index = thread_index(); index < count * a.lanes; index += kFewThreads) {
    const int of_lane = index % a.lanes, t = index / a.lanes;
    if (first_pair + of_lane >= a.pairs) continue;
    float total = 0;
    for (int thread = of_lane; thread < kFewThreads; thread += a.lanes) total += results[t * kFewThreads + thread];
    const int64_t of_group = g.x_channels * g.y_channels;
    int64_t group = first_pair + of_lane;
    const int64_t in_group = take(group, of_group);
    a.sums[((block * g.groups + group) * all_taps + first_tap + t) * of_group + in_group] = total;
  }
}

}  // namespace

const char* launch_few(const FewArguments& a, FewChannels channels, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) {
    using T = decltype(value);
    return channels == FewChannels::own        ? launch(few_gather<T, FewChannels::own>, shape, stream, a)
           : channels == FewChannels::of_group ? launch(few_gather<T, FewChannels::of_group>, shape, stream, a)
                                               : launch(few_gather<T, FewChannels::one>, shape, stream, a);
  });
}

const char* launch_few_weights(const FewWeightsArguments& a, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) { return launch(few_weights<decltype(value)>, shape, stream, a); });
}

}  // namespace torch_ext::cuda
