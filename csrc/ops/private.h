// SPDX-License-Identifier: Apache-2.0
// The three private operators, as the dispatcher knows them. They carry the explicit spatial extents of their result, so each has
// an exact adjoint among the others; every dispatch concern but the public operators' (autograd, autocast, batching, Meta, CPU,
// CUDA) is implemented for these three alone.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "csrc/ops/arguments.h"

namespace torch_ext::ops {

#define TORCH_EXT_FORM                                                                                           \
  SymInts size, SymInts strides, SymInts offset, SymInts dilations, SymInt groups, std::string_view data_format, \
      std::string_view weights_format
#define TORCH_EXT_FORM_OF(form) \
  (form).size, (form).strides, (form).offset, (form).dilations, (form).groups, (form).data_format, (form).weights_format

using ForwardOp = Tensor(const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias, TORCH_EXT_FORM);
using BackwardOp = Tensor(const Tensor& first, const Tensor& second, TORCH_EXT_FORM);

// Calls one of the three through the dispatcher.
Tensor call(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form);

// Registers kernels for the three operators under one dispatch key, all through `handle`: a Tensor(Operation, first, second,
// bias, form).
template <auto handle>
Tensor forward_kernel(const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias, TORCH_EXT_FORM) {
  return handle(Operation::conv_transpose, src, weights, bias,
                Form{size, strides, offset, dilations, groups, data_format, weights_format});
}
template <auto handle, Operation operation>
Tensor backward_kernel(const Tensor& first, const Tensor& second, TORCH_EXT_FORM) {
  return handle(operation, first, second, std::nullopt,
                Form{size, strides, offset, dilations, groups, data_format, weights_format});
}
#define TORCH_EXT_IMPL(library, handle)                                                                         \
  library.impl("_conv_transpose", TORCH_FN((forward_kernel<handle>)));                                          \
  library.impl("_conv_transpose_backward_data", TORCH_FN((backward_kernel<handle, Operation::backward_data>))); \
  library.impl("_conv_transpose_backward_weights", TORCH_FN((backward_kernel<handle, Operation::backward_weights>)))

}  // namespace torch_ext::ops
