// SPDX-License-Identifier: Apache-2.0
// Bodies of the tiles, written once against a vector type `V` and included into one namespace for each instruction set, inside
// the region that enables it. Nothing from outside may be called here that is not always inlined: a shared inline function
// emitted with these instructions could be linked into the path of an older processor.

#include "csrc/cpu/tiles_moves.inl"
#include "csrc/cpu/tiles_results.inl"
#include "csrc/cpu/tiles_strip.inl"
#include "csrc/cpu/tiles_winograd.inl"

// A term of a tile of the longest vectors has a load to spare, and so what is needed soon is asked for on the way, line by line:
// all at once it keeps what is needed now from coming. Tiles of shorter vectors take longer for it.
template <class V>
inline constexpr bool kAsks = kLongest<V>;

// Terms take turns at as many sums as there are `Chains`, which are added in the end: the shorter, the less they err. With `Some`
// of them at a time, these are added to the results each time.
template <class V, int Vectors, int Rows, int Chains, bool Some, Last End>
__attribute__((noinline)) void gather_sums(const GatherTile<typename V::Real>& t) {
  using Real = typename V::Real;
  using Strip = Strip<V, Vectors, End>;
  constexpr int width = Vectors * V::lanes;
  constexpr int64_t kLine = 64 / int64_t(sizeof(Real));
  int asked = 0;  // rows whose results have been asked for
  const char* soon = t.soon;
  if constexpr (!kAsks<V>) {
    TORCH_EXT_UNROLL for (; asked < Rows; ++asked) prefetch_results<V, Vectors>(t, asked);
  }
  bool stored = false;
  int64_t tap = 0, first = 0;  // channel of the tap, the next one to be summed
  do {
    Strip acc[Chains][Rows];
    TORCH_EXT_UNROLL for (int k = 0; k < Chains; ++k) TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) acc[k][m].clear();
    for (int64_t left = t.terms; tap < t.taps && (!Some || left > 0);) {
      const int64_t channel = t.first + first;
      const Real* a[Rows];
      TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) a[m] = t.rows[tap * t.row_pitch + m] + channel;
      const Real* b = t.panels[tap] + channel * width;
      const int64_t depth = Some && t.depth - first > left ? left : t.depth - first;
      const Real* const* next = t.rows + tap * t.row_pitch + t.next;
      const auto ask_for_rows = [&](int64_t c) {
        TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) __builtin_prefetch(next[m] + channel + c);
      };
      const auto add = [&](int64_t c, Strip * sums) __attribute__((always_inline)) {
        Strip columns;
        columns.load(b);
        if constexpr (Chains > 1) columns.pin();
        TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) sums[m].add_product(a[m] + c, columns);
        b += width;
      };
      const auto sum = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
        int64_t c = begin;
        if constexpr (Chains > 1) {
          for (; c + Chains <= end; c += Chains) TORCH_EXT_UNROLL for (int k = 0; k < Chains; ++k) add(c + k, acc[k]);
        }
        _Pragma("GCC unroll 2") for (; c < end; ++c) add(c, acc[0]);
      };
      if constexpr (kAsks<V>) {
        for (int64_t begin = 0; begin < depth; begin += kLine) {
          if (asked < Rows) prefetch_results<V, Vectors>(t, asked++);
          if (t.next) ask_for_rows(begin);
          for (const char* end = soon + t.soon_step; soon < end; soon += 64) __builtin_prefetch(soon, 0, 2);
          sum(begin, begin + kLine < depth ? begin + kLine : depth);
        }
      } else {
        for (int64_t c = 0; t.next && c < depth; c += kLine) ask_for_rows(c);
        sum(0, depth);
      }
      if constexpr (Some) left -= depth, first += depth;
      if (!Some || first == t.depth) first = 0, ++tap;
    }
    for (; asked < Rows; ++asked) prefetch_results<V, Vectors>(t, asked);
    TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) TORCH_EXT_UNROLL for (int k = 1; k < Chains; ++k) acc[0][m].add(acc[k][m]);
    store_rows<V, Vectors, Rows>(t, stored ? nullptr : t.init, acc[0]);
    if constexpr (Some) stored = true;
  } while (Some && tap < t.taps);
}

template <class V, int Vectors, int Rows, int Chains = 1, bool Some = false>
void gather_tile(const GatherTile<typename V::Real>& t) {
  if constexpr (has_halves<V>)
    if (ends_in_half<V, Vectors>(t.columns)) return gather_sums<V, Vectors, Rows, Chains, Some, Last::kHalf>(t);
  gather_sums<V, Vectors, Rows, Chains, Some, Last::kWhole>(t);
}

template <class V, int Vectors, int Rows, int Chains, bool Some, Last End>
__attribute__((noinline)) void outer_sums(const OuterTile<typename V::Real>& t) {
  using Real = typename V::Real;
  using Strip = Strip<V, Vectors, End>;
  const int64_t last = t.columns - (Vectors - 1) * V::lanes;
  const auto mask = V::first(last);
  const char* next = static_cast<const char*>(t.next ? t.next : t.runs);
  bool stored = false;
  int64_t r = 0, first = 0;  // term of the run, the next one to be summed
  do {
    Strip acc[Chains][Rows];
    TORCH_EXT_UNROLL for (int k = 0; k < Chains; ++k) TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) acc[k][m].clear();
    for (int64_t left = t.terms; r < t.run_count && (!Some || left > 0);) {
      const Real* a = t.runs[r].a + t.a_offset + first * t.a_pitch;
      const Real* b = t.runs[r].b + t.b_offset + first * t.b_pitch;
      const int64_t rest = t.runs[r].count - first;
      int64_t p = Some && rest > left ? left : rest;
      if constexpr (Some) left -= p, first += p;
      if (!Some || first == t.runs[r].count) first = 0, ++r;
      const auto add = [&](Strip * sums) __attribute__((always_inline)) {
        Strip columns;
        columns.load_masked(b, mask);
        if constexpr (Chains > 1 || Rows > 1) columns.pin();  // else it is loaded for each row, where these are few
        TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) sums[m].add_product(a + m, columns);
        a += t.a_pitch;
        b += t.b_pitch;
        if constexpr (kAsks<V> && Chains == 1) {
          __builtin_prefetch(next, 0, 2);
          next += t.next_step;
        }
      };
      if constexpr (Chains > 1) {
        for (; p >= Chains; p -= Chains) TORCH_EXT_UNROLL for (int k = 0; k < Chains; ++k) add(acc[k]);
      }
      for (; p > 0; --p) add(acc[0]);
    }
    const bool adds = stored || t.add;
    TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) {
      TORCH_EXT_UNROLL for (int k = 1; k < Chains; ++k) acc[0][m].add(acc[k][m]);
      typename V::Reg sums[Vectors];
      acc[0][m].widen(sums);
      Real* to = t.out + m * t.out_pitch;
      TORCH_EXT_UNROLL for (int v = 0; v < Vectors - 1; ++v)
          V::store(to + v * V::lanes, adds ? V::add(V::load(to + v * V::lanes), sums[v]) : sums[v]);
      to += (Vectors - 1) * V::lanes;
      V::store_first(to, last, adds ? V::add(V::load_first(to, last), sums[Vectors - 1]) : sums[Vectors - 1]);
    }
    if constexpr (Some) stored = true;
  } while (Some && r < t.run_count);
}

template <class V, int Vectors, int Rows, int Chains = 1, bool Some = false>
void outer_tile(const OuterTile<typename V::Real>& t) {
  with_last<V, Vectors>(t.columns, [&](auto last) { outer_sums<V, Vectors, Rows, Chains, Some, last>(t); });
}

// What a wide tile does with its sums, Step rows of them to a line.
template <class V, int Step, int Vectors>
inline __attribute__((always_inline)) void store_woven(const WideTile<typename V::Real>& t, int line,
                                                       const typename V::Reg (&sums)[Step][Vectors]) {
  const auto init = V::set(t.init ? t.init[line] : 0);
  TORCH_EXT_UNROLL for (int v = 0; v < Vectors; ++v) {
    typename V::Reg woven[Step];
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) woven[k] = sums[k][v];
    weave_vectors<V, Step>(woven);
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) {
      const int64_t at = (v * Step + k) * V::lanes, left = t.columns * Step - at;
      auto* to = t.out + line * t.out_pitch + at;
      if constexpr (requires { &V::stream; }) {
        if (t.streams && left >= V::lanes) {
          V::stream(to, V::add(init, woven[k]));
          continue;
        }
      }
      if (v < Vectors - 1) {
        V::store(to, V::add(t.init ? init : V::load(to), woven[k]));
      } else if (left > 0) {
        V::store_first(to, left, V::add(t.init ? init : V::load_first(to, left), woven[k]));
      }
    }
  }
}

template <class V, int Step, int Rows, int Vectors, Last End>
inline __attribute__((always_inline)) void store_lines(const WideTile<typename V::Real>& t,
                                                       const Strip<V, Vectors, End> (&acc)[Rows]) {
  if constexpr (Rows % Step == 0 && (Step == 1 || requires { &V::weave_low; })) {
    TORCH_EXT_UNROLL for (int line = 0; line < Rows / Step; ++line) {
      typename V::Reg sums[Step][Vectors];
      TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) acc[line * Step + k].widen(sums[k]);
      store_woven<V>(t, line, sums);
    }
  }
}

// Channels of which a tile that does not ask takes all taps, one after the other: those of a tap follow by adding to two pointers,
// where an address for each channel and tap took eight instructions beside 8 to 12 products (0.96 of the time; where another
// thread has half of the core, 0.9), and lines that several taps read are still in L1. Few channels stay one at a time: sums in the
// order of taps erred by more than twice what torch's did (4 to 5 channels, k25 s1: 1.0e-5 where torch had 3.2e-6).
inline constexpr int64_t kChannelsInTurn = 32, kFewChannels = 16;

template <class V, int Rows, int Vectors, Last End>
__attribute__((noinline)) void wide_sums(const WideTile<typename V::Real>& t) {
  using Real = typename V::Real;
  using Strip = Strip<V, Vectors, End>;
  Strip acc[Rows];
  TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) acc[m].clear();
  const int64_t last = t.columns - (Vectors - 1) * V::lanes;
  const auto mask = V::first(last);
  const auto add = [&](const Real*& w, const Real*& in) __attribute__((always_inline)) {
    asm("" : "+r"(in), "+r"(w));  // keeps GCC from an address of its own for each of the factors
    // The shorter side stays in registers, the other one passes by.
    if constexpr (Rows < Vectors) {
      typename V::Reg weight[Rows];
      TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) weight[m] = V::set(w[m]);
      Strip::add_products(acc, weight, in, mask);
    } else {
      Strip x;
      x.load_masked(in, mask);
      TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) acc[m].add_product(w + m, x);
    }
  };
  // In locals, as GCC reads them again for each product (one tap of 5 x 16, vectors of 8: 1.16 of the time).
  const int64_t* const offsets = t.offsets;
  const Real* const* const weights = t.weights;
  const int64_t taps = t.taps, pitch = t.in_pitch, ahead = t.ahead;
  const auto sum = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const Real* in = t.in + c * pitch + offsets[tap];
        const Real* w = weights[tap] + (t.first + c) * Rows;
        add(w, in);
      }
  };
  const auto sum_in_turn = [&](auto asks) __attribute__((always_inline)) {
    for (int64_t c = 0; c < t.depth; c += kChannelsInTurn) {
      const int64_t count = c + kChannelsInTurn < t.depth ? kChannelsInTurn : t.depth - c;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const Real* in = t.in + c * pitch + offsets[tap];
        const Real* w = weights[tap] + (t.first + c) * Rows;
        const Real* const end = w + count * Rows;
        do {
          if constexpr (asks) {
            TORCH_EXT_UNROLL for (int v = 2; v < Vectors + 2; v += 2)
                __builtin_prefetch(in + ahead + (v < Vectors ? v : Vectors) * V::lanes - 1);
          }
          add(w, in);
          in += pitch, w += Rows;
        } while (w != end);
      }
    }
  };
  const auto ask_for_results = [&](int line) {
    for (int64_t v = 0; v < Vectors * t.step; ++v) __builtin_prefetch(t.out + line * t.out_pitch + v * V::lanes, 1);
  };
  // Woven results go to memory: it is asked for them, one line after the other.
  const int lines = t.step > 1 && t.init && !t.streams ? int(Rows / t.step) : 0;
  if constexpr (kAsks<V>) {
    const int64_t some = t.next ? kAskedChannels : t.depth;
    int line = 0;
    for (int64_t c = 0; c < t.depth; c += some) {
      if (t.next) t.next->step();
      if (line < lines) ask_for_results(line++);
      sum(c, c + some < t.depth ? c + some : t.depth);
    }
  } else {
    for (int line = 0; line < lines; ++line) ask_for_results(line);
    if (t.depth <= kFewChannels) {
      sum(0, t.depth);
    } else if (ahead) {
      sum_in_turn(std::true_type());
    } else {
      sum_in_turn(std::false_type());
    }
  }
  if (t.step == 2) return store_lines<V, 2, Rows>(t, acc);
  if (t.step == 4) return store_lines<V, 4, Rows>(t, acc);
  store_lines<V, 1, Rows>(t, acc);
}

template <class V, int Rows, int Vectors>
void wide_tile(const WideTile<typename V::Real>& t) {
  with_last<V, Vectors>(t.columns, [&](auto last) { wide_sums<V, Rows, Vectors, last>(t); });
}

// A whole vector, or with a mask some of its lanes.
template <class V, class Element, class... Mask>
typename V::Reg load_lanes(const Element* from, Mask... mask) {
  if constexpr (sizeof...(mask) == 0) {
    return V::load(from);
  } else {
    return V::load_masked(from, mask...);
  }
}

// Adds the lanes of each of some vectors: neighbours of two vectors at a time, until the sums lie side by side in as many lanes.
template <class V, int Count, int Lanes>
inline __attribute__((always_inline)) void add_lanes(typename V::Reg* vectors) {
  if constexpr (Lanes > 1) {
    constexpr int kHalf = (Count + 1) / 2;
    TORCH_EXT_UNROLL for (int i = 0; i < kHalf; ++i) {
      const auto a = vectors[2 * i], b = 2 * i + 1 < Count ? vectors[2 * i + 1] : V::zero();
      vectors[i] = V::add(V::even(a, b), V::odd(a, b));
    }
    add_lanes<V, kHalf, Lanes / 2>(vectors);
  }
}

template <class V, int Rows, int Taps, class Element = typename V::Real>
void dot_tile(const DotTile<typename V::Real, Element>& t) {
  using Real = typename V::Real;
  constexpr int64_t kStep = V::lanes * int64_t(sizeof(Real) / sizeof(Element));
  typename V::Reg acc[Rows][Taps];
  TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) TORCH_EXT_UNROLL for (int k = 0; k < Taps; ++k) acc[m][k] = V::zero();
  for (int64_t r = 0; r < t.run_count; ++r) {
    const Element* a = t.runs[r].a + t.a_offset;
    const Element* b = t.runs[r].b;
    const auto sum = [&](auto asked) {
      const auto step = [&](int64_t p, auto... mask) {
        typename V::Reg x[Rows];
        for (int m = 0; m < asked; ++m) __builtin_prefetch(a + m * t.a_pitch + p + t.next, 0, 2);
        TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) x[m] = load_lanes<V>(a + m * t.a_pitch + p, mask...);
        TORCH_EXT_UNROLL for (int k = 0; k < Taps; ++k) {
          const auto y = load_lanes<V>(b + t.offsets[k] + p, mask...);
          TORCH_EXT_UNROLL for (int m = 0; m < Rows; ++m) acc[m][k] = V::fma(x[m], y, acc[m][k]);
        }
      };
      const int64_t count = t.runs[r].count, whole = count / kStep * kStep;
      for (int64_t p = 0; p < whole; p += kStep) step(p);
      if (whole < count) {
        if constexpr (kStep == V::lanes) {
          step(whole, V::first(count - whole));
        } else {
          step(whole, V::first_halves(count - whole));
        }
      }
    };
    if constexpr (!kAsks<V> || Rows == 1) {
      sum(std::integral_constant<int, 0>());
    } else if (t.next_of_all) {
      sum(std::integral_constant<int, Rows>());
    } else {
      sum(std::integral_constant<int, 1>());
    }
  }
  constexpr int kSums = Rows * Taps, kVectors = (kSums + V::lanes - 1) / V::lanes;
  typename V::Reg vectors[kSums];
  TORCH_EXT_UNROLL for (int i = 0; i < kSums; ++i) vectors[i] = acc[i / Taps][i % Taps];
  add_lanes<V, kSums, V::lanes>(vectors);
  Real sums[kVectors * V::lanes];
  TORCH_EXT_UNROLL for (int v = 0; v < kVectors; ++v) V::store(sums + v * V::lanes, vectors[v]);
  for (int m = 0; m < Rows; ++m)
    for (int k = 0; k < Taps; ++k) t.out[m * t.out_pitch + k] += sums[m * Taps + k];
}

// The vector of phase r whose first cell is j, of the line at `from`.
template <class V>
inline __attribute__((always_inline)) typename V::Reg overlapped(const OverlapLines<typename V::Real>& t,
                                                                 const typename V::Real* from, int64_t r, int64_t j) {
  auto sum = V::set(t.init);
  const OverlapPhase phase = t.phases[r];
  for (int64_t k = 0; k < phase.count; ++k) {
    const int64_t i = j + phase.taps[k].delta + t.shift;
    const auto* at = from + phase.taps[k].offset + i;
    if (i >= 0 && i + V::lanes <= t.extent) {
      sum = V::add(sum, V::load(at));
    } else if (i < t.extent && i + V::lanes > 0) {
      sum = V::add(sum, V::load_between(at, -i, t.extent - i));
    }
  }
  return sum;
}

template <class V>
void overlap(const OverlapLines<typename V::Real>& t) {
  const int64_t cells = (t.count + t.step - 1) / t.step, pitch = (cells + V::lanes - 1) / V::lanes * V::lanes;
  for (int64_t l = 0; l < t.lines; ++l) {
    const auto* from = t.from + l * t.from_pitch;
    auto* to = t.to + l * t.to_pitch;
    if (t.step == 1) {
      for (int64_t j = 0; j < cells; j += V::lanes) V::store_first(to + j, t.count - j, overlapped<V>(t, from, 0, j));
    } else if (t.step == 2) {
      for (int64_t j = 0; j < cells; j += V::lanes) {
        const auto a = overlapped<V>(t, from, 0, j), b = overlapped<V>(t, from, 1, j);
        const int64_t left = t.count - 2 * j;
        V::store_first(to + 2 * j, left, V::weave_low(a, b));
        if (left > V::lanes) V::store_first(to + 2 * j + V::lanes, left - V::lanes, V::weave_high(a, b));
      }
    } else {
      for (int64_t r = 0; r < t.step; ++r)
        for (int64_t j = 0; j < cells; j += V::lanes) V::store(t.room + r * pitch + j, overlapped<V>(t, from, r, j));
      weave<V>(t.room, pitch, t.step, to, t.count);
    }
  }
}

// Whether all lanes are zero.
template <class V>
bool vanishes(typename V::Reg v) {
  typename V::Real lane[V::lanes];
  V::store(lane, v);
  bool all = true;
  for (int l = 0; l < V::lanes; ++l) all = all && lane[l] == 0;
  return all;
}

// A product with zero is zero, unless the other factor is an infinity or a NaN.
template <class V>
bool finite(const typename V::Real* values, int64_t count) {
  typename V::Reg sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t i = 0;
  for (; i + 4 * V::lanes <= count; i += 4 * V::lanes)
    TORCH_EXT_UNROLL for (int v = 0; v < 4; ++v) sum[v] = V::fma(V::load(values + i + v * V::lanes), V::zero(), sum[v]);
  for (; i < count; i += V::lanes) sum[0] = V::fma(V::load_first(values + i, count - i), V::zero(), sum[0]);
  bool all = true;
  for (int v = 0; v < 4; ++v) all = vanishes<V>(sum[v]) && all;
  return all;
}

#include "csrc/cpu/tiles_depthwise.inl"
#include "csrc/cpu/tiles_lines.inl"
#include "csrc/cpu/tiles_sums.inl"

template <class V, int Vectors, int... Rows>
constexpr void fill_tiles(Tiles<typename V::Real>& table, std::integer_sequence<int, Rows...>) {
  // Tiles of one vector leave registers for twice as many sums: 0.9 to 0.97 of the time of storing them after half the terms.
  constexpr int kChains = Vectors == 1 && kAsks<V> && sizeof(typename V::Real) == 4 ? 2 : 1;
  table.max_rows[Vectors] = sizeof...(Rows), table.chains[Vectors] = kChains;
  ((table.gather[Vectors][Rows + 1] = gather_tile<V, Vectors, Rows + 1, kChains>), ...);
  ((table.outer[Vectors][Rows + 1] = outer_tile<V, Vectors, Rows + 1>), ...);
}

// Where registers are few, sums that are added to the results twice as often are faster than half as many rows (4 x 3, 128 terms:
// after 32, 85 GFLOP/s, where 2 chains of 32 in 2 x 3 reach 80; after 16, 79 and 67).
template <class V>
inline constexpr int kChainCount = kAsks<V> ? 2 : 1;

template <class V, int Vectors, int... Rows>
constexpr void fill_chains(Tiles<typename V::Real>& table, std::integer_sequence<int, Rows...>) {
  table.chain_count = kChainCount<V>, table.max_chain_rows[Vectors] = sizeof...(Rows);
  ((table.gather_chains[Vectors][Rows + 1] = gather_tile<V, Vectors, Rows + 1, kChainCount<V>, kChainCount<V> == 1>), ...);
  ((table.outer_chains[Vectors][Rows + 1] = outer_tile<V, Vectors, Rows + 1, kChainCount<V>, kChainCount<V> == 1>), ...);
}

template <class V, int Rows, int... Vectors>
constexpr void fill_wide_tiles(Tiles<typename V::Real>& table, std::integer_sequence<int, Vectors...>) {
  table.max_wide_vectors[Rows] = sizeof...(Vectors);
  ((table.wide[Rows][Vectors + 1] = wide_tile<V, Rows, Vectors + 1>), ...);
}

template <class V, int... Widest>
constexpr void fill_wide(Tiles<typename V::Real>& table, std::integer_sequence<int, Widest...>) {
  static_assert(sizeof...(Widest) <= kWideRows);
  table.max_wide_rows = sizeof...(Widest);
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (fill_wide_tiles<V, I + 1>(table, std::make_integer_sequence<int, Widest>()), ...);
  }
  (std::make_integer_sequence<int, sizeof...(Widest)>());
}

template <class V, int Rows, int... Taps>
constexpr void fill_dot_tiles(Tiles<typename V::Real>& table, std::integer_sequence<int, Taps...>) {
  table.max_dot_taps[Rows] = sizeof...(Taps);
  ((table.dot[Rows][Taps + 1] = dot_tile<V, Rows, Taps + 1>), ...);
}

// Tallest[v] is how many rows fit the register file beside v vectors of the panel and one broadcast.
// Widest[m] is how many vectors fit it beside m broadcasts and one load, Dots[m] how many sums of m rows beside those and one
// load.
template <class V, int... Tallest, int... Widest, int... Dots>
constexpr Tiles<typename V::Real> make_tiles(std::integer_sequence<int, Tallest...>, std::integer_sequence<int, Widest...> widest,
                                             std::integer_sequence<int, Dots...>) {
  static_assert(sizeof...(Dots) == kDotRows);
  Tiles<typename V::Real> table{};
  table.lanes = table.column_step = V::lanes;
  table.max_vectors = sizeof...(Tallest);
  table.asks = kAsks<V>;
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (fill_tiles<V, I + 1>(table, std::make_integer_sequence<int, Tallest>()), ...);
    if constexpr (sizeof(typename V::Real) == 4)
      (fill_chains<V, I + 1>(table, std::make_integer_sequence<int, Tallest / kChainCount<V>>()), ...);
  }
  (std::make_integer_sequence<int, sizeof...(Tallest)>());
  fill_wide<V>(table, widest);
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (fill_dot_tiles<V, I + 1>(table, std::make_integer_sequence<int, Dots>()), ...);
  }
  (std::make_integer_sequence<int, sizeof...(Dots)>());
  table.transpose = transpose<V>;
  table.transpose_rows = transpose_rows<V>;
  if constexpr (sizeof(typename V::Real) == 4) table.transpose_halves = transpose_halves<V>;
  table.weave = weave<V>;
  table.unweave = unweave<V>;
  table.join_lines = join_lines<V>;
  if constexpr (kAsks<V>) table.add_links = add_links<V>, table.copy_links = copy_links<V>;
  table.overlap = overlap<V>;
  table.depthwise = depthwise<V>;
  table.depthwise_sums = depthwise_sums<V>;
  fill_lines<V>(table, std::make_integer_sequence<int, kLineSteps>());
  fill_line_sums<V>(table, std::make_integer_sequence<int, kLineTerms>());
  if constexpr (sizeof(typename V::Real) == 4) fill_winograd<V>(table);
  table.every = every<V>;
  fill_rows<V>(table, std::make_integer_sequence<int, kRowsPositions>());
  table.add_rows = add_rows<V>;
  table.sum = sum<V>;
  table.finite = finite<V>;
  table.widen = V::widen;
  table.narrow = V::narrow;
  table.stream = stream<V>;
  return table;
}
