// SPDX-License-Identifier: Apache-2.0
// The public operators: attributes of the specification -> extents and offsets.
#include <ATen/ATen.h>

#include <cctype>

#include "csrc/ops/checks.h"

namespace torch_ext::ops {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = char(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

enum class AutoPad { none, valid, same_upper, same_lower };

AutoPad parse_auto_pad(const char* op, std::string_view text) {
  if (text == "none") return AutoPad::none;
  const std::string name = lower(text);
  if (name == "none" || name == "notset") return AutoPad::none;
  if (name == "valid") return AutoPad::valid;
  if (name == "same_upper") return AutoPad::same_upper;
  if (name == "same_lower") return AutoPad::same_lower;
  TORCH_CHECK(false, op, ": auto_pad must be one of none (notset), valid, same_upper, same_lower, got \"", text, "\"");
}

void check_output_padding(const char* op, const Attributes& attributes) {
  const SymInts padding = *attributes.output_padding;
  for (size_t a = 0; a < padding.size(); ++a) {
    const SymInt bound = attributes.strides[a].max(attributes.dilations[a]);
    TORCH_EXT_CHECK_SYM(padding[a].sym_ge(0), op, ": output_padding[", a, "] = ", padding[a], " must be >= 0");
    TORCH_EXT_CHECK_SYM(padding[a].sym_lt(bound), op, ": output_padding[", a, "] = ", padding[a],
                        " must be < max(stride, dilation) = ", bound);
  }
}

// Returns the value of auto_pad.
AutoPad check_attributes(const char* op, const Attributes& attributes, int64_t axes) {
  check_length(op, "strides", attributes.strides, axes);
  check_length(op, "pads_begin", attributes.pads_begin, axes);
  check_length(op, "pads_end", attributes.pads_end, axes);
  check_length(op, "dilations", attributes.dilations, axes);
  check_at_least(op, "strides", attributes.strides, 1);
  check_at_least(op, "dilations", attributes.dilations, 1);
  check_at_least(op, "pads_begin", attributes.pads_begin, 0);
  check_at_least(op, "pads_end", attributes.pads_end, 0);
  TORCH_EXT_CHECK_SYM(attributes.groups.sym_ge(1), op, ": groups = ", attributes.groups, " must be >= 1");
  if (attributes.output_padding) {
    check_length(op, "output_padding", *attributes.output_padding, axes);
    check_output_padding(op, attributes);
  }
  return parse_auto_pad(op, attributes.auto_pad);
}

// Extents and offsets are still to come.
Resolved formats_of(const Names& names, const Attributes& attributes) {
  return {{},
          {},
          DataFormat::parse(names.op, attributes.data_format),
          WeightsFormat::parse(names.op, names.weights_format, attributes.weights_format)};
}

// pads_begin and pads_end of one axis under auto_pad.
struct Pads {
  SymInt begin, end;
};
Pads resolve_pads(const char* op, AutoPad auto_pad, const Attributes& attributes, const SymInt& kernel, int64_t a) {
  if (auto_pad == AutoPad::none) return {attributes.pads_begin[a], attributes.pads_end[a]};
  if (auto_pad == AutoPad::valid) return {0, 0};
  const SymInt total = checked(
                           op, "padding", a, [](const auto&... t) { return same_total(t...); }, kernel, attributes.strides[a],
                           attributes.dilations[a])
                           .max(0);
  const SymInt begin = same_begin(total, auto_pad == AutoPad::same_upper);
  return {begin, total - begin};
}

}  // namespace

bool is_explicit(const char* op, std::string_view auto_pad) { return parse_auto_pad(op, auto_pad) == AutoPad::none; }

Resolved resolve_conv_transpose(const Names& names, const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias,
                                const Attributes& attributes) {
  const char* op = names.op;
  const int64_t axes = check_operands(op, names.src, src, names.weights, weights, check_alike_or_cast) - 2;
  const AutoPad auto_pad = check_attributes(op, attributes, axes);
  Resolved r = formats_of(names, attributes);
  const DataSizes x(src, r.data_format);
  const WeightsSizes w(weights.sym_sizes(), r.weights_format);
  check_kernel(op, names.weights, w.kernel);
  check_in_channels(op, names.src, x.channels, names.weights, w, attributes.groups);
  if (bias) {
    check_bias(op, *bias, w.out_of_all(op, attributes.groups));
    check_alike_or_cast(op, "bias", *bias, names.src, src);
  }
  for (int64_t a = 0; a < axes; ++a) {
    const Pads pads = resolve_pads(op, auto_pad, attributes, w.kernel[a], a);
    const SymInt padding = attributes.output_padding ? (*attributes.output_padding)[a] : SymInt(0);
    const SymInt extent = checked(
        op, "output extent", a, [](const auto&... t) { return output_extent(t...); }, x.extent[a], w.kernel[a],
        attributes.strides[a], attributes.dilations[a], pads.begin, pads.end, padding);
    TORCH_EXT_CHECK_SYM(extent.sym_ge(0), op, ": the output extent of spatial axis ", a, " = ", extent, " must be >= 0: input ",
                        x.extent[a], ", kernel ", w.kernel[a], ", stride ", attributes.strides[a], ", dilation ",
                        attributes.dilations[a], ", pads ", pads.begin, " and ", pads.end, ", output_padding ", padding);
    r.size.push_back(extent);
    r.offset.push_back(pads.begin);
  }
  return r;
}

Resolved resolve_backward_data(const Names& names, const Tensor& diff_dst, const Tensor& weights, const Attributes& attributes) {
  const char* op = names.op;
  const int64_t axes = check_operands(op, names.dst, diff_dst, names.weights, weights, check_alike_or_cast) - 2;
  const AutoPad auto_pad = check_attributes(op, attributes, axes);
  Resolved r = formats_of(names, attributes);
  const DataSizes y(diff_dst, r.data_format);
  const WeightsSizes w(weights.sym_sizes(), r.weights_format);
  check_kernel(op, names.weights, w.kernel);
  check_out_channels(op, names.dst, y.channels, names.weights, w, attributes.groups);
  check_groups_divide(op, names.weights, w.in, attributes.groups);
  for (int64_t a = 0; a < axes; ++a) {
    const Pads pads = resolve_pads(op, auto_pad, attributes, w.kernel[a], a);
    const SymInt padding = attributes.output_padding ? (*attributes.output_padding)[a] : SymInt(0);
    const SymInt& stride = attributes.strides[a];
    const SymInt span = checked(
        op, "input extent", a, [](const auto&... t) { return strided_span(t...); }, y.extent[a], w.kernel[a],
        attributes.dilations[a], pads.begin, pads.end, padding);
    // I = span/s + 1, rounded down; an input of no positions has span = -s.
    TORCH_EXT_CHECK_SYM((span + stride).sym_ge(0), op, ": the input extent of spatial axis ", a,
                        " would be negative: ", names.dst, " extent ", y.extent[a], ", kernel ", w.kernel[a], ", stride ", stride,
                        ", dilation ", attributes.dilations[a], ", pads ", pads.begin, " and ", pads.end, ", output_padding ",
                        padding);
    if (attributes.output_padding)
      TORCH_EXT_CHECK_SYM(((span + stride) % stride).sym_eq(0), op, ": on spatial axis ", a, " the ", names.dst, " extent ",
                          y.extent[a], " + pads ", pads.begin, " + ", pads.end, " - dilated kernel ",
                          dilated_extent(w.kernel[a], attributes.dilations[a]), " - output_padding ", padding, " = ", span,
                          " must be a multiple of the stride ", stride);
    r.size.push_back((span + stride) / stride);
    r.offset.push_back(pads.begin);
  }
  return r;
}

Resolved resolve_backward_weights(const Names& names, const Tensor& src, const Tensor& diff_dst, const Attributes& attributes,
                                  OptionalSymInts weights_shape) {
  const char* op = names.op;
  const int64_t rank = check_operands(op, names.src, src, names.dst, diff_dst, check_alike_or_cast), axes = rank - 2;
  TORCH_CHECK(weights_shape.has_value(), op, ": ", names.weights, " is required: the kernel's extents cannot be told from ",
              names.src, " and ", names.dst);
  TORCH_CHECK(int64_t(weights_shape->size()) == rank, op, ": ", names.weights, " must have ", rank, " values, got ",
              weights_shape->size(), " values ", *weights_shape);
  const AutoPad auto_pad = check_attributes(op, attributes, axes);
  Resolved r = formats_of(names, attributes);
  const DataSizes x(src, r.data_format), y(diff_dst, r.data_format);
  const WeightsSizes w(*weights_shape, r.weights_format);
  check_kernel(op, names.weights, w.kernel);
  check_in_channels(op, names.src, x.channels, names.weights, w, attributes.groups);
  check_out_channels(op, names.dst, y.channels, names.weights, w, attributes.groups);
  TORCH_EXT_CHECK_SYM(x.batch.sym_eq(y.batch), op, ": ", names.src, " and ", names.dst, " must have the same batch, got ",
                      x.batch, " and ", y.batch);
  for (int64_t a = 0; a < axes; ++a) {
    const Pads pads = resolve_pads(op, auto_pad, attributes, w.kernel[a], a);
    const SymInt& stride = attributes.strides[a];
    const SymInt least = checked(
        op, "output extent", a, [](const auto&... t) { return output_extent(t...); }, x.extent[a], w.kernel[a], stride,
        attributes.dilations[a], pads.begin, pads.end, SymInt(0));
    const SymInt implied = y.extent[a] - least;
    const auto formula = [&] {
      return c10::str(": input ", x.extent[a], ", kernel ", w.kernel[a], ", stride ", stride, ", dilation ",
                      attributes.dilations[a], ", pads ", pads.begin, " and ", pads.end);
    };
    if (attributes.output_padding) {
      const SymInt& padding = (*attributes.output_padding)[a];
      TORCH_EXT_CHECK_SYM(implied.sym_eq(padding), op, ": ", names.dst, " has extent ", y.extent[a], " on spatial axis ", a,
                          ", which must be ", least + padding, formula(), ", output_padding ", padding);
    } else {
      const SymInt bound = stride.max(attributes.dilations[a]);
      TORCH_EXT_CHECK_SYM(implied.sym_ge(0), op, ": ", names.dst, " has extent ", y.extent[a], " on spatial axis ", a,
                          ", which must be >= ", least, formula());
      TORCH_EXT_CHECK_SYM(implied.sym_lt(bound), op, ": ", names.dst, " has extent ", y.extent[a], " on spatial axis ", a,
                          ", which must be < ", least + bound, " (output_padding < max(stride, dilation))", formula());
    }
    r.size.push_back(w.kernel[a]);
    r.offset.push_back(pads.begin);
  }
  return r;
}

Resolved resolve_output_shape(const Names& names, const Tensor& src, const Tensor& weights, const Attributes& attributes,
                              SymInts output_shape) {
  const char* op = names.op;
  // All checks of the attributes are those of conv_transpose; pads that matter not here must not make its extents fail.
  const SymSizes zeros(attributes.strides.size(), SymInt(0));
  Attributes unpadded = attributes;
  unpadded.pads_begin = unpadded.pads_end = zeros;
  unpadded.auto_pad = "none";
  check_data_rank(op, names.src, src);
  const AutoPad auto_pad = check_attributes(op, attributes, src.dim() - 2);
  Resolved r = resolve_conv_transpose(names, src, weights, std::nullopt, unpadded);
  const int64_t rank = src.dim(), axes = rank - 2, given = int64_t(output_shape.size());
  TORCH_CHECK(given == axes || given == rank, op, ": output_shape must have ", axes, " values (the spatial extents) or ", rank,
              " (the full shape), got ", given, " values ", output_shape);
  const DataSizes x(src, r.data_format);
  const WeightsSizes w(weights.sym_sizes(), r.weights_format);
  if (given == rank) {
    const SymInt channels = w.out_of_all(op, attributes.groups);
    TORCH_EXT_CHECK_SYM(output_shape[0].sym_eq(x.batch), op, ": output_shape[0] = ", output_shape[0], " must equal the batch ",
                        x.batch);
    const int64_t channel = r.data_format.channel(rank);
    TORCH_EXT_CHECK_SYM(output_shape[channel].sym_eq(channels), op, ": output_shape[", channel, "] = ", output_shape[channel],
                        " must equal the ", channels, " output channels");
  }
  for (int64_t a = 0; a < axes; ++a) {
    const int64_t index = given == rank ? r.data_format.axis(a) : a;
    const SymInt& extent = output_shape[index];
    TORCH_EXT_CHECK_SYM(extent.sym_ge(0), op, ": output_shape[", index, "] = ", extent, " must be >= 0");
    r.size[a] = extent;
    if (auto_pad == AutoPad::none) r.offset[a] = attributes.pads_begin[a];
    if (auto_pad == AutoPad::none || auto_pad == AutoPad::valid) continue;
    const SymInt padding = attributes.output_padding ? (*attributes.output_padding)[a] : SymInt(0);
    const SymInt total = checked(
                             op, "padding", a, [](const auto&... t) { return same_total_for(t...); }, x.extent[a], w.kernel[a],
                             attributes.strides[a], attributes.dilations[a], padding, extent)
                             .max(0);
    // The published formula: here same_upper puts the odd one at the begin.
    r.offset[a] = same_begin(total, auto_pad == AutoPad::same_lower);
  }
  return r;
}

SymSizes shape_values(const char* op, const char* argument, const Tensor& shape) {
  TORCH_CHECK(shape.scalar_type() == at::kInt || shape.scalar_type() == at::kLong, op, ": ", argument,
              " must be an int32 or int64 tensor, got ", shape.scalar_type());
  TORCH_CHECK(shape.dim() == 1, op, ": ", argument, " must be 1-D, got ", shape.dim(), " dimensions");
  const int64_t count = shape.sym_size(0).guard_int(__FILE__, __LINE__);
  SymSizes values;
  for (int64_t i = 0; i < count; ++i) values.push_back(shape.select(0, i).item().toSymInt());
  return values;
}

}  // namespace torch_ext::ops
