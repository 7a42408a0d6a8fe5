// SPDX-License-Identifier: Apache-2.0
// Which problems `native` takes, and for which of them its products of weights as they lie are faster than those of packed ones.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

inline constexpr int64_t kManyTaps = 64;
// From so many on, tiles of other kernels are so small that neither weights packed ahead nor products of bf16 pay: packed, they
// come from memory, a few terms of each tap for a tile of their own (80 to 80 channels, 63 positions, k1024 s256, pairs: 1.5 of
// the time of `native`).
inline constexpr int64_t kTapsOfPanels = 256;

// Whether rows of weights are contiguous, and lists of what meets what not too long.
bool native_takes(const Problem& problem);
// By measurement, of problems that it takes: in tiles of reals, and of pairs of bf16.
bool native_pays(const Problem& problem, const Request& request);
bool native_of_pairs_pays(const Problem& problem, const Request& request);

}  // namespace torch_ext::cpu
