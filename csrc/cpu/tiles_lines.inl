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

template <class V, int Step>
bool load_lines(const LinesIn<typename V::Real>& t) {
  using Real = typename V::Real;
  constexpr int64_t kBlock = Step * V::lanes;
  auto check = V::zero();
  for (int64_t l = 0; l < t.lines; ++l)
    for (int64_t i = 0; i < t.count; i += kBlock) {
      const int64_t left = t.count - i, first = l * t.from_pitch + i;
      Real* const to = t.to + l * t.to_pitch + i / Step;
      typename V::Reg r[Step];
      if (left >= kBlock) {
        load_block<V>(t.type, t.from, first, r);
        TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) check = V::fma(r[k], V::zero(), check);
        unweave_vectors<V, Step>(r);
        TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) V::store(to + k * t.slot, r[k]);
        continue;
      }
      Real last[kBlock];
      V::widen(t.type, static_cast<const char*>(t.from) + first * bytes_of(t.type), last, left);
      TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) {
        r[k] = left > k * V::lanes ? V::load_first(last + k * V::lanes, left - k * V::lanes) : V::zero();
        check = V::fma(r[k], V::zero(), check);
      }
      unweave_vectors<V, Step>(r);
      TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k)
        if (left > k) V::store_first(to + k * t.slot, (left - k + Step - 1) / Step, r[k]);
    }
  return vanishes<V>(check);
}

// Vectors of the cells of a line from `in` on, whose results are the first `left` from `to` on.
template <class V, int Step, int Vectors>
inline __attribute__((always_inline)) void lines_block(const LinesTile<typename V::Real>& t, const typename V::Real* in,
                                                       void* to, int64_t left) {
  using Real = typename V::Real;
  typename V::Reg sums[Vectors][Step];
  const auto init = V::set(t.init);
  TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) sums[v][r] = init;
  const int64_t* offset = t.offsets;
  const Real* weight = t.weights;
  for (int64_t k = 0; k < t.shared; ++k, ++offset, weight += Step) {
    typename V::Reg factor[Step];
    TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) factor[r] = V::broadcast(weight + r);
    TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) {
      const auto x = V::load(in + *offset + v * V::lanes);
      TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) sums[v][r] = V::fma(factor[r], x, sums[v][r]);
    }
  }
  TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r)
    for (int64_t k = 0; k < t.own[r]; ++k, ++offset, ++weight) {
      const auto factor = V::broadcast(weight);
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) sums[v][r] = V::fma(factor, V::load(in + *offset + v * V::lanes), sums[v][r]);
    }
  TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) {
    weave_vectors<V, Step>(sums[v]);
    TORCH_EXT_UNROLL for (int r = 0; r < Step; ++r) {
      const int64_t at = (v * Step + r) * V::lanes;
      if (at >= left) return;
      if constexpr (sizeof(Real) == 4)
        if (t.type != Type::f32) {
          V::store_narrow(t.type, static_cast<uint16_t*>(to) + at, left - at, sums[v][r]);
          continue;
        }
      if (left - at >= V::lanes) {
        V::store(static_cast<Real*>(to) + at, sums[v][r]);
      } else {
        V::store_first(static_cast<Real*>(to) + at, left - at, sums[v][r]);
      }
    }
  }
}

// As many blocks of so many vectors as there are, then of half as many.
template <class V, int Step, int Vectors>
inline __attribute__((always_inline)) void lines_blocks(const LinesTile<typename V::Real>& t, const typename V::Real* in,
                                                        char* to, int64_t size, int64_t left) {
  constexpr int64_t kResults = Vectors * Step * V::lanes;
  for (; left > kResults - Step * V::lanes; left -= kResults, in += Vectors * V::lanes, to += kResults * size)
    lines_block<V, Step, Vectors>(t, in, to, left);
  if constexpr (Vectors > 1) lines_blocks<V, Step, Vectors / 2>(t, in, to, size, left);
}

template <class V, int Step>
void lines(const LinesTile<typename V::Real>& t) {
  const int64_t size = bytes_of(t.type);
  for (int64_t l = 0; l < t.lines; ++l)
    lines_blocks<V, Step, Step == 1 ? 8 : Step == 2 ? 4 : 2>(t, t.in + l * t.in_pitch,
                                                             static_cast<char*>(t.to) + l * t.to_pitch * size, size, t.count);
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
