// SPDX-License-Identifier: Apache-2.0
// The input of a gather as planes with lanes along positions: one plane for each channel and each residue of the input position
// modulo in_step, with zeros where there is no input, so that a tap is a constant offset and neighbouring cells are neighbours in
// memory.
#pragma once
#include <algorithm>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

// Where a tap lies along one axis: input position (cell + q)*in_step + residue, of which `slot` numbers the residues in use.
struct PlaneTap {
  int64_t k, slot, q;
};

struct PlaneAxis {
  std::vector<int64_t> residues;  // by slot, ascending
  std::vector<std::vector<PlaneTap>> phases;
  int64_t q_min = 0, q_max = 0;

  explicit PlaneAxis(const GatherAxis& axis) {
    bool first = true;
    for (const auto& taps : axis.phases) {
      phases.emplace_back();
      for (const Tap& tap : taps) {
        int64_t q = tap.delta / axis.in_step, residue = tap.delta % axis.in_step;
        if (residue < 0) residue += axis.in_step, --q;
        phases.back().push_back({tap.k, residue, q});
        residues.push_back(residue);
        q_min = first ? q : std::min(q_min, q);
        q_max = first ? q : std::max(q_max, q);
        first = false;
      }
    }
    if (residues.empty()) residues.push_back(0);
    std::sort(residues.begin(), residues.end());
    residues.erase(std::unique(residues.begin(), residues.end()), residues.end());
    for (auto& taps : phases)
      for (PlaneTap& tap : taps) tap.slot = std::lower_bound(residues.begin(), residues.end(), tap.slot) - residues.begin();
  }

  // Cells of each plane that so many neighbours of the result read.
  int64_t reached(int64_t cells) const { return cells + q_max - q_min; }
};

// Whether all positions of a sample and channel of x follow each other.
inline bool positions_follow(const Problem& p) {
  int64_t step = 1;
  for (int a = kAxes - 1; a >= 0; step *= p.geometry.axis[a--].x)
    if (p.geometry.axis[a].x > 1 && p.x.axis[a] != step) return false;
  return true;
}

// Whether a gradient of few channels of y, each tap of which is a row of its own, is computed with lanes along the positions of
// x, as these lie: `wide` and `dots`.
bool positions_suit(const Problem& problem, Isa isa);

// The planes of a block of cells[0] x cells[1] x cells[2] cells, of what is computed in or of bf16 as they are.
template <class Element>
class Planes {
 public:
  using Real = typename Operand<Element>::Real;
  Planes() = default;
  Planes(const Tiles<Real>& tiles, Type type, const GatherAxis* axis, const PlaneAxis* plane_axis, const Strides& in,
         const int64_t* cells);

  // Elements of one channel, and of a line of the two inner axes from cell to cell.
  int64_t size() const { return size_; }
  int64_t pitch(int a) const { return a == 0 ? extent_[1] * extent_[2] : extent_[2]; }
  // Of a tap, from the plane of a channel: what cell 0 reads.
  int64_t offset(const PlaneTap& t0, const PlaneTap& t1, const PlaneTap& t2) const;

  // planes[c*size() + ...] of `channels` channels for the block of these cells; `in` is where the first channel's
  // position 0 of the sample lies.
  void load(const void* in, const Range* cell, int64_t channels, Element* planes) const;
  // rows[t*pitch + i] = what cell i of the block, the innermost axis fastest, reads at offsets[t]. Planes are there up to a
  // vector's lanes past the last one, and so are rows.
  void unfold(const Element* planes, const Range* cell, const std::vector<int64_t>& offsets, Element* rows, int64_t pitch) const;
  // The positions that it reads.
  void reach(const Range* cell, Range* axis) const;

 private:
  Range inside_line(int64_t begin, std::vector<Range>& there) const;
  void load_line(const void* in, Range whole, const std::vector<Range>& there, int64_t channels, Element* line) const;
  int64_t slot_size() const { return extent_[0] * extent_[1] * extent_[2]; }

  const Tiles<Real>* tiles_ = nullptr;
  Type type_{};
  const GatherAxis* axis_ = nullptr;
  const PlaneAxis* plane_axis_ = nullptr;
  Strides in_;
  int64_t extent_[kAxes]{}, size_ = 0;
};

}  // namespace torch_ext::cpu
