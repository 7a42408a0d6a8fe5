// SPDX-License-Identifier: Apache-2.0
// The transforms of Winograd's F(3, 2) and F(2, 3) for vectors `V`, all axes of a tile at once in registers. Included as tiles.inl is.

// Along one axis, for vectors `step` apart; of segments of so many taps. Inputs are the same for both.
template <class V, int Taps>
struct WinogradWeights;
template <class V>
struct WinogradWeights<V, 2> {
  static constexpr int kFrom = 2, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* g, typename V::Reg* to, int step) {
    const auto half = V::set(.5f), half_g0 = V::fma(g[0], half, V::zero());
    to[0] = g[0], to[3 * step] = g[step];
    to[step] = V::fma(g[step], half, half_g0), to[2 * step] = V::fma(g[step], V::set(-.5f), half_g0);
  }
};
template <class V>
struct WinogradWeights<V, 3> {
  static constexpr int kFrom = 3, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* g, typename V::Reg* to, int step) {
    const auto half = V::set(.5f), outer = V::fma(V::add(g[0], g[2 * step]), half, V::zero());
    to[0] = g[0], to[3 * step] = g[2 * step];
    to[step] = V::fma(g[step], half, outer), to[2 * step] = V::fma(g[step], V::set(-.5f), outer);
  }
};

template <class V, int>
struct WinogradInput {
  static constexpr int kFrom = 4, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* d, typename V::Reg* to, int step) {
    const auto minus = V::set(-1);
    to[0] = V::fma(d[2 * step], minus, d[0]), to[step] = V::add(d[step], d[2 * step]);
    to[2 * step] = V::fma(d[step], minus, d[2 * step]), to[3 * step] = V::fma(d[3 * step], minus, d[step]);
  }
};

template <class V, int Taps>
struct WinogradOutput {
  static constexpr int kFrom = 4, kTo = 5 - Taps;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* m, typename V::Reg* to, int step) {
    const auto minus = V::set(-1), sum = V::add(m[step], m[2 * step]), difference = V::fma(m[2 * step], minus, m[step]);
    to[0] = V::add(m[0], sum);
    if constexpr (Taps == 2) to[step] = difference, to[2 * step] = V::fma(m[3 * step], minus, sum);
    if constexpr (Taps == 3) to[step] = V::fma(m[3 * step], minus, difference);
  }
};

// The gradient of the results: the transposed transform.
template <class V, int Taps>
struct WinogradOutputGradient {
  static constexpr int kFrom = 5 - Taps, kTo = 4;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* y, typename V::Reg* to, int step) {
    constexpr int last = kFrom - 1;
    const auto minus = V::set(-1), even = Taps == 2 ? V::add(y[0], y[last * step]) : y[0];
    to[0] = y[0], to[step] = V::add(even, y[step]);
    to[2 * step] = V::fma(y[step], minus, even), to[3 * step] = V::fma(y[last * step], minus, V::zero());
  }
};

// And that of the weights.
template <class V, int Taps>
struct WinogradWeightsGradient {
  static constexpr int kFrom = 4, kTo = Taps;
  static inline __attribute__((always_inline)) void transform(const typename V::Reg* m, typename V::Reg* to, int step) {
    const auto half = V::set(.5f), half_m2 = V::fma(m[2 * step], half, V::zero());
    const auto sum = V::fma(m[step], half, half_m2);
    const auto difference = V::fma(m[step], half, V::fma(m[2 * step], V::set(-.5f), V::zero()));
    to[0] = V::add(sum, m[0]);
    to[step] = Taps == 2 ? V::add(difference, m[3 * step]) : difference;
    if constexpr (Taps == 3) to[2 * step] = V::add(sum, m[3 * step]);
  }
};

// A transform T along the axes of a shape: the vectors that it reads and writes.
template <class V, template <class, int> class T, int Shape>
struct WinogradAxes {
  using Innermost = T<V, 2 + Shape % 2>;
  using Outer = WinogradAxes<V, T, Shape / 2>;
  static constexpr int kFrom = Outer::kFrom * Innermost::kFrom, kTo = Outer::kTo * Innermost::kTo;
};
template <class V, template <class, int> class T>
struct WinogradAxes<V, T, 1> {
  static constexpr int kFrom = 1, kTo = 1;
};

// Transforms vectors along the axes of a shape, the innermost first, and passes the vectors that result to `store`; `Inner` of
// axes that have been transformed lie side by side.
template <class V, template <class, int> class T, int Shape, int Inner = 1, class Store>
inline __attribute__((always_inline)) void winograd_axes(const typename V::Reg* from, Store store) {
  if constexpr (Shape == 1) {
    store(from);
  } else {
    using Of = typename WinogradAxes<V, T, Shape>::Innermost;
    constexpr int outer = WinogradAxes<V, T, Shape>::Outer::kFrom;
    typename V::Reg to[outer * Of::kTo * Inner];
    TORCH_EXT_UNROLL for (int o = 0; o < outer; ++o)
      TORCH_EXT_UNROLL for (int i = 0; i < Inner; ++i)
        Of::transform(from + o * Of::kFrom * Inner + i, to + o * Of::kTo * Inner + i, Inner);
    winograd_axes<V, T, Shape / 2, Inner * Of::kTo>(to, store);
  }
}

// From rows anywhere to rows `pitch` apart; see(k, m) is called for all that is stored.
template <class V, template <class, int> class T, int Shape, class See>
inline __attribute__((always_inline)) void winograd_store(const typename V::Real* const* from, typename V::Real* to,
                                                          int64_t pitch, int64_t count, See see) {
  constexpr int rows = WinogradAxes<V, T, Shape>::kFrom, points = WinogradAxes<V, T, Shape>::kTo;
  for (int64_t i = 0; i < count; i += V::lanes) {
    typename V::Reg values[rows];
    TORCH_EXT_UNROLL for (int k = 0; k < rows; ++k) values[k] = V::load_first(from[k] + i, count - i);
    winograd_axes<V, T, Shape>(values, [&](const typename V::Reg* m) __attribute__((always_inline)) {
      TORCH_EXT_UNROLL for (int k = 0; k < points; ++k) {
        V::store_first(to + k * pitch + i, count - i, m[k]);
        see(k, m[k]);
      }
    });
  }
}

template <class V, template <class, int> class T, int Shape>
void winograd_spread(const typename V::Real* const* from, typename V::Real* to, int64_t pitch, int64_t count) {
  winograd_store<V, T, Shape>(from, to, pitch, count, [](int, typename V::Reg) __attribute__((always_inline)) {});
}

// The same, and whether all that is stored is finite.
template <class V, template <class, int> class T, int Shape>
void winograd_spread_checked(const typename V::Real* const* from, typename V::Real* to, int64_t pitch, int64_t count,
                             typename V::Real* check) {
  constexpr int sums = 4;
  typename V::Reg sum[sums] = {V::load(check), V::zero(), V::zero(), V::zero()};
  winograd_store<V, T, Shape>(from, to, pitch, count, [&](int k, typename V::Reg m) __attribute__((always_inline)) {
    sum[k % sums] = V::fma(m, V::zero(), sum[k % sums]);  // zero, unless m is an infinity or a NaN
  });
  V::store(check, V::add(V::add(sum[0], sum[1]), V::add(sum[2], sum[3])));
}

// From rows `pitch` apart to rows anywhere, or added to them.
template <class V, template <class, int> class T, int Shape>
void winograd_gather(const typename V::Real* from, int64_t pitch, typename V::Real* const* to, int64_t count, bool add) {
  constexpr int points = WinogradAxes<V, T, Shape>::kFrom, rows = WinogradAxes<V, T, Shape>::kTo;
  for (int64_t i = 0; i < count; i += V::lanes) {
    typename V::Reg m[points];
    TORCH_EXT_UNROLL for (int k = 0; k < points; ++k) m[k] = V::load_first(from + k * pitch + i, count - i);
    winograd_axes<V, T, Shape>(m, [&](const typename V::Reg* values) __attribute__((always_inline)) {
      TORCH_EXT_UNROLL for (int k = 0; k < rows; ++k) {
        auto value = values[k];
        if (add) value = V::add(V::load_first(to[k] + i, count - i), value);
        V::store_first(to[k] + i, count - i, value);
      }
    });
  }
}

template <class V, int... Axes>
constexpr void fill_winograd_inputs(Tiles<typename V::Real>& table, std::integer_sequence<int, Axes...>) {
  ((table.winograd_input[Axes] = winograd_spread_checked<V, WinogradInput, 1 << Axes>), ...);
}

template <class V, int... Shapes>
constexpr void fill_winograd_shapes(Tiles<typename V::Real>& table, std::integer_sequence<int, Shapes...>) {
  ((table.winograd[Shapes + 1] = {winograd_spread<V, WinogradWeights, Shapes + 1>, winograd_gather<V, WinogradOutput, Shapes + 1>,
                                  winograd_spread_checked<V, WinogradOutputGradient, Shapes + 1>,
                                  winograd_gather<V, WinogradWeightsGradient, Shapes + 1>}),
   ...);
}

template <class V>
constexpr void fill_winograd(Tiles<typename V::Real>& table) {
  fill_winograd_inputs<V>(table, std::make_integer_sequence<int, kAxes + 1>());
  fill_winograd_shapes<V>(table, std::make_integer_sequence<int, kWinogradShapes - 1>());
}
