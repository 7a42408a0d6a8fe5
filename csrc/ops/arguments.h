// SPDX-License-Identifier: Apache-2.0
// Tensors and attributes -> what is to be computed, of the public operators (resolve.cpp) and of the private ones
// (arguments.cpp). Every check and every message is there, once, for concrete and for symbolic sizes; CPU, CUDA and Meta share
// them.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/DimVector.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <optional>
#include <string_view>

#include "csrc/core/geometry.h"

namespace torch_ext::ops {

using at::Tensor;
using c10::SymInt;
using SymInts = c10::SymIntArrayRef;
using OptionalSymInts = at::OptionalSymIntArrayRef;
using SymSizes = c10::SymDimVector;

// ---- Formats: which dimension of a tensor is what ----------------------------------------------------------------------

struct DataFormat {
  bool channels_last;  // NXC, else NCX
  static DataFormat parse(const char* op, std::string_view text);
  int64_t channel(int64_t rank) const { return channels_last ? rank - 1 : 1; }
  int64_t axis(int64_t a) const { return a + (channels_last ? 1 : 2); }
  const char* name() const { return channels_last ? "NXC" : "NCX"; }
};

struct Form;

// In names of the private operators I is always the channel of src and O that of dst within its group. IXO is known to them
// alone: IOX as channels_last has it in memory.
struct WeightsFormat {
  enum Order { kXOI, kIOX, kXIO, kOIX, kIXO } order;
  static WeightsFormat parse(const char* op, const char* argument, std::string_view text);
  static WeightsFormat of(const char* op, const Form& form);
  bool axes_first() const { return order == kXOI || order == kXIO; }
  int64_t in(int64_t rank) const {
    return order == kIOX || order == kIXO ? 0 : order == kOIX ? 1 : order == kXOI ? rank - 1 : rank - 2;
  }
  int64_t out(int64_t rank) const { return order == kIOX ? 1 : order == kOIX ? 0 : order == kXOI ? rank - 2 : rank - 1; }
  int64_t axis(int64_t a) const { return a + (axes_first() ? 0 : order == kIXO ? 1 : 2); }
  const char* name() const { return kNames[order]; }
  static constexpr const char* kNames[] = {"XOI", "IOX", "XIO", "OIX", "IXO"};
};

// ---- Public operators: attributes of the specification -> sizes and offsets ------------------------------------------------

struct Attributes {
  SymInts strides, pads_begin, pads_end, dilations;
  std::string_view auto_pad;
  OptionalSymInts output_padding;
  const SymInt& groups;
  std::string_view data_format, weights_format;
};

// Names in messages: the specification calls the same operands differently in the two generations of its operations.
struct Names {
  const char *op, *src, *weights, *dst, *weights_format;
};

// What a private operator takes: the spatial extents of its result and the offsets (pads_begin) of its axes.
struct Resolved {
  SymSizes size, offset;
  DataFormat data_format;
  WeightsFormat weights_format;
};

Resolved resolve_conv_transpose(const Names& names, const Tensor& src, const Tensor& weights, const std::optional<Tensor>& bias,
                                const Attributes& attributes);
Resolved resolve_backward_data(const Names& names, const Tensor& diff_dst, const Tensor& weights, const Attributes& attributes);
Resolved resolve_backward_weights(const Names& names, const Tensor& src, const Tensor& diff_dst, const Attributes& attributes,
                                  OptionalSymInts weights_shape);
// conv_transpose whose extents are those of an output_shape, by the rules of ConvolutionBackpropData-1.
Resolved resolve_output_shape(const Names& names, const Tensor& src, const Tensor& weights, const Attributes& attributes,
                              SymInts output_shape);

// Whether auto_pad leaves the pads to pads_begin and pads_end; checks its value.
bool is_explicit(const char* op, std::string_view auto_pad);

// The values of a 1-D int32 or int64 tensor that names a shape.
SymSizes shape_values(const char* op, const char* argument, const Tensor& shape);

// ---- Private operators ------------------------------------------------------------------------------------------------------

struct Form {
  SymInts size, strides, offset, dilations;
  const SymInt& groups;
  std::string_view data_format, weights_format;
};

// What messages call the operator and its two operands.
struct OperandNames {
  const char *op, *first, *second;
};
OperandNames operand_names(Operation operation);

// Checks the two operands (src, weights), (diff_dst, weights) or (src, diff_dst), the bias, and the form; returns the sizes of
// the result.
SymSizes checked_result_sizes(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                              const Form& form);

// Contiguous, or, for NCX data, channels_last where torch's convolution would make it so: where an operand suggests it.
at::MemoryFormat result_memory_format(Operation operation, const Tensor& first, const Tensor& second, const Form& form);

// Of a tensor whose type has been checked.
Type type_of(const Tensor& t);

// The problem, once its three tensors are there and their sizes are known to be concrete and consistent.
Problem problem_of(Operation operation, const Tensor& src, const Tensor& weights, const Tensor& dst, bool bias, const Form& form);

}  // namespace torch_ext::ops
