// SPDX-License-Identifier: Apache-2.0
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

TORCH_EXT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

namespace torch_ext::cpu {
namespace avx512 {

#include "csrc/cpu/tiles_half.inl"

struct F32 {
  using Real = float;
  using Half = Half256;
  static inline bool halves_pay = false;
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int lanes = 16;
  static Reg zero() { return _mm512_setzero_ps(); }
  // Keeps GCC from loading it again wherever it is used.
  static void pin(Reg& v) { asm("" : "+v"(v)); }
  static Reg set(float v) { return _mm512_set1_ps(v); }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static void stream(float* p, Reg v) { _mm512_stream_ps(p, v); }
  static Mask first(int64_t n) { return n >= lanes ? Mask(0xffff) : Mask((1u << n) - 1); }
  static Reg load_masked(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }
  // Lanes from `begin`, which may be negative, up to `end`.
  static Reg load_between(const float* p, int64_t begin, int64_t end) {
    return load_masked(p, Mask(first(end) & ~first(begin > 0 ? begin : 0)));
  }
  static void store_masked(float* p, Mask mask, Reg v) { _mm512_mask_storeu_ps(p, mask, v); }
  static Reg load_first(const float* p, int64_t n) { return load_masked(p, first(n)); }
  static void store_first(float* p, int64_t n, Reg v) { store_masked(p, first(n), v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  // a0 b0 a1 b1 ...: the first and the second half.
  static Reg weave_low(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
  }
  static Reg weave_high(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
  }

  // a0 a2 ... b0 b2 ...
  static Reg even(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
  }
  static Reg odd(Reg a, Reg b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
  }
  // The lanes `from` of a, b, c, one behind the other.
  static Reg pick(Reg a, Reg b, Reg c, const int* from) {
    const __m512i lane = _mm512_loadu_si512(from);
    const __mmask16 of_c = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(2 * lanes));
    return _mm512_mask_permutexvar_ps(_mm512_permutex2var_ps(a, lane, b), of_c, lane, c);
  }
  // Four rows, of four lanes in each 128 bits: there r[i][j] becomes r[j][i].
  static void transpose_quads(Reg* r) {
    const Reg a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    const Reg c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    r[0] = _mm512_shuffle_ps(a, c, 0x44);
    r[1] = _mm512_shuffle_ps(a, c, 0xee);
    r[2] = _mm512_shuffle_ps(b, d, 0x44);
    r[3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  // Pairs of rows, then of pairs, then of quarters: r[i][j] becomes r[j][i].
  static void transpose(Reg* r) {
    Reg t[16];
    TORCH_EXT_UNROLL for (int i = 0; i < 16; i += 4) transpose_quads(r + i);
    TORCH_EXT_UNROLL for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    TORCH_EXT_UNROLL for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }

  static void widen(Type type, const void* from, float* to, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes) {
      const Mask mask = first(n - i);
      if (type == Type::f32) {
        store_masked(to + i, mask, load_masked(static_cast<const float*>(from) + i, mask));
        continue;
      }
      const __m256i bits = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(from) + i);
      store_masked(
          to + i, mask,
          type == Type::f16 ? _mm512_cvtph_ps(bits) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
    }
  }
  static void narrow(Type type, const float* from, void* to, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes) {
      const Mask mask = first(n - i);
      const Reg v = load_masked(from + i, mask);
      if (type == Type::f32) {
        store_masked(static_cast<float*>(to) + i, mask, v);
        continue;
      }
      store_narrow(type, static_cast<uint16_t*>(to) + i, n - i, v);
    }
  }
  static Reg load_narrow(Type type, const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return type == Type::f16 ? _mm512_cvtph_ps(bits) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  // The first n lanes, rounded to a type of 16 bits.
  static void store_narrow(Type type, void* to, int64_t n, Reg v) {
    const __m256i bits = type == Type::f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16_bits(v);
    _mm256_mask_storeu_epi16(to, first(n), bits);
  }
  // Rows of 16-bit elements, two in a lane.
  static __mmask32 first_halves(int64_t n) { return n >= 2 * lanes ? ~__mmask32(0) : (__mmask32(1) << n) - 1; }
  static Reg load_halves(const uint16_t* p, int64_t n) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_halves(n), p));
  }
  static void store_halves(uint16_t* p, int64_t n, Reg v) {
    _mm512_mask_storeu_epi16(p, first_halves(n), _mm512_castps_si512(v));
  }
  // a0 b0 a1 b1 ...: of the first and of the second four in each 128 bits.
  static Reg pair_low(Reg a, Reg b) {
    return _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static Reg pair_high(Reg a, Reg b) {
    return _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  // 128 bits from each place, `step` elements apart.
  static Reg load_128(const uint16_t* p, int64_t step) {
    const auto at = [&](int64_t i) { return _mm_loadu_ps(reinterpret_cast<const float*>(p + i * step)); };
    Reg v = _mm512_castps128_ps512(at(0));
    v = _mm512_insertf32x4(v, at(1), 1);
    v = _mm512_insertf32x4(v, at(2), 2);
    return _mm512_insertf32x4(v, at(3), 3);
  }
  static __m256i bf16_bits(Reg v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
};

struct F64 {
  using Real = double;
  using Reg = __m512d;
  using Mask = __mmask8;
  static constexpr int lanes = 8;
  static Reg zero() { return _mm512_setzero_pd(); }
  static void pin(Reg& v) { asm("" : "+v"(v)); }
  static Reg set(double v) { return _mm512_set1_pd(v); }
  static Reg broadcast(const double* p) { return set(*p); }
  static Reg load(const double* p) { return _mm512_loadu_pd(p); }
  static void store(double* p, Reg v) { _mm512_storeu_pd(p, v); }
  static void stream(double* p, Reg v) { _mm512_stream_pd(p, v); }
  static Mask first(int64_t n) { return n >= lanes ? Mask(0xff) : Mask((1u << n) - 1); }
  static Reg load_masked(const double* p, Mask mask) { return _mm512_maskz_loadu_pd(mask, p); }
  // Lanes from `begin`, which may be negative, up to `end`.
  static Reg load_between(const double* p, int64_t begin, int64_t end) {
    return load_masked(p, Mask(first(end) & ~first(begin > 0 ? begin : 0)));
  }
  static void store_masked(double* p, Mask mask, Reg v) { _mm512_mask_storeu_pd(p, mask, v); }
  static Reg load_first(const double* p, int64_t n) { return load_masked(p, first(n)); }
  static void store_first(double* p, int64_t n, Reg v) { store_masked(p, first(n), v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_pd(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_pd(a, b); }
  static Reg even(Reg a, Reg b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b); }
  static Reg odd(Reg a, Reg b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b); }
  static Reg pick(Reg a, Reg b, Reg c, const int* from) {
    const __m512i lane = _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __mmask8 of_c = _mm512_cmpge_epi64_mask(lane, _mm512_set1_epi64(2 * lanes));
    return _mm512_mask_permutexvar_pd(_mm512_permutex2var_pd(a, lane, b), of_c, lane, c);
  }
  static Reg weave_low(Reg a, Reg b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b); }
  static Reg weave_high(Reg a, Reg b) { return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b); }

  static void transpose(Reg* r) {
    Reg t[8];
    TORCH_EXT_UNROLL for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    TORCH_EXT_UNROLL for (int i = 0; i < 2; ++i) {
      r[i] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88);
      r[i + 2] = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
      r[i + 4] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
      r[i + 6] = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    }
    TORCH_EXT_UNROLL for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f64x2(r[i], r[i + 4], 0xdd);
    }
    TORCH_EXT_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

  static void widen(Type, const void* from, double* to, int64_t n) { copy(static_cast<const double*>(from), to, n); }
  static void narrow(Type, const double* from, void* to, int64_t n) { copy(from, static_cast<double*>(to), n); }
  static void copy(const double* from, double* to, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes) store_first(to + i, n - i, load_first(from + i, n - i));
  }
};

#include "csrc/cpu/tiles.inl"
#include "csrc/cpu/tiles_speed.inl"

// 32 registers: 12 x 1, 12 x 2, 8 x 3 and 6 x 4 accumulators, each with its panel vectors and one broadcast; wide tiles with the
// shorter of their sides and one more.
using Widest = std::integer_sequence<int, 12, 12, 8, 6, 5, 4, 3, 3, 3, 2, 2, 2, 2, 2>;
using Dots = std::integer_sequence<int, 8, 8, 8, 6>;
constexpr Tiles<float> f32 = make_tiles<F32>(std::integer_sequence<int, 12, 12, 8, 6>(), Widest(), Dots());
constexpr Tiles<double> f64 = make_tiles<F64>(std::integer_sequence<int, 12, 12, 8, 6>(), Widest(), Dots());

}  // namespace avx512

const Tiles<float>& tiles_avx512(float) {
  static const Tiles<float> table = avx512::with_halves<avx512::F32>(avx512::f32);
  return table;
}
const Tiles<double>& tiles_avx512(double) { return avx512::f64; }

}  // namespace torch_ext::cpu

TORCH_EXT_TARGET_END
#endif
