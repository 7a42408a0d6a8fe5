// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ATen/core/Tensor.h>

namespace torch_ext::ops {

// The sums of a gradient over all axes but `channel`, in float32 or wider whatever the type.
at::Tensor bias_gradient(const at::Tensor& grad, int64_t channel);

}  // namespace torch_ext::ops
