// SPDX-License-Identifier: Apache-2.0
// For which problems `overlap` is faster than other kernels.
#pragma once
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"

namespace torch_ext::cpu {

// By measurement, of conv_transpose, in tiles that multiply `In`.
template <class In>
bool overlap_pays(const Problem& problem, const Tiles<typename Operand<In>::Real>& tiles, const Request& request);
// Whether it multiplies lines of planes as they lie so fast that no phases become channels.
bool lines_suit(const Problem& problem, Isa isa);

}  // namespace torch_ext::cpu
