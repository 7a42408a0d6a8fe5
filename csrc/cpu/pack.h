// SPDX-License-Identifier: Apache-2.0
// Between tensors of any strides and type and what the tiles read and write: positions with contiguous channels, in Real.
#pragma once
#include <algorithm>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// A box of positions of x or y of one sample, and its channels. Strides are in elements of the tensor, whose first element of the
// box is at the pointer that goes with it.
struct Box {
  int64_t extent[kAxes], stride[kAxes];
  int64_t channels, channel_stride;

  int64_t positions() const { return extent[0] * extent[1] * extent[2]; }
};

// What rows of channels and panels of weights consist of: units of one Real, or pairs of bf16 whose products one instruction adds
// to a float.
template <class In>
struct Operand {
  using Real = In;
  static constexpr int64_t terms = 1;  // channels of a unit
};
template <>
struct Operand<bf16> {
  using Real = float;
  static constexpr int64_t terms = 2;
};

// The dot tile for runs of such elements: of pairs as they lie, or of reals.
template <class In>
auto dot_of(const Tiles<typename Operand<In>::Real>& tiles, int64_t rows, int64_t taps) {
  if constexpr (Operand<In>::terms == 2) {
    return tiles.dot_halves[rows][taps];
  } else {
    return tiles.dot[rows][taps];
  }
}

// A float32 or a float16 as the sum of bf16 parts (Tiles::split), each of them in a plane of its own.
struct SplitBf16 {
  uint16_t bits;
};
template <>
struct Operand<SplitBf16> {
  using Real = float;
  static constexpr int64_t terms = 2;
};

// rows[(p0*extent1 + p1)*extent2 + p2)*pitch + c] = from[p, c], pitch >= channels. The second form is a move.
template <class In>
void load_box(const Tiles<typename Operand<In>::Real>& tiles, Type type, const void* from, Box box, In* rows, int64_t pitch);
template <>
void load_box(const Tiles<float>& tiles, Type type, const void* from, Box box, bf16* rows, int64_t pitch);
// The same of any type, as it is.
void copy_box(Isa isa, Type type, const void* from, const Box& box, void* rows, int64_t pitch);

// The inverse, rounding once.
template <class Real>
void store_box(const Tiles<Real>& tiles, Type type, const Real* rows, int64_t pitch, void* to, Box box);

// The inverse for rows that hold elements of the tensor's type, which are moved as they are.
template <class Real>
void move_box(const Tiles<Real>& tiles, Type type, const void* rows, int64_t pitch, void* to, Box box);

// A value for each output channel, zeros where there is no bias.
template <class Real>
void load_bias(const Tiles<Real>& tiles, Type type, const void* bias, int64_t channels, Real* to) {
  if (bias) {
    tiles.widen(type, bias, to, channels);
  } else {
    std::fill_n(to, channels, Real(0));
  }
}

// A line of positions as planes: planes[c*pitch + p] = from[p*position_stride + c*channel_stride] for p < count, c < channels.
template <class Real>
void load_planes(const Tiles<Real>& tiles, Type type, const void* from, int64_t position_stride, int64_t count,
                 int64_t channel_stride, int64_t channels, Real* planes, int64_t pitch);

// A line of one channel as its residues modulo `step`: to[r*pitch + j] = from[j*step + r] for r < step <= kMaxResidues, j <
// count.
inline constexpr int64_t kMaxResidues = 512;
template <class Real>
void load_residues(const Tiles<Real>& tiles, Type type, const void* from, int64_t step, Real* to, int64_t pitch, int64_t count);

// The same for planes and lines of bf16, which are moved as they are.
void load_planes(const Tiles<float>& tiles, Type type, const void* from, int64_t position_stride, int64_t count,
                 int64_t channel_stride, int64_t channels, bf16* planes, int64_t pitch);
void load_residues(const Tiles<float>& tiles, Type type, const void* from, int64_t step, bf16* to, int64_t pitch, int64_t count);

// What load_planes does for bf16, in planes of pairs of channels; the last pair of an odd number has a zero. `tiles` has pairs.
void load_pairs(const Tiles<float>& tiles, const uint16_t* from, int64_t position_stride, int64_t count, int64_t channel_stride,
                int64_t channels, float* planes, int64_t pitch);

// The inverse, rounding once.
template <class Real>
void store_planes(const Tiles<Real>& tiles, Type type, const Real* planes, int64_t pitch, void* to, int64_t position_stride,
                  int64_t count, int64_t channel_stride, int64_t channels);

// The weights of one group as the gather tile reads them: one matrix of depth x columns for each tap.
struct WeightsMatrix {
  int64_t depth, depth_stride;      // channels that are summed over
  int64_t columns, columns_stride;  // channels of the result
  int64_t taps[kAxes], tap_stride[kAxes];
};

// From one tap of a panel to the next. The lines of the taps are written side by side, and a distance that is a multiple of a
// page would put them all into the same sets of every cache: twice the time.
template <class Real>
int64_t tap_pitch(int64_t depth, int64_t width) {
  constexpr int64_t kPage = 4096 / sizeof(Real), kLine = 64 / sizeof(Real);
  return depth * width + (depth * width % kPage ? 0 : kLine);
}

// panel[k*tap_pitch + c*width + n] = unit c of w[., first_column + n, k] for units c and taps k, zero where first_column + n >=
// columns. A unit is one channel, or where `terms` is 2 the pair of channels 2c and 2c + 1. There are `depth` units, zero beyond
// the last channel.
// The order of packing follows the order of the weights in memory; built once for a plan.
template <class Real>
class PanelPacker {
 public:
  PanelPacker(const Tiles<Real>& tiles, Type type, const WeightsMatrix& weights, int64_t width, int64_t terms, int64_t depth);
  // Whether taps come one behind the other, so that parts are best parts of the taps; else parts of the units.
  bool by_tap() const { return order_ == Order::columns || order_ == Order::channels_of_a_tap; }
  bool columns_together() const { return order_ == Order::columns; }  // in memory
  int64_t taps() const { return tap_count_; }
  // Returns whether all that it packed is finite. Where it is not by tap, taps are all.
  bool pack(const void* weights, int64_t first_column, Range units, Range taps, Real* panel) const;

 private:
  void copy(const void* weights, int64_t first_column, Range units, Range taps, Real* panel) const;
  void load_run(const void* weights, int64_t index, int64_t c, int64_t count, Real* to) const;

  const Tiles<Real>* tiles_;
  Type type_;
  WeightsMatrix w_;
  int64_t width_, terms_, units_, tap_count_, tap_pitch_;  // units_: those that hold channels
  // What is consecutive in memory for a fixed column (or the columns themselves), and where in the panel each element of such a
  // run goes.
  enum class Order { columns, taps_of_a_channel, everything, channels_of_a_tap, scattered } order_;
  std::vector<int64_t> offsets_;
};

// What stands before weights that are packed ahead, on a cache line of its own.
struct alignas(kCacheLine) PackedHeader {
  int64_t finite;  // whether all weights are
};

// Whether the channels of a position follow each other in a tensor as such elements.
template <class Element>
bool channels_follow(Type type, const Strides& strides, int64_t channels) {
  return bytes_of(type) == int64_t(sizeof(Element)) && (strides.channel == 1 || channels == 1);
}

// Address of an element, for types known only at run time.
inline const void* element(const void* base, Type type, int64_t index) {
  return static_cast<const char*>(base) + index * bytes_of(type);
}
inline void* element(void* base, Type type, int64_t index) { return static_cast<char*>(base) + index * bytes_of(type); }

}  // namespace torch_ext::cpu
