// SPDX-License-Identifier: Apache-2.0
// What the entries of kernels.inc share.
#pragma once
#include "csrc/cuda/cuda.h"

namespace torch_ext::cuda {

// A planner returns null for what it does not take. What it could compute but another kernel computes faster it takes only where
// it is asked for by name, so that tests reach all of it.
struct Request {
  Setting setting;
  bool by_name = false;
};

#define KERNEL(name, planner) std::shared_ptr<Plan> planner(const Problem&, const Request&);
#include "csrc/cuda/kernels.inc"
#undef KERNEL

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

// Whether no term is summed: the operator itself fills such a result, but for its bias.
inline bool is_empty(const Geometry& g) {
  return g.batch == 0 || g.w_size() == 0 || g.x_positions() == 0 || g.y_positions() == 0;
}

// Whether positions along some axis, also those outside of a tensor, are more than 32-bit numbers hold.
inline bool is_far(const Geometry& g) {
  constexpr int64_t kFar = int64_t(1) << 28;
  for (const Axis& a : g.axis)
    if (a.offset > kFar || a.dilation > kFar / a.w || a.stride > kFar / a.x || a.y > kFar) return true;
  return false;
}

constexpr int64_t kMaxBlocks = (int64_t(1) << 31) - 1;

}  // namespace torch_ext::cuda
