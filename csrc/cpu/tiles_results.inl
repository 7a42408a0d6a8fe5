// SPDX-License-Identifier: Apache-2.0
// What a gather tile does with its results, for vectors `V`. Included as tiles.inl is.

// Asks for the lines of the results of a row, so that they come while the sums are made.
template <class V, int Vectors>
inline __attribute__((always_inline)) void prefetch_results(const GatherTile<typename V::Real>& t, int64_t m) {
  m += t.asked_results;
  using Real = typename V::Real;
  constexpr int in_line = 64 / V::lanes / 2;  // vectors of 16-bit results in a line
  if (sizeof(Real) == 4 && t.narrow) {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; v += in_line)
      __builtin_prefetch(static_cast<const char*>(t.narrow[m]) + t.narrow_offset + 2 * v * V::lanes, 1);
  } else {
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) __builtin_prefetch(t.out[m] + t.out_offset + v * V::lanes, 1);
  }
}

// Adds the sums of a row to `init`, or where that is null to what `out` holds, and stores them.
template <class V, int Vectors>
inline __attribute__((always_inline)) void store_results(const GatherTile<typename V::Real>& t,
                                                         const typename V::Real* init, int m, typename V::Reg* sums) {
  using Real = typename V::Real;
  const int64_t last = t.columns - (Vectors - 1) * V::lanes;  // valid lanes of the last vector
  Real* to = t.out[m] + t.out_offset;
  const Real* start = init ? init : to;
  TORCH_EXT_UNROLL for (int v = 0; v < Vectors - 1; ++v) sums[v] = V::add(V::load(start + v * V::lanes), sums[v]);
  sums[Vectors - 1] = V::add(V::load_first(start + (Vectors - 1) * V::lanes, last), sums[Vectors - 1]);
  if constexpr (sizeof(Real) == 4) {
    if (t.narrow) {
      char* result = static_cast<char*>(t.narrow[m]) + t.narrow_offset;
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; v += 2) {
        if constexpr (requires { V::store_two_narrow(result, sums[0], sums[0]); })
          if (t.type == Type::bf16 && (v + 2 < Vectors || (v + 2 == Vectors && last == V::lanes))) {
            V::store_two_narrow(result + 2 * v * V::lanes, sums[v], sums[v + 1]);
            continue;
          }
        V::store_narrow(t.type, result + 2 * v * V::lanes, v + 1 < Vectors ? V::lanes : last, sums[v]);
        if (v + 1 < Vectors)
          V::store_narrow(t.type, result + 2 * (v + 1) * V::lanes, v + 2 < Vectors ? V::lanes : last, sums[v + 1]);
      }
      return;
    }
  }
  TORCH_EXT_UNROLL for (int v = 0; v < Vectors - 1; ++v) V::store(to + v * V::lanes, sums[v]);
  V::store_first(to + (Vectors - 1) * V::lanes, last, sums[Vectors - 1]);
}

// The same for all rows of a tile; those of whole vectors of sums, which most tiles have, decide nothing for each row.
template <class V, int Vectors, int Rows, class Row>
inline __attribute__((always_inline)) void store_rows(const GatherTile<typename V::Real>& t, const typename V::Real* init,
                                                      const Row* rows) {
  using Real = typename V::Real;
  if (!t.narrow && t.columns >= Vectors * V::lanes) {
    Real* const* const out = t.out;
    const int64_t offset = t.out_offset;
    TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) {
      Real* to = out[m] + offset;
      const Real* start = init ? init : to;
      typename V::Reg sums[Vectors];
      rows[m].widen(sums);
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) V::store(to + v * V::lanes, V::add(V::load(start + v * V::lanes), sums[v]));
    }
    return;
  }
  TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) {
    typename V::Reg sums[Vectors];
    rows[m].widen(sums);
    store_results<V, Vectors>(t, init, m, sums);
  }
}
