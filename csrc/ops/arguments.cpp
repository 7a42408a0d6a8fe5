// SPDX-License-Identifier: Apache-2.0
// Formats, and the private operators: what they take -> a problem.
#include "csrc/ops/arguments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>

#include "csrc/ops/checks.h"

namespace torch_ext::ops {
namespace {

bool matches(std::string_view text, const char* name) {
  return text == name || std::equal(text.begin(), text.end(), name, name + std::char_traits<char>::length(name),
                                    [](char a, char b) { return std::toupper(static_cast<unsigned char>(a)) == b; });
}

}  // namespace

DataFormat DataFormat::parse(const char* op, std::string_view text) {
  if (matches(text, "NXC")) return {true};
  if (matches(text, "NCX")) return {false};
  TORCH_CHECK(false, op, ": data_format must be NXC or NCX, got \"", text, "\"");
}

WeightsFormat WeightsFormat::parse(const char* op, const char* argument, std::string_view text) {
  for (const Order order : {kXOI, kIOX, kXIO, kOIX})
    if (matches(text, kNames[order])) return {order};
  TORCH_CHECK(false, op, ": ", argument, " must be XOI, IOX, XIO or OIX, got \"", text, "\"");
}

WeightsFormat WeightsFormat::of(const char* op, const Form& form) {
  return matches(form.weights_format, kNames[kIXO]) ? WeightsFormat{kIXO} : parse(op, "weights_format", form.weights_format);
}

// ---- Private operators ------------------------------------------------------------------------------------------------------

OperandNames operand_names(Operation operation) {
  switch (operation) {
    case Operation::conv_transpose:
      return {"conv_transpose", "src", "weights"};
    case Operation::backward_data:
      return {"conv_transpose_backward_data", "diff_dst", "weights"};
    default:
      return {"conv_transpose_backward_weights", "src", "diff_dst"};
  }
}

namespace {

// The number of elements and bytes must fit into int64.
void check_size(const char* op, SymInts sizes, int64_t item_bytes) {
  Int128 count = item_bytes;
  bool empty = false;
  for (const SymInt& size : sizes) {
    const auto value = size.maybe_as_int();
    if (!value) return;
    empty = empty || *value == 0;
  }
  if (empty) return;
  for (const SymInt& size : sizes) {
    count *= *size.maybe_as_int();
    TORCH_CHECK(count <= std::numeric_limits<int64_t>::max(), op, ": a result of sizes ", sizes, " overflows int64");
  }
}

// Every position that a term reaches, i*stride - offset + k*dilation, must fit into int64 with room to spare.
void check_reach(const char* op, const SymSizes& input, const SymSizes& kernel, const Form& form) {
  for (size_t a = 0; a < input.size(); ++a)
    checked(
        op, "reach", int64_t(a),
        [](const auto& i, const auto& k, const auto& s, const auto& d, const auto& offset) {
          return (i + 1) * s + (k + 1) * d + offset;
        },
        input[a], kernel[a], form.strides[a], form.dilations[a], form.offset[a]);
}

}  // namespace

SymSizes checked_result_sizes(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                              const Form& form) {
  const OperandNames names = operand_names(operation);
  const char* op = names.op;
  const int64_t rank = check_operands(op, names.first, first, names.second, second, check_alike), axes = rank - 2;
  check_length(op, "size", form.size, axes);
  check_length(op, "strides", form.strides, axes);
  check_length(op, "offset", form.offset, axes);
  check_length(op, "dilations", form.dilations, axes);
  check_at_least(op, "size", form.size, operation == Operation::backward_weights ? 1 : 0);
  check_at_least(op, "strides", form.strides, 1);
  check_at_least(op, "offset", form.offset, 0);
  check_at_least(op, "dilations", form.dilations, 1);
  const SymInt& groups = form.groups;
  TORCH_EXT_CHECK_SYM(groups.sym_ge(1), op, ": groups = ", groups, " must be >= 1");
  const DataFormat data_format = DataFormat::parse(op, form.data_format);
  const WeightsFormat weights_format = WeightsFormat::of(op, form);

  SymSizes result(rank, SymInt(0));
  const DataSizes data(first, data_format);
  if (operation == Operation::backward_weights) {
    const DataSizes y(second, data_format);
    check_groups_divide(op, names.first, data.channels, groups);
    check_groups_divide(op, names.second, y.channels, groups);
    TORCH_EXT_CHECK_SYM(data.batch.sym_eq(y.batch), op, ": src and diff_dst must have the same batch, got ", data.batch, " and ",
                        y.batch);
    result[weights_format.in(rank)] = data.channels;
    result[weights_format.out(rank)] = y.channels / groups;
    for (int64_t a = 0; a < axes; ++a) result[weights_format.axis(a)] = form.size[a];
    check_reach(op, data.extent, SymSizes(form.size), form);
  } else {
    const WeightsSizes w(second.sym_sizes(), weights_format);
    check_kernel(op, names.second, w.kernel);
    const bool forward = operation == Operation::conv_transpose;
    if (forward) {
      check_in_channels(op, names.first, data.channels, names.second, w, groups);
    } else {
      check_out_channels(op, names.first, data.channels, names.second, w, groups);
      check_groups_divide(op, names.second, w.in, groups);
    }
    if (bias) {
      check_bias(op, *bias, w.out_of_all(op, groups));
      check_alike(op, "bias", *bias, names.first, first);
    }
    result[0] = data.batch;
    result[data_format.channel(rank)] = forward ? w.out_of_all(op, groups) : w.in;
    for (int64_t a = 0; a < axes; ++a) result[data_format.axis(a)] = form.size[a];
    check_reach(op, forward ? data.extent : SymSizes(form.size), w.kernel, form);
  }
  check_size(op, result, int64_t(first.element_size()));
  return result;
}

at::MemoryFormat result_memory_format(Operation operation, const Tensor& first, const Tensor& second, const Form& form) {
  if (operation == Operation::backward_weights || DataFormat::parse("", form.data_format).channels_last)
    return at::MemoryFormat::Contiguous;
  const at::MemoryFormat of_data = first.suggest_memory_format();
  if (of_data != at::MemoryFormat::Contiguous || WeightsFormat::of("", form).order != WeightsFormat::kIOX) return of_data;
  return second.suggest_memory_format();
}

Type type_of(const Tensor& t) {
  return t.scalar_type() == at::kFloat      ? Type::f32
         : t.scalar_type() == at::kDouble   ? Type::f64
         : t.scalar_type() == at::kBFloat16 ? Type::bf16
                                            : Type::f16;
}

Problem problem_of(Operation operation, const Tensor& src, const Tensor& weights, const Tensor& dst, bool bias,
                   const Form& form) {
  const int64_t rank = src.dim(), axes = rank - 2;
  const DataFormat data_format = DataFormat::parse("", form.data_format);
  const WeightsFormat weights_format = WeightsFormat::of("", form);
  Problem p;
  p.operation = operation;
  p.type = type_of(src);
  p.bias = bias;
  Geometry& g = p.geometry;
  const int64_t channel = data_format.channel(rank), in = weights_format.in(rank), out = weights_format.out(rank);
  g.groups = form.groups.expect_int();
  g.batch = src.size(0);
  g.x_channels = src.size(channel) / g.groups;
  g.y_channels = weights.size(out);
  p.x.outer = src.stride(0), p.x.channel = src.stride(channel);
  p.w.outer = weights.stride(in), p.w.channel = weights.stride(out);
  p.y.outer = dst.stride(0), p.y.channel = dst.stride(channel);
  for (int64_t a = 0; a < axes; ++a) {
    const int64_t to = kAxes - axes + a, data_axis = data_format.axis(a), weights_axis = weights_format.axis(a);
    g.axis[to] = {src.size(data_axis),          weights.size(weights_axis),     dst.size(data_axis),
                  form.strides[a].expect_int(), form.dilations[a].expect_int(), form.offset[a].expect_int()};
    p.x.axis[to] = src.stride(data_axis);
    p.w.axis[to] = weights.stride(weights_axis);
    p.y.axis[to] = dst.stride(data_axis);
  }
  return p;
}

}  // namespace torch_ext::ops
