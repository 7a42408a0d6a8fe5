// SPDX-License-Identifier: Apache-2.0
// Declares the makers that kernels.inc lists.
#pragma once
#include "csrc/cpu/cpu.h"

namespace torch_ext::cpu {
#define KERNEL(isa, name, make) std::shared_ptr<Plan> make(const Problem& problem, int threads);
#include "csrc/cpu/kernels.inc"
#undef KERNEL
}  // namespace torch_ext::cpu
