// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/outer_sums.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// The kernel with tiles whose reals are pairs of bf16, of the types of make_gather_of_pairs; null where it is not for the
// problem.
std::shared_ptr<Plan> make_outer_of_pairs(const Problem& problem, const Tiles<float>& tiles, const Request& request);
// Of these, those whose tiles are matrix registers (outer_matrices.cpp); `exact` are the tiles for values that bf16 cannot hold.
std::shared_ptr<Plan> make_outer_of_matrices(const Problem& problem, const Tiles<float>& tiles, int threads,
                                             const Tiles<float>& exact);

// The kernel with tiles of float that adds to the same sums as another one.
std::shared_ptr<const OuterSums<float>> make_exact_outer(const Problem& problem, const Tiles<float>& tiles, int threads,
                                                         const Cut& cut);

}  // namespace torch_ext::cpu
