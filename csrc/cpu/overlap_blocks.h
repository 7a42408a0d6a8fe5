// SPDX-License-Identifier: Apache-2.0
// How `overlap` cuts the cells of its result into blocks, and which taps are rows of its products.
#pragma once
#include "csrc/cpu/gather.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

// Of a line of products: of input channels and the taps of the outer axes.
int64_t terms_of_line(const Geometry& g);

class OverlapBlocks {
 protected:
  // What the tiles are like.
  struct OfTiles {
    int64_t terms, real;  // elements of the input, and bytes, of a unit
    int64_t lanes, depth_step, max_rows;
    bool asks;
  };
  OverlapBlocks(const Problem& problem, const OfTiles& tiles, int threads);

  // Units of a row.
  int64_t depth() const { return round_up(parts_of(p_.geometry.x_channels, of_tiles_.terms), of_tiles_.depth_step); }
  // Rows of the product, cut evenly into tiles: for each channel those taps that are not terms of it.
  int64_t rows_of_channel() const { return p_.geometry.axis[1].w / term_taps1() * taps2_; }
  int64_t rows() const { return columns_ * rows_of_channel(); }
  int64_t row_part() const { return even_part(rows(), of_tiles_.max_rows); }
  // Taps that are terms of the product, at most: of the middle axis, and of both outer ones.
  int64_t term_taps1() const { return joined_ ? 1 : p_.geometry.axis[1].w; }
  int64_t term_taps() const { return p_.geometry.axis[0].w * term_taps1(); }
  int64_t most_rows() const { return std::max<int64_t>(1, line_pitch_ / width_); }
  Range line_of(Range cells) const;
  int64_t items() const;

  Problem p_;
  int threads_;
  GatherAxis axis_[kAxes];
  int64_t columns_, taps2_;  // output channels of a group, taps of the innermost axis
  bool in_place_input_, in_place_output_;
  bool joined_ = false;   // taps of the middle axis are rows of the product, too
  int64_t block_[kAxes];  // cells; a part of the innermost axis where a whole line is too long, and then of one line
  int64_t width_;         // input positions of the innermost axis that it reads, at most
  int64_t line_pitch_;    // positions of a product

 private:
  void choose_line();
  void choose_lines();
  bool planes_share_sets() const;
  int64_t box_bytes() const;
  int64_t middle_lines(int64_t lines) const;
  int64_t edge_lines() const;
  int64_t joined_cells() const;
  // Items that are aimed for, and whether the blocks so far make as many, or threads share those few evenly.
  int64_t wanted() const;
  bool enough_items() const;

  OfTiles of_tiles_;
};

}  // namespace torch_ext::cpu
