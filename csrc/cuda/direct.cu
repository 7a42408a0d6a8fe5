// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/direct.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

struct Place {
  int64_t outer, channel, at[kAxes];
};

TORCH_EXT_DEVICE Place place_of(int64_t index, int64_t channels, const int64_t (&extent)[kAxes], bool channels_fastest) {
  Place p;
  if (channels_fastest) p.channel = take(index, channels);
  for (int a = kAxes - 1; a >= 0; --a) p.at[a] = take(index, extent[a]);
  if (!channels_fastest) p.channel = take(index, channels);
  p.outer = index;
  return p;
}

// The source, the weights as the gather sees them, and the sum over the channels of one position and tap.
template <class T>
struct Reader {
  const T* source;
  const T* weights;
  int64_t channels, source_step, weights_step;

  template <class Sum>
  TORCH_EXT_DEVICE void add(Sum& sum, int64_t source_at, int64_t weights_at) const {
    for (int64_t c = 0; c < channels; ++c)
      sum += Sum(to_sum(source[source_at + c * source_step])) * Sum(to_sum(weights[weights_at + c * weights_step]));
  }
};

template <class T>
TORCH_EXT_KERNEL(128, 4)
direct_gather(const DirectArguments a) {
  const Problem& p = a.problem;
  const Geometry& g = p.geometry;
  const bool forward = p.operation == Operation::conv_transpose;
  const Strides &from = forward ? p.x : p.y, &to = forward ? p.y : p.x;
  const int64_t group_channels = forward ? g.y_channels : g.x_channels, channels = g.groups * group_channels;
  int64_t extent[kAxes], source_extent[kAxes];
  for (int k = 0; k < kAxes; ++k) extent[k] = a.gather[k].result_extent(), source_extent[k] = a.gather[k].source_extent();
  const int64_t results = forward ? g.y_size() : g.x_size();
  const Reader<T> reader{static_cast<const T*>(forward ? a.x : a.y), static_cast<const T*>(a.w),
                         forward ? g.x_channels : g.y_channels, from.channel, forward ? p.w.outer : p.w.channel};
  for (int64_t index = block_index() * block_threads() + thread_index(); index < results;
       index += block_count() * block_threads()) {
    const Place at = place_of(index, channels, extent, a.channels_fastest);
    const int64_t group = at.channel / group_channels, channel = at.channel - group * group_channels;
    GatherAxis axis[kAxes];
    for (int k = 0; k < kAxes; ++k) {
      int64_t step = at.at[k];
      axis[k] = a.gather[k].phase(take(step, forward ? g.axis[k].stride : 1));
      axis[k].from += step * axis[k].from_step;
    }
    const int64_t source = at.outer * from.outer + group * reader.channels * from.channel;
    const int64_t weights = forward ? group * g.x_channels * p.w.outer + channel * p.w.channel : at.channel * p.w.outer;
    decltype(to_sum(T{})) sum = 0;
    if (p.bias) sum = to_sum(static_cast<const T*>(a.bias)[at.channel]);
    for (int64_t q0 = 0; q0 < axis[0].taps; ++q0) {
      const int64_t s0 = axis[0].from + axis[0].from_tap * q0;
      if (s0 < 0 || s0 >= source_extent[0]) continue;
      for (int64_t q1 = 0; q1 < axis[1].taps; ++q1) {
        const int64_t s1 = axis[1].from + axis[1].from_tap * q1;
        if (s1 < 0 || s1 >= source_extent[1]) continue;
        for (int64_t q2 = 0; q2 < axis[2].taps; ++q2) {
          const int64_t s2 = axis[2].from + axis[2].from_tap * q2;
          if (s2 < 0 || s2 >= source_extent[2]) continue;
          const int64_t k0 = axis[0].tap + axis[0].tap_step * q0, k1 = axis[1].tap + axis[1].tap_step * q1;
          const int64_t k2 = axis[2].tap + axis[2].tap_step * q2;
          reader.add(sum, source + s0 * from.axis[0] + s1 * from.axis[1] + s2 * from.axis[2],
                     weights + k0 * p.w.axis[0] + k1 * p.w.axis[1] + k2 * p.w.axis[2]);
        }
      }
    }
    const int64_t target =
        at.outer * to.outer + at.channel * to.channel + at.at[0] * to.axis[0] + at.at[1] * to.axis[1] + at.at[2] * to.axis[2];
    from_sum(sum, static_cast<T*>(a.result)[target]);
  }
}

template <class T>
TORCH_EXT_KERNEL(128, 4)
direct_weights(const DirectArguments a) {
  constexpr int kWarp = 32;
  const Problem& p = a.problem;
  const Geometry& g = p.geometry;
  const int64_t extent[kAxes] = {g.axis[0].x, g.axis[1].x, g.axis[2].x};
  const int64_t kernel[kAxes] = {g.axis[0].w, g.axis[1].w, g.axis[2].w};
  const int64_t terms = g.batch * g.x_positions(), results = g.w_size();
  const int lane = thread_index() % kWarp, warps = block_threads() / kWarp;
  const T* x = static_cast<const T*>(a.x);
  const T* y = static_cast<const T*>(a.y);
  for (int64_t index = block_index() * warps + thread_index() / kWarp; index < results; index += block_count() * warps) {
    const Place w = place_of(index, g.y_channels, kernel, false);  // outer: the input channel
    const int64_t y_channel = w.outer / g.x_channels * g.y_channels + w.channel;
    T& result = static_cast<T*>(a.result)[w.outer * p.w.outer + w.channel * p.w.channel + w.at[0] * p.w.axis[0] +
                                          w.at[1] * p.w.axis[1] + w.at[2] * p.w.axis[2]];
    if (a.repair) {
      const auto value = to_sum(result);
      if (value - value == 0) continue;  // the whole warp
    }
    decltype(to_sum(T{})) sum = 0;
    for (int64_t term = lane; term < terms; term += kWarp) {
      const Place i = place_of(term, 1, extent, false);
      int64_t x_at = i.outer * p.x.outer + w.outer * p.x.channel, y_at = i.outer * p.y.outer + y_channel * p.y.channel;
      bool inside = true;
      for (int k = 0; k < kAxes; ++k) {
        const int64_t o = g.axis[k].reach(i.at[k], w.at[k]);
        inside = inside && o >= 0 && o < g.axis[k].y;
        x_at += i.at[k] * p.x.axis[k], y_at += o * p.y.axis[k];
      }
      if (inside) sum += to_sum(x[x_at]) * to_sum(y[y_at]);
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += shuffle_down(sum, distance);
    if (lane == 0) from_sum(sum, result);
  }
}

template <class T>
const char* launch_typed(const DirectArguments& a, const Launch& shape, Stream stream) {
  return launch(a.problem.operation == Operation::backward_weights ? direct_weights<T> : direct_gather<T>, shape, stream, a);
}

}  // namespace

const char* launch_direct(const DirectArguments& a, const Launch& shape, Stream stream) {
  switch (a.problem.type) {
    case Type::f64:
      return launch_typed<double>(a, shape, stream);
    case Type::bf16:
      return launch_typed<bf16>(a, shape, stream);
    case Type::f16:
      return launch_typed<f16>(a, shape, stream);
    default:
      return launch_typed<float>(a, shape, stream);
  }
}

}  // namespace torch_ext::cuda
