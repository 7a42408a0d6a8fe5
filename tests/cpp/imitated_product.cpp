// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/imitated_product.h"

#include <cmath>

#include "csrc/core/scalar.h"

namespace torch_ext::test {
namespace {

inline float flushed(float v) { return std::abs(v) < 0x1p-126f ? 0.f : v; }
inline float wide(uint16_t bits) { return flushed(widen(bf16{bits})); }

}  // namespace

#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("avx512f", "avx2", "default")))  // the tests spend most of their time here
#endif
void imitate_product(float (&c)[16][16], const uint16_t (&a)[16][32], const uint16_t (&b)[16][32]) {
  float of_b[2][16][16];
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < 16; ++n) of_b[0][k][n] = wide(b[k][2 * n]), of_b[1][k][n] = wide(b[k][2 * n + 1]);
  for (int m = 0; m < 16; ++m) {
    float sums[2][16] = {};
    for (int k = 0; k < 32; ++k) {
      const float of_a = wide(a[m][k]);
      // Products of bf16 are exact in float32: whether the compiler makes multiply-adds of these makes no difference.
      for (int n = 0; n < 16; ++n) sums[k % 2][n] += of_a * of_b[k % 2][k / 2][n];
    }
    for (int n = 0; n < 16; ++n) c[m][n] = flushed(c[m][n] + flushed(sums[0][n] + sums[1][n]));
  }
}

}  // namespace torch_ext::test
