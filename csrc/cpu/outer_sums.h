// SPDX-License-Identifier: Apache-2.0
// What the kernels share that compute backward_weights as sums of outer products of rows of x and y: how the positions are cut
// into chunks and parts, and how the sums become the result.
#pragma once
#include <functional>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rows.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/weight_sums.h"

namespace torch_ext::cpu {

// What kernels that add to the same sums agree on.
struct Cut {
  bool swapped;   // a is y, b is x
  int64_t pitch;  // of a row of sums
  int64_t chunk_samples, chunk_extent[kAxes];
  int64_t parts;  // of the positions; 0: threads share out the weights instead
};

// Samples, and positions of x.
struct Chunk {
  int64_t sample_begin, sample_end;
  Region x;

  int64_t positions() const;
};

Region whole_x(const Problem& problem);

// Some rows of a panel of the sums of a tap, which one thread computes from all positions.
template <class Real>
struct SumsUnit {
  int64_t group, tap, panel;
  Range m;
  Real* sums;     // of the first row
  int64_t pitch;  // of rows
};

template <class Real>
class OuterSums : public Plan, protected WeightSums<Real> {
 public:
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  // Sums the products of a chunk for some panels of taps, counted panel by panel and then tap by tap, added to the sums of a
  // group where `add`; returns whether the kernel can compute with its values, else nothing is summed. The chunk `after` it, if
  // any, may be asked for.
  virtual bool sum_chunk(const Buffers& buffers, const Chunk& chunk, int64_t group, Range panels, std::byte* scratch, Real* sums,
                         bool add, const Chunk* after) const = 0;
  int64_t scratch_bytes() const { return layout_.thread_bytes(); }

 protected:
  using Sums = WeightSums<Real>;
  using Sums::lanes, Sums::width, Sums::taps, Sums::tap_sums, Sums::group_sums, Sums::sums_bytes;
  using Sums::p_, Sums::tiles_, Sums::swapped_, Sums::m_, Sums::n_, Sums::pitch_, Sums::vectors_, Sums::panels_;

  // `terms` positions make a row of x. The cut is chosen where none is given.
  OuterSums(const Problem& problem, const Tiles<Real>& tiles, int terms, const Cut* cut);
  // For values that the kernel cannot take; with this cut.
  void set_exact(std::shared_ptr<const OuterSums<float>> exact) { exact_ = std::move(exact); }
  // After the parts of shared workspace, and what sum_chunk needs for a thread.
  void finish_layout(int threads);
  // All weights, by way of for_each_unit; returns whether the kernel can compute with the values.
  virtual bool sum_units(const Buffers& buffers, const Parallel& parallel) const = 0;
  // Threads take units: of all taps one after the other where `taps_follow`, else of all panels of a tap.
  using SumUnit = std::function<void(const SumsUnit<Real>&, std::byte* scratch)>;
  void for_each_unit(const Buffers& buffers, const Parallel& parallel, bool taps_follow, const SumUnit& sum) const;

  int64_t chunk_count() const;
  Chunk chunk(int64_t index) const;
  // The positions of y that positions of x reach, clipped to y; where rows are pairs of positions of the innermost axis, all
  // those at which one begins.
  Region reach(const Region& x, bool pairs) const;
  // How far a chunk reaches at most.
  void longest_reach(bool pairs, int64_t* lengths) const;
  // The positions of x that the tap connects with positions of y; returns whether there are any.
  bool connected(const Region& x, const int64_t* tap, Range* inside) const;
  std::string describe_cut() const;
  // Zeros there, for a tap that connects nothing.
  void clear(const SumsUnit<Real>& unit) const;
  // For panels as of sum_chunk: finds, once for each tap, whether it connects anything (a bool(tap)), and if so sums the panel (a
  // void(unit) of all its rows).
  template <class Connect, class Sum>
  void for_each_panel(int64_t group, Range panels, Real* sums, bool add, Connect connect, Sum sum) const {
    bool any = false;
    for (int64_t index = panels.begin; index < panels.end; ++index) {
      const int64_t t = index / panels_, panel = index % panels_;
      if (index == panels.begin || panel == 0) {
        int64_t tap[kAxes];
        Sums::tap_of(t, tap);
        any = connect(tap);
      }
      const SumsUnit<Real> unit{group, t, panel, {0, m_}, sums + t * tap_sums() + panel * width(), cut_.pitch};
      if (any) {
        sum(unit);
      } else if (!add) {
        clear(unit);
      }
    }
  }

  int terms_;
  std::shared_ptr<const OuterSums<float>> exact_;
  Cut cut_;
  int64_t unit_rows_;   // rows m of the weights that a thread takes at a time
  bool taps_together_;  // units are of all taps, and stored by their thread: the sums of all weights would leave the cache
  bool in_place_;       // the sums are the result
  Layout layout_;

 private:
  void choose_cut();
  void choose_units();
  void choose_chunks();
  int64_t even_slices(int64_t parts, int64_t threads) const;
  void sum_part(const Buffers& buffers, int64_t part, int64_t group, Range panels, std::byte* scratch, Real* sums) const;
  int64_t panels_of_taps() const { return taps() * panels_; }
  // From one tap of a unit of all of them to the next: not a multiple of a page.
  int64_t unit_tap() const { return unit_rows_ * width() + kCacheLine / int64_t(sizeof(Real)); }

  int64_t slices_ = 1;  // of the panels of all taps, of a part of the positions: a thread takes one
  Layout::Part sums_part_{}, unit_part_{}, exact_part_{};
};

}  // namespace torch_ext::cpu
