// SPDX-License-Identifier: Apache-2.0
// The sums of a phase: tiles pass over its positions, with a slice of a panel of weights at a time.
#pragma once
#include "csrc/cpu/phases.h"
#include "csrc/cpu/split.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// The panel that a phase is multiplied with, and where it leaves its results.
template <class Real>
struct PhasePanel {
  const Real* weights;  // of the first tap of the kernel
  int64_t tap_pitch, vectors, columns;
  int64_t out_offset, sums_offset;  // of its columns in a row of results, and of sums where results are narrow
  const Real* bias;
  Upcoming* ahead = nullptr;  // where given, a step of it is asked for with each tile
};

template <class Real>
class PhaseSums {
 public:
  PhaseSums() = default;
  // `depth` units of a tile are summed over, of each part. With `ask_for_rows`, rows are asked for in advance.
  PhaseSums(const Tiles<Real>& tiles, Type type, Split split, int64_t depth, bool ask_for_rows);
  // How many units are summed at a time in a tile of so many vectors.
  int64_t units_at_once(int64_t vectors) const;
  // Sums over some units, which begin where some are summed at once: the first ones begin with the bias, the last ones round.
  void run(const Phase<Real>& phase, const PhasePanel<Real>& panel, Range units) const;
  // The same, one position at a time and without the row of zeros: an infinity or NaN among the weights times zero would spoil
  // positions that do not read it.
  void run_exactly(const Phase<Real>& phase, const PhasePanel<Real>& panel, Range units, const Real* zeros) const;

 private:
  // Some taps and some of the depth: the first pass begins with the bias, the last one rounds.
  struct Pass {
    int64_t first_tap, taps, first, depth;
    bool fresh, done;
  };
  void run(const Phase<Real>& phase, const PhasePanel<Real>& panel, const Pass& pass) const;
  const Real* next_weights(const Phase<Real>& phase, const PhasePanel<Real>& panel, const Pass& pass) const;
  // Of a panel that fits L1: units of a tap, or of several taps together.
  int64_t slice(int64_t vectors) const;
  bool narrow() const { return bytes_of(type_) < int64_t(sizeof(Real)); }

  const Tiles<Real>* tiles_ = nullptr;
  Type type_{};
  Split split_;
  int64_t depth_ = 0;
  bool ask_for_rows_ = false;
};

}  // namespace torch_ext::cpu
