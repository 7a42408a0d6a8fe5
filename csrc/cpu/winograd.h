// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data by Winograd's F(3, 2) and F(2, 3): see winograd.cpp for what is chosen, winograd_block.cpp for
// what is computed.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"
#include "csrc/cpu/winograd_panels.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {

class Winograd final : public Plan {
 public:
  // With `in_turn`, which takes a problem that fits at once, blocks transform weights themselves, where threads share them
  // evenly.
  Winograd(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads, bool in_turn);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  std::string packing() const override;
  int64_t packed_bytes() const override { return int64_t(sizeof(PackedHeader)) + weights_.bytes(); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override;
  // Whether one block has room for all tiles, and in which order weights are transformed makes no difference but in time.
  bool fits_at_once(int64_t panels) const;
  // Whether each product sums so many terms, where transforms err, along several axes.
  bool sums_at_least(int64_t terms) const;
  // Whether it takes less than such a share of the time of `gather`, by measurement.
  bool pays(double share) const;

 private:
  struct Block : TileBlock {
    int64_t group, first_panel, last_panel;
  };

  // The results of a class for a panel: of one phase of conv_transpose, or of backward_data, which sums over all phases.
  struct Pass {
    const WinogradTiles& of;
    TileBlock tiles;
    RowView<float> in;
    Range channels;            // of the input, that are transformed
    int64_t vectors, columns;  // of the panel
    float* origin;             // of its results: position 0 of sample 0, in the tensor or in a box
    Strides to;
    int64_t index;    // of the phase
    float* input;     // transformed: [segment][point][tile][c], points rows_of_point apart
    float* products;  // [point][tile][n], likewise
    bool add;         // to the results of other classes
    Upcoming* ahead;  // input of the next block, or null

    const Coordinates& phase() const { return of.first_taps[size_t(index * of.segments)]; }
  };

  // Transformed weights of the channels of a pass and some of the segments that it sums over: weights[point][segment][c][n].
  struct PassWeights {
    const float* first;
    Range segments;
    int64_t pitch;  // from one point to the next
  };

  bool accurate() const;  // as sums of the formula are
  int64_t room() const;   // tiles of a block at most, of the phases with most taps
  void make_panels(int64_t channels, int64_t most_vectors);
  bool choose_blocks(int threads);
  bool choose_panels(int threads);
  int64_t items() const;
  Block block(int64_t index) const;
  RowView<float> load_input(const Buffers& buffers, const Block& block, Range channels, std::byte* scratch) const;
  bool transform_input(const Buffers& buffers, const Pass& pass) const;
  void set_results(const Buffers& buffers, const Block& block, int64_t panel, std::byte* scratch, Pass& pass) const;
  void list_input(const Buffers& buffers, const Pass& pass, int64_t segment, int64_t point, const float** rows) const;
  void list_products(const Pass& pass, int64_t point, std::byte* scratch, float** rows) const;
  void multiply(const Buffers& buffers, const Pass& pass, const PassWeights& weights, const float* bias, std::byte* scratch,
                Upcoming& next) const;
  Upcoming results_ahead(const Pass& pass) const;
  Upcoming input_ahead(const Buffers& buffers, int64_t index, const Block& block) const;
  Upcoming weights_ahead(const Buffers& buffers, const Block& block, int64_t panel, Range channels, const Pass& pass) const;
  int64_t steps(const Pass& pass) const { return steps(pass.of, pass.tiles, pass.channels.size(), pass.vectors); }
  int64_t steps(const WinogradTiles& of, const TileBlock& tiles, int64_t channels, int64_t vectors) const;
  void fill_unreached(const Block& block, const Pass& pass, const float* bias) const;
  void store_results(const Pass& pass, std::byte* scratch) const;
  void store_output(const Buffers& buffers, const Block& block, int64_t panel, std::byte* scratch) const;
  void run_block(const Buffers& buffers, int64_t index, const float* weights, std::byte* scratch,
                 std::atomic<bool>& finite) const;
  void run_pass(const Buffers& buffers, Pass& pass, const float* weights, const float* bias, std::byte* scratch) const;
  void run_in_turn(const Buffers& buffers, const Block& block, std::byte* scratch, std::atomic<bool>& finite) const;
  // Whether the results of several classes, those of all phases, are in a box together.
  bool classes_meet() const { return forward_ && !in_place_output_ && classes_.size() > 1; }
  // Whether the transformed inputs of all classes are there at the same time, so that a panel is done before the next one begins
  // and its results have a single box. With the longest vectors, which make fewer panels, not tried.
  bool keeps_inputs() const { return classes_meet() && panels_ > 1 && !tiles_->asks; }
  // Of the transformed input of a class.
  int64_t input_rows(const WinogradTiles& c, const TileBlock& tiles) const {
    return c.axes > 0 ? summed(c) * c.points * rows_of_point(tiles) : 0;
  }
  // The box of a panel; several of a block are there where it takes more than a class of phases to fill them.
  int64_t boxes() const { return classes_.size() > 1 && !keeps_inputs() ? panels_per_item_ : 1; }
  float* out_box(const Block& block, int64_t panel, std::byte* scratch) const {
    return layout_.at<float>(scratch, out_part_) + (panel - block.first_panel) % boxes() * box_floats_;
  }
  // What one call of a register tile takes of the input: some segments of taps, or some channels of one. Those that ask for
  // weights have not been tried with more than one sum.
  struct Slice {
    int64_t segments, channels;
  };
  Slice slice_of(const WinogradTiles& c) const {
    const int64_t most = tiles_->asks ? tiles_->chain_count * terms_of_chain(c.axes) : kMaxTerms;
    return {std::clamp<int64_t>(most / depth_, 1, summed(c)), even_part(depth_, most)};
  }

  int64_t lanes() const { return tiles_->lanes; }
  // Of the phases with most taps.
  const WinogradTiles& most() const { return classes_[0]; }
  // Segments that make the same results, and how many times there are such.
  int64_t summed(const WinogradTiles& c) const { return c.summed(p_.operation); }
  int64_t results(const WinogradTiles& c) const { return int64_t(c.first_taps.size()) / summed(c); }

  Problem p_;
  const Tiles<float>* tiles_;
  bool forward_;
  Strides in_, out_;
  int64_t depth_, columns_;  // channels of a group that are summed over, and of the result
  std::vector<WinogradTiles> classes_;
  WinogradGrid grid_;
  Rows<float> rows_;  // of the input
  WinogradPanels weights_;
  int64_t width_, panels_;  // columns of a panel, panels of a group
  TileBlock block_{};       // the first one
  int64_t panels_per_item_;
  bool in_turn_;        // input and weights are transformed some channels at a time
  int64_t pitch_;       // of a row of transformed input
  int64_t box_floats_;  // of the results of a panel
  bool in_place_input_, in_place_output_;
  std::shared_ptr<const Plan> exact_;  // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part weights_part_, zeros_part_, bias_part_, stage_part_, chunk_part_, box_part_, input_part_, products_part_,
      out_part_, pointers_part_, nowhere_part_;
};

}  // namespace torch_ext::cpu
