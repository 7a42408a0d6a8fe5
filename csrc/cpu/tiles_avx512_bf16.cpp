// SPDX-License-Identifier: Apache-2.0
// Tiles of vdpbf16ps, which adds the products of a pair of bf16 to a float: a real of a row or a panel is such a pair. The
// instruction rounds after each product and takes numbers below 2^-126 for zero, operands as well as sums.
#include "csrc/cpu/tiles_isa.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers leave the unused half of a mask uninitialised.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <utility>

TORCH_EXT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")

namespace torch_ext::cpu {
namespace avx512_bf16 {

#include "csrc/cpu/tiles_half.inl"

struct HalfPairs : Half256 {
  static Reg broadcast(const float* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm256_castsi256_ps(_mm256_set1_epi32(pair));
  }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_dpbf16_ps(c, bits(a), bits(b)); }

 private:
  static __m256bh bits(Reg v) { return __m256bh(_mm256_castps_si256(v)); }
};

struct Pairs {
  using Real = float;
  using Half = HalfPairs;
  static inline bool halves_pay = false;
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int lanes = 16;
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float v) { return _mm512_set1_ps(v); }
  static Reg broadcast(const float* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);  // channels of a tensor: aligned to 2 bytes
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
  }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static Mask first(int64_t n) { return n >= lanes ? Mask(0xffff) : Mask((1u << n) - 1); }
  static Reg load_masked(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }
  static Reg load_first(const float* p, int64_t n) { return load_masked(p, first(n)); }
  static Reg load(const bf16* p) { return _mm512_loadu_ps(p); }
  static __mmask32 first_halves(int64_t n) { return n >= 2 * lanes ? ~__mmask32(0) : (__mmask32(1) << n) - 1; }
  static Reg load_masked(const bf16* p, __mmask32 mask) { return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, p)); }
  static void store_first(float* p, int64_t n, Reg v) { _mm512_mask_storeu_ps(p, first(n), v); }
  static void pin(Reg& v) { asm("" : "+v"(v)); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_dpbf16_ps(c, bits(a), bits(b)); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  // a0 a2 ... b0 b2 ..., of sums.
  static Reg even(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
  }
  static Reg odd(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
  }
  static void store_two_narrow(void* to, Reg low, Reg high) { _mm512_storeu_si512(to, __m512i(_mm512_cvtne2ps_pbh(high, low))); }
  static void store_narrow(Type, void* to, int64_t n, Reg v) {
    _mm256_mask_storeu_epi16(to, first(n), __m256i(_mm512_cvtneps_pbh(v)));
  }

 private:
  static __m512bh bits(Reg v) { return __m512bh(_mm512_castps_si512(v)); }
};

#include "csrc/cpu/tiles.inl"

struct Interleaved {
  __m512i low, high;
};
// (even[j], odd[j]), j < 16 and j >= 16.
Interleaved interleave(__m512i even, __m512i odd) {
  const __m512i half = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
                                        35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i other_half = _mm512_add_epi16(half, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(even, half, odd), _mm512_permutex2var_epi16(even, other_half, odd)};
}

bool pair(const uint16_t* even, const uint16_t* odd, float* to, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (int64_t i = 0; i < count; i += 2 * Pairs::lanes) {
    const __mmask32 mask = Pairs::first_halves(count - i);
    const auto load = [&](const uint16_t* from) {
      return from ? _mm512_maskz_loadu_epi16(mask, from + i) : _mm512_setzero_si512();
    };
    const __m512i a = load(even), b = load(odd);
    bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(a, exponent), exponent);
    bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(b, exponent), exponent);
    const Interleaved pairs = interleave(a, b);
    _mm512_mask_storeu_epi32(to + i, __mmask16(mask), pairs.low);
    if (mask >> 16) _mm512_mask_storeu_epi32(to + i + 16, __mmask16(mask >> 16), pairs.high);
  }
  return !bad;
}

void pair_rows(const uint16_t* const* rows, int64_t offset, int64_t pairs, int64_t count, float* to, int64_t pitch) {
  for (int64_t j = 0; j < count; j += 2 * Pairs::lanes) {
    const __mmask32 mask = Pairs::first_halves(count - j);
    for (int64_t i = 0; i < pairs; ++i) {
      const __m512i even = _mm512_maskz_loadu_epi16(mask, rows[2 * i] + offset + j);
      const __m512i odd = _mm512_maskz_loadu_epi16(mask, rows[2 * i + 1] + offset + j);
      const Interleaved both = interleave(even, odd);
      _mm512_mask_storeu_epi32(to + i * pitch + j, __mmask16(mask), both.low);
      if (mask >> 16) _mm512_mask_storeu_epi32(to + i * pitch + j + 16, __mmask16(mask >> 16), both.high);
    }
  }
}

bool finite(const float* values, int64_t count) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (int64_t i = 0; i < count; i += Pairs::lanes) {
    const __m512i pairs = _mm512_maskz_loadu_epi32(Pairs::first(count - i), values + i);
    bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, exponent), exponent);
  }
  return !bad;
}

bool split(const float* from, int64_t count, int parts, uint16_t* to, int64_t pitch) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i least = _mm512_set1_epi32((127 - 103) << 23), most = _mm512_set1_epi32((127 + 120) << 23);
  __mmask16 bad = 0;
  for (int64_t j = 0; j < count; j += Pairs::lanes) {
    const __mmask16 mask = Pairs::first(count - j);
    __m512 rest = _mm512_maskz_loadu_ps(mask, from + j);
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(rest), magnitude);
    bad |= _mm512_cmpgt_epi32_mask(size, most) | (_mm512_cmplt_epi32_mask(size, least) & _mm512_test_epi32_mask(size, size));
    for (int i = 0; i < parts; ++i) {  // to nearest even: cut off, parts would have one sign, and so had the products left out
      const __m256i part = __m256i(_mm512_cvtneps_pbh(rest));
      _mm256_mask_storeu_epi16(to + i * pitch + j, mask, part);
      rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16)));
    }
  }
  return !bad;
}

// Rows of a few taps come one by one.
void narrow(Type type, const float* from, void* to, int64_t count) {
  if (type != Type::bf16) return tiles_avx512(float()).narrow(type, from, to, count);
  auto* halves = static_cast<uint16_t*>(to);
  while (count > Pairs::lanes) {
    const __mmask16 mask = Pairs::first(count - Pairs::lanes);
    const __m512 high = Pairs::load_masked(from + Pairs::lanes, mask);
    const __m512i both = __m512i(_mm512_cvtne2ps_pbh(high, Pairs::load(from)));
    _mm512_mask_storeu_epi16(halves, __mmask32(mask) << 16 | 0xffff, both);
    from += 2 * Pairs::lanes, halves += 2 * Pairs::lanes, count -= 2 * Pairs::lanes;
  }
  if (count > 0) Pairs::store_narrow(type, halves, count, Pairs::load_first(from, count));
}

template <int Rows, int... Taps>
constexpr void fill_dot_halves(Tiles<float>& table, std::integer_sequence<int, Taps...>) {
  ((table.dot_halves[Rows][Taps + 1] = dot_tile<Pairs, Rows, Taps + 1, bf16>), ...);
}

constexpr Tiles<float> with_pairs(Tiles<float> table) {
  fill_tiles<Pairs, 1>(table, std::make_integer_sequence<int, 12>());
  fill_tiles<Pairs, 2>(table, std::make_integer_sequence<int, 12>());
  fill_tiles<Pairs, 3>(table, std::make_integer_sequence<int, 8>());
  fill_tiles<Pairs, 4>(table, std::make_integer_sequence<int, 6>());
  fill_wide<Pairs>(table, std::integer_sequence<int, 12, 12, 8, 6, 5, 4, 3, 3, 3, 2, 2, 2, 2, 2>());
  fill_rows<Pairs>(table, std::make_integer_sequence<int, kRowsPositions>());
  fill_dot_tiles<Pairs, 1>(table, std::make_integer_sequence<int, 8>());
  fill_dot_tiles<Pairs, 2>(table, std::make_integer_sequence<int, 8>());
  fill_dot_tiles<Pairs, 3>(table, std::make_integer_sequence<int, 8>());
  fill_dot_tiles<Pairs, 4>(table, std::make_integer_sequence<int, 6>());
  fill_dot_halves<1>(table, std::make_integer_sequence<int, 8>());
  fill_dot_halves<2>(table, std::make_integer_sequence<int, 8>());
  fill_dot_halves<3>(table, std::make_integer_sequence<int, 8>());
  fill_dot_halves<4>(table, std::make_integer_sequence<int, 6>());
  table.pair = pair;
  table.pair_rows = pair_rows;
  table.split = split;
  table.finite = finite;
  table.narrow = narrow;
  return table;
}

#include "csrc/cpu/tiles_speed.inl"

}  // namespace avx512_bf16

const Tiles<float>& pair_tiles() {
  static const Tiles<float> table = avx512_bf16::with_halves<avx512_bf16::Pairs>(avx512_bf16::with_pairs(tiles_avx512(float())));
  return table;
}

// A pair is two products, so that half the rate of float32 would be even; the tiles pay for it from 3/4 on.
bool pairs_are_fast() {
  static const bool fast = detected_isa() >= Isa::avx512_bf16 && [] {
    using namespace avx512_bf16;
    const __m512 one = _mm512_set1_ps(1);
    const auto floats = [&] { return seconds_of_sums(kTimedRounds, [&](__m512 sum) { return _mm512_fmadd_ps(one, one, sum); }); };
    const auto pairs = [&] { return seconds_of_sums(kTimedRounds, [&](__m512 sum) { return Pairs::fma(one, one, sum); }); };
    return 3 * ratio_of(pairs, floats) < 4;
  }();
  return fast;
}

}  // namespace torch_ext::cpu

TORCH_EXT_TARGET_END
#else
namespace torch_ext::cpu {
bool pairs_are_fast() { return false; }
}  // namespace torch_ext::cpu
#endif
