// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/tiles_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

TORCH_EXT_TARGET("avx2,fma,f16c")

namespace torch_ext::cpu {
namespace avx2 {

struct F32 {
  using Real = float;
  using Reg = __m256;
  using Mask = __m256i;
  static constexpr int lanes = 8;
  static Reg zero() { return _mm256_setzero_ps(); }
  // Keeps GCC from loading it again wherever it is used.
  static void pin(Reg& v) { asm("" : "+x"(v)); }
  static Reg set(float v) { return _mm256_set1_ps(v); }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static void stream(float* p, Reg v) { _mm256_stream_ps(p, v); }
  static Mask first(int64_t n) {
    const int bound = n < lanes ? int(n) : lanes;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Reg load_masked(const float* p, Mask mask) { return _mm256_maskload_ps(p, mask); }
  // Lanes from `begin`, which may be negative, up to `end`.
  static Reg load_between(const float* p, int64_t begin, int64_t end) {
    return load_masked(p, _mm256_andnot_si256(first(begin > 0 ? begin : 0), first(end)));
  }
  static void store_masked(float* p, Mask mask, Reg v) { _mm256_maskstore_ps(p, mask, v); }
  static Reg load_first(const float* p, int64_t n) { return n >= lanes ? load(p) : load_masked(p, first(n)); }
  static void store_first(float* p, int64_t n, Reg v) { n >= lanes ? store(p, v) : store_masked(p, first(n), v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  // a0 b0 a1 b1 ...: the first and the second half.
  static Reg weave_low(Reg a, Reg b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20); }
  static Reg weave_high(Reg a, Reg b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31); }

  // a0 a2 ... b0 b2 ...
  static Reg even(Reg a, Reg b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
  }
  static Reg odd(Reg a, Reg b) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
  }
  // The lanes `from` of a, b, c, one behind the other.
  static Reg pick(Reg a, Reg b, Reg c, const int* from) {
    const __m256i lane = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const auto not_before = [&](int i) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(i - 1))); };
    const Reg of_two = _mm256_blendv_ps(_mm256_permutevar8x32_ps(a, lane), _mm256_permutevar8x32_ps(b, lane), not_before(lanes));
    return _mm256_blendv_ps(of_two, _mm256_permutevar8x32_ps(c, lane), not_before(2 * lanes));
  }

  // Four rows, of four lanes in each 128 bits: there r[i][j] becomes r[j][i].
  static void transpose_quads(Reg* r) {
    const Reg a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
    const Reg c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
    r[0] = _mm256_shuffle_ps(a, c, 0x44);
    r[1] = _mm256_shuffle_ps(a, c, 0xee);
    r[2] = _mm256_shuffle_ps(b, d, 0x44);
    r[3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  static void transpose(Reg* r) {
    Reg t[8];
    TORCH_EXT_UNROLL for (int i = 0; i < 8; i += 4) transpose_quads(r + i);
    TORCH_EXT_UNROLL for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    TORCH_EXT_UNROLL for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

  static Reg load_narrow(Type type, const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return type == Type::f16 ? _mm256_cvtph_ps(bits) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // The first n lanes, rounded to a type of 16 bits.
  static void store_narrow(Type type, void* to, int64_t n, Reg v) {
    const __m128i bits = type == Type::f16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : bf16_bits(v);
    if (n >= lanes) return _mm_storeu_si128(static_cast<__m128i*>(to), bits);
    uint16_t tail[lanes];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(tail), bits);
    for (int64_t j = 0; j < n; ++j) static_cast<uint16_t*>(to)[j] = tail[j];
  }
  // Rows of 16-bit elements, two in a lane.
  static Reg load_halves(const uint16_t* p, int64_t n) {
    if (n >= 2 * lanes) return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    uint16_t tail[2 * lanes] = {};
    for (int64_t j = 0; j < n; ++j) tail[j] = p[j];
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tail)));
  }
  static void store_halves(uint16_t* p, int64_t n, Reg v) {
    if (n >= 2 * lanes) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_castps_si256(v));
    uint16_t tail[2 * lanes];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tail), _mm256_castps_si256(v));
    for (int64_t j = 0; j < n; ++j) p[j] = tail[j];
  }
  // a0 b0 a1 b1 ...: of the first and of the second four in each 128 bits.
  static Reg pair_low(Reg a, Reg b) {
    return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static Reg pair_high(Reg a, Reg b) {
    return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  // 128 bits from each place, `step` elements apart.
  static Reg load_128(const uint16_t* p, int64_t step) {
    const auto at = [&](int64_t i) { return _mm_loadu_ps(reinterpret_cast<const float*>(p + i * step)); };
    return _mm256_insertf128_ps(_mm256_castps128_ps256(at(0)), at(1), 1);
  }
  // To bf16, in the upper half of each lane, of what is no NaN.
  static __m256i rounded_bits(Reg v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }
  static __m128i bf16_bits(Reg v) {
    const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded_bits(v), quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0x08);
    return _mm256_castsi256_si128(packed);
  }
  static void widen(Type type, const void* from, float* to, int64_t n) {
    if (type == Type::bf16) return widen_halves<Type::bf16>(static_cast<const uint16_t*>(from), to, n);
    if (type == Type::f16) return widen_halves<Type::f16>(static_cast<const uint16_t*>(from), to, n);
    copy(static_cast<const float*>(from), to, n);
  }
  static void narrow(Type type, const float* from, void* to, int64_t n) {
    if (type == Type::bf16) return narrow_halves<Type::bf16>(from, static_cast<uint16_t*>(to), n);
    if (type == Type::f16) return narrow_halves<Type::f16>(from, static_cast<uint16_t*>(to), n);
    copy(from, static_cast<float*>(to), n);
  }

 private:
  static void copy(const float* from, float* to, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes) store_first(to + i, n - i, load_first(from + i, n - i));
  }
  template <Type type>
  static void widen_halves(const uint16_t* from, float* to, int64_t n) {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(to + i, load_narrow(type, from + i));
    if (i == n) return;
    uint16_t tail[lanes] = {};
    for (int64_t j = i; j < n; ++j) tail[j - i] = from[j];
    store_first(to + i, n - i, load_narrow(type, tail));
  }
  template <Type type>
  static void narrow_halves(const float* from, uint16_t* to, int64_t n) {
    int64_t i = 0;
    for (; type == Type::bf16 && i + 2 * lanes <= n; i += 2 * lanes) {
      const Reg a = load(from + i), b = load(from + i + lanes);
      if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q))) break;  // a NaN
      const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded_bits(a), 16), _mm256_srli_epi32(rounded_bits(b), 16));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    for (; i + lanes <= n; i += lanes) store_narrow(type, to + i, lanes, load(from + i));
    if (i < n) store_narrow(type, to + i, n - i, load_first(from + i, n - i));
  }
};

struct F64 {
  using Real = double;
  using Reg = __m256d;
  using Mask = __m256i;
  static constexpr int lanes = 4;
  static Reg zero() { return _mm256_setzero_pd(); }
  static void pin(Reg& v) { asm("" : "+x"(v)); }
  static Reg set(double v) { return _mm256_set1_pd(v); }
  static Reg broadcast(const double* p) { return set(*p); }
  static Reg load(const double* p) { return _mm256_loadu_pd(p); }
  static void store(double* p, Reg v) { _mm256_storeu_pd(p, v); }
  static void stream(double* p, Reg v) { _mm256_stream_pd(p, v); }
  static Mask first(int64_t n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }
  static Reg load_masked(const double* p, Mask mask) { return _mm256_maskload_pd(p, mask); }
  // Lanes from `begin`, which may be negative, up to `end`.
  static Reg load_between(const double* p, int64_t begin, int64_t end) {
    return load_masked(p, _mm256_andnot_si256(first(begin > 0 ? begin : 0), first(end)));
  }
  static void store_masked(double* p, Mask mask, Reg v) { _mm256_maskstore_pd(p, mask, v); }
  static Reg load_first(const double* p, int64_t n) { return n >= lanes ? load(p) : load_masked(p, first(n)); }
  static void store_first(double* p, int64_t n, Reg v) { n >= lanes ? store(p, v) : store_masked(p, first(n), v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_pd(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_pd(a, b); }
  // a0 b0 a1 b1 ...: the first and the second half.
  static Reg weave_low(Reg a, Reg b) { return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20); }
  static Reg weave_high(Reg a, Reg b) { return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31); }

  static Reg even(Reg a, Reg b) { return _mm256_permute4x64_pd(_mm256_unpacklo_pd(a, b), 0xd8); }
  static Reg odd(Reg a, Reg b) { return _mm256_permute4x64_pd(_mm256_unpackhi_pd(a, b), 0xd8); }
  static Reg pick(Reg a, Reg b, Reg c, const int* from) {
    double all[3 * lanes], picked[lanes];
    store(all, a), store(all + lanes, b), store(all + 2 * lanes, c);
    for (int i = 0; i < lanes; ++i) picked[i] = all[from[i]];
    return load(picked);
  }

  static void transpose(Reg* r) {
    const Reg a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    const Reg c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
  }

  static void widen(Type, const void* from, double* to, int64_t n) { copy(static_cast<const double*>(from), to, n); }
  static void narrow(Type, const double* from, void* to, int64_t n) { copy(from, static_cast<double*>(to), n); }
  static void copy(const double* from, double* to, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes) store_first(to + i, n - i, load_first(from + i, n - i));
  }
};

#include "csrc/cpu/tiles.inl"

// 16 registers: 12 x 1, 6 x 2 and 4 x 3 accumulators, each with its panel vectors and one broadcast; wide tiles with the shorter
// of their sides and one more.
using Widest = std::integer_sequence<int, 12, 6, 4, 3, 2, 2>;
using Dots = std::integer_sequence<int, 8, 6, 4, 2>;
constexpr Tiles<float> f32 = make_tiles<F32>(std::integer_sequence<int, 12, 6, 4>(), Widest(), Dots());
constexpr Tiles<double> f64 = make_tiles<F64>(std::integer_sequence<int, 12, 6, 4>(), Widest(), Dots());

}  // namespace avx2

const Tiles<float>& tiles_avx2(float) { return avx2::f32; }
const Tiles<double>& tiles_avx2(double) { return avx2::f64; }

}  // namespace torch_ext::cpu

TORCH_EXT_TARGET_END
#endif
