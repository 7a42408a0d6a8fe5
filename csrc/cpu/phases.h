// SPDX-License-Identifier: Apache-2.0
// The rows that gather tiles read and write for a block of cells, as lists of pointers, phase by phase.
#pragma once
#include <cstddef>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

inline bool meet(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

struct CellBlock {
  Range sample, cell[kAxes];
};
inline bool meet(const CellBlock& a, const CellBlock& b) {
  bool all = meet(a.sample, b.sample);
  for (int i = 0; i < kAxes; ++i) all = all && meet(a.cell[i], b.cell[i]);
  return all;
}

// Rows of channels: strides in bytes, of the sample, then of the axes, from where sample 0, position 0 would lie.
template <class Byte>
struct RowsAt {
  Byte* origin;
  int64_t sample, axis[kAxes];

  Byte* at(int64_t n, int64_t i0, int64_t i1, int64_t i2) const {
    return origin + n * sample + i0 * axis[0] + i1 * axis[1] + i2 * axis[2];
  }
};

// Positions of one phase in a block, all of them or those that the same taps reach, and the taps that reach any of them.
template <class Real>
struct Phase {
  int64_t positions, taps;
  const Real** rows;   // [tap][position]
  int64_t* tap_index;  // kernel position of each tap
  int64_t* tap_order;  // its place among all of the phase's taps
  Real** out;          // [position]
  void** narrow;       // [position], where results are of 16 bits; then `out` are sums
};

template <class Real>
struct BlockRows {
  const GatherAxis* axis;
  const Axis* kernel;  // the problem's axes
  RowsAt<const std::byte> in;
  RowsAt<std::byte> out;
  const Real* zeros;  // what a position outside reads, but for those that `in` has beyond the innermost axis
  Range beyond;       // where it has them, and the input's own positions
  Real* sums;         // of each position, where results are narrow, else null
  int64_t sums_pitch;
  bool by_sample;           // positions in the order of their samples for each cell, else of their cells for each sample
  int64_t least_positions;  // of what a phase is cut into, by the taps that reach it

  // How many pointers the lists of a block of so many positions in each phase have at most.
  static int64_t pointers(const GatherAxis* axis, int64_t positions, bool narrow);
  // Makes the lists, in `memory`.
  void point(const CellBlock& block, std::byte* memory, std::vector<Phase<Real>>& phases) const;

 private:
  // Cuts cells of phase r along an axis where a tap leaves the input, as far as the parts, of so many positions for each cell,
  // are large enough: near borders fewer products are with zeros.
  void cut(const GatherAxis& axis, int64_t r, Range cells, int64_t positions, std::vector<Range>& parts) const;
  Phase<Real> point_phase(const int64_t* r, Range sample, Range c0, Range c1, Range c2, const Real**& next) const;
};

}  // namespace torch_ext::cpu
