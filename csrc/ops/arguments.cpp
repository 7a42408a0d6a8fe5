// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/arguments.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <limits>

namespace torch_ext::ops {
namespace {

// A condition on sizes that may be symbolic: a guard where they are, a plain check where they are not.
#define TORCH_EXT_CHECK_SYM(condition, ...) TORCH_CHECK((condition).expect_true(__FILE__, __LINE__), __VA_ARGS__)

using Int128 = __int128;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = char(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool matches(std::string_view text, const char* name) {
  return text == name || std::equal(text.begin(), text.end(), name, name + std::char_traits<char>::length(name),
                                    [](char a, char b) { return std::toupper(static_cast<unsigned char>(a)) == b; });
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

// ---- Tensors ----------------------------------------------------------------------------------------------------------------

bool supported(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble;
}

// A dense tensor of a type that is computed.
void check_kind(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(!t.is_nested(), op, ": ", name, " must be a dense (strided) tensor, got a nested one");
  TORCH_CHECK(t.layout() == at::kStrided, op, ": ", name, " must be a dense (strided) tensor, got layout ", t.layout());
  TORCH_CHECK(supported(t.scalar_type()), op, ": ", name, " must be float32, float64, bfloat16 or float16, got ",
              t.scalar_type());
}

// One type and one device.
void check_alike(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first) {
  TORCH_CHECK(t.scalar_type() == first.scalar_type(), op, ": ", first_name, " is ", first.scalar_type(), " and ", name, " is ",
              t.scalar_type(), "; they must have one type");
  TORCH_CHECK(t.device() == first.device(), op, ": ", first_name, " is on ", first.device(), " and ", name, " on ", t.device(),
              "; they must be on one device");
}

// The same in a public operator, by the names of its arguments. Under autocast types may differ until a private operator casts
// them.
void check_alike_or_cast(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first) {
  const c10::DeviceType device = first.device().type();
  if (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device)) return;
  check_alike(op, name, t, first_name, first);
}

int64_t check_data_rank(const char* op, const char* name, const Tensor& t) {
  TORCH_CHECK(t.dim() >= 3 && t.dim() <= 5, op, ": ", name,
              " must have 3, 4 or 5 dimensions (batch, channels and 1 to 3 spatial axes), got ", t.dim(), " of sizes ",
              t.sym_sizes());
  return t.dim();
}

void check_same_rank(const char* op, const char* name, int64_t rank, const char* other_name, int64_t other_rank) {
  TORCH_CHECK(rank == other_rank, op, ": ", name, " must have as many dimensions as ", other_name, " (", other_rank, "), got ",
              rank);
}

// ---- Attributes -------------------------------------------------------------------------------------------------------------

void check_length(const char* op, const char* name, SymInts values, int64_t axes) {
  TORCH_CHECK(int64_t(values.size()) == axes, op, ": ", name, " must have one value for each of the ", axes,
              " spatial axes, got ", values.size(), " values ", values);
}

void check_at_least(const char* op, const char* name, SymInts values, int64_t least) {
  for (size_t a = 0; a < values.size(); ++a)
    TORCH_EXT_CHECK_SYM(values[a].sym_ge(least), op, ": ", name, "[", a, "] = ", values[a], " must be >= ", least);
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

void check_attributes(const char* op, const Attributes& attributes, int64_t axes) {
  check_length(op, "strides", attributes.strides, axes);
  check_length(op, "pads_begin", attributes.pads_begin, axes);
  check_length(op, "pads_end", attributes.pads_end, axes);
  check_length(op, "dilations", attributes.dilations, axes);
  check_at_least(op, "strides", attributes.strides, 1);
  check_at_least(op, "dilations", attributes.dilations, 1);
  check_at_least(op, "pads_begin", attributes.pads_begin, 0);
  check_at_least(op, "pads_end", attributes.pads_end, 0);
  TORCH_EXT_CHECK_SYM(attributes.groups.sym_ge(1), op, ": groups = ", attributes.groups, " must be >= 1");
  if (!attributes.output_padding) return;
  check_length(op, "output_padding", *attributes.output_padding, axes);
  check_output_padding(op, attributes);
}

// A value of a size formula, where all its terms are concrete computed without overflow.
template <class Formula, class... Terms>
SymInt checked(const char* op, const char* what, int64_t axis, Formula formula, const Terms&... terms) {
  if ((terms.maybe_as_int().has_value() && ...)) {
    const Int128 value = formula(Int128(*terms.maybe_as_int())...);
    TORCH_CHECK(value <= std::numeric_limits<int64_t>::max() / 4 && value >= std::numeric_limits<int64_t>::min() / 4, op,
                ": the ", what, " of spatial axis ", axis, " overflows int64");
    return SymInt(int64_t(value));
  }
  return formula(terms...);
}

// ---- Shapes -----------------------------------------------------------------------------------------------------------------

// Sizes of a weights tensor, or of a shape that describes one.
struct WeightsSizes {
  SymInt in, out;
  SymSizes kernel;

  WeightsSizes(SymInts sizes, WeightsFormat format) {
    const int64_t rank = int64_t(sizes.size());
    in = sizes[format.in(rank)];
    out = sizes[format.out(rank)];
    for (int64_t a = 0; a < rank - 2; ++a) kernel.push_back(sizes[format.axis(a)]);
  }

  // Output channels of all groups together.
  SymInt out_of_all(const char* op, const SymInt& groups) const {
    const auto one = out.maybe_as_int(), count = groups.maybe_as_int();
    int64_t product;
    TORCH_CHECK(!one || !count || !__builtin_mul_overflow(*one, *count, &product), op, ": ", out, " output channels in each of ",
                groups, " groups overflow int64");
    return out * groups;
  }
};

struct DataSizes {
  SymInt batch, channels;
  SymSizes extent;

  DataSizes(const Tensor& t, DataFormat format) {
    const SymInts sizes = t.sym_sizes();
    batch = sizes[0];
    channels = sizes[format.channel(t.dim())];
    for (int64_t a = 0; a < t.dim() - 2; ++a) extent.push_back(sizes[format.axis(a)]);
  }
};

void check_kernel(const char* op, const char* name, const SymSizes& kernel) {
  for (size_t a = 0; a < kernel.size(); ++a)
    TORCH_EXT_CHECK_SYM(kernel[a].sym_ge(1), op, ": kernel extent ", a, " of ", name, " = ", kernel[a], " must be >= 1");
}

void check_groups_divide(const char* op, const char* name, const SymInt& channels, const SymInt& groups) {
  TORCH_EXT_CHECK_SYM((channels % groups).sym_eq(0), op, ": ", name, " has ", channels, " channels, which groups = ", groups,
                      " must divide");
}

// src has all input channels, weights have all of them too.
void check_in_channels(const char* op, const char* src, const SymInt& channels, const char* weights, const WeightsSizes& w,
                       const SymInt& groups) {
  check_groups_divide(op, src, channels, groups);
  const auto in = w.in.maybe_as_int(), all = channels.maybe_as_int(), group_count = groups.maybe_as_int();
  TORCH_CHECK(!(in && all && group_count && *group_count > 1 && *in != *all && *in * *group_count == *all), op, ": ", weights,
              " has ", w.in,
              " input channels, the form (in_channels/groups, out_channels, ...) that the notes of the specification "
              "describe by mistake; it must have all ",
              channels, " input channels of ", src, " and out_channels/groups output channels");
  TORCH_EXT_CHECK_SYM(w.in.sym_eq(channels), op, ": ", weights, " has ", w.in, " input channels, which must equal the ", channels,
                      " channels of ", src);
}

void check_out_channels(const char* op, const char* dst, const SymInt& channels, const char* weights, const WeightsSizes& w,
                        const SymInt& groups) {
  check_groups_divide(op, dst, channels, groups);
  const SymInt all = w.out_of_all(op, groups);
  TORCH_EXT_CHECK_SYM(all.sym_eq(channels), op, ": ", weights, " has ", w.out, " output channels in each of ", groups,
                      " groups, ", all, " in all, which must equal the ", channels, " channels of ", dst);
}

void check_bias(const char* op, const Tensor& bias, const SymInt& channels) {
  check_kind(op, "bias", bias);
  TORCH_CHECK(bias.dim() == 1, op, ": bias must be 1-D with one value for each output channel, got sizes ", bias.sym_sizes());
  TORCH_EXT_CHECK_SYM(bias.sym_size(0).sym_eq(channels), op, ": bias has ", bias.sym_size(0), " values, which must equal the ",
                      channels, " output channels");
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

DataFormat DataFormat::parse(const char* op, std::string_view text) {
  if (matches(text, "NXC")) return {true};
  if (matches(text, "NCX")) return {false};
  TORCH_CHECK(false, op, ": data_format must be NXC or NCX, got \"", text, "\"");
}

WeightsFormat WeightsFormat::parse(const char* op, const char* argument, std::string_view text) {
  if (matches(text, "XOI")) return {kXOI};
  if (matches(text, "IOX")) return {kIOX};
  if (matches(text, "XIO")) return {kXIO};
  if (matches(text, "OIX")) return {kOIX};
  TORCH_CHECK(false, op, ": ", argument, " must be XOI, IOX, XIO or OIX, got \"", text, "\"");
}

Resolved resolve_conv_transpose(const Names& names, const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias,
                                const Attributes& attributes) {
  const char* op = names.op;
  check_kind(op, names.src, src);
  check_kind(op, names.weights, weights);
  check_alike_or_cast(op, names.weights, weights, names.src, src);
  const int64_t axes = check_data_rank(op, names.src, src) - 2;
  check_same_rank(op, names.weights, weights.dim(), names.src, src.dim());
  check_attributes(op, attributes, axes);
  const AutoPad auto_pad = parse_auto_pad(op, attributes.auto_pad);
  Resolved r{{},
             {},
             DataFormat::parse(op, attributes.data_format),
             WeightsFormat::parse(op, names.weights_format, attributes.weights_format)};
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
  check_kind(op, names.dst, diff_dst);
  check_kind(op, names.weights, weights);
  check_alike_or_cast(op, names.weights, weights, names.dst, diff_dst);
  const int64_t axes = check_data_rank(op, names.dst, diff_dst) - 2;
  check_same_rank(op, names.weights, weights.dim(), names.dst, diff_dst.dim());
  check_attributes(op, attributes, axes);
  const AutoPad auto_pad = parse_auto_pad(op, attributes.auto_pad);
  Resolved r{{},
             {},
             DataFormat::parse(op, attributes.data_format),
             WeightsFormat::parse(op, names.weights_format, attributes.weights_format)};
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
  check_kind(op, names.src, src);
  check_kind(op, names.dst, diff_dst);
  check_alike_or_cast(op, names.dst, diff_dst, names.src, src);
  const int64_t rank = check_data_rank(op, names.src, src), axes = rank - 2;
  check_same_rank(op, names.dst, diff_dst.dim(), names.src, rank);
  TORCH_CHECK(weights_shape.has_value(), op, ": ", names.weights, " is required: the kernel's extents cannot be told from ",
              names.src, " and ", names.dst);
  TORCH_CHECK(int64_t(weights_shape->size()) == rank, op, ": ", names.weights, " must have ", rank, " values, got ",
              weights_shape->size(), " values ", *weights_shape);
  check_attributes(op, attributes, axes);
  const AutoPad auto_pad = parse_auto_pad(op, attributes.auto_pad);
  Resolved r{{},
             {},
             DataFormat::parse(op, attributes.data_format),
             WeightsFormat::parse(op, names.weights_format, attributes.weights_format)};
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
  check_attributes(op, attributes, src.dim() - 2);
  Resolved r = resolve_conv_transpose(names, src, weights, std::nullopt, unpadded);
  const AutoPad auto_pad = parse_auto_pad(op, attributes.auto_pad);
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
  check_kind(op, names.first, first);
  check_kind(op, names.second, second);
  check_alike(op, names.second, second, names.first, first);
  const int64_t rank = check_data_rank(op, names.first, first), axes = rank - 2;
  check_same_rank(op, names.second, second.dim(), names.first, rank);
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
  const WeightsFormat weights_format = WeightsFormat::parse(op, "weights_format", form.weights_format);

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
  if (of_data != at::MemoryFormat::Contiguous || WeightsFormat::parse("", "", form.weights_format).order != WeightsFormat::kIOX)
    return of_data;
  return second.suggest_memory_format();
}

Problem problem_of(Operation operation, const Tensor& src, const Tensor& weights, const Tensor& dst, bool bias,
                   const Form& form) {
  const int64_t rank = src.dim(), axes = rank - 2;
  const DataFormat data_format = DataFormat::parse("", form.data_format);
  const WeightsFormat weights_format = WeightsFormat::parse("", "", form.weights_format);
  Problem p;
  p.operation = operation;
  p.type = src.scalar_type() == at::kFloat      ? Type::f32
           : src.scalar_type() == at::kDouble   ? Type::f64
           : src.scalar_type() == at::kBFloat16 ? Type::bf16
                                                : Type::f16;
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
