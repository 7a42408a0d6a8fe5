// SPDX-License-Identifier: Apache-2.0
// Depthwise tiles for vectors `V`. Included by tiles.inl, whose load_lanes they use.

// Keeps GCC from computing all addresses that follow from this one ahead, for which there are not as many registers.
template <class Real>
inline __attribute__((always_inline)) void pin_address(const Real*& p) {
  asm("" : "+r"(p));
}

// A whole vector, or the first lanes of one.
template <class V, class... Left>
inline __attribute__((always_inline)) typename V::Reg load_some(const typename V::Real* from, Left... left) {
  return load_lanes<V>(from, V::first(left)...);
}
template <class V, class... Left>
inline __attribute__((always_inline)) void store_some(typename V::Real* to, typename V::Reg v, Left... left) {
  if constexpr (sizeof...(left) == 0) {
    V::store(to, v);
  } else {
    V::store_first(to, left..., v);
  }
}

// Where the vectors of channels are in what repeats, one after the other.
template <class V>
struct Repeated {
  int64_t period, at = 0;
  int64_t next() {
    const int64_t here = at;
    at += V::lanes;
    if (at >= period) at -= period;
    return here;
  }
};

// Some vectors of some neighbouring positions, whose weights are loaded once, from channel c on; `at` is where they are in what
// repeats. Of a single vector there may be no more than `left` channels.
template <class V, int Positions, int Vectors, class... Left>
inline __attribute__((always_inline)) void depthwise_block(const DepthwiseTile<typename V::Real>& t, int64_t p, int64_t c,
                                                           const int64_t* at, Left... left) {
  auto* out = t.out + p * t.out_step + c;
  typename V::Reg acc[Positions][Vectors];
  TORCH_EXT_UNROLL for (int i = 0; i < Positions; ++i) TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) acc[i][v] =
      load_some<V>(t.init ? t.init + at[v] : out + i * t.out_step + v * V::lanes, left...);
  for (int64_t k = 0; k < t.ahead_count; ++k)
    TORCH_EXT_UNROLL for (int i = 0; i < Positions; ++i) TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v)
        __builtin_prefetch(t.ahead[k].from + (p + i) * t.ahead[k].step + c + v * V::lanes);
  for (int64_t k = 0; k < t.terms; ++k) {
    typename V::Reg weights[Vectors];
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) weights[v] = load_some<V>(t.weights[k] + c + v * V::lanes, left...);
    const auto* in = t.in[k] + p * t.in_step;
    TORCH_EXT_UNROLL for (int i = 0; i < Positions; ++i, in += t.in_step) {
      if constexpr (Vectors > 1) pin_address(in);
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) acc[i][v] =
          V::fma(load_some<V>(in + at[v], left...), weights[v], acc[i][v]);
    }
  }
  TORCH_EXT_UNROLL for (int i = 0; i < Positions; ++i) TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v)
      store_some<V>(out + i * t.out_step + v * V::lanes, acc[i][v], left...);
}

template <class V, int Positions, int Vectors>
inline __attribute__((always_inline)) void depthwise_positions(const DepthwiseTile<typename V::Real>& t, int64_t p) {
  Repeated<V> repeated{t.period};
  int64_t c = 0, at[Vectors];
  for (; Vectors > 1 && c + Vectors * V::lanes <= t.channels; c += Vectors * V::lanes) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) at[v] = repeated.next();
    depthwise_block<V, Positions, Vectors>(t, p, c, at);
  }
  for (; c < t.channels; c += V::lanes) {
    at[0] = repeated.next();
    depthwise_block<V, Positions, 1>(t, p, c, at, t.channels - c);
  }
}

template <class V>
void depthwise(const DepthwiseTile<typename V::Real>& t) {
  // Of many channels blocks of neighbouring vectors, of few as many positions as can be.
  constexpr int kVectors = kAsks<V> ? 4 : 2, kPositions = 4, kPositionsOfFew = 6;
  int64_t p = 0;
  if (t.channels < kVectors * V::lanes) {
    for (; p + kPositionsOfFew <= t.count; p += kPositionsOfFew) depthwise_positions<V, kPositionsOfFew, 1>(t, p);
    for (; p < t.count; ++p) depthwise_positions<V, 1, 1>(t, p);
    return;
  }
  for (; p + kPositions <= t.count; p += kPositions) depthwise_positions<V, kPositions, kVectors>(t, p);
  switch (t.count - p) {
    case 1:
      return depthwise_positions<V, 1, kVectors>(t, p);
    case 2:
      return depthwise_positions<V, 2, kVectors>(t, p);
    case 3:
      return depthwise_positions<V, 3, kVectors>(t, p);
  }
}

// Some vectors of some terms, which `a` is loaded once for, from channel c on; the rest as above.
template <class V, int Terms, int Vectors, class... Left>
inline __attribute__((always_inline)) void depthwise_sums_block(const DepthwiseSums<typename V::Real>& t, int64_t k, int64_t c,
                                                                const int64_t* at, Left... left) {
  typename V::Reg acc[Terms][Vectors];
  const typename V::Real* b[Terms];
  TORCH_EXT_UNROLL for (int i = 0; i < Terms; ++i) {
    b[i] = t.b[k + i];
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) acc[i][v] = V::zero();
  }
  const auto* a = t.a + c;
  const int64_t ahead_count = k == 0 ? t.ahead_count : 0;
  for (int64_t p = 0; p < t.count; ++p, a += t.a_step) {
    for (int64_t j = 0; j < ahead_count; ++j)
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v)
          __builtin_prefetch(t.ahead[j].from + p * t.ahead[j].step + c + v * V::lanes);
    typename V::Reg value[Vectors];
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) value[v] = load_some<V>(a + v * V::lanes, left...);
    TORCH_EXT_UNROLL for (int i = 0; i < Terms; ++i) {
      const auto* row = b[i] + p * t.b_step;
      if constexpr (Vectors > 1) pin_address(row);
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) acc[i][v] =
          V::fma(value[v], load_some<V>(row + at[v], left...), acc[i][v]);
    }
  }
  TORCH_EXT_UNROLL for (int i = 0; i < Terms; ++i) TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) {
    auto* sums = t.sums[k + i] + c + v * V::lanes;
    store_some<V>(sums, V::add(load_some<V>(sums, left...), acc[i][v]), left...);
  }
}

template <class V, int Terms, int Vectors>
inline __attribute__((always_inline)) void depthwise_sums_of(const DepthwiseSums<typename V::Real>& t, int64_t k) {
  Repeated<V> repeated{t.period};
  int64_t c = 0, at[Vectors];
  for (; Vectors > 1 && c + Vectors * V::lanes <= t.channels; c += Vectors * V::lanes) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) at[v] = repeated.next();
    depthwise_sums_block<V, Terms, Vectors>(t, k, c, at);
  }
  for (; c < t.channels; c += V::lanes) {
    at[0] = repeated.next();
    depthwise_sums_block<V, Terms, 1>(t, k, c, at, t.channels - c);
  }
}

template <class V>
void depthwise_sums(const DepthwiseSums<typename V::Real>& t) {
  constexpr int kTerms = 8, kVectors = kAsks<V> ? 4 : 2;  // vectors of few terms
  int64_t k = 0;
  for (; k + kTerms <= t.terms; k += kTerms) depthwise_sums_of<V, kTerms, 1>(t, k);
  if (k + 4 <= t.terms) depthwise_sums_of<V, 4, kVectors>(t, k), k += 4;
  if (k + 2 <= t.terms) depthwise_sums_of<V, 2, kVectors>(t, k), k += 2;
  if (k < t.terms) depthwise_sums_of<V, 1, kVectors>(t, k);
}
