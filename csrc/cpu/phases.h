// SPDX-License-Identifier: Apache-2.0
// The rows that gather tiles read and write for a block of cells, as lists of pointers, phase by phase.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

inline bool meet(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }

struct CellBlock {
  Range sample, cell[kAxes];

  int64_t cells() const { return cell[0].size() * cell[1].size() * cell[2].size(); }
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
  // The same by cells, of which j is at position j*step + shift of each axis.
  RowsAt of_cells(const int64_t* step, const int64_t* shift) const {
    return {at(0, shift[0], shift[1], shift[2]), sample, {step[0] * axis[0], step[1] * axis[1], step[2] * axis[2]}};
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
  bool fresh, done;    // begins with the bias, else with what is there; its sums are complete, to be rounded
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
  bool keep_sums;   // of one phase while others are summed
  bool by_sample;   // positions in the order of their samples for each cell, else of their cells for each sample
  int64_t tallest;  // rows of a tile
  bool cut_lines;   // whether the cells of a line may be in several parts
  // Positions of a line where these are more than its cells, else 0: what lies behind them in `in` is read as well, so that rows
  // are evenly spaced, for results that go `nowhere`; null where there are none.
  int64_t listed;
  std::byte* nowhere;

  // How many pointers the lists of a block of so many positions in each phase have at most.
  static int64_t pointers(const GatherAxis* axis, int64_t positions, bool narrow);
  // Makes the lists, in `memory`.
  void point(const CellBlock& block, std::byte* memory, std::vector<Phase<Real>>& phases) const;
  // The same as parts of one tap at a time, each with the positions that it reaches and no others, so that nothing is multiplied
  // by zeros: one after the other, as each is done with the lists of the one before.
  void point_by_tap(const CellBlock& block, std::byte* memory, const std::function<void(const Phase<Real>&)>& run) const;
  static int64_t pointers_by_tap(int64_t positions) { return 2 * positions; }

 private:
  // Some cells along an axis, and how many taps reach any of them.
  struct Part {
    Range cells;
    int64_t taps;
  };
  using Parts = std::vector<Part>;
  // Calls run(phase, its cells) for the phases that have any.
  template <class Run>
  void for_each_phase(const CellBlock& block, Run run) const;
  // Cells of phase r along an axis, cut wherever a tap leaves the input.
  void cut(const GatherAxis& axis, int64_t r, Range cells, Parts& pieces) const;
  Part part_of(const GatherAxis& axis, int64_t r, Range cells) const;
  // Of how many multiplied rows the time of those parts is.
  int64_t cost(const Parts* const* parts, int64_t samples) const;
  // Cuts cells of a phase along the axes for which that is cheapest: pieces near borders are multiplied with fewer zeros, but are
  // smaller.
  void cut_cheapest(const int64_t* r, const CellBlock& cells, Parts* parts) const;
  // A line of so many positions in the list of a sample, `pitch` apart: `nothing` but for those that are `there`, of which the
  // first is `at`.
  template <class T, class Byte>
  static void list_line(T** list, int64_t size, Range there, Byte* at, int64_t step, int64_t pitch, T* nothing);
  // So many positions of the other samples, like those of the first.
  template <class T>
  void list_samples(T** list, int64_t samples, int64_t positions, int64_t sample, const void* nothing) const;
  template <class T, class Byte>
  void list(T** list, const CellBlock& cells, int64_t line, const RowsAt<Byte>& of_cells) const;
  // With sums from row `first_sum` on.
  Phase<Real> point_phase(const int64_t* r, const CellBlock& cells, int64_t first_sum, const Real**& next) const;
};

}  // namespace torch_ext::cpu
