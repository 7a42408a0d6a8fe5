// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/winograd_panels.h"

#include <algorithm>
#include <atomic>

#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

WinogradPanels::WinogradPanels(const Problem& p, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles)
    : tiles_(&tiles),
      type_(p.type),
      kernel_(p.geometry.w_positions()),
      forward_(p.operation == Operation::conv_transpose),
      groups_(p.geometry.groups),
      group_stride_(p.geometry.x_channels * p.w.outer) {
  const WeightsMatrix matrix = weights_matrix(p);
  depth_ = matrix.depth;
  for (const WinogradTiles& c : classes) {
    classes_.push_back({c.axes, c.points, c.taps, of_vector_});
    of_vector_ += int64_t(c.taps.size()) * c.points * depth_ * tiles.lanes;
  }
  total_ = parts_of(matrix.columns, tiles.lanes);
  vectors_ = even_part(total_, tiles.max_vectors);
  count_ = parts_of(total_, vectors_);
  for (const int64_t panel : {int64_t(0), count_ - 1})
    packers_.emplace_back(tiles, type_, matrix, vectors_of(panel) * tiles.lanes, 1, kChannels);
}

bool WinogradPanels::pack(const void* weights, const Parallel& parallel, const std::function<float*(int thread)>& stage,
                          float* to) const {
  const int64_t chunks = parts_of(depth_, kChannels);
  std::atomic<bool> finite{true};
  parallel.for_each(groups_ * count_ * chunks, [&](int64_t index, int thread) {
    const int64_t begin = index % chunks * kChannels, panel = index / chunks % count_, group = index / chunks / count_;
    const Range channels{begin, std::min(begin + kChannels, depth_)};
    const int64_t width = vectors_of(panel) * tiles_->lanes;
    const PanelPacker<float>& packer = packers_[panel == count_ - 1];
    float* packed = stage(thread) - begin * width;
    if (!packer.pack(element(weights, type_, group * group_stride_), panel * this->width(), channels, {0, packer.taps()}, packed))
      finite = false;
    for (size_t c = 0; c < classes_.size(); ++c) transform(classes_[c], packed, channels, width, to + start(group, panel, c));
  });
  return finite;
}

void WinogradPanels::transform(const Class& c, const float* packed, Range channels, int64_t width, float* to) const {
  const int64_t pitch = tap_pitch<float>(kChannels, width), size = depth_ * width, phases = int64_t(c.taps.size());
  for (const std::vector<int64_t>& taps : c.taps) {
    const float* rows[kMostPoints];
    for (size_t t = 0; t < taps.size(); ++t) rows[t] = packed + taps[t] * pitch + channels.begin * width;
    tiles_->winograd_weights[c.axes](rows, to + channels.begin * width, forward_ ? size : phases * size, channels.size() * width);
    to += forward_ ? c.points * size : size;
  }
}

}  // namespace torch_ext::cpu
