// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// The kernel with tiles whose reals are pairs of bf16; null where it is not for the problem.
std::shared_ptr<Plan> make_overlap_of_pairs(const Problem& problem, const Tiles<float>& tiles, const Request& request);

}  // namespace torch_ext::cpu
