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

inline constexpr int64_t kFarWeightsBytes = 8 << 20;  // of transformed weights, which do not stay in any cache

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
  // Floats from one point of a class to the next, and of a chunk of so many segments and channels: a row more than there are, as
  // multiples of a page would put all points into the same sets of the L1 cache while they are written (64 to 12 channels, 6x6x6,
  // k4 s2: 0.8 of the time; 80 to 64, 12x12: 0.85), but for weights from so far away that they are better off in as few pages as
  // can be (96 to 256 channels of 6x6x6: 1.5).
  int64_t point_pitch(int64_t summed, int64_t width) const { return (summed * depth_ + rows_apart_) * width; }
  static int64_t chunk_pitch(int64_t segments, int64_t channels, int64_t width) { return (segments * channels + 1) * width; }
  int64_t bytes() const { return groups_ * total_ * of_vector_ * int64_t(sizeof(float)); }
  // Returns whether all weights are finite.
  bool pack(const void* weights, const Parallel& parallel, const std::function<float*(int thread)>& stage, float* to) const;

  // For some channels of a panel at a time: all of their taps, side by side in a stage, and from there, transformed, some of the
  // segments that the first class sums over for result `index`, to[point][segment][c][n],
  // points chunk_pitch apart.
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
  // To where `depth` channels have room, and points are so far apart.
  void transform(const Class& c, int64_t index, Range segments, int64_t panel, int64_t channels, const float* stage, float* to,
                 int64_t depth, int64_t pitch) const;

  const Tiles<float>* tiles_;
  Type type_;
  int64_t kernel_;    // positions
  int64_t channels_;  // of a stage
  int64_t groups_, group_stride_, depth_;
  int64_t rows_apart_ = 0;  // beyond those of a point
  std::vector<Class> classes_;
  int64_t of_vector_ = 0;                    // weights
  int64_t total_, count_, vectors_;          // vectors of all panels; panels; vectors of one
  std::vector<PanelPacker<float>> packers_;  // for the panels, and for the last one
};

}  // namespace torch_ext::cpu
