// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/winograd_panels.h"

#include <algorithm>
#include <atomic>

#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

WinogradPanels::WinogradPanels(const Problem& p, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles,
                               int64_t channels, int64_t most_vectors)
    : tiles_(&tiles),
      type_(p.type),
      kernel_(p.geometry.w_positions()),
      channels_(channels),
      groups_(p.geometry.groups),
      group_stride_(p.geometry.x_channels * p.w.outer) {
  const WeightsMatrix matrix = weights_matrix(p);
  depth_ = matrix.depth;
  total_ = parts_of(matrix.columns, tiles.lanes);
  int64_t rows = 0;
  for (const WinogradTiles& c : classes) rows += int64_t(c.first_taps.size()) * c.points * depth_;
  rows_apart_ = groups_ * total_ * rows * tiles.lanes * int64_t(sizeof(float)) <= kFarWeightsBytes ? 1 : 0;
  for (const WinogradTiles& c : classes) {
    const int64_t summed = c.summed(p.operation), results = int64_t(c.first_taps.size()) / summed;
    classes_.push_back({c.shape, c.points, summed, c.tap_positions, of_vector_});
    of_vector_ += results * c.points * point_pitch(summed, tiles.lanes);
  }
  vectors_ = even_part(total_, most_vectors);
  count_ = parts_of(total_, vectors_);
  for (const int64_t panel : {int64_t(0), count_ - 1})
    packers_.emplace_back(tiles, type_, matrix, vectors_of(panel) * tiles.lanes, 1, channels_);
}

bool WinogradPanels::pack(const void* weights, const Parallel& parallel, const std::function<float*(int thread)>& stage,
                          float* to) const {
  const int64_t chunks = parts_of(depth_, channels_);
  std::atomic<bool> finite{true};
  parallel.for_each(groups_ * count_ * chunks, [&](int64_t index, int thread) {
    const Range channels = part(index % chunks, channels_, depth_);
    const int64_t panel = index / chunks % count_, group = index / chunks / count_;
    if (!load(weights, group, panel, channels, stage(thread))) finite = false;
    for (size_t k = 0; k < classes_.size(); ++k) {
      const Class& c = classes_[k];
      const int64_t width = vectors_of(panel) * tiles_->lanes, of_result = c.points * point_pitch(c.summed, width);
      float* of_class = to + start(group, panel, k) + channels.begin * width;
      for (int64_t i = 0; i * c.summed < int64_t(c.positions.size()); ++i)
        transform(c, i, {0, c.summed}, panel, channels.size(), stage(thread), of_class + i * of_result, depth_,
                  point_pitch(c.summed, width));
    }
  });
  return finite;
}

bool WinogradPanels::load(const void* weights, int64_t group, int64_t panel, Range channels, float* stage) const {
  const PanelPacker<float>& packer = packers_[panel == count_ - 1];
  return packer.pack(element(weights, type_, group * group_stride_), panel * width(), channels, {0, packer.taps()},
                     stage - channels.begin * vectors_of(panel) * tiles_->lanes);
}

void WinogradPanels::transform(int64_t index, Range segments, int64_t panel, Range channels, const float* stage,
                               float* to) const {
  transform(classes_[0], index, segments, panel, channels.size(), stage, to, channels.size(),
            chunk_pitch(segments.size(), channels.size(), vectors_of(panel) * tiles_->lanes));
}

void WinogradPanels::transform(const Class& c, int64_t index, Range segments, int64_t panel, int64_t channels, const float* stage,
                               float* to, int64_t depth, int64_t pitch) const {
  const int64_t width = vectors_of(panel) * tiles_->lanes, of_tap = tap_pitch<float>(channels_, width);
  for (int64_t segment = segments.begin; segment < segments.end; ++segment, to += depth * width) {
    const std::vector<int64_t>& positions = c.positions[size_t(index * c.summed + segment)];
    const float* rows[kMostPoints];
    for (size_t t = 0; t < positions.size(); ++t) rows[t] = stage + positions[t] * of_tap;
    tiles_->winograd[c.shape].weights(rows, to, pitch, channels * width);
  }
}

}  // namespace torch_ext::cpu
