// SPDX-License-Identifier: Apache-2.0
// The three operations as the loop nest that defines them: documentation and test oracle, for any geometry and any strides.
//
//   conv_transpose     y[Y] += x[X] * w[W]
//   backward_data      x[X] += y[Y] * w[W]
//   backward_weights   w[W] += x[X] * y[Y]
#pragma once
#include "csrc/core/geometry.h"

namespace torch_ext {

// Calls term(offset in x, offset in w, offset in y, output channel) for every term of L.
template <class Term>
void for_each_term(const Problem& p, Term term) {
  const Geometry& g = p.geometry;
  const Axis &a = g.axis[0], &b = g.axis[1], &c = g.axis[2];
  const auto inside = [](const Axis& axis, int64_t o) { return o >= 0 && o < axis.y; };
  for (int64_t n = 0; n < g.batch; ++n)
    for (int64_t ic = 0; ic < g.groups * g.x_channels; ++ic)
      for (int64_t oc = 0; oc < g.y_channels; ++oc) {
        const int64_t y_channel = ic / g.x_channels * g.y_channels + oc;
        const int64_t X = n * p.x.outer + ic * p.x.channel, W = ic * p.w.outer + oc * p.w.channel,
                      Y = n * p.y.outer + y_channel * p.y.channel;
        for (int64_t i0 = 0; i0 < a.x; ++i0)
          for (int64_t k0 = 0; k0 < a.w; ++k0) {
            const int64_t o0 = a.reach(i0, k0);
            if (!inside(a, o0)) continue;
            for (int64_t i1 = 0; i1 < b.x; ++i1)
              for (int64_t k1 = 0; k1 < b.w; ++k1) {
                const int64_t o1 = b.reach(i1, k1);
                if (!inside(b, o1)) continue;
                for (int64_t i2 = 0; i2 < c.x; ++i2)
                  for (int64_t k2 = 0; k2 < c.w; ++k2) {
                    const int64_t o2 = c.reach(i2, k2);
                    if (!inside(c, o2)) continue;
                    term(X + i0 * p.x.axis[0] + i1 * p.x.axis[1] + i2 * p.x.axis[2],
                         W + k0 * p.w.axis[0] + k1 * p.w.axis[1] + k2 * p.w.axis[2],
                         Y + o0 * p.y.axis[0] + o1 * p.y.axis[1] + o2 * p.y.axis[2], y_channel);
                  }
              }
          }
      }
}

// Adds the terms of p.operation to its result, which the caller has filled with zeros or with the bias.
template <class In, class Out>
void accumulate(const Problem& p, const In* x, const In* w, const In* y, Out* result) {
  switch (p.operation) {
    case Operation::conv_transpose:
      return for_each_term(p, [=](int64_t X, int64_t W, int64_t Y, int64_t) { result[Y] += Out(x[X]) * Out(w[W]); });
    case Operation::backward_data:
      return for_each_term(p, [=](int64_t X, int64_t W, int64_t Y, int64_t) { result[X] += Out(y[Y]) * Out(w[W]); });
    case Operation::backward_weights:
      return for_each_term(p, [=](int64_t X, int64_t W, int64_t Y, int64_t) { result[W] += Out(x[X]) * Out(y[Y]); });
  }
}

}  // namespace torch_ext
