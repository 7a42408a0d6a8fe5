// SPDX-License-Identifier: Apache-2.0
// The transforms of Winograd's F(3, 2) for vectors `V`, all axes of a tile at once in registers. Included as tiles.inl is.

// Along one axis, for vectors `step` apart.
template <class V>
struct WinogradWeights {
  static constexpr int kFrom = 2, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* g, typename V::Reg* to, int step) {
    const auto half = V::set(.5f), half_g0 = V::fma(g[0], half, V::zero());
    to[0] = g[0], to[3 * step] = g[step];
    to[step] = V::fma(g[step], half, half_g0), to[2 * step] = V::fma(g[step], V::set(-.5f), half_g0);
  }
};

template <class V>
struct WinogradInput {
  static constexpr int kFrom = 4, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* d, typename V::Reg* to, int step) {
    const auto minus = V::set(-1);
    to[0] = V::fma(d[2 * step], minus, d[0]), to[step] = V::add(d[step], d[2 * step]);
    to[2 * step] = V::fma(d[step], minus, d[2 * step]), to[3 * step] = V::fma(d[3 * step], minus, d[step]);
  }
};

template <class V>
struct WinogradOutput {
  static constexpr int kFrom = 4, kTo = 3;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* m, typename V::Reg* to, int step) {
    const auto minus = V::set(-1), sum = V::add(m[step], m[2 * step]);
    to[0] = V::add(m[0], sum), to[step] = V::fma(m[2 * step], minus, m[step]);
    to[2 * step] = V::fma(m[3 * step], minus, sum);
  }
};

// The gradient of the results: the transposed transform.
template <class V>
struct WinogradOutputGradient {
  static constexpr int kFrom = 3, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* y, typename V::Reg* to, int step) {
    const auto minus = V::set(-1), sum = V::add(y[0], y[2 * step]);
    to[0] = y[0], to[step] = V::add(sum, y[step]);
    to[2 * step] = V::fma(y[step], minus, sum), to[3 * step] = V::fma(y[2 * step], minus, V::zero());
  }
};

// And that of the weights.
template <class V>
struct WinogradWeightsGradient {
  static constexpr int kFrom = 4, kTo = 2;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* m, typename V::Reg* to, int step) {
    const auto half = V::set(.5f), half_m2 = V::fma(m[2 * step], half, V::zero());
    to[0] = V::add(V::fma(m[step], half, half_m2), m[0]);
    to[step] = V::add(V::fma(m[step], half, V::fma(m[2 * step], V::set(-.5f), V::zero())), m[3 * step]);
  }
};

template <int N>
constexpr int winograd_power(int axes) {
  return axes == 0 ? 1 : N * winograd_power<N>(axes - 1);
}

// Transforms kFrom^Axes * Inner vectors along `Axes` axes, the innermost first, and passes the vectors that result to `store`.
template <class V, class T, int Axes, int Inner, class Store>
inline __attribute__((always_inline)) void winograd_axes(const typename V::Reg* from, Store store) {
  if constexpr (Axes == 0) {
    store(from);
  } else {
    constexpr int outer = winograd_power<T::kFrom>(Axes - 1);
    typename V::Reg to[outer * T::kTo * Inner];
    TORCH_EXT_UNROLL for (int o = 0; o < outer; ++o)
      TORCH_EXT_UNROLL for (int i = 0; i < Inner; ++i)
        T::transform(from + o * T::kFrom * Inner + i, to + o * T::kTo * Inner + i, Inner);
    winograd_axes<V, T, Axes - 1, Inner * T::kTo>(to, store);
  }
}

// From rows anywhere to rows `pitch` apart; see(k, m) is called for all that is stored.
template <class V, class T, int Axes, class See>
inline __attribute__((always_inline)) void winograd_store(const typename V::Real* const* from, typename V::Real* to,
                                                          int64_t pitch, int64_t count, See see) {
  constexpr int rows = winograd_power<T::kFrom>(Axes), points = winograd_power<T::kTo>(Axes);
  for (int64_t i = 0; i < count; i += V::lanes) {
    typename V::Reg values[rows];
    TORCH_EXT_UNROLL for (int k = 0; k < rows; ++k) values[k] = V::load_first(from[k] + i, count - i);
    winograd_axes<V, T, Axes, 1>(values, [&](const typename V::Reg* m) __attribute__((always_inline)) {
      TORCH_EXT_UNROLL for (int k = 0; k < points; ++k) {
        V::store_first(to + k * pitch + i, count - i, m[k]);
        see(k, m[k]);
      }
    });
  }
}

template <class V, class T, int Axes>
void winograd_spread(const typename V::Real* const* from, typename V::Real* to, int64_t pitch, int64_t count) {
  winograd_store<V, T, Axes>(from, to, pitch, count, [](int, typename V::Reg) __attribute__((always_inline)) {});
}

// The same, and whether all that is stored is finite.
template <class V, class T, int Axes>
void winograd_spread_checked(const typename V::Real* const* from, typename V::Real* to, int64_t pitch, int64_t count,
                             typename V::Real* check) {
  constexpr int sums = 4;
  typename V::Reg sum[sums] = {V::load(check), V::zero(), V::zero(), V::zero()};
  winograd_store<V, T, Axes>(from, to, pitch, count, [&](int k, typename V::Reg m) __attribute__((always_inline)) {
    sum[k % sums] = V::fma(m, V::zero(), sum[k % sums]);  // zero, unless m is an infinity or a NaN
  });
  V::store(check, V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
}

// From rows `pitch` apart to rows anywhere, or added to them.
template <class V, class T, int Axes>
void winograd_gather(const typename V::Real* from, int64_t pitch, typename V::Real* const* to, int64_t count, bool add) {
  constexpr int points = winograd_power<T::kFrom>(Axes), rows = winograd_power<T::kTo>(Axes);
  for (int64_t i = 0; i < count; i += V::lanes) {
    typename V::Reg m[points];
    TORCH_EXT_UNROLL for (int k = 0; k < points; ++k) m[k] = V::load_first(from + k * pitch + i, count - i);
    winograd_axes<V, T, Axes, 1>(m, [&](const typename V::Reg* values) __attribute__((always_inline)) {
      TORCH_EXT_UNROLL for (int k = 0; k < rows; ++k) {
        auto value = values[k];
        if (add) value = V::add(V::load_first(to[k] + i, count - i), value);
        V::store_first(to[k] + i, count - i, value);
      }
    });
  }
}

template <class V, int... Axes>
constexpr void fill_winograd(Tiles<typename V::Real>& table, std::integer_sequence<int, Axes...>) {
  ((table.winograd_weights[Axes] = winograd_spread<V, WinogradWeights<V>, Axes>), ...);
  ((table.winograd_input[Axes] = winograd_spread_checked<V, WinogradInput<V>, Axes>), ...);
  ((table.winograd_output[Axes] = winograd_gather<V, WinogradOutput<V>, Axes>), ...);
  ((table.winograd_output_gradient[Axes] = winograd_spread_checked<V, WinogradOutputGradient<V>, Axes>), ...);
  ((table.winograd_weights_gradient[Axes] = winograd_gather<V, WinogradWeightsGradient<V>, Axes>), ...);
}
