// SPDX-License-Identifier: Apache-2.0
// One transposed convolution, described once, and the only place where a size formula is written. Read by the argument
// checks (with symbolic sizes too), by every CPU kernel and by every CUDA kernel; compiles as host and device code.
//
//   L(x, w, y) = sum over terms of x[X] * w[W] * y[Y],    o = i*stride - offset + k*dilation along every spatial axis
//
// relates input position i (extent `x`), tap k (extent `w`) and output position o (extent `y`). The three operations are the
// partial derivatives of L; formula.h writes them as loops.
#pragma once
#include <cstdint>
#include <initializer_list>

#if defined(__CUDACC__)
#define TORCH_EXT_HD __host__ __device__
#else
#define TORCH_EXT_HD
#endif

namespace torch_ext {

// ---- Extents and padding. Int is int64_t, or c10::SymInt where sizes are symbolic. -------------------------------------

// Extent that a dilated kernel covers: E = (K-1)*d + 1.
template <class Int>
Int dilated_extent(const Int& kernel, const Int& dilation) {
  return (kernel - 1) * dilation + 1;
}

// O = s*(I-1) + E + op - pb - pe.
template <class Int>
Int output_extent(const Int& input, const Int& kernel, const Int& stride, const Int& dilation, const Int& pads_begin,
                  const Int& pads_end, const Int& output_padding) {
  return stride * (input - 1) + dilated_extent(kernel, dilation) + output_padding - pads_begin - pads_end;
}

// What remains of O for stride*(I-1) when the formula above is solved for I; the caller divides it by the stride.
template <class Int>
Int strided_span(const Int& output, const Int& kernel, const Int& dilation, const Int& pads_begin, const Int& pads_end,
                 const Int& output_padding) {
  return output + pads_begin + pads_end - dilated_extent(kernel, dilation) - output_padding;
}

// SAME: what the pads of an axis add up to, a function of kernel, stride and dilation alone (the result must not be negative: the
// caller clamps it at 0, as Int may be symbolic), and its share at the begin.
template <class Int>
Int same_total(const Int& kernel, const Int& stride, const Int& dilation) {
  return dilated_extent(kernel, dilation) - stride;
}
template <class Int>
Int same_begin(const Int& total, bool upper) {
  return upper ? total / 2 : total - total / 2;
}

// SAME of ConvolutionBackpropData-1 with an output_shape: what is left over of the full extent for the given O. There upper puts
// the odd one at the begin.
template <class Int>
Int same_total_for(const Int& input, const Int& kernel, const Int& stride, const Int& dilation, const Int& output_padding,
                   const Int& output) {
  return stride * (input - 1) + dilated_extent(kernel, dilation) + output_padding - output;
}

// ---- One problem ---------------------------------------------------------------------------------------------------------

// Along one axis, tap k of input position i reaches output position i*stride - offset + k*dilation. offset = pads_begin.
struct Axis {
  int64_t x = 1, w = 1, y = 1;  // extents
  int64_t stride = 1, dilation = 1, offset = 0;

  TORCH_EXT_HD int64_t reach(int64_t i, int64_t k) const { return i * stride - offset + k * dilation; }
  friend bool operator==(const Axis&, const Axis&) = default;
};

inline constexpr int kAxes = 3;  // depth, height, width; a problem with fewer axes leaves the first ones at extent 1

struct Geometry {
  int64_t batch = 1, groups = 1;
  int64_t x_channels = 1, y_channels = 1;  // of one group
  Axis axis[kAxes];

  TORCH_EXT_HD int64_t x_positions() const { return axis[0].x * axis[1].x * axis[2].x; }
  TORCH_EXT_HD int64_t w_positions() const { return axis[0].w * axis[1].w * axis[2].w; }
  TORCH_EXT_HD int64_t y_positions() const { return axis[0].y * axis[1].y * axis[2].y; }
  TORCH_EXT_HD int64_t x_size() const { return batch * groups * x_channels * x_positions(); }
  TORCH_EXT_HD int64_t w_size() const { return groups * x_channels * y_channels * w_positions(); }
  TORCH_EXT_HD int64_t y_size() const { return batch * groups * y_channels * y_positions(); }
  // Of each of the three operations, with the terms that lie outside of y.
  double flops() const { return 2.0 * double(x_size()) * double(y_channels * w_positions()); }
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// Where the elements of x, w or y lie, in elements. Every layout of the specification is only a choice of strides.
//   x, y: outer = batch, channel = channel (group * channels-of-a-group + channel in the group)
//   w:    outer = input channel (group * x_channels + channel in the group), channel = output channel in the group
struct Strides {
  int64_t outer = 0, channel = 0, axis[kAxes] = {0, 0, 0};
  friend bool operator==(const Strides&, const Strides&) = default;
};

enum class Operation : int32_t {
  conv_transpose,    // y = dL/dy, plus the bias
  backward_data,     // x = dL/dx
  backward_weights,  // w = dL/dw
};

enum class Type : int32_t { f32, f64, bf16, f16 };
TORCH_EXT_HD constexpr int64_t bytes_of(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// How far the operands of float32 products may be rounded, where that makes them faster: not at all, or to about the 16 or the 8
// leading bits of two or one bf16.
enum class Precision : int32_t { full, high, medium };

// Everything that a plan depends on besides the machine. Tensors that the operation writes are dense enough to hold each of
// their elements once; tensors that it reads may have any strides, 0 included (expanded).
struct Problem {
  Operation operation = Operation::conv_transpose;
  Type type = Type::f32;  // of x, w, y and the bias
  bool bias = false;      // conv_transpose only: one value for each output channel, contiguous
  Geometry geometry;
  Strides x, w, y;
  bool transforms_allowed = true;  // algorithms whose bits depend on the batch size (Winograd is chosen by the amount of work)
  bool prepacked = false;          // the weights are packed ahead: packing costs nothing
  Precision precision = Precision::full;  // of f32
  friend bool operator==(const Problem&, const Problem&) = default;
};

// For caches of what was decided for a problem; `seed` stands for what else it depends on.
inline uint64_t hash_of(const Problem& p, uint64_t seed) {
  uint64_t hash = seed;
  const auto mix = [&](int64_t v) { hash = (hash ^ uint64_t(v)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29; };
  mix(int64_t(p.operation) | int64_t(p.type) << 8 | int64_t(p.bias) << 16 | int64_t(p.transforms_allowed) << 17 |
      int64_t(p.prepacked) << 18 | int64_t(p.precision) << 19);
  for (int64_t v : {p.geometry.batch, p.geometry.groups, p.geometry.x_channels, p.geometry.y_channels}) mix(v);
  for (const Axis& a : p.geometry.axis)
    for (int64_t v : {a.x, a.w, a.y, a.stride, a.dilation, a.offset}) mix(v);
  for (const Strides* s : {&p.x, &p.w, &p.y})
    for (int64_t v : {s->outer, s->channel, s->axis[0], s->axis[1], s->axis[2]}) mix(v);
  return hash;
}

}  // namespace torch_ext
