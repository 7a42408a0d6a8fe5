// SPDX-License-Identifier: Apache-2.0
// The gather, outer and wide tiles on matrix registers: `Amx` has eight of 16 rows of 64 bytes, `V` vectors of 16 floats for the
// results. Included by the processor's own (tiles_amx.cpp) and by the tests', which imitate the registers on any processor.

// Rows of a block of 16 for the matrix register: where they lie if they are evenly spaced, else copies of 64 bytes of each.
struct AmxRows {
  static constexpr int64_t kRows = 16, kUnits = 16;  // units: reals of a row of a register

  AmxRows(const float* const* rows, int64_t count, int64_t first) : rows_(rows), count_(count), first_(first) {
    stride_ = count > 1 ? reinterpret_cast<intptr_t>(rows[1]) - reinterpret_cast<intptr_t>(rows[0]) : 0;
    intptr_t differ = count - kRows;
    if (differ == 0)
      for (int64_t m = 1; m < kRows; ++m)
        differ |= (reinterpret_cast<intptr_t>(rows[m]) - reinterpret_cast<intptr_t>(rows[m - 1])) ^ stride_;
    even_ = differ == 0;
  }
  bool even() const { return even_; }
  int64_t stride() const { return even_ ? stride_ : 64; }  // in bytes
  const void* at(int64_t c, float* copy) const {
    if (even_) return rows_[0] + first_ + c;
    for (int64_t m = 0; m < count_; ++m) __builtin_memcpy(copy + m * kUnits, rows_[m] + first_ + c, 64);
    return copy;
  }

 private:
  const float* const* rows_;
  int64_t count_, first_, stride_;
  bool even_;
};

// From registers 0 to 3 to sums[row*pitch + column].
template <class Amx, int Blocks, int Vectors>
inline void store_sums(float* sums, int64_t pitch) {
  constexpr int64_t kRows = AmxRows::kRows, kUnits = AmxRows::kUnits;
  Amx::template store<0>(sums, pitch * 4);
  if constexpr (Vectors > 1) Amx::template store<1>(sums + kUnits, pitch * 4);
  if constexpr (Blocks > 1) Amx::template store<2>(sums + kRows * pitch, pitch * 4);
  if constexpr (Blocks > 1 && Vectors > 1) Amx::template store<3>(sums + kRows * pitch + kUnits, pitch * 4);
}

// Which products of part `a` of one operand and part `b` of the other are summed, but for that of the largest parts, such that
// each step keeps one of the operands of the one before where it can.
struct PartProduct {
  int a, b;
};
struct SmallProducts {
  PartProduct step[5] = {};
  int count = 0;

  SmallProducts(int parts, int orders) {
    const auto take = [&](int a, int b) {
      if (a < parts && b < parts && a + b < orders) step[count++] = {a, b};
    };
    take(0, 2), take(0, 1), take(1, 1), take(1, 0), take(2, 0);
  }
};

template <class Amx, int Blocks, int Vectors>
inline __attribute__((always_inline)) void clear_sums() {
  Amx::template zero<0>();
  if constexpr (Vectors > 1) Amx::template zero<1>();
  if constexpr (Blocks > 1) Amx::template zero<2>();
  if constexpr (Blocks > 1 && Vectors > 1) Amx::template zero<3>();
}

// Registers 0 to 3 hold sums [block of rows][vector], 4 and 5 rows of a, 6 and 7 columns of b.
template <class Amx, int Blocks, int Vectors>
inline __attribute__((always_inline)) void add_products() {
  Amx::template add_product<0, 4, 6>();
  if constexpr (Vectors > 1) Amx::template add_product<1, 4, 7>();
  if constexpr (Blocks > 1) Amx::template add_product<2, 5, 6>();
  if constexpr (Blocks > 1 && Vectors > 1) Amx::template add_product<3, 5, 7>();
}

template <class Amx, int Vectors>
inline __attribute__((always_inline)) void load_columns(const float* b, int64_t pitch) {
  Amx::template load<6>(b, pitch * 4);
  if constexpr (Vectors > 1) Amx::template load<7>(b + AmxRows::kUnits, pitch * 4);
}

// Sums of rows of a gather tile, which become results while registers multiply for the rows after them.
template <class V, int Vectors>
struct AmxResults {
  static constexpr int64_t kWidth = Vectors * V::lanes;
  const GatherTile<float>& tile;
  alignas(64) float sums[2 * AmxRows::kRows * kWidth];
  int first = 0, end = 0, next = 0;  // rows of the tile whose sums these are, and the first that is no result yet
  // The usual case, of whole lines of bf16: ten instructions a row take no time beside the products, three times as many do.
  bool plain;
  typename V::Reg bias[Vectors];

  explicit AmxResults(const GatherTile<float>& t) : tile(t) {
    plain = t.init && t.narrow && t.type == Type::bf16 && t.columns == kWidth;
    if (plain)
      for (int v = 0; v < Vectors; ++v) bias[v] = V::load(t.init + v * V::lanes);
  }

  inline __attribute__((always_inline)) void store(int count) {
    const int last = std::min(next + count, end);
    if constexpr (Vectors == 2 && requires { V::store_two_narrow(nullptr, typename V::Reg(), typename V::Reg()); })
      if (plain) {
        const float* from = sums + (next - first) * kWidth;
        void* const* to = tile.narrow;
        const int64_t offset = tile.narrow_offset;
        for (; next < last; ++next, from += kWidth)
          V::store_two_narrow(static_cast<char*>(to[next]) + offset, V::add(bias[0], V::load(from)),
                              V::add(bias[1], V::load(from + V::lanes)));
        return;
      }
    for (; next < last; ++next) {
      typename V::Reg row[Vectors];
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) row[v] = V::load(sums + (next - first) * kWidth + v * V::lanes);
      store_results<V, Vectors>(tile, tile.init, next, row);
    }
  }
};

// Adds the sums of some rows to `results`, which are stored before.
template <class Amx, class V, int Blocks, int Vectors>
void amx_gather_rows(const GatherTile<float>& t, int first, int count, const SmallProducts& small,
                     AmxResults<V, Vectors>& results) {
  constexpr int64_t kRows = AmxRows::kRows, kUnits = AmxRows::kUnits, width = Vectors * V::lanes;
  static_assert(V::lanes == kUnits && Blocks <= 2 && Vectors <= 2);
  clear_sums<Amx, Blocks, Vectors>();
  alignas(64) float copies[Blocks][kRows * kUnits];  // what rows beyond the tile hold does not matter
  int asked = first;
  const int end = first + count;
  const int64_t steps_of_all = std::max<int64_t>(1, t.taps * (t.depth / kUnits) * (1 + small.count));
  constexpr int64_t kFewSteps = 4;
  const int at_a_step = int((2 * kRows + steps_of_all - 1) / steps_of_all);
  // The lines of results come in time for their stores, but where there are few steps in which to.
  const bool ask = steps_of_all <= kFewSteps;
  constexpr PartProduct kLargest{0, 0};
  // The small products of all taps first, while the sums are small.
  const auto sum = [&](const PartProduct* step, int steps) {
    for (int64_t tap = 0; tap < t.taps; ++tap) {
      const float* const* rows = t.rows + tap * t.row_pitch + first;
      const AmxRows low(rows, Blocks > 1 ? kRows : count, t.first), high(rows + kRows, Blocks > 1 ? count - kRows : 0, t.first);
      // Copies would wait for the stores of results before them.
      if (!low.even() || (Blocks > 1 && !high.even())) results.store(2 * kRows);
      for (int64_t c = 0; c < t.depth; c += kUnits)
        for (int i = 0; i < steps; ++i) {
          if (i == 0 || step[i].a != step[i - 1].a) {
            Amx::template load<4>(low.at(step[i].a * t.plane + c, copies[0]), low.stride());
            if constexpr (Blocks > 1) Amx::template load<5>(high.at(step[i].a * t.plane + c, copies[Blocks - 1]), high.stride());
          }
          if (i == 0 || step[i].b != step[i - 1].b)
            load_columns<Amx, Vectors>(t.panels[tap] + ((t.parts - 1 - step[i].b) * t.plane + t.first + c) * width, width);
          if (ask)
            for (const int last = std::min(asked + at_a_step, end); asked < last; ++asked) prefetch_results<V, Vectors>(t, asked);
          add_products<Amx, Blocks, Vectors>();
          results.store(at_a_step);
        }
    }
  };
  if (small.count > 0) sum(small.step, small.count);
  sum(&kLargest, 1);
  results.store(2 * kRows);
  store_sums<Amx, Blocks, Vectors>(results.sums, width);
  results.first = results.next = first;
  results.end = end;
}

// Of any number of rows.
template <class Amx, class V, int Vectors>
void amx_gather_tile(const GatherTile<float>& t) {
  constexpr int kRows = AmxRows::kRows;
  const SmallProducts small(t.parts, t.orders);
  AmxResults<V, Vectors> results(t);
  int m = 0;
  for (; t.count - m > kRows; m += 2 * kRows)
    amx_gather_rows<Amx, V, 2, Vectors>(t, m, std::min(2 * kRows, t.count - m), small, results);
  if (m < t.count) amx_gather_rows<Amx, V, 1, Vectors>(t, m, t.count - m, small, results);
  results.store(2 * kRows);
}

template <class Amx, class V, int Blocks, int Vectors>
void amx_outer_tile(const OuterTile<float>& t) {
  constexpr int64_t kRows = AmxRows::kRows, kUnits = AmxRows::kUnits, width = Vectors * V::lanes;
  clear_sums<Amx, Blocks, Vectors>();
  const SmallProducts small(t.parts, t.orders);
  constexpr PartProduct kLargest{0, 0};
  const auto sum = [&](const PartProduct* step, int steps) {
    for (int64_t r = 0; r < t.run_count; ++r)
      for (int64_t p = 0; p < t.runs[r].count; p += kUnits)
        for (int i = 0; i < steps; ++i) {
          if (i == 0 || step[i].a != step[i - 1].a) {
            const float* a = t.runs[r].a + t.a_offset + step[i].a * t.a_plane + p;
            Amx::template load<4>(a, t.a_step * 4);
            if constexpr (Blocks > 1) Amx::template load<5>(a + kRows * t.a_step, t.a_step * 4);
          }
          if (i == 0 || step[i].b != step[i - 1].b)
            load_columns<Amx, Vectors>(t.runs[r].b + t.b_offset + step[i].b * t.b_plane + p * t.b_pitch, t.b_pitch);
          add_products<Amx, Blocks, Vectors>();
        }
  };
  if (small.count > 0) sum(small.step, small.count);
  sum(&kLargest, 1);
  if (!t.add && t.rows == Blocks * kRows && t.columns == width) return store_sums<Amx, Blocks, Vectors>(t.out, t.out_pitch);
  alignas(64) float sums[Blocks * kRows * width];
  store_sums<Amx, Blocks, Vectors>(sums, width);
  for (int m = 0; m < t.rows; ++m)
    for (int v = 0; v < Vectors; ++v) {
      float* to = t.out + m * t.out_pitch + v * V::lanes;
      const int64_t columns = t.columns - v * V::lanes;
      const auto sum = V::load(sums + m * width + v * V::lanes);
      V::store_first(to, columns, t.add ? V::add(sum, V::load_first(to, columns)) : sum);
    }
}

// Registers 0 to 3 hold sums, 4 the weights, 5 to 7 positions in turn.
template <class Amx, int Vectors>
void amx_wide_tile(const WideTile<float>& t) {
  constexpr int64_t kUnits = AmxRows::kUnits;
  const auto each = [](auto f) {
    f(std::integral_constant<int, 0>());
    if constexpr (Vectors > 1) f(std::integral_constant<int, 1>());
    if constexpr (Vectors > 2) f(std::integral_constant<int, 2>());
    if constexpr (Vectors > 3) f(std::integral_constant<int, 3>());
  };
  each([](auto v) { Amx::template zero<v>(); });
  for (int64_t tap = 0; tap < t.taps; ++tap)
    for (int64_t c = 0; c < t.depth; c += kUnits) {
      const float* in = t.in + c * t.in_pitch + t.offsets[tap];
      Amx::template load<4>(t.weights[tap] + t.first + c, t.weights_pitch * 4);
      each([&](auto v) {
        Amx::template load<5 + v % 3>(in + v * kUnits, t.in_pitch * 4);
        Amx::template add_product<v, 4, 5 + v % 3>();
      });
    }
  each([&](auto v) { Amx::template store<v>(t.out + v * kUnits, t.out_pitch * 4); });
}

// Replaces the gather, outer and wide tiles of a table with vectors of 16 floats.
template <class Amx, class V>
Tiles<float> with_amx_tiles(Tiles<float> table) {
  table.max_vectors = 2;
  for (int rows = 1; rows <= kMaxRows; ++rows) {
    table.gather[1][rows] = amx_gather_tile<Amx, V, 1>;
    table.gather[2][rows] = amx_gather_tile<Amx, V, 2>;
    table.outer[1][rows] = rows > 16 ? amx_outer_tile<Amx, V, 2, 1> : amx_outer_tile<Amx, V, 1, 1>;
    table.outer[2][rows] = rows > 16 ? amx_outer_tile<Amx, V, 2, 2> : amx_outer_tile<Amx, V, 1, 2>;
  }
  table.max_rows[1] = table.max_rows[2] = kMaxRows;
  table.chains[1] = 1, table.column_step = table.lanes;
  table.max_wide_rows = AmxRows::kRows;
  for (int rows = 1; rows <= AmxRows::kRows; ++rows) {
    table.max_wide_vectors[rows] = 4;
    table.wide[rows][1] = amx_wide_tile<Amx, 1>;
    table.wide[rows][2] = amx_wide_tile<Amx, 2>;
    table.wide[rows][3] = amx_wide_tile<Amx, 3>;
    table.wide[rows][4] = amx_wide_tile<Amx, 4>;
  }
  table.depth_step = table.row_step = 16;
  table.matrices = true;
  table.enter = Amx::enter;
  table.leave = Amx::leave;
  return table;
}
