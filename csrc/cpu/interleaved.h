// SPDX-License-Identifier: Apache-2.0
// The kernel of interleaved.cpp, of which interleaved_data.cpp has backward_data.
#pragma once
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/rows.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {

// Rows of x repeat, so that a vector can begin at each channel: after how many reals, and how many there are of them.
struct RepeatedRow {
  int64_t period, size;
  RepeatedRow(int64_t channels, int64_t lanes)
      : period(channels < lanes ? round_up(lanes, channels) : channels), size(period + (period % lanes ? lanes - 1 : 0)) {}
};

template <class Real>
class Interleaved final : public Plan {
 public:
  Interleaved(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // Some results, or what backward_weights sums over: cells of y or, of backward_data, positions of x.
  struct Block {
    int64_t sample;
    Region cells;
  };
  void choose_blocks(int threads);
  Block block(int64_t index) const;
  int64_t blocks() const;
  Region reached(const Region& cells) const;
  Range line_of(Range cells) const;

  // Lines as rows of channels in Real: where they lie, or in a box.
  struct Rows {
    const Real* origin;
    int64_t plane, line;  // strides
    const Real* at(int64_t i0, int64_t i1) const { return origin + i0 * plane + i1 * line; }
  };
  Rows load_x(const Buffers& buffers, int64_t sample, const Region& region, Real* box) const;
  Box y_box(int64_t positions) const;
  const Real* load_y(const Buffers& buffers, int64_t sample, int64_t o0, int64_t o1, Range line, Real* box) const;

  // A line of x or y that a line of weights takes to one of the other.
  template <class W>
  struct Pair {
    const Real* line;
    W* weights;
  };
  template <class W, class F>
  void each_run(const std::vector<Pair<W>>& pairs, Range cells, F f) const;
  template <class F>
  void each_line(const Region& cells, F f) const;
  template <class W>
  void pair_lines(const Rows& x, int64_t o0, int64_t o1, W* weights, std::vector<Pair<W>>& pairs) const;

  void load_weights(const Buffers& buffers, const Parallel& parallel) const;
  void run_conv_transpose(const Buffers& buffers, const Block& block, std::byte* scratch) const;
  void run_backward_data(const Buffers& buffers, const Block& block, std::byte* scratch) const;
  void sum_patches(const std::vector<Pair<const Real>>& pairs, Range positions, Real* sums) const;
  void sum_block(const Buffers& buffers, const Block& block, int64_t phase, Real* sums, std::byte* scratch) const;
  void store_weights(const Buffers& buffers, const Parallel& parallel) const;

  int64_t cell() const { return line_.stride * channels_; }
  int64_t w_line() const { return line_.w * channels_; }
  int64_t w_lines() const { return p_.geometry.axis[0].w * p_.geometry.axis[1].w; }

  Problem p_;
  const Tiles<Real>* tiles_;
  Axis line_;  // the innermost axis
  GatherAxis axis_[2];
  int64_t channels_;
  Range all_cells_;        // of a line
  int64_t lines_, cells_;  // of a block
  bool x_in_place_, y_in_place_, y_side_by_side_;
  int64_t period_, pitch_;               // of rows of x
  std::vector<AlikePhases> phases_;      // no wider than a run
  int64_t taps_;                         // of a run of backward_data
  int64_t at_once_;                      // lines of y
  int64_t parts_ = 1, phase_count_ = 1;  // of backward_weights: parts of the blocks, phases with items of their own
  std::vector<Real> ones_, zeros_;
  Layout layout_;
  Layout::Part weights_part_, bias_part_, x_part_, y_part_, sums_part_;
};

}  // namespace torch_ext::cpu
