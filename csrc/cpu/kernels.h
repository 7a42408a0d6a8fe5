// SPDX-License-Identifier: Apache-2.0
// Declares the makers that kernels.inc lists.
#pragma once
#include <memory>
#include <string>

#include "csrc/cpu/cpu.h"

namespace torch_ext::cpu {

struct Request {
  Isa isa = Isa::portable;  // that the plan may use, at least what kernels.inc says of the kernel
  int threads = 1;
  // Asked for by name: a kernel then takes whatever it can compute, also what another one computes faster.
  bool by_name = false;
};

// The same problem, of weights that are not packed ahead.
inline Problem not_packed(Problem problem) {
  problem.prepacked = false;
  return problem;
}

#define KERNEL(isa, name, make) std::shared_ptr<Plan> make(const Problem& problem, const Request& request);
#include "csrc/cpu/kernels.inc"
#undef KERNEL

// For values that another kernel cannot take: gather or outer, which multiply nothing by a zero that stands for what is not
// there. Null where there is nothing to compute.
std::shared_ptr<const Plan> make_exact_plan(const Problem& problem, Isa isa, int threads);

// What a plan that hands its weights on to another packs: the form of that one, or nothing where that packs nothing ahead.
std::string packing_of(const Plan& inner);

}  // namespace torch_ext::cpu
