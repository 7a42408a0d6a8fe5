// SPDX-License-Identifier: Apache-2.0
// The public operators: they check, resolve padding and extents once, and call a private operator.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include "csrc/ops/private.h"

namespace torch_ext::ops {

Tensor call(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  static const auto find = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  static const auto forward = find("torch_ext::_conv_transpose").typed<ForwardOp>();
  static const auto backward_data = find("torch_ext::_conv_transpose_backward_data").typed<BackwardOp>();
  static const auto backward_weights = find("torch_ext::_conv_transpose_backward_weights").typed<BackwardOp>();
  switch (operation) {
    case Operation::conv_transpose:
      return forward.call(first, second, bias, TORCH_EXT_FORM_OF(form));
    case Operation::backward_data:
      return backward_data.call(first, second, TORCH_EXT_FORM_OF(form));
    default:
      return backward_weights.call(first, second, TORCH_EXT_FORM_OF(form));
  }
}

namespace {

#define ATTRIBUTES                                                                                     \
  SymInts strides, SymInts pads_begin, SymInts pads_end, SymInts dilations, std::string_view auto_pad, \
      OptionalSymInts output_padding, SymInt groups, std::string_view data_format, std::string_view weights_format
#define ATTRIBUTE_VALUES(weights_format) \
  Attributes { strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups, data_format, weights_format }

constexpr Names kConvTranspose{"conv_transpose", "src", "weights", "dst", "weights_format"};
constexpr Names kBackwardData{"conv_transpose_backward_data", "src", "weights", "diff_dst", "weights_format"};
constexpr Names kBackwardWeights{"conv_transpose_backward_weights", "src", "weights_shape", "diff_dst", "weights_format"};
constexpr Names kBackpropData{"convolution_backprop_data", "output_delta", "filter", "output", "filter_format"};
constexpr Names kBackpropFilters{"conv_transpose_backprop_filters", "input_forward", "filter_shape", "output_delta",
                                 "filter_format"};

Tensor call_resolved(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                     const Resolved& r, const Attributes& attributes) {
  return call(operation, first, second, bias,
              Form{r.size, attributes.strides, r.offset, attributes.dilations, attributes.groups, r.data_format.name(),
                   r.weights_format.name()});
}

Tensor conv_transpose(const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias, ATTRIBUTES) {
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  return call_resolved(Operation::conv_transpose, src, weights, bias,
                       resolve_conv_transpose(kConvTranspose, src, weights, bias, attributes), attributes);
}

// The weights as conv_transpose packs them for a src of this size and layout, in bytes; none where it does not.
Tensor prepack(const Tensor& src, const Tensor& weights, ATTRIBUTES) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torch_ext::_conv_transpose_prepack", "")
                             .typed<Tensor(const Tensor&, const Tensor&, TORCH_EXT_FORM)>();
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  const Resolved r = resolve_conv_transpose(kConvTranspose, src, weights, std::nullopt, attributes);
  return op.call(src, weights, r.size, strides, r.offset, dilations, groups, r.data_format.name(), r.weights_format.name());
}

// conv_transpose that finds its weights packed. They serve inference: where a gradient is asked for, or another type, it packs.
Tensor prepacked(const Tensor& src, const Tensor& weights, const Tensor& packed, const std::optional<Tensor>& bias, ATTRIBUTES) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("torch_ext::_conv_transpose_prepacked", "")
          .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, TORCH_EXT_FORM)>();
  using torch::autograd::isFwGradDefined;
  const bool differentiated = torch::autograd::compute_requires_grad(src, weights, bias.value_or(Tensor())) ||
                              isFwGradDefined(src) || isFwGradDefined(weights) || isFwGradDefined(bias);
  if (differentiated || at::autocast::is_autocast_enabled(src.device().type()))
    return conv_transpose(src, weights, bias, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups,
                          data_format, weights_format);
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  const Resolved r = resolve_conv_transpose(kConvTranspose, src, weights, bias, attributes);
  return op.call(src, weights, packed, bias, r.size, strides, r.offset, dilations, groups, r.data_format.name(),
                 r.weights_format.name());
}

// Under vmap the weights may be a batch: packed ones are of no use.
Tensor prepacked_batched(const Tensor& src, const Tensor& weights, const Tensor&, const std::optional<Tensor>& bias, ATTRIBUTES) {
  return conv_transpose(src, weights, bias, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups,
                        data_format, weights_format);
}

Tensor backward_data(const Tensor& diff_dst, const Tensor& weights, ATTRIBUTES) {
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  return call_resolved(Operation::backward_data, diff_dst, weights, std::nullopt,
                       resolve_backward_data(kBackwardData, diff_dst, weights, attributes), attributes);
}

Tensor backward_weights(const Tensor& src, const Tensor& diff_dst, ATTRIBUTES, OptionalSymInts weights_shape) {
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  return call_resolved(Operation::backward_weights, src, diff_dst, std::nullopt,
                       resolve_backward_weights(kBackwardWeights, src, diff_dst, attributes, weights_shape), attributes);
}

Tensor backward_weights_shape_tensor(const Tensor& src, const Tensor& diff_dst, const Tensor& weights_shape, ATTRIBUTES,
                                     OptionalSymInts) {
  return backward_weights(src, diff_dst, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups, data_format,
                          weights_format, shape_values(kBackwardWeights.op, "weights_shape", weights_shape));
}

// What ConvolutionBackpropData-1 calls XIO and OIX has the channels of output_delta, the input of this operator, under "O".
std::string_view filter_format_of_data(std::string_view text) {
  const WeightsFormat format = WeightsFormat::parse(kBackpropData.op, kBackpropData.weights_format, text);
  return format.axes_first() ? "XOI" : "IOX";
}

Tensor backprop_data(const Tensor& output_delta, const Tensor& filter, ATTRIBUTES, OptionalSymInts output_shape) {
  Attributes attributes = ATTRIBUTE_VALUES(filter_format_of_data(weights_format));
  if (output_shape)
    return call_resolved(Operation::conv_transpose, output_delta, filter, std::nullopt,
                         resolve_output_shape(kBackpropData, output_delta, filter, attributes, *output_shape), attributes);
  // Without an output_shape the published operation ignores the pads of every auto_pad but none: the pads are 0, as for valid.
  if (!is_explicit(kBackpropData.op, auto_pad)) attributes.auto_pad = "valid";
  return call_resolved(Operation::conv_transpose, output_delta, filter, std::nullopt,
                       resolve_conv_transpose(kBackpropData, output_delta, filter, std::nullopt, attributes), attributes);
}

Tensor backprop_data_shape_tensor(const Tensor& output_delta, const Tensor& filter, const Tensor& output_shape, ATTRIBUTES,
                                  OptionalSymInts) {
  return backprop_data(output_delta, filter, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups,
                       data_format, weights_format, shape_values(kBackpropData.op, "output_shape", output_shape));
}

Tensor backprop_filters(const Tensor& input_forward, const Tensor& output_delta, ATTRIBUTES, OptionalSymInts filter_shape) {
  const Attributes attributes = ATTRIBUTE_VALUES(weights_format);
  return call_resolved(Operation::backward_weights, input_forward, output_delta, std::nullopt,
                       resolve_backward_weights(kBackpropFilters, input_forward, output_delta, attributes, filter_shape),
                       attributes);
}

Tensor backprop_filters_shape_tensor(const Tensor& input_forward, const Tensor& output_delta, const Tensor& filter_shape,
                                     ATTRIBUTES, OptionalSymInts) {
  return backprop_filters(input_forward, output_delta, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, groups,
                          data_format, weights_format, shape_values(kBackpropFilters.op, "filter_shape", filter_shape));
}

void register_public(torch::Library& library) {
  library.impl("conv_transpose", TORCH_FN(conv_transpose));
  library.impl("conv_transpose_backward_data", TORCH_FN(backward_data));
  library.impl("conv_transpose_backward_weights", TORCH_FN(backward_weights));
  library.impl("conv_transpose_backward_weights.shape_tensor", TORCH_FN(backward_weights_shape_tensor));
  library.impl("convolution_backprop_data", TORCH_FN(backprop_data));
  library.impl("convolution_backprop_data.shape_tensor", TORCH_FN(backprop_data_shape_tensor));
  library.impl("conv_transpose_backprop_filters", TORCH_FN(backprop_filters));
  library.impl("conv_transpose_backprop_filters.shape_tensor", TORCH_FN(backprop_filters_shape_tensor));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, CompositeImplicitAutograd, library) {
  register_public(library);
  library.impl("conv_transpose_prepack", TORCH_FN(prepack));
  library.impl("conv_transpose_prepacked", TORCH_FN(prepacked));
}
// vmap looks for a rule of its own before it decomposes; the same composites serve it.
TORCH_LIBRARY_IMPL(torch_ext, FuncTorchBatched, library) {
  register_public(library);
  library.impl("conv_transpose_prepacked", TORCH_FN(prepacked_batched));
}

}  // namespace torch_ext::ops
