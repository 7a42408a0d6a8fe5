// SPDX-License-Identifier: Apache-2.0
// A line of columns of a tile, or of sums of a row of it: some vectors. Included as tiles.inl is.

// What there is of the last of the vectors: lanes under a mask, half of them where the processor takes half of the time for it,
// or all where a mask would take one of few registers.
enum class Last { kMasked, kHalf, kWhole };

template <class V>
inline constexpr bool has_halves = requires {
  typename V::Half;
};

// Whether no more than half of the last of some vectors has columns, and that pays.
template <class V, int Vectors>
inline __attribute__((always_inline)) bool ends_in_half(int64_t columns) {
  return V::halves_pay && columns <= (Vectors - 1) * V::lanes + V::lanes / 2;
}

template <class V>
inline constexpr bool kLongest = V::lanes * sizeof(typename V::Real) >= 64;

// f(what is known of the last of some vectors while compiling). The longest come with registers for masks.
template <class V, int Vectors, class F>
inline __attribute__((always_inline)) void with_last(int64_t columns, F f) {
  if constexpr (has_halves<V>)
    if (ends_in_half<V, Vectors>(columns)) return f(std::integral_constant<Last, Last::kHalf>());
  if constexpr (!kLongest<V>)
    if (columns >= Vectors * V::lanes) return f(std::integral_constant<Last, Last::kWhole>());
  f(std::integral_constant<Last, Last::kMasked>());
}

template <class V, int Vectors, Last End>
struct Strip {
  using Real = typename V::Real;
  typename V::Reg vector[Vectors];

  inline __attribute__((always_inline)) void clear() { TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) vector[v] = V::zero(); }
  inline __attribute__((always_inline)) void load(const Real* from) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) vector[v] = V::load(from + v * V::lanes);
  }
  // `mask` is of the last vector.
  inline __attribute__((always_inline)) void load_masked(const Real* from, typename V::Mask mask) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) vector[v] = load_one(from, v, mask);
  }
  inline __attribute__((always_inline)) void pin() { TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) V::pin(vector[v]); }
  inline __attribute__((always_inline)) void add(const Strip& other) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) vector[v] = V::add(vector[v], other.vector[v]);
  }
  inline __attribute__((always_inline)) void add_product(typename V::Reg factor, const Strip& columns) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) vector[v] = V::fma(factor, columns.vector[v], vector[v]);
  }
  inline __attribute__((always_inline)) void add_product(const Real* factor, const Strip& columns) {
    add_product(V::broadcast(factor), columns);
  }
  // The same for as many strips as there are factors, vector by vector of the columns.
  template <int Rows>
  static inline __attribute__((always_inline)) void add_products(Strip (&rows)[Rows], const typename V::Reg (&factors)[Rows],
                                                                 const Real* columns, typename V::Mask mask) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) {
      auto x = load_one(columns, v, mask);
      if constexpr (Rows > 1) V::pin(x);  // else it is loaded for each of them
      TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) rows[m].vector[v] = V::fma(factors[m], x, rows[m].vector[v]);
    }
  }
  static inline __attribute__((always_inline)) typename V::Reg load_one(const Real* from, int v, typename V::Mask mask) {
    from += v * V::lanes;
    return v < Vectors - 1 || End == Last::kWhole ? V::load(from) : V::load_masked(from, mask);
  }
  // As whole vectors.
  inline __attribute__((always_inline)) void widen(typename V::Reg* to) const {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) to[v] = vector[v];
  }
};

template <class V, int Vectors>
struct Strip<V, Vectors, Last::kHalf> {
  using Real = typename V::Real;
  using Half = typename V::Half;
  static constexpr int kWhole = Vectors - 1;
  typename V::Reg vector[kWhole > 0 ? kWhole : 1];
  typename Half::Reg half;

  inline __attribute__((always_inline)) void clear() {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) vector[v] = V::zero();
    half = Half::zero();
  }
  inline __attribute__((always_inline)) void load(const Real* from) {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) vector[v] = V::load(from + v * V::lanes);
    half = Half::load(from + kWhole * V::lanes);
  }
  inline __attribute__((always_inline)) void load_masked(const Real* from, typename V::Mask mask) {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) vector[v] = V::load(from + v * V::lanes);
    half = Half::load_masked(from + kWhole * V::lanes, mask);
  }
  inline __attribute__((always_inline)) void pin() {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) V::pin(vector[v]);
    Half::pin(half);
  }
  inline __attribute__((always_inline)) void add(const Strip& other) {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) vector[v] = V::add(vector[v], other.vector[v]);
    half = Half::add(half, other.half);
  }
  inline __attribute__((always_inline)) void add_product(const Real* factor, const Strip& columns) {
    if constexpr (kWhole == 0) {
      half = Half::fma(Half::broadcast(factor), columns.half, half);
    } else {
      const auto broadcast = V::broadcast(factor);
      TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) vector[v] = V::fma(broadcast, columns.vector[v], vector[v]);
      half = Half::fma(Half::of(broadcast), columns.half, half);
    }
  }
  template <int Rows>
  static inline __attribute__((always_inline)) void add_products(Strip (&rows)[Rows], const typename V::Reg (&factors)[Rows],
                                                                 const Real* columns, typename V::Mask mask) {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) {
      auto x = V::load(columns + v * V::lanes);
      if constexpr (Rows > 1) V::pin(x);
      TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) rows[m].vector[v] = V::fma(factors[m], x, rows[m].vector[v]);
    }
    auto x = Half::load_masked(columns + kWhole * V::lanes, mask);
    if constexpr (Rows > 1) Half::pin(x);
    TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) rows[m].half = Half::fma(Half::of(factors[m]), x, rows[m].half);
  }
  inline __attribute__((always_inline)) void widen(typename V::Reg* to) const {
    TORCH_EXT_UNROLL for (int v = 0; v < kWhole; ++v) to[v] = vector[v];
    to[kWhole] = Half::widen(half);
  }
};
