// SPDX-License-Identifier: Apache-2.0
// For which problems `wide` is faster than other kernels, and how it computes them.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

inline constexpr int64_t kWideBoxBytes = 192 << 10;  // of the planes of a block, and of its results: each well inside L2

// By measurement, of what is no gradient of weights.
bool wide_pays(const Problem& problem, Isa isa, const Request& request);
// Whether, for a gradient of data, lines of a block are joined to one, and planes copied to a row for each tap and channel.
bool unfolds_planes(const Problem& problem);
// Whether tiles weave the results of all phases of the innermost axis into lines of the tensor.
bool weaves(const Problem& problem);

}  // namespace torch_ext::cpu
