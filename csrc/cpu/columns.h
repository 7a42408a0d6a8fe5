// SPDX-License-Identifier: Apache-2.0
// y as the matrix that weights are multiplied with where they lie: with
//   columns[m][(c, k)] = y at the output position that position m of x reaches through tap k, channel c
// (zero where that is outside), a row has the order of a row of weights: all taps of a channel, or all channels of a tap.
#pragma once
#include <type_traits>
#include <vector>

#include "csrc/core/geometry.h"
#include "csrc/core/scalar.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// A contiguous piece of a row of weights, and of a row of columns.
struct Run {
  int64_t weights, columns, length;
};

// Rows of so many elements start in different sets of the caches.
template <class Real>
int64_t apart(const Tiles<Real>& tiles, int64_t row) {
  return round_up(row, tiles.lanes) + tiles.lanes;
}

template <class Real>
class Columns {
 public:
  // Where taps_inside, the taps of an output channel lie together in a row, else the channels of a tap.
  Columns(const Problem& problem, const Tiles<Real>& tiles, bool taps_inside);

  int64_t positions() const { return positions_; }  // of x, of all samples
  int64_t y_pitch() const { return y_pitch_; }      // room for a channel in `y` below
  bool taps_inside() const { return taps_inside_; }

  // What a row of weights holds of some output channels, of all taps or of those that reach a position; a row of columns has that
  // of `row_channels`, of which these are the first.
  std::vector<Run> runs(int64_t first, int64_t count, int64_t row_channels, bool all_taps) const;
  // Columns of `count` channels of y from this one on (im2col), by way of `y`, in Real or in the bf16 of the tensor.
  template <class In>
  void load(const void* tensor, int64_t channel, int64_t count, In* y, In* columns, int64_t pitch, int64_t row_channels) const;
  // y of those channels is the bias, where there is one, and the sums of columns (col2im).
  void store(const Real* columns, int64_t pitch, int64_t row_channels, const void* bias, int64_t channel, int64_t count, Real* y,
             void* tensor) const;
  // The product of a row of weights and of some channels of row m of columns, without what m does not reach.
  template <class In>
  Real product(const void* weights, int64_t row, Range channels, const In* columns_of_m, int64_t m) const;
  // The sums over m of x[m*x_pitch] and row m of the columns of some channels, without what m does not reach: a row of weights.
  template <class In>
  std::vector<Real> row_of_weights(const Real* x, int64_t x_pitch, const In* y, int64_t count, const In* columns,
                                   int64_t pitch) const;
  // Calls move(y, columns, how many elements, how far apart they are in y) for what `y` of some channels and their columns share;
  // a few elements are a number that the compiler knows.
  template <class Y, class C, class Move>
  void for_each_link(Y* y, int64_t count, C* columns, int64_t pitch, int64_t row_channels, Move move) const {
    const int64_t of_channel = taps(), y_pitch = y_pitch_, step = this->step();
    for (const Link& link : links_) {
      C* row = columns + link.m * pitch;
      if (taps_inside_) {
        const auto of_channels = [&](auto length) {
          for (int64_t c = 0; c < count; ++c) move(y + c * y_pitch + link.y, row + c * of_channel + link.tap, length, step);
        };
        switch (link.count) {
          case 2:
            of_channels(std::integral_constant<int64_t, 2>());
            break;
          case 3:
            of_channels(std::integral_constant<int64_t, 3>());
            break;
          case 4:
            of_channels(std::integral_constant<int64_t, 4>());
            break;
          default:
            of_channels(link.count);
        }
      } else {
        for (int64_t j = 0; j < link.count; ++j)
          move(y + (link.y + j * step) * count, row + (link.tap + j) * row_channels, count, 1);
      }
    }
  }

 private:
  void link_taps(int64_t m);
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t step() const { return p_.geometry.axis[kAxes - 1].dilation; }
  template <class Move>
  void for_each_line(int64_t channel, Move move) const;
  // Whether links are contiguous pieces that neither compilers know the length of nor are worth a call of their own each
  // (gradients of 128 to 8 channels, k11 s5, 14x14: 0.8 of the time; of k2 1.2).
  bool in_short_pieces() const {
    constexpr int64_t kLeast = 5, kMost = 64;
    const int64_t length = p_.geometry.axis[kAxes - 1].w;
    return taps_inside_ && step() == 1 && length >= kLeast && length <= kMost;
  }
  template <class C, class Y>
  Linked<C, Y> linked(int64_t count, C* columns, int64_t pitch, Y* y) const {
    return {links_.data(), int64_t(links_.size()), count, columns, pitch, taps(), y, y_pitch_};
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  int64_t positions_, y_positions_, y_pitch_;
  bool taps_inside_;
  int64_t line_;                     // positions of a sample of y that follow each other evenly
  std::vector<int64_t> tap_offset_;  // in a row of weights
  std::vector<bool> reached_;        // taps with a link
  // Position m of x reaches position y, both counted through all samples, through a tap, and the next `count` a step on through
  // the next.
  std::vector<Link> links_;
};

}  // namespace torch_ext::cpu
