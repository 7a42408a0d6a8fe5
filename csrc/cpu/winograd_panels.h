// SPDX-License-Identifier: Apache-2.0
// The weights of Winograd's F(3, 2), transformed: the result channels of a group in panels as wide as a tile, each with its
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
  WinogradPanels(const Problem& problem, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles);

  int64_t count() const { return count_; }      // of a group
  int64_t vectors() const { return vectors_; }  // of a panel
  int64_t width() const { return vectors_ * tiles_->lanes; }
  // The last one may be narrower.
  int64_t vectors_of(int64_t panel) const { return std::min(vectors_, total_ - panel * vectors_); }
  // Where the weights of a class of a panel of a group begin: weights[group][panel][class][phase][point][c][n], in the order in
  // which products take them; of backward_data, which sums over phases, weights[group][panel][class][point][phase][c][n].
  int64_t start(int64_t group, int64_t panel, size_t of_class) const {
    return (group * total_ + panel * vectors_) * of_vector_ + classes_[of_class].start * vectors_of(panel);
  }
  int64_t bytes() const { return groups_ * total_ * of_vector_ * int64_t(sizeof(float)); }
  // Of some channels of a panel before they are transformed: a stage(thread) for pack().
  int64_t stage_bytes() const { return kernel_ * tap_pitch<float>(kChannels, width()) * int64_t(sizeof(float)); }
  // Returns whether all weights are finite.
  bool pack(const void* weights, const Parallel& parallel, const std::function<float*(int thread)>& stage, float* to) const;

 private:
  struct Class {
    int axes;
    int64_t points;
    std::vector<std::vector<int64_t>> taps;
    int64_t start;  // in a vector's weights
  };
  static constexpr int64_t kChannels = 16;  // that a thread takes at a time, which stay in its cache
  void transform(const Class& c, const float* packed, Range channels, int64_t width, float* to) const;

  const Tiles<float>* tiles_;
  Type type_;
  int64_t kernel_;  // positions
  bool forward_;
  int64_t groups_, group_stride_, depth_;
  std::vector<Class> classes_;
  int64_t of_vector_ = 0;                    // weights
  int64_t total_, count_, vectors_;          // vectors of all panels; panels; vectors of one
  std::vector<PanelPacker<float>> packers_;  // for the panels, and for the last one
};

}  // namespace torch_ext::cpu
