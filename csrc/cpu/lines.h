// SPDX-License-Identifier: Apache-2.0
// Depthwise layers of planes, with lanes along the positions of a line. A block of a plane of the input is brought to a box in
// cache, with zeros where there is no input, its lines as `step` lines of every step-th position, so that a tap is a constant
// offset and neighbouring cells are neighbours in memory.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

template <class Real>
class LineBox {
 public:
  // Of what such an operation reads, in blocks of cells whose box fits L1 beside what is computed from it.
  LineBox(const Tiles<Real>& tiles, const Problem& p, Operation operation)
      : tiles_(&tiles),
        type_(p.type),
        in_(operation == Operation::conv_transpose ? p.x : p.y),
        axis_{{p.geometry.axis[0], operation}, {p.geometry.axis[1], operation}, {p.geometry.axis[2], operation}} {
    constexpr int64_t kBoxBytes = 20 << 10, kLeastCells = 64;
    int64_t most = 1;
    for (const GatherAxis& axis : axis_) most *= std::max<int64_t>(axis.cells, 1);
    for (;; most /= 2) {
      cut_axes([&](int a) { return axis_[a].cells; }, most, cells_);
      measure();
      if (most <= kLeastCells || bytes() <= kBoxBytes) return;
    }
  }

  const GatherAxis& axis(int a) const { return axis_[a]; }
  int64_t cells(int a) const { return cells_[a]; }  // of a block
  int64_t blocks() const {
    return piece_count([&](int a) { return axis_[a].cells; }, cells_);
  }
  // Takes the block out of an index that counts them; what counts them all remains.
  void take_block(int64_t& index, Range* cell) const {
    take_piece(
        index, [&](int a) { return axis_[a].cells; }, cells_, cell);
  }
  std::string describe() const {
    return "block " + std::to_string(cells_[0]) + "x" + std::to_string(cells_[1]) + "x" + std::to_string(cells_[2]);
  }
  // With room for what tiles read past the last cell.
  int64_t bytes() const { return (extent_[0] * extent_[1] * line() + kMaxLanes) * int64_t(sizeof(Real)); }
  // From a line of cells to the next one along an outer axis.
  int64_t pitch(int a) const { return axis_[a].in_step * (a == 0 ? extent_[1] * line() : line()); }
  // Of what cell 0 reads with these taps.
  int64_t offset(const Tap& t0, const Tap& t1, const Tap& t2) const {
    const int64_t position = t2.delta - first_[2], step = axis_[2].in_step;
    return ((t0.delta - first_[0]) * extent_[1] + t1.delta - first_[1]) * line() + position % step * extent_[2] + position / step;
  }
  void clear(Real* box) const { std::memset(static_cast<void*>(box), 0, size_t(bytes())); }
  // The block of these cells of the plane that begins at `start`, into a box that was cleared before the first plane; returns
  // whether all of it is finite.
  bool load(const void* tensor, int64_t start, const Range* cell, Real* box) const {
    const int64_t step = axis_[2].in_step;
    Range there[kAxes];  // that the box has and the plane too
    for (int a = 0; a < kAxes; ++a) {
      const int64_t origin = cell[a].begin * axis_[a].in_step + first_[a], extent = extent_[a] * (a == 2 ? step : 1);
      there[a] = {std::max<int64_t>(origin, 0), std::min(origin + extent, axis_[a].in_extent)};
      if (there[a].size() <= 0) return true;
      start += there[a].begin * in_.axis[a];
      box += (there[a].begin - origin) / (a == 2 ? step : 1) * (a == 0 ? extent_[1] * line() : a == 1 ? line() : 1);
    }
    bool finite = true;
    for (int64_t i = 0; i < there[0].size(); ++i)
      finite &= tiles_->load_lines[step]({type_, element(tensor, type_, start + i * in_.axis[0]), in_.axis[1], there[1].size(),
                                          there[2].size(), box + i * extent_[1] * line(), line(), extent_[2]});
    return finite;
  }

 private:
  int64_t floor_cell(int64_t position) const {
    const int64_t step = axis_[2].in_step;
    return (position - (position < 0 ? step - 1 : 0)) / step;
  }
  int64_t line() const { return axis_[2].in_step * extent_[2]; }
  void measure() {
    for (int a = 0; a < kAxes; ++a) {
      int64_t last;
      axis_[a].reach_beyond(0, cells_[a], first_[a], last);
      if (first_[a] > last) first_[a] = last = 0;  // no tap reaches anything
      extent_[a] = last - first_[a] + 1;
    }
    const int64_t from = floor_cell(first_[2]);
    extent_[2] = floor_cell(first_[2] + extent_[2] - 1) - from + 1;
    first_[2] = from * axis_[2].in_step;
  }

  const Tiles<Real>* tiles_;
  Type type_;
  Strides in_;
  GatherAxis axis_[kAxes];
  int64_t cells_[kAxes];
  // Of the box in positions, from cell 0; the innermost extent in cells, as its lines of every step-th position are.
  int64_t first_[kAxes], extent_[kAxes];
};

// What is between the first and the last element of a block of positions of a plane, nearly all of it the block's, as axes are
// cut from the outermost one on: from element `start` of the plane, so many elements.
struct PlaneSpan {
  int64_t start = 0, size = 1;
  PlaneSpan(const Strides& strides, const Range* axis) {
    for (int a = 0; a < kAxes; ++a) {
      if (axis[a].size() <= 0) size = 0;
      start += axis[a].begin * strides.axis[a];
      if (size > 0) size += (axis[a].size() - 1) * strides.axis[a];
    }
  }
};

// Where the elements of a plane of the weights lie that are weights of taps.
inline int64_t weight_offset(const Problem& p, const Tap& t0, const Tap& t1, const Tap& t2) {
  return t0.k * p.w.axis[0] + t1.k * p.w.axis[1] + t2.k * p.w.axis[2];
}

// For values that lines cannot take: the depthwise kernel, which multiplies nothing by a zero that stands for what is not there.
inline std::shared_ptr<const Plan> make_exact_depthwise(const Problem& p, Isa isa, int threads) {
  isa = std::min(isa, Isa::avx512);
  return make_plan(p, isa, threads, (std::string("depthwise__") + name_of(isa)).c_str());
}

// Gradients of the weights.
std::shared_ptr<Plan> make_line_sums(const Problem& problem, Isa isa, int threads);

}  // namespace torch_ext::cpu
