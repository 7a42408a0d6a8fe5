// SPDX-License-Identifier: Apache-2.0
// Sums of what lies in memory, for vectors `V`. Included by tiles.inl, whose add_lanes and load_block (tiles_lines.inl) they use.

// The first `count` lanes of a vector, converted from `type`; zeros behind them.
template <class V>
typename V::Reg load_some(Type type, const char* from, int64_t count) {
  typename V::Real some[V::lanes];
  V::widen(type, from, some, count);
  return V::load_first(some, count);
}

// sums[v] += vector v of each of some rows, in several places `between` rows apart: processors read ahead in as many at once.
constexpr int kPlaces = 4;
template <class V, int Vectors>
inline __attribute__((always_inline)) void add_vectors(Type type, const void* from, int64_t first, int64_t pitch, int64_t rows,
                                                       int places, int64_t between, typename V::Reg (&sums)[Vectors]) {
  for (int64_t r = 0; r < rows; ++r)
    for (int p = 0; p < places; ++p) {
      typename V::Reg row[Vectors];
      load_block<V>(type, from, first + (r + p * between) * pitch, row);
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) sums[v] = V::add(sums[v], row[v]);
    }
}

// Columns from c on, as many vectors at a time.
template <class V, int Vectors>
int64_t add_columns(Type type, const void* from, int64_t c, int64_t columns, int64_t pitch, int64_t rows, int places,
                    int64_t between, typename V::Real* sums) {
  for (; c + Vectors * V::lanes <= columns; c += Vectors * V::lanes) {
    typename V::Reg sum[Vectors];
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) sum[v] = V::load(sums + c + v * V::lanes);
    add_vectors<V>(type, from, c, pitch, rows, places, between, sum);
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) V::store(sums + c + v * V::lanes, sum[v]);
  }
  return c;
}

template <class V>
void add_rows(Type type, const void* from, int64_t pitch, int64_t rows, int64_t columns, typename V::Real* sums) {
  constexpr int64_t kReals = 4096;  // that stay in the L1 cache while their vectors take turns
  const auto add = [&](int64_t first, int64_t count, int places, int64_t between) {
    const char* some = static_cast<const char*>(from) + first * pitch * bytes_of(type);
    int64_t c = add_columns<V, kSumVectors>(type, some, 0, columns, pitch, count, places, between, sums);
    c = add_columns<V, 4>(type, some, c, columns, pitch, count, places, between, sums);
    c = add_columns<V, 1>(type, some, c, columns, pitch, count, places, between, sums);
    for (int64_t r = 0; c < columns && r < count; ++r)
      for (int p = 0; p < places; ++p) {
        const auto last = load_some<V>(type, some + ((r + p * between) * pitch + c) * bytes_of(type), columns - c);
        V::store_first(sums + c, columns - c, V::add(V::load_first(sums + c, columns - c), last));
      }
  };
  const int64_t of_place = rows / kPlaces;
  const int64_t most = columns <= kSumVectors * V::lanes ? of_place : columns < kReals / kPlaces ? kReals / kPlaces / columns : 1;
  for (int64_t r = 0; r < of_place; r += most) add(r, most < of_place - r ? most : of_place - r, kPlaces, of_place);
  add(kPlaces * of_place, rows - kPlaces * of_place, 1, 0);
}

template <class V>
typename V::Real sum(Type type, const void* from, int64_t count) {
  constexpr int kVectors = kSumVectors;
  constexpr int64_t kRow = kVectors * V::lanes;
  typename V::Reg sums[kVectors];
  TORCH_EXT_UNROLL for (int v = 0; v < kVectors; ++v) sums[v] = V::zero();
  const int64_t of_place = count / kRow / kPlaces;
  add_vectors<V>(type, from, 0, kRow, of_place, kPlaces, of_place, sums);
  int64_t i = kPlaces * of_place * kRow;
  add_vectors<V>(type, from, i, kRow, (count - i) / kRow, 1, 0, sums);
  for (i += (count - i) / kRow * kRow; i < count; i += V::lanes) {
    const int64_t left = count - i < V::lanes ? count - i : V::lanes;
    sums[0] = V::add(sums[0], load_some<V>(type, static_cast<const char*>(from) + i * bytes_of(type), left));
  }
  TORCH_EXT_UNROLL for (int n = kVectors / 2; n > 0; n /= 2)
    TORCH_EXT_UNROLL for (int v = 0; v < n; ++v) sums[v] = V::add(sums[v], sums[n + v]);
  add_lanes<V, 1, V::lanes>(sums);
  typename V::Real lanes[V::lanes];
  V::store(lanes, sums[0]);
  return lanes[0];
}

// Some rows from `row` on, which are the first ones or add to others.
template <class V, int Positions, int Rows, Type type>
void sum_some_rows(const RowsTile<typename V::Real>& t, int64_t row) {
  const auto* a = t.a + row * t.a_pitch;
  const char* b = static_cast<const char*>(t.b) + row * t.b_pitch * bytes_of(type);
  typename V::Reg factors[Rows][Positions];
  TORCH_EXT_UNROLL for (int r = 0; r < Rows; ++r) TORCH_EXT_UNROLL for (int m = 0; m < Positions; ++m) factors[r][m] =
      V::broadcast(a + r * t.a_pitch + m);
  const auto load = [&](int r, int64_t n, auto... left) __attribute__((always_inline)) {
    const char* from = b + (r * t.b_pitch + n) * bytes_of(type);
    if constexpr (bytes_of(type) == sizeof(typename V::Real)) {
      return load_lanes<V>(reinterpret_cast<const typename V::Real*>(from), V::first(left)...);
    } else if constexpr (sizeof...(left) == 0) {
      return V::load_narrow(type, reinterpret_cast<const uint16_t*>(from));
    } else {
      return load_some<V>(type, from, left...);
    }
  };
  const auto sum = [&](int64_t n, auto... left) __attribute__((always_inline)) {
    typename V::Reg sums[Positions];
    TORCH_EXT_UNROLL for (int m = 0; m < Positions; ++m) sums[m] = V::zero();
    TORCH_EXT_UNROLL for (int r = 0; r < Rows; ++r) {
      auto values = load(r, n, left...);
      if constexpr (Positions > 1) V::pin(values);  // else they are loaded for each
      TORCH_EXT_UNROLL for (int m = 0; m < Positions; ++m) sums[m] = V::fma(factors[r][m], values, sums[m]);
    }
    TORCH_EXT_UNROLL for (int m = 0; m < Positions; ++m) {
      auto* to = t.out + m * t.out_pitch + n;
      if (row > 0) sums[m] = V::add(sums[m], load_lanes<V>(to, V::first(left)...));
      if constexpr (sizeof...(left) == 0) {
        V::store(to, sums[m]);
      } else {
        V::store_first(to, left..., sums[m]);
      }
    }
  };
  int64_t n = 0;
  for (; n + V::lanes <= t.columns; n += V::lanes) sum(n);
  if (n < t.columns) sum(n, t.columns - n);
}

template <class V, int Positions, Type type>
void sum_rows_of(const RowsTile<typename V::Real>& t) {
  constexpr int kRows = 8;  // as many as keep their factors in registers, and no more than processors follow
  int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) sum_some_rows<V, Positions, kRows, type>(t, row);
  for (; row < t.rows; ++row) sum_some_rows<V, Positions, 1, type>(t, row);
}
template <class V, int Positions>
void sum_rows(const RowsTile<typename V::Real>& t) {
  if constexpr (sizeof(typename V::Real) == sizeof(double)) {
    sum_rows_of<V, Positions, Type::f64>(t);
  } else if constexpr (!requires { V::load_narrow(Type::bf16, nullptr); }) {
    sum_rows_of<V, Positions, Type::f32>(t);  // pairs, which are as large
  } else if (t.type == Type::f32) {
    sum_rows_of<V, Positions, Type::f32>(t);
  } else {
    t.type == Type::bf16 ? sum_rows_of<V, Positions, Type::bf16>(t) : sum_rows_of<V, Positions, Type::f16>(t);
  }
}

template <class V, int... Positions>
constexpr void fill_rows(Tiles<typename V::Real>& table, std::integer_sequence<int, Positions...>) {
  ((table.rows[Positions + 1] = sum_rows<V, Positions + 1>), ...);
}
