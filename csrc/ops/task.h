// SPDX-License-Identifier: Apache-2.0
// A call with concrete sizes, ready for the kernels of any device.
#pragma once
#include "csrc/ops/arguments.h"

namespace torch_ext::ops {

struct Task {
  Problem problem;
  Tensor result;      // allocated like the first operand, not written
  void *x, *w, *y;    // the problem's operands, of which the result is one
  const void* bias;   // null without one
  Tensor dense_bias;  // holds what `bias` points to
};

// How far operands of float32 products on the CPU may be rounded, as torch.backends.mkldnn.conv.fp32_precision says at this
// moment or, where it says nothing, torch.set_float32_matmul_precision.
Precision float32_precision();

// Checks the arguments and allocates the result, a large one by `large` where given. Where that is empty there is nothing to
// compute.
Task make_task(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
               const Form& form, c10::Allocator* large = nullptr);

}  // namespace torch_ext::ops
