// SPDX-License-Identifier: Apache-2.0
// The weights of a gather, packed: the result channels of a group in panels as wide as a tile, each with its taps one behind the
// other. Where values are split, a tap is planes of their parts, the smallest first.
#pragma once
#include <vector>

#include "csrc/cpu/split.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

WeightsMatrix weights_matrix(const Problem& problem);
// Asks for the weights of some columns and some channels that are summed over of that matrix, in so many steps.
Upcoming weights_ahead(const Problem& problem, const void* weights, int64_t group, Range columns, Range channels, int64_t steps);

template <class In>
class Panels {
 public:
  using Real = typename Operand<In>::Real;
  static constexpr bool kSplit = std::is_same_v<In, SplitBf16>;

  // Each tap has room for so many units at a time, or where that is 0 for all.
  Panels(const Problem& problem, const Tiles<Real>& tiles, int parts, int64_t room = 0);

  int64_t depth() const { return depth_; }      // units of a tap, of one part
  int64_t count() const { return count_; }      // of a group
  int64_t vectors() const { return vectors_; }  // of a panel
  int64_t width() const { return vectors_ * tiles_->lanes; }
  // The last one may be narrower.
  int64_t vectors_of(int64_t panel) const { return panel + 1 < count_ ? vectors_ : last_vectors_; }
  // From one tap, panel and group to the next.
  int64_t tap(int64_t vectors) const { return tap_pitch<Real>(parts_ * room_, vectors * tiles_->lanes); }
  int64_t panel() const { return taps_ * tap(vectors_); }
  int64_t group() const { return count_ * panel(); }
  int64_t bytes() const { return groups_ * group() * int64_t(sizeof(Real)); }
  // Threads take parts of a panel. Returns whether all weights are finite, and can be split where they are.
  bool pack(const void* weights, const Parallel& parallel, Real* to) const;
  // Some units, as many as there is room for, of some panels. What is not split.
  bool pack(const void* weights, int64_t group, Range panels, Range units, Real* to) const;

 private:
  bool pack_split(const void* weights, int64_t panel, Range units, Range taps, Real* to) const;

  const Tiles<Real>* tiles_;
  Type type_;
  int parts_;
  int64_t groups_, group_stride_, taps_, depth_, room_, count_, vectors_, last_vectors_;
  std::vector<PanelPacker<Real>> packers_;  // for the panels, and for the last one
};

}  // namespace torch_ext::cpu
