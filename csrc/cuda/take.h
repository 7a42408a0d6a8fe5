// SPDX-License-Identifier: Apache-2.0
// What kernels and their launchers have in common.
#pragma once
#include "csrc/cuda/device.h"
#include "csrc/cuda/pack.h"

namespace torch_ext::cuda {

// The remainder, and leaves the quotient.
TORCH_EXT_DEVICE int64_t take(int64_t& index, int64_t extent) {
  const int64_t quotient = index / extent, remainder = index - quotient * extent;
  index = quotient;
  return remainder;
}

// f(a value of the type that kernels have for it), for the types of 16 and 32 bits.
template <class F>
const char* with_type(Type type, const F& f) {
  return type == Type::bf16 ? f(bf16{}) : type == Type::f16 ? f(f16{}) : f(float{});
}

// matrix(a value of the type whose products matrix instructions sum), or fma() where none do.
template <class Matrix, class Fma>
const char* with_math(TileMath math, const Matrix& matrix, const Fma& fma) {
  return math == TileMath::bf16   ? matrix(bf16{})
         : math == TileMath::f16  ? matrix(f16{})
         : math == TileMath::tf32 ? matrix(float{})
                                  : fma();
}

}  // namespace torch_ext::cuda
