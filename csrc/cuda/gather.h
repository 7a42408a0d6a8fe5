// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data are one computation, a gather: every result position sums, over its taps, what the source
// holds at the position that the tap determines. Along one axis, and for one phase of it,
//
//   result position  to + to_step*j              j < count
//   tap              tap + tap_step*q            q < taps
//   source position  from + from_step*j + from_tap*q, a term where it is inside
//
// backward_data has one phase, with o = i*stride - offset + k*dilation as it stands. conv_transpose solves that for i: output
// position o has the phase p = o mod stride, and a tap k reaches it iff k*dilation = p + offset (mod stride). Those taps are
// stride/gcd apart, and from one to the next the input position moves by -dilation/gcd. So each phase is a convolution of stride
// 1, with taps of its own number, none included.
#pragma once
#include "csrc/core/geometry.h"

namespace torch_ext::cuda {

struct GatherAxis {
  int64_t to = 0, to_step = 1, count = 1;
  int64_t tap = 0, tap_step = 1, taps = 1;
  int64_t from = 0, from_step = 1, from_tap = 1;
};

// Phases that have results: beyond the extent of y there are none.
TORCH_EXT_HD inline int64_t phases_of(Operation operation, const Axis& axis) {
  if (operation != Operation::conv_transpose) return 1;
  return axis.stride < axis.y ? axis.stride : axis.y;
}

TORCH_EXT_HD inline GatherAxis gather_axis(Operation operation, const Axis& axis, int64_t phase) {
  if (operation != Operation::conv_transpose) return {0, 1, axis.x, 0, 1, axis.w, -axis.offset, axis.stride, axis.dilation};
  int64_t gcd = axis.stride;
  for (int64_t rest = axis.dilation; rest;) {
    const int64_t next = gcd % rest;
    gcd = rest, rest = next;
  }
  GatherAxis g;
  g.to = phase, g.to_step = axis.stride, g.count = (axis.y - phase + axis.stride - 1) / axis.stride;
  g.tap_step = axis.stride / gcd, g.taps = 0;
  g.from_tap = -(axis.dilation / gcd);
  const int64_t rest = (phase + axis.offset) % axis.stride;
  for (int64_t tap = 0, reach = 0; tap < g.tap_step && tap < axis.w; ++tap, reach = (reach + axis.dilation) % axis.stride)
    if (reach == rest) {
      g.tap = tap;
      g.taps = (axis.w - 1 - tap) / g.tap_step + 1;
      g.from = (phase + axis.offset - tap * axis.dilation) / axis.stride;  // exact
      break;
    }
  return g;
}

}  // namespace torch_ext::cuda
