// SPDX-License-Identifier: Apache-2.0
// Blocks of `wide` whose phases are woven into lines of the tensor.
#pragma once
#include "csrc/cpu/gather.h"
#include "csrc/cpu/planes.h"

namespace torch_ext::cpu {

// What they cost, in products of vectors: what is computed for nothing, between lines of cells and in vectors beyond them; what
// two blocks bring to planes; and weights, which each block reads again. Lines of phases wait until they are woven, many of them
// in L2, from where long strides fetch them slowly.
class WideLines {
 public:
  // Of tiles with so many rows, which are result channels of one group.
  template <class Real>
  WideLines(const Tiles<Real>& tiles, const GatherAxis* axis, const PlaneAxis* plane_axis, int64_t depth, int64_t columns,
            int64_t rows)
      : axis_(axis),
        plane_axis_(plane_axis),
        depth_(depth),
        rows_(rows),
        lanes_(tiles.lanes),
        most_vectors_(tiles.max_wide_vectors[rows]),
        real_(sizeof(Real)),
        weights_(double(depth * columns)),
        results_(double(columns)),
        row_tiles_(double(parts_of(columns, rows))) {
    for (int a = 0; a < kAxes; ++a) {
      weights_ *= double(axis[a].tap_count());
      results_ *= double(axis[a].out_step), row_tiles_ *= double(axis[a].out_step);
    }
  }

  // Of a cell, in a block.
  int64_t bytes() const { return std::max(depth_, axis_[kAxes - 1].out_step * rows_) * real_; }
  // Of a block of so many lines of so many cells.
  double products(int64_t lines, int64_t width) const;
  // Of planes that such a block reads.
  double lines_read(int64_t lines) const { return double(depth_ * plane_axis_[0].reached(1) * plane_axis_[1].reached(lines)); }
  // How many lines, up to `most`, make the least of all that there are.
  int64_t at_once(int64_t most, int64_t width) const;

 private:
  const GatherAxis* axis_;
  const PlaneAxis* plane_axis_;
  int64_t depth_, rows_, lanes_, most_vectors_, real_;
  double weights_, results_, row_tiles_;  // results of a cell, and rows of tiles for them
};

}  // namespace torch_ext::cpu
