// SPDX-License-Identifier: Apache-2.0
// The weights of Winograd's algorithm, transformed: the result channels of a group in panels as wide as a tile, each with its
// phases and points one behind the other.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {

class WinogradPanels {
 public:
  // A stage holds so many channels, a panel at most so many vectors.
  WinogradPanels(const Problem& problem, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles, int64_t channels,
                 int64_t most_vectors);

  int64_t count() const { return count_; }      // of a group
  int64_t vectors() const { return vectors_; }  // of a panel
  int64_t width() const { return vectors_ * tiles_->lanes; }
  // The last one may be narrower.
  int64_t vectors_of(int64_t panel) const { return std::min(vectors_, total_ - panel * vectors_); }
  // Where the weights of a class of a panel of a group begin: weights[group][panel][class][results][point][summed][c][n], where
  // results are those of a phase of conv_transpose, which sum over its segments of taps, and of backward_data those of all
  // phases.
  int64_t start(int64_t group, int64_t panel, size_t of_class) const {
    return (group * total_ + panel * vectors_) * of_vector_ + classes_[of_class].start * vectors_of(panel);
  }
  int64_t bytes() const { return groups_ * total_ * of_vector_ * int64_t(sizeof(float)); }
  // Returns whether all weights are finite.
  bool pack(const void* weights, const Parallel& parallel, const std::function<float*(int thread)>& stage, float* to) const;

  // For some channels of a panel at a time: all of their taps, side by side in a stage, and from there, transformed, some of the
  // segments that the first class sums over for result `index`, to[point][segment][c][n].
  int64_t stage_bytes() const { return kernel_ * tap_pitch<float>(channels_, width()) * int64_t(sizeof(float)); }
  bool load(const void* weights, int64_t group, int64_t panel, Range channels, float* stage) const;
  void transform(int64_t index, Range segments, int64_t panel, Range channels, const float* stage, float* to) const;

 private:
  struct Class {
    int shape;
    int64_t points, summed;
    std::vector<std::vector<int64_t>> positions;
    int64_t start;  // in a vector's weights
  };
  // To where `depth` channels have room.
  void transform(const Class& c, int64_t index, Range segments, int64_t panel, int64_t channels, const float* stage, float* to,
                 int64_t depth) const;

  const Tiles<float>* tiles_;
  Type type_;
  int64_t kernel_;    // positions
  int64_t channels_;  // of a stage
  int64_t groups_, group_stride_, depth_;
  std::vector<Class> classes_;
  int64_t of_vector_ = 0;                    // weights
  int64_t total_, count_, vectors_;          // vectors of all panels; panels; vectors of one
  std::vector<PanelPacker<float>> packers_;  // for the panels, and for the last one
};

}  // namespace torch_ext::cpu
