// SPDX-License-Identifier: Apache-2.0
// x or y as rows of contiguous channels, which outer-product tiles sum over: in place, or brought to a box. A row holds one
// position or, where products of pairs of bf16 are summed, two positions of the innermost axis.
#pragma once
#include <atomic>
#include <vector>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

// Where row 0 of sample 0 would lie, and the strides from there; axis[2] leads from one row to the next.
template <class Real>
struct RowView {
  const Real* origin;
  int64_t sample, axis[kAxes], channel;
};

// Positions [begin, end) of each axis.
struct Region {
  int64_t begin[kAxes], end[kAxes];

  bool empty() const { return begin[0] >= end[0] || begin[1] >= end[1] || begin[2] >= end[2]; }
};

template <class In>
class Rows {
 public:
  using Real = typename Operand<In>::Real;

  // `whole` is all that is ever read of a sample. Where rows are pairs it may reach beyond the `extent` of the tensor along the
  // innermost axis, where there are zeros; row r begins at position r*step, and its second position is `gap` further on. Of those
  // rows only the ones are read that begin at a position whose remainder is in `used`. `room` is for how many channels of the
  // tensor's, which has groups of `channels`, a row of a box has room. Tiles read rows that are `apart` positions apart.
  Rows(const Tiles<Real>& tiles, Type type, const Strides& strides, int64_t extent, int64_t channels, const Region& whole,
       int64_t apart, int64_t step, int64_t gap, std::vector<bool> used = {true});
  void set_room(int64_t room);

  bool in_place() const { return in_place_; }
  // Bytes of a box of regions of these lengths; of all of some samples.
  int64_t box_bytes(int64_t samples, const int64_t* lengths) const;
  int64_t box_bytes(int64_t samples) const;

  // One group in the tensor itself.
  RowView<Real> view(const void* tensor, int64_t group) const;
  // Brings a region, which begins where a row does, of some samples and channels to the box. `finite` becomes false where rows
  // are pairs and one of them holds an infinity or a NaN.
  RowView<Real> load(const void* tensor, int64_t first_channel, int64_t channels, int64_t sample_begin, int64_t sample_end,
                     const Region& region, Real* box, std::atomic<bool>& finite) const;
  // All samples, positions and channels; threads take slices of a sample of about this many bytes at a time.
  RowView<Real> load_all(const void* tensor, int64_t samples, int64_t groups, int64_t slice_bytes, Real* box,
                         const Parallel& parallel, std::atomic<bool>& finite) const;
  // What that gave.
  RowView<Real> view_all(Real* box) const { return boxed(whole_, box); }

 private:
  int64_t rows(const Region& region, int axis) const {
    return parts_of(region.end[axis] - region.begin[axis], axis == kAxes - 1 ? step_ : 1);
  }
  // Strides of a box of the region.
  RowView<Real> boxed(const Region& region, Real* box) const;
  // A line of positions of 16-bit values.
  struct Line {
    const uint16_t* at;
    int64_t position, channel;  // strides
  };
  bool load_pairs(Line line, int64_t begin, int64_t count, int64_t channels, Real* to) const;

  const Tiles<Real>* tiles_;
  Type type_;
  Strides strides_;
  int64_t extent_, channels_;
  Region whole_;
  int64_t step_, gap_;
  std::vector<bool> used_;
  int64_t pitch_ = 0;
  bool in_place_;
};

}  // namespace torch_ext::cpu
