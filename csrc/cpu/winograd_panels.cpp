// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/winograd_panels.h"

#include <algorithm>
#include <atomic>

#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

WinogradPanels::WinogradPanels(const Problem& p, const Tiles<float>& tiles)
    : tiles_(&tiles),
      type_(p.type),
      kernel_(p.geometry.w_positions()),
      groups_(p.geometry.groups),
      group_stride_(p.geometry.x_channels * p.w.outer) {
  const WeightsMatrix matrix = weights_matrix(p);
  depth_ = matrix.depth;
  WinogradAxis axis[kAxes];
  Coordinates strides, pairs;
  for (int a = 0; a < kAxes; ++a) {
    axis[a] = WinogradAxis(p.geometry.axis[a], p.operation);
    points_ *= axis[a].points;
    strides[a] = axis[a].stride;
    pairs[a] = axis[a].transformed ? 2 : 1;
  }
  for (const Coordinates& r : coordinates_of(strides)) {
    std::vector<int64_t>& taps = taps_.emplace_back();
    for (const Coordinates& t : coordinates_of(pairs)) {
      int64_t k = 0;
      for (int a = 0; a < kAxes; ++a) {
        k *= p.geometry.axis[a].w;
        if (axis[a].transformed) k += r[a] + ((t[a] == 0) == axis[a].forward ? axis[a].stride : 0);
      }
      taps.push_back(k);
    }
  }
  total_ = parts_of(matrix.columns, tiles.lanes);
  vectors_ = even_part(total_, tiles.max_vectors);
  count_ = parts_of(total_, vectors_);
  for (const int64_t panel : {int64_t(0), count_ - 1})
    packers_.emplace_back(tiles, type_, matrix, vectors_of(panel) * tiles.lanes, 1, depth_);
}

bool WinogradPanels::pack(const void* weights, const Parallel& parallel, float* stage, float* to) const {
  constexpr int64_t kChannels = 16;  // at a time
  const int64_t chunks = parts_of(depth_, kChannels);
  std::atomic<bool> finite{true};
  parallel.for_each(groups_ * count_ * chunks, [&](int64_t index, int) {
    const int64_t begin = index % chunks * kChannels, end = std::min(begin + kChannels, depth_);
    const int64_t panel = index / chunks % count_, group = index / chunks / count_;
    float* packed = stage + (group * count_ + panel) * stage_panel();
    const PanelPacker<float>& packer = packers_[panel == count_ - 1];
    if (!packer.pack(element(weights, type_, group * group_stride_), panel * width(), {begin, end}, {0, packer.taps()}, packed))
      finite = false;
    transform(packed, begin, end, vectors_of(panel) * tiles_->lanes, to + start(group, panel));
  });
  return finite;
}

// A piece of the channels at a time, one axis after the other, the last one into its place.
void WinogradPanels::transform(const float* packed, int64_t begin, int64_t end, int64_t width, float* to) const {
  constexpr int64_t kPiece = 256;  // floats
  const int64_t pitch = tap_pitch<float>(depth_, width), size = depth_ * width;
  thread_local std::vector<float> stage(kMostPoints * kPiece);
  for (const std::vector<int64_t>& taps : taps_) {
    for (int64_t p = begin * width; p < end * width; p += kPiece) {
      const int64_t count = std::min(kPiece, end * width - p);
      const float* rows[kMostPoints];
      for (size_t t = 0; t < taps.size(); ++t) rows[t] = packed + taps[t] * pitch + p;
      along_each_axis<2, kPoints>(
          rows, int64_t(taps.size()),
          [&](bool last, int64_t used, int64_t k) { return last ? to + k * size + p : stage.data() + used * kPiece; },
          [&](const float* const* from, float* const* into) { tiles_->winograd_weights(from, into, count); });
    }
    to += points_ * size;
  }
}

}  // namespace torch_ext::cpu
