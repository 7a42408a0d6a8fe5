// SPDX-License-Identifier: Apache-2.0
// Which problems `native` takes, and for which of them its products of weights as they lie are faster than those of packed ones.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

inline constexpr int64_t kManyTaps = 64;

// Whether rows of weights are contiguous, and lists of what meets what not too long.
bool native_takes(const Problem& problem);
// By measurement, of problems that it takes: in tiles of reals, and of pairs of bf16.
bool native_pays(const Problem& problem, const Request& request);
bool native_of_pairs_pays(const Problem& problem, const Request& request);

}  // namespace torch_ext::cpu
