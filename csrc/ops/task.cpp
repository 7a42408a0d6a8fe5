// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/task.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include "csrc/ops/memory.h"

namespace torch_ext::ops {

Precision float32_precision() {
  for (const at::Float32Op op : {at::Float32Op::CONV, at::Float32Op::MATMUL}) {
    const auto allowed = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, op);
    if (allowed == at::Float32Precision::IEEE) return Precision::full;
    if (allowed == at::Float32Precision::TF32) return Precision::high;
    if (allowed == at::Float32Precision::BF16) return Precision::medium;
  }
  return Precision::full;
}

Task make_task(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
               const Form& form, c10::Allocator* large) {
  const SymSizes symbolic = checked_result_sizes(operation, first, second, bias, form);
  c10::DimVector sizes;
  for (const SymInt& size : symbolic) sizes.push_back(size.expect_int());
  Task task;
  const auto format = result_memory_format(operation, first, second, form);
  const auto bytes = c10::multiply_integers(sizes) * int64_t(first.element_size());
  if (large && bytes >= int64_t(kLargeResult)) {
    task.result =
        at::detail::empty_generic(sizes, large, c10::DispatchKeySet(c10::DispatchKey::CPU), first.scalar_type(), format);
  } else {
    task.result = at::empty(sizes, first.options(), format);
  }
  const Tensor& result = task.result;
  const Tensor& src = operation == Operation::backward_data ? result : first;
  const Tensor& weights = operation == Operation::backward_weights ? result : second;
  const Tensor& dst = operation == Operation::conv_transpose ? result : operation == Operation::backward_data ? first : second;
  task.problem = problem_of(operation, src, weights, dst, bias.has_value(), form);
  task.problem.transforms_allowed = !at::globalContext().deterministicAlgorithms();
  if (bias) task.dense_bias = bias->contiguous();
  task.bias = bias ? task.dense_bias.const_data_ptr() : nullptr;
  // Kernels read their operands and write the result alone.
  const auto data = [&](const Tensor& t) { return &t == &result ? t.mutable_data_ptr() : const_cast<void*>(t.const_data_ptr()); };
  task.x = data(src), task.w = data(weights), task.y = data(dst);
  return task;
}

}  // namespace torch_ext::ops
