// SPDX-License-Identifier: Apache-2.0
// The sums of backward_weights before they become the result, sums[group][tap][m][n]: a tap is a position of the kernel, n runs
// along vectors, and m are the channels of the other side.
#pragma once
#include <span>

#include "csrc/cpu/cpu.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

// What kernels have that make such sums.
template <class Real>
class WeightSums {
 protected:
  // Where `swapped`, n are the channels of x, and m those of y. Rows are `pitch` apart, or as far as is needed.
  WeightSums(const Problem& problem, const Tiles<Real>& tiles, bool swapped, int64_t pitch = 0);
  // Whether that suits tiles and result better.
  static bool swapped_suits(const Problem& problem, const Tiles<Real>& tiles);

  int64_t lanes() const { return tiles_->lanes; }
  int64_t width() const { return vectors_ * lanes(); }  // of a panel
  int64_t columns(int64_t panel) const { return std::min(width(), n_ - panel * width()); }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t tap_sums() const { return m_ * pitch_; }
  int64_t group_sums() const { return taps() * tap_sums(); }
  int64_t sums_bytes() const { return p_.geometry.groups * group_sums() * int64_t(sizeof(Real)); }  // of all weights
  void tap_of(int64_t index, int64_t* tap) const;

  // Rows of one panel of a tap's sums, of which these are the first's, in tiles of even height that are like `tile`, with
  // `chains` in those that err less. Each of these asks for a step of what is `next`.
  void sum_panel(Range m, int64_t panel, Real* sums, int64_t pitch, OuterTile<Real> tile, bool chains = false,
                 std::span<Upcoming> next = {}) const;
  // Adds parts, each of the sums of all weights, in their order, and brings them into the result's layout.
  void store(const Buffers& buffers, const Parallel& parallel, Real* sums, int64_t parts) const;
  // Some rows and columns of some taps, whose sums begin at `sums` and are so far apart.
  void store_rows(const Buffers& buffers, int64_t group, Range taps, Range m, Range n, const Real* sums, int64_t tap_pitch,
                  int64_t pitch) const;
  // Whether the result holds rows of sums as they are, so that sums of a single part can be made there.
  bool fit_result() const { return !tiles_->matrices && n_stride() == 1 && bytes_of(p_.type) == int64_t(sizeof(Real)); }
  // Those of a tap, among `sums` of all weights, where groups are counted through all parts, or, where null, in the result.
  struct TapSums {
    Real* first;
    int64_t pitch;
  };
  TapSums of_tap(const Buffers& buffers, Real* sums, int64_t group, int64_t tap) const {
    if (!sums) return {static_cast<Real*>(buffers.w) + result_of(group, tap), m_stride()};
    return {sums + group * group_sums() + tap * tap_sums(), pitch_};
  }
  // Where in the result the sums of a tap belong, and from one of their rows or columns to the next.
  int64_t result_of(int64_t group, int64_t tap) const;
  int64_t m_stride() const { return swapped_ ? p_.w.channel : p_.w.outer; }
  int64_t n_stride() const { return swapped_ ? p_.w.outer : p_.w.channel; }

  Problem p_;
  const Tiles<Real>* tiles_;
  bool swapped_;
  int64_t m_, n_;             // channels in a group
  int64_t pitch_;             // of a row of sums
  int64_t vectors_, panels_;  // of such a row

 private:
  bool transposed() const { return m_stride() == 1 && n_stride() != 1; }  // sums, on their way into the result
};

}  // namespace torch_ext::cpu
