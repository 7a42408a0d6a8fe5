// SPDX-License-Identifier: Apache-2.0
// The operators' schemas. Attribute names, order and defaults are those of the specification; a shape input and a shape attribute
// of one name cannot stand in one torch schema, hence the shape_tensor overloads.
#include <torch/library.h>

#define ATTRIBUTES                                                                                           \
  "*, SymInt[] strides, SymInt[] pads_begin, SymInt[] pads_end, SymInt[] dilations, str auto_pad=\"none\", " \
  "SymInt[]? output_padding=None, SymInt groups=1, str data_format=\"NXC\", "
#define FORM \
  "SymInt[] size, SymInt[] strides, SymInt[] offset, SymInt[] dilations, SymInt groups, str data_format, str weights_format"

TORCH_LIBRARY(torch_ext, library) {
  const auto def = [&](const char* schema) { library.def(schema, {at::Tag::pt2_compliant_tag}); };
  def("conv_transpose(Tensor src, Tensor weights, Tensor? bias=None, " ATTRIBUTES "str weights_format=\"XOI\") -> Tensor");
  def("conv_transpose_backward_data(Tensor diff_dst, Tensor weights, " ATTRIBUTES "str weights_format=\"XOI\") -> Tensor");
  def("conv_transpose_backward_weights(Tensor src, Tensor diff_dst, " ATTRIBUTES
      "str weights_format=\"XOI\", SymInt[]? weights_shape=None) -> Tensor");
  def("conv_transpose_backward_weights.shape_tensor(Tensor src, Tensor diff_dst, Tensor weights_shape, " ATTRIBUTES
      "str weights_format=\"XOI\", SymInt[]? weights_shape_attr=None) -> Tensor");
  def("convolution_backprop_data(Tensor output_delta, Tensor filter, " ATTRIBUTES
      "str filter_format=\"XIO\", SymInt[]? output_shape=None) -> Tensor");
  def("convolution_backprop_data.shape_tensor(Tensor output_delta, Tensor filter, Tensor output_shape, " ATTRIBUTES
      "str filter_format=\"XIO\", SymInt[]? output_shape_attr=None) -> Tensor");
  def("conv_transpose_backprop_filters(Tensor input_forward, Tensor output_delta, " ATTRIBUTES
      "str filter_format=\"XIO\", SymInt[]? filter_shape=None) -> Tensor");
  def("conv_transpose_backprop_filters.shape_tensor(Tensor input_forward, Tensor output_delta, Tensor filter_shape, " ATTRIBUTES
      "str filter_format=\"XIO\", SymInt[]? filter_shape_attr=None) -> Tensor");

  def("conv_transpose_prepack(Tensor src, Tensor weights, " ATTRIBUTES "str weights_format=\"XOI\") -> Tensor");
  def("conv_transpose_prepacked(Tensor src, Tensor weights, Tensor packed, Tensor? bias=None, " ATTRIBUTES
      "str weights_format=\"XOI\") -> Tensor");

  def("_conv_transpose(Tensor src, Tensor weights, Tensor? bias, " FORM ") -> Tensor");
  def("_conv_transpose_backward_data(Tensor diff_dst, Tensor weights, " FORM ") -> Tensor");
  def("_conv_transpose_backward_weights(Tensor src, Tensor diff_dst, " FORM ") -> Tensor");
  def("_conv_transpose_prepack(Tensor src, Tensor weights, " FORM ") -> Tensor");
  def("_conv_transpose_prepacked(Tensor src, Tensor weights, Tensor packed, Tensor? bias, " FORM ") -> Tensor");
}
