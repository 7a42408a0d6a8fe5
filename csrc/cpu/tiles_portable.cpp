// SPDX-License-Identifier: Apache-2.0
// The tiles for processors of which nothing is known: short vectors of the compiler's own, four floats wide, which every 128-bit
// instruction set holds in a register.
#include <utility>

#include "csrc/core/scalar.h"
#include "csrc/cpu/tiles_isa.h"

namespace torch_ext::cpu {
namespace portable {

template <class T, int Lanes>
struct Vec {
  using Real = T;
  typedef T Reg __attribute__((vector_size(Lanes * sizeof(T)), aligned(sizeof(T)), may_alias));
  using Mask = int64_t;
  static constexpr int lanes = Lanes;
  static Reg zero() { return Reg{}; }
  static Reg set(T v) { return Reg{} + v; }
  static void pin(Reg&) {}
  static Reg broadcast(const T* p) { return set(*p); }
  static Reg load(const T* p) { return *reinterpret_cast<const Reg*>(p); }
  static void store(T* p, Reg v) { *reinterpret_cast<Reg*>(p) = v; }
  static Mask first(int64_t n) { return n < lanes ? n : lanes; }
  static Reg load_masked(const T* p, Mask mask) {
    Reg v{};
    for (int64_t i = 0; i < mask; ++i) v[i] = p[i];
    return v;
  }
  // Lanes from `begin`, which may be negative, up to `end`.
  static Reg load_between(const T* p, int64_t begin, int64_t end) {
    Reg v{};
    for (int64_t i = begin > 0 ? begin : 0; i < end && i < lanes; ++i) v[i] = p[i];
    return v;
  }
  static void store_masked(T* p, Mask mask, Reg v) {
    for (int64_t i = 0; i < mask; ++i) p[i] = v[i];
  }
  static Reg load_first(const T* p, int64_t n) { return n >= lanes ? load(p) : load_masked(p, n); }
  static void store_first(T* p, int64_t n, Reg v) { n >= lanes ? store(p, v) : store_masked(p, n, v); }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static Reg add(Reg a, Reg b) { return a + b; }
  // a0 b0 a1 b1 ...: the first and the second half.
  static Reg weave_low(Reg a, Reg b) { return weave_from(a, b, 0); }
  static Reg weave_high(Reg a, Reg b) { return weave_from(a, b, lanes / 2); }
  static Reg weave_from(Reg a, Reg b, int first) {
    Reg v;
    for (int i = 0; i < lanes; ++i) v[i] = i % 2 ? b[first + i / 2] : a[first + i / 2];
    return v;
  }
  // a0 a2 ... b0 b2 ...
  static Reg even(Reg a, Reg b) {
    Reg v;
    for (int i = 0; i < lanes; ++i) v[i] = 2 * i < lanes ? a[2 * i] : b[2 * i - lanes];
    return v;
  }
  static Reg odd(Reg a, Reg b) {
    Reg v;
    for (int i = 0; i < lanes; ++i) v[i] = 2 * i < lanes ? a[2 * i + 1] : b[2 * i + 1 - lanes];
    return v;
  }
  // The lanes `from` of a, b, c, one behind the other.
  static Reg pick(Reg a, Reg b, Reg c, const int* from) {
    Reg v;
    for (int i = 0; i < lanes; ++i)
      v[i] = from[i] < lanes ? a[from[i]] : from[i] < 2 * lanes ? b[from[i] - lanes] : c[from[i] - 2 * lanes];
    return v;
  }
  static void transpose(Reg* r) {
    for (int i = 0; i < lanes; ++i)
      for (int j = 0; j < i; ++j) {
        const T swapped = r[i][j];
        r[i][j] = r[j][i];
        r[j][i] = swapped;
      }
  }
  static void widen(Type type, const void* from, T* to, int64_t n) {
    visit(type, [&](auto scalar) {
      const auto* values = static_cast<const decltype(scalar)*>(from);
      for (int64_t i = 0; i < n; ++i) to[i] = T(torch_ext::widen(values[i]));
    });
  }
  static void narrow(Type type, const T* from, void* to, int64_t n) {
    visit(type, [&](auto scalar) {
      auto* values = static_cast<decltype(scalar)*>(to);
      using Wide = decltype(torch_ext::widen(scalar));
      for (int64_t i = 0; i < n; ++i) torch_ext::narrow(Wide(from[i]), values[i]);
    });
  }
  static Reg load_narrow(Type type, const uint16_t* p) {
    T values[lanes];
    widen(type, p, values, lanes);
    return load(values);
  }
  // The first n lanes, rounded to a type of 16 bits.
  static void store_narrow(Type type, void* to, int64_t n, Reg v) {
    T values[lanes];
    store(values, v);
    narrow(type, values, to, first(n));
  }
  // Rows of 16-bit elements, two in a lane.
  struct Halves {
    uint16_t value[Lanes * sizeof(T) / 2];
  };
  static Reg load_halves(const uint16_t* p, int64_t n) {
    Halves v{};
    for (int64_t i = 0; i < n && i < 2 * lanes; ++i) v.value[i] = p[i];
    return __builtin_bit_cast(Reg, v);
  }
  static void store_halves(uint16_t* p, int64_t n, Reg from) {
    const auto v = __builtin_bit_cast(Halves, from);
    for (int64_t i = 0; i < n && i < 2 * lanes; ++i) p[i] = v.value[i];
  }
  // a0 b0 a1 b1 ...: of the first and of the second four in each 128 bits.
  static Reg pair_low(Reg a, Reg b) { return pair_from(a, b, 0); }
  static Reg pair_high(Reg a, Reg b) { return pair_from(a, b, 4); }
  static Reg pair_from(Reg a, Reg b, int first) {
    const Halves from[] = {__builtin_bit_cast(Halves, a), __builtin_bit_cast(Halves, b)};
    Halves v;
    for (int i = 0; i < 8; ++i) v.value[i] = from[i % 2].value[first + i / 2];
    return __builtin_bit_cast(Reg, v);
  }
  // What others do within each 128 bits, which are the whole vector here.
  static Reg load_128(const uint16_t* p, int64_t) { return load_halves(p, 8); }
  static void transpose_quads(Reg* r) { transpose(r); }
};
using F32 = Vec<float, 4>;
using F64 = Vec<double, 2>;

#include "csrc/cpu/tiles.inl"

// 16 registers, as every 64-bit instruction set has at least.
using Widest = std::integer_sequence<int, 8, 4, 3, 2, 2, 2>;
using Dots = std::integer_sequence<int, 8, 6, 4, 2>;
constexpr Tiles<float> f32 = make_tiles<F32>(std::integer_sequence<int, 8, 6>(), Widest(), Dots());
constexpr Tiles<double> f64 = make_tiles<F64>(std::integer_sequence<int, 8, 6>(), Widest(), Dots());

}  // namespace portable

const Tiles<float>& tiles_portable(float) { return portable::f32; }
const Tiles<double>& tiles_portable(double) { return portable::f64; }

template <class Real>
const Tiles<Real>& tiles(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return tiles_avx512(Real());
  if (isa >= Isa::avx2) return tiles_avx2(Real());
#endif
  return tiles_portable(Real());
}
template const Tiles<float>& tiles<float>(Isa);
template const Tiles<double>& tiles<double>(Isa);

}  // namespace torch_ext::cpu
