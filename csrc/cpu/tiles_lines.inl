// SPDX-License-Identifier: Apache-2.0
// Lines of single planes, with lanes along their positions, for vectors `V`. Included by tiles.inl, whose vanishes
// they use.

// Whole vectors from element `first` on.
template <class V, int Step>
inline __attribute__((always_inline)) void load_block(Type type, const void* from, int64_t first, typename V::Reg (&r)[Step]) {
  if constexpr (sizeof(typename V::Real) == 4)
    if (type != Type::f32) {
      const auto* halves = static_cast<const uint16_t*>(from) + first;
      TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] = V::load_narrow(type, halves + k * V::lanes);
      return;
    }
  const auto* reals = static_cast<const typename V::Real*>(from) + first;
  TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] = V::load(reals + k * V::lanes);
}

// Sums of a few blocks that stay zero while all is finite: in a single one each block would wait for the one before.
inline constexpr int kLineChecks = 4;

template <class V, int Step>
bool load_lines(const LinesIn<typename V::Real>& t) {
  using Real = typename V::Real;
  constexpr int64_t kBlock = Step * V::lanes;
  typename V::Reg checks[kLineChecks];
  TORCH_EXT_UNROLL for (auto& check : checks) check = V::zero();
  const auto check_block = [](const typename V::Reg(&r)[Step], typename V::Reg & check) __attribute__((always_inline)) {
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) check = V::fma(r[k], V::zero(), check);
  };
  for (int64_t l = 0; l < t.lines; ++l) {
    Real* to = t.to + l * t.to_pitch;
    int64_t first = l * t.from_pitch, left = t.count;
    const auto move = [&](typename V::Reg & check) __attribute__((always_inline)) {
      typename V::Reg r[Step];
      load_block<V>(t.type, t.from, first, r);
      check_block(r, check);
      unweave_vectors<V, Step>(r);
      TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) V::store(to + k * t.slot, r[k]);
      first += kBlock, to += V::lanes;
    };
    for (; left >= kLineChecks * kBlock; left -= kLineChecks * kBlock) TORCH_EXT_UNROLL for (auto& check : checks) move(check);
    for (; left >= kBlock; left -= kBlock) move(checks[0]);
    if (left == 0) continue;
    Real last[kBlock];
    typename V::Reg r[Step];
    V::widen(t.type, static_cast<const char*>(t.from) + first * bytes_of(t.type), last, left);
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] =
        left > k * V::lanes ? V::load_first(last + k * V::lanes, left - k * V::lanes) : V::zero();
    check_block(r, checks[0]);
    unweave_vectors<V, Step>(r);
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k)
      if (left > k) V::store_first(to + k * t.slot, (left - k + Step - 1) / Step, r[k]);
  }
  TORCH_EXT_UNROLL for (int i = 1; i < kLineChecks; ++i) checks[0] = V::add(checks[0], checks[i]);
  return vanishes<V>(checks[0]);
}

// Some vectors of the cells of some lines from `in` on, whose results are the first `left` of each line from `to` on.
template <class V, int Step, int Lines, int Vectors>
inline __attribute__((always_inline)) void lines_block(const LinesTile<typename V::Real>& t, const typename V::Real* in,
                                                       char* to, int64_t left) {
  using Real = typename V::Real;
  constexpr int kBlock = Lines * Vectors;
  typename V::Reg sums[kBlock][Step];
  const auto init = V::set(t.init);
  TORCH_EXT_UNROLL for (int i = 0; i < kBlock; ++i) TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) sums[i][r] = init;
  const int64_t* offset = t.offsets;
  const Real* weight = t.weights;
  const auto load = [&](int i) __attribute__((always_inline)) {
    return V::load(in + *offset + i / Vectors * t.in_pitch + i % Vectors * V::lanes);
  };
  for (int64_t k = 0; k < t.shared; ++k, ++offset, weight += Step) {
    typename V::Reg factor[Step];
    TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) factor[r] = V::broadcast(weight + r);
    TORCH_EXT_UNROLL for (int i = 0; i < kBlock; ++i) {
      auto x = load(i);
      if constexpr (Step > 1) V::pin(x);  // else it is loaded for each product
      TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) sums[i][r] = V::fma(factor[r], x, sums[i][r]);
    }
  }
  TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r)
    for (int64_t k = 0; k < t.own[r]; ++k, ++offset, ++weight) {
      const auto factor = V::broadcast(weight);
      TORCH_EXT_UNROLL for (int i = 0; i < kBlock; ++i) sums[i][r] = V::fma(factor, load(i), sums[i][r]);
    }
  const int64_t size = bytes_of(t.type), pitch = t.to_pitch * size;
  TORCH_EXT_UNROLL for (int i = 0; i < kBlock; ++i) {
    weave_vectors<V, Step>(sums[i]);
    TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) {
      const int64_t at = (i % Vectors * Step + r) * V::lanes;
      if (at >= left) continue;
      char* const result = to + i / Vectors * pitch + at * size;
      if constexpr (sizeof(Real) == 4)
        if (t.type != Type::f32) {
          V::store_narrow(t.type, result, left - at, sums[i][r]);
          continue;
        }
      if (left - at >= V::lanes) {
        V::store(reinterpret_cast<Real*>(result), sums[i][r]);
      } else {
        V::store_first(reinterpret_cast<Real*>(result), left - at, sums[i][r]);
      }
    }
  }
}

// So many vectors of all lines, as many lines at once as there are, then half as many.
template <class V, int Step, int Lines, int Vectors>
inline __attribute__((always_inline)) void lines_column(const LinesTile<typename V::Real>& t, int64_t line,
                                                        const typename V::Real* in, char* to, int64_t left) {
  for (; line + Lines <= t.lines; line += Lines)
    lines_block<V, Step, Lines, Vectors>(t, in + line * t.in_pitch, to + line * t.to_pitch * bytes_of(t.type), left);
  if constexpr (Lines > 1) lines_column<V, Step, Lines / 2, Vectors>(t, line, in, to, left);
}

// Blocks of so many vectors, of one line, then of half as many, of two lines, and so on: the terms of a block pass by as often as
// there are blocks.
template <class V, int Step, int Lines, int Vectors>
inline __attribute__((always_inline)) void lines_columns(const LinesTile<typename V::Real>& t, const typename V::Real* in,
                                                         char* to, int64_t left) {
  constexpr int64_t kResults = Vectors * Step * V::lanes;
  for (; left > kResults - Step * V::lanes; left -= kResults, in += Vectors * V::lanes, to += kResults * bytes_of(t.type))
    lines_column<V, Step, Lines, Vectors>(t, 0, in, to, left);
  if constexpr (Vectors > 1) lines_columns<V, Step, 2 * Lines, Vectors / 2>(t, in, to, left);
}

// Their sums fill half of the registers.
template <class V, int Step>
void lines(const LinesTile<typename V::Real>& t) {
  constexpr int kVectors = (kAsks<V> ? 16 : 8) / (Step > 2 ? 4 : 2);
  lines_columns<V, Step, 1, kVectors>(t, t.in, static_cast<char*>(t.to), t.count);
}

template <class V, int Terms>
void line_sums(const LineSums<typename V::Real>& t) {
  typename V::Reg sums[Terms];
  TORCH_EXT_UNROLL for (int k = 0; k < Terms; ++k) sums[k] = V::zero();
  int64_t offset[Terms];
  TORCH_EXT_UNROLL for (int k = 0; k < Terms; ++k) offset[k] = t.offsets[k];
  const auto add = [&](const typename V::Real* from, const typename V::Real* y, auto... mask) __attribute__((always_inline)) {
    const auto x = load_lanes<V>(from, mask...);
    TORCH_EXT_UNROLL for (int k = 0; k < Terms; ++k) sums[k] = V::fma(x, load_lanes<V>(y + offset[k], mask...), sums[k]);
  };
  for (int64_t l = 0; l < t.lines; ++l) {
    const auto *x = t.x + l * t.x_pitch, *y = t.y + l * t.y_pitch;
    int64_t left = t.count;
    for (; left >= V::lanes; left -= V::lanes, x += V::lanes, y += V::lanes) add(x, y);
    if (left > 0) add(x, y, V::first(left));
  }
  TORCH_EXT_UNROLL for (int k = 0; k < Terms; ++k)
    V::store(t.sums + k * V::lanes, V::add(V::load(t.sums + k * V::lanes), sums[k]));
}

template <class V, int... Step>
constexpr void fill_lines(Tiles<typename V::Real>& table, std::integer_sequence<int, Step...>) {
  ((table.load_lines[Step + 1] = load_lines<V, Step + 1>), ...);
  ((table.lines_of[Step + 1] = lines<V, Step + 1>), ...);
}
template <class V, int... Terms>
constexpr void fill_line_sums(Tiles<typename V::Real>& table, std::integer_sequence<int, Terms...>) {
  ((table.line_sums[Terms + 1] = line_sums<V, Terms + 1>), ...);
}
