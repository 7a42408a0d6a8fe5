// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/parts.h"

#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

template <class T>
TORCH_EXT_KERNEL(256, 4)
add_parts(const PartsArguments a) {
  const Geometry& g = a.geometry;
  for (int64_t index = block_index() * block_threads() + thread_index(); index < g.w_size();
       index += block_count() * block_threads()) {
    int64_t rest = index, to = 0, tap = 0, taps = 1;
    const int64_t y = take(rest, g.y_channels), x = take(rest, g.x_channels);
    for (int k = kAxes - 1; k >= 0; --k) {
      const int64_t at = take(rest, g.axis[k].w);
      to += at * a.weights.axis[k];
      tap += at * taps, taps *= g.axis[k].w;
    }
    to += (rest * g.x_channels + x) * a.weights.outer + y * a.weights.channel;
    const float* from = a.sums + rest * a.group + tap * a.tap + x * a.x + y * a.y;
    float sum = *from;
    for (int64_t part = 1; part < a.parts; ++part) sum += from[part * a.part];
    from_sum(sum, static_cast<T*>(a.w)[to]);
  }
}

}  // namespace

const char* launch_parts(const PartsArguments& a, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) { return launch(add_parts<decltype(value)>, shape, stream, a); });
}

}  // namespace torch_ext::cuda
