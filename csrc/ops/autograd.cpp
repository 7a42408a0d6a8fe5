// SPDX-License-Identifier: Apache-2.0
// Derivatives. L(src, weights, dst) is linear in each argument and each operator is its derivative by one of them, so the
// derivative of any operator by another argument is again an operator. One Node serves all three, written as torch's generated
// code is and not as a torch::autograd::Function, which refuses forward mode and torch.func transforms in C++.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include "csrc/ops/bias_gradient.h"
#include "csrc/ops/private.h"

namespace torch_ext::ops {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The arguments of L. The operation that computes dL/d(argument) reads the two others, in this order.
enum Argument { kSrc, kWeights, kDst };
constexpr Operation kDerivative[] = {Operation::backward_data, Operation::backward_weights, Operation::conv_transpose};

Argument result_of(Operation operation) {
  return operation == Operation::backward_data ? kSrc : operation == Operation::backward_weights ? kWeights : kDst;
}
// (src, weights), (diff_dst, weights), (src, diff_dst): the order of each operator's operands.
std::array<Argument, 2> operands_of(Operation operation) {
  switch (operation) {
    case Operation::conv_transpose:
      return {kSrc, kWeights};
    case Operation::backward_data:
      return {kDst, kWeights};
    default:
      return {kSrc, kDst};
  }
}

// A Form that owns its values and knows the spatial extents of all three arguments.
struct SavedForm {
  std::array<std::vector<SymInt>, 3> extent;
  std::vector<SymInt> strides, offset, dilations;
  SymInt groups;
  std::string data_format, weights_format;
  std::string gradient_format;  // of weights: the memory format of their gradient is theirs

  SavedForm() = default;
  SavedForm(Operation operation, const Tensor& first, const Tensor& second, const Form& form)
      : strides(form.strides.vec()),
        offset(form.offset.vec()),
        dilations(form.dilations.vec()),
        groups(form.groups),
        data_format(form.data_format),
        weights_format(form.weights_format),
        gradient_format(weights_format) {
    const DataFormat data = DataFormat::parse("torch_ext", data_format);
    const WeightsFormat weights = WeightsFormat::of("torch_ext", form);
    const auto operands = operands_of(operation);
    for (int i = 0; i < 2; ++i) {
      const Tensor& t = i ? second : first;
      if (operands[i] == kWeights && weights.order == WeightsFormat::kIOX &&
          t.suggest_memory_format() != at::MemoryFormat::Contiguous)
        gradient_format = WeightsFormat::kNames[WeightsFormat::kIXO];
      for (int64_t a = 0; a < t.dim() - 2; ++a)
        extent[operands[i]].push_back(t.sym_size(operands[i] == kWeights ? weights.axis(a) : data.axis(a)));
    }
    extent[result_of(operation)] = form.size.vec();
  }

  // dL/d(argument) at the two other tensors.
  Tensor derivative(Argument argument, const std::array<Tensor, 3>& t, const std::optional<Tensor>& bias = std::nullopt) const {
    const Operation operation = kDerivative[argument];
    const auto operands = operands_of(operation);
    const std::string& format = argument == kWeights ? gradient_format : weights_format;
    const Tensor result = call(operation, t[operands[0]], t[operands[1]], bias,
                               Form{extent[argument], strides, offset, dilations, groups, data_format, format});
    return format == weights_format ? result : result.movedim(-1, 1);
  }

  template <class F>
  void for_each_size(F f) {
    for (auto& e : extent) f(e);
    f(strides), f(offset), f(dilations);
  }
};

// Edges hold nodes by a shared_ptr in some versions of torch and by an intrusive_ptr in others.
using NodePtr = decltype(torch::autograd::Edge::function);
template <class T>
auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });  // torch's, which unwinds long graphs
  } else {
    return c10::make_intrusive<T>();
  }
}

struct DerivativeBackward final : Node {
  Operation operation = Operation::conv_transpose;
  SavedForm form;
  SavedVariable saved[2];  // the operands

  std::string name() const override {
    switch (operation) {
      case Operation::conv_transpose:
        return "ConvTransposeBackward0";
      case Operation::backward_data:
        return "ConvTransposeBackwardDataBackward0";
      default:
        return "ConvTransposeBackwardWeightsBackward0";
    }
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& s : saved) s.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    std::vector<bool> needs;
    for (size_t i = 0; i < num_outputs(); ++i) needs.push_back(task_should_compute_output(i));
    variable_list given;  // each operand is needed for the other one's gradient
    {
      const std::lock_guard lock(mutex_);  // another thread's backward may release them
      given = {needs[1] ? saved[0].unpack() : Tensor(), needs[0] ? saved[1].unpack() : Tensor()};
    }
    return derivatives(grads[0], given, needs);
  }

  // The gradients that `needs` asks for: of the operands, and of the bias where there are three.
  variable_list derivatives(const Tensor& grad, const variable_list& given, const std::vector<bool>& needs) const {
    variable_list result(needs.size());
    if (!grad.defined()) return result;
    const auto operands = operands_of(operation);
    std::array<Tensor, 3> t;
    t[result_of(operation)] = grad;
    for (int i = 0; i < 2; ++i) t[operands[i]] = given[i];
    for (int i = 0; i < 2; ++i)
      if (needs[i]) result[i] = form.derivative(operands[i], t);
    if (needs.size() == 3 && needs[2])
      result[2] = bias_gradient(grad, DataFormat::parse("torch_ext", form.data_format).channel(grad.dim()));
    return result;
  }

  // ---- Compiled autograd: what the gradients depend on, and the gradients as a function of it ----

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(int64_t(operation));
    args.collect(form.groups);
    args.collect(form.data_format);
    args.collect(form.weights_format);
    args.collect(form.gradient_format);
    const_cast<SavedForm&>(form).for_each_size([&](auto& sizes) { args.collect(sizes); });
    for (const SavedVariable& s : saved) args.collect(s, /*is_output=*/false);
  }

  variable_list apply_with_saved(const variable_list& grads, torch::dynamo::autograd::SwapSavedVariables& swap) override {
    namespace dynamo = torch::dynamo::autograd;
    swap.before(form.groups);
    form.for_each_size([&](auto& sizes) { swap.before(sizes); });
    for (SavedVariable& s : saved) swap.before(s);

    std::vector<bool> needs;
    for (size_t i = 0; i < num_outputs(); ++i) needs.push_back(task_should_compute_output(i));
    dynamo::PackedArgs packed;
    packed.pack(int64_t(operation));
    packed.pack(needs);
    packed.pack(variable_list{saved[0].unpack(), saved[1].unpack()});
    packed.pack(std::vector<SymInt>{form.groups});
    packed.pack(form.data_format);
    packed.pack(form.weights_format);
    packed.pack(form.gradient_format);
    form.for_each_size([&](auto& sizes) { packed.pack(sizes); });
    std::vector<at::TypePtr> schema;
    for (const at::IValue& value : packed.vec()) schema.push_back(value.type());
    const auto& compiler = dynamo::getPyCompilerInterface();
    const std::string function =
        compiler->bind_function(swap.get_py_compiler(), name(), functional, schema, /*is_custom_function=*/true);
    const variable_list result =
        compiler->call_function(swap.get_py_compiler(), "apply_functional", function, grads, packed.vec(),
                                dynamo::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
                                    dynamo::get_input_metadata(next_edges())));

    swap.after(form.groups);
    form.for_each_size([&](auto& sizes) { swap.after(sizes); });
    for (SavedVariable& s : saved) swap.after(s);
    return result;
  }

  // What compiled autograd calls with the values that apply_with_saved has packed.
  static variable_list functional(const variable_list& grads, const std::vector<at::IValue>& args) {
    torch::dynamo::autograd::PackedArgs packed(args);
    DerivativeBackward node;
    node.operation = Operation(packed.unpack<int64_t>());
    const auto needs = packed.unpack<std::vector<bool>>();
    const auto given = packed.unpack<variable_list>();
    node.form.groups = packed.unpack<std::vector<SymInt>>()[0];
    node.form.data_format = packed.unpack<std::string>();
    node.form.weights_format = packed.unpack<std::string>();
    node.form.gradient_format = packed.unpack<std::string>();
    node.form.for_each_size([&](auto& sizes) { sizes = packed.unpack<std::vector<SymInt>>(); });
    return node.derivatives(grads[0], given, needs);
  }
};

Tensor differentiable(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                      const Form& form) {
  using namespace torch::autograd;
  const auto has_tangent = [](const Tensor& t) { return t.defined() && t._fw_grad(0).defined(); };
  const Tensor bias_or_none = bias.value_or(Tensor());
  const bool forward_mode = isFwGradDefined(first) || isFwGradDefined(second) || isFwGradDefined(bias);
  const bool reverse_mode = compute_requires_grad(first, second, bias_or_none);
  if (!forward_mode && !reverse_mode) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call(operation, first, second, bias, form);
  }
  const SavedForm saved(operation, first, second, form);
  decltype(make_node<DerivativeBackward>()) node;
  if (reverse_mode) {
    node = make_node<DerivativeBackward>();
    node->set_next_edges(bias ? collect_next_edges(first, second, *bias) : collect_next_edges(first, second));
    node->operation = operation;
    node->form = saved;
    node->saved[0] = SavedVariable(first, /*is_output=*/false);
    node->saved[1] = SavedVariable(second, /*is_output=*/false);
  }
  Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call(operation, first, second, bias, form);
  }();
  if (node) set_history(result, node);
  if (!forward_mode) return result;

  // The product rule.
  const auto operands = operands_of(operation);
  const Tensor* given[] = {&first, &second};
  std::array<Tensor, 3> primal;
  for (int i = 0; i < 2; ++i) primal[operands[i]] = given[i]->_fw_primal(0);
  Tensor tangent;
  const auto add = [&](const Tensor& term) { tangent = tangent.defined() ? tangent + term : term; };
  for (int i = 0; i < 2; ++i) {
    if (!has_tangent(*given[i])) continue;
    std::array<Tensor, 3> at = primal;
    at[operands[i]] = given[i]->_fw_grad(0);
    add(saved.derivative(result_of(operation), at));
  }
  if (has_tangent(bias_or_none)) {
    c10::SymDimVector shape(size_t(result.dim()), SymInt(1));
    shape[DataFormat::parse("torch_ext", form.data_format).channel(result.dim())] = bias_or_none.sym_size(0);
    const Tensor term = bias_or_none._fw_grad(0).view_symint(shape);
    tangent.defined() ? add(term) : add(term.expand_symint(result.sym_sizes()).contiguous());
  }
  result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, Autograd, library) { TORCH_EXT_IMPL(library, differentiable); }

}  // namespace torch_ext::ops
