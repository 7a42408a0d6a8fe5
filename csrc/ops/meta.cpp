// SPDX-License-Identifier: Apache-2.0
// Sizes and strides without data, symbolic or not.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "csrc/ops/private.h"

namespace torch_ext::ops {
namespace {

Tensor meta(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  const SymSizes sizes = checked_result_sizes(operation, first, second, bias, form);
  return at::empty_symint(sizes, first.options(), result_memory_format(operation, first, second, form));
}

Tensor meta_prepacked(const Tensor& src, const Tensor& weights, const Tensor&, const std::optional<Tensor>& bias,
                      TORCH_EXT_FORM) {
  return meta(Operation::conv_transpose, src, weights, bias,
              Form{size, strides, offset, dilations, groups, data_format, weights_format});
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, Meta, library) {
  TORCH_EXT_IMPL(library, meta);
  library.impl("_conv_transpose_prepacked", TORCH_FN(meta_prepacked));
}

}  // namespace torch_ext::ops
