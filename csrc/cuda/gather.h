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

TORCH_EXT_HD inline int64_t multiply_modulo(int64_t a, int64_t b, int64_t modulus) {
  if (modulus <= int64_t(1) << 31) return a * b % modulus;
  int64_t product = 0;
  for (; b; b /= 2, a = a * 2 % modulus)
    if (b % 2) product = (product + a) % modulus;
  return product;
}

// One axis with all of its phases.
struct Gather {
  bool forward = false;
  Axis axis;
  int64_t phases = 1;   // that have results: beyond the extent of y there are none
  int64_t gcd = 1;      // of stride and dilation
  int64_t inverse = 0;  // of dilation/gcd modulo stride/gcd: tap k = rest/gcd * inverse is the first one that reaches a phase

  Gather() = default;
  Gather(Operation operation, const Axis& of) : forward(operation == Operation::conv_transpose), axis(of) {
    if (!forward) return;
    phases = axis.stride < axis.y ? axis.stride : axis.y;
    // Euclid's algorithm; `inverse` is what the dilation is multiplied by in gcd = ...*stride + inverse*dilation.
    gcd = axis.stride;
    for (int64_t rest = axis.dilation, next = 1; rest;) {
      const int64_t quotient = gcd / rest, last = gcd, before = inverse;
      gcd = rest, rest = last - quotient * rest;
      inverse = next, next = before - quotient * next;
    }
    const int64_t step = axis.stride / gcd;
    inverse = (inverse % step + step) % step;
  }
  TORCH_EXT_HD int64_t source_extent() const { return forward ? axis.x : axis.y; }
  TORCH_EXT_HD int64_t result_extent() const { return forward ? axis.y : axis.x; }
  // Of any phase, at most.
  TORCH_EXT_HD int64_t most_taps() const { return forward ? (axis.w - 1) / (axis.stride / gcd) + 1 : axis.w; }

  TORCH_EXT_HD GatherAxis phase(int64_t p) const {
    if (!forward) return {0, 1, axis.x, 0, 1, axis.w, -axis.offset, axis.stride, axis.dilation};
    GatherAxis g;
    g.to = p, g.to_step = axis.stride, g.count = (axis.y - p + axis.stride - 1) / axis.stride;
    g.tap_step = axis.stride / gcd, g.taps = 0;
    g.from_tap = -(axis.dilation / gcd);
    const int64_t rest = (p + axis.offset) % axis.stride;
    if (rest % gcd) return g;
    const int64_t tap = multiply_modulo(rest / gcd, inverse, g.tap_step);
    if (tap >= axis.w) return g;
    g.tap = tap;
    g.taps = (axis.w - 1 - tap) / g.tap_step + 1;
    g.from = (p + axis.offset - tap * axis.dilation) / axis.stride;  // exact
    return g;
  }
};

}  // namespace torch_ext::cuda
