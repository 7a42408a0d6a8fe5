// SPDX-License-Identifier: Apache-2.0
// Half of a vector of 16 floats. Included into one namespace for each instruction set that has such, as tiles.inl is.
struct Half256 {
  using Reg = __m256;
  static Reg zero() { return _mm256_setzero_ps(); }
  static void pin(Reg& v) { asm("" : "+v"(v)); }
  static Reg broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load_masked(const float* p, __mmask16 mask) { return _mm256_maskz_loadu_ps(__mmask8(mask), p); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg of(__m512 v) { return _mm512_castps512_ps256(v); }
  static __m512 widen(Reg v) { return _mm512_zextps256_ps512(v); }
};
