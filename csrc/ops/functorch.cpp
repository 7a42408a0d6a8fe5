// SPDX-License-Identifier: Apache-2.0
// vmap: a batch of problems is one problem. A batch of data folds into N, a batch of weights into groups, so that the kernels see
// the whole batch at once.
#include <ATen/ATen.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/library.h>

#include "csrc/ops/private.h"

namespace torch_ext::ops {
namespace {

// A tensor and, where it is batched at the current level, the dimension of the batch.
struct Operand {
  Tensor value;
  std::optional<int64_t> batch;
};

// The batch becomes the outer part of logical dimension `dim`.
Tensor fold(const Operand& t, int64_t dim) { return t.value.movedim(*t.batch, dim).flatten(dim, dim + 1); }

// The same for an operand without a batch, repeated for each member.
Tensor repeat_into(const Tensor& t, int64_t dim, const SymInt& count) {
  c10::SymDimVector sizes(t.sym_sizes());
  sizes.insert(sizes.begin(), count);
  return fold({t.unsqueeze(0).expand_symint(sizes), 0}, dim);
}
Tensor fold_or_repeat(const Operand& t, int64_t dim, const SymInt& count) {
  return t.batch ? fold(t, dim) : repeat_into(t.value, dim, count);
}

// The result, with the batch in front of the dimension that it was folded into.
struct Batched {
  Tensor result;
  int64_t dim;
};

Batched batched(Operation operation, const Operand& first, const Operand& second, const std::optional<Operand>& bias,
                const Form& form, const SymInt& count) {
  const int64_t rank = first.value.dim() - (first.batch ? 1 : 0);
  const DataFormat data = DataFormat::parse("torch_ext", form.data_format);
  const WeightsFormat weights = WeightsFormat::of("torch_ext", form);
  const int64_t channel = data.channel(rank), in = weights.in(rank), out = weights.out(rank);
  const bool of_weights = operation == Operation::backward_weights, one_group = form.groups.maybe_as_int() == 1;
  const bool bias_batched = bias && bias->batch;
  const auto unbatched_bias = [&]() -> std::optional<Tensor> {
    if (!bias) return std::nullopt;
    return bias->value;
  };

  if (!of_weights && !second.batch && !bias_batched)  // into N
    return {call(operation, fold(first, 0), second.value, unbatched_bias(), form), 0};
  if (one_group && !(first.batch && second.batch)) {
    // One operand is shared: the batch becomes more channels of the other one, and of the result.
    switch (operation) {
      case Operation::conv_transpose:
        if (first.batch || !second.batch) break;  // the bias alone
        return {call(operation, first.value, fold(second, out),
                     bias ? std::optional(fold_or_repeat(*bias, 0, count)) : std::nullopt, form),
                channel};
      case Operation::backward_data:
        return {call(operation, first.value, fold(second, in), std::nullopt, form), channel};
      case Operation::backward_weights:
        if (first.batch) return {call(operation, fold(first, channel), second.value, std::nullopt, form), in};
        return {call(operation, first.value, fold(second, channel), std::nullopt, form), out};
    }
  }
  // Into groups: each member keeps its own channels on both sides.
  const SymInt groups = form.groups * count;
  const Form with_groups{form.size, form.strides, form.offset, form.dilations, groups, form.data_format, form.weights_format};
  const Tensor a = fold_or_repeat(first, channel, count), b = fold_or_repeat(second, of_weights ? channel : in, count);
  return {call(operation, a, b, bias ? std::optional(fold_or_repeat(*bias, 0, count)) : std::nullopt, with_groups),
          of_weights ? in : channel};
}

// The innermost vmap that batches any of the operands; those that it does not batch are shared by its members.
Tensor batch_rule(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                  const Form& form) {
  using namespace at::functorch;
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchBatched);
  int64_t level = -1;
  for (const Tensor& t : {first, second, bias.value_or(Tensor())})
    if (const BatchedTensorImpl* impl = t.defined() ? maybeGetBatchedImpl(t) : nullptr) level = std::max(level, impl->level());
  if (level < 0) return call(operation, first, second, bias, form);
  const auto unwrap = [&](const Tensor& t) {
    const BatchedTensorImpl* impl = maybeGetBatchedImpl(t);
    return impl && impl->level() == level ? Operand{impl->value(), impl->bdim()} : Operand{t, std::nullopt};
  };
  const Operand a = unwrap(first), b = unwrap(second);
  std::optional<Operand> c;
  if (bias) c = unwrap(*bias);
  const Operand& some = a.batch ? a : b.batch ? b : *c;
  const SymInt count = some.value.sym_size(*some.batch);
  const bool empty = count.maybe_as_int() == 0;
  // The sizes of a member cannot be told from a result without members: where there are none, one of zeros stands in, and is
  // dropped.
  const auto member = [&](const Operand& t) {
    if (!empty || !t.batch) return t;
    c10::SymDimVector sizes(t.value.sym_sizes());
    sizes[*t.batch] = 1;
    return Operand{t.value.new_zeros_symint(sizes), t.batch};
  };
  if (c) c = member(*c);
  const SymInt members = empty ? SymInt(1) : count;
  const Batched r = batched(operation, member(a), member(b), c, form, members);
  c10::SymDimVector sizes(r.result.sym_sizes());
  sizes[r.dim] = sizes[r.dim] / members;
  sizes.insert(sizes.begin() + r.dim, members);
  const Tensor result = r.result.view_symint(sizes);
  return makeBatched(empty ? result.narrow(r.dim, 0, 0) : result, r.dim, level);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, FuncTorchBatched, library) { TORCH_EXT_IMPL(library, batch_rule); }

}  // namespace torch_ext::ops
