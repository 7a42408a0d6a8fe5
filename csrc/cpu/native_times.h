// SPDX-License-Identifier: Apache-2.0
// Whether `native` is faster for conv_transpose than kernels that pack weights.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

// Whether it takes less than `gather`, or than `overlap` or `wide` where these would be chosen, by a model of what was measured;
// in tiles of reals or of pairs of bf16.
bool native_is_faster(const Problem& problem, const Request& request, bool pairs);

}  // namespace torch_ext::cpu
