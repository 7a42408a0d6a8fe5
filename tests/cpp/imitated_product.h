// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace torch_ext::test {

// c[m][n] += a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1] for all k, of bf16, as AMX's instruction is defined: the products of
// even and of odd elements are summed from zero, and their sum is added to what is there; what is below 2^-126 is taken for zero.
void imitate_product(float (&c)[16][16], const uint16_t (&a)[16][32], const uint16_t (&b)[16][32]);

}  // namespace torch_ext::test
