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
      forward_(p.operation == Operation::conv_transpose),
      taps_(p.geometry.w_positions()),
      groups_(p.geometry.groups),
      group_stride_(p.geometry.x_channels * p.w.outer) {
  const WeightsMatrix matrix = weights_matrix(p);
  depth_ = matrix.depth;
  Coordinates strides;
  for (int a = 0; a < kAxes; ++a) {
    axis_[a] = WinogradAxis(p.geometry.axis[a], p.operation);
    kernel_[a] = p.geometry.axis[a].w;
    points_ *= axis_[a].points;
    strides[a] = axis_[a].stride;
  }
  phases_ = coordinates_of(strides);
  total_ = parts_of(matrix.columns, tiles.lanes);
  vectors_ = parts_of(total_, parts_of(total_, tiles.max_vectors));
  count_ = parts_of(total_, vectors_);
  for (const int64_t panel : {int64_t(0), count_ - 1})
    packers_.emplace_back(tiles, type_, matrix, (panel ? vectors_of(panel) : vectors_) * tiles.lanes, 1, depth_);
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
    if (!packer.pack(element(weights, type_, group * group_stride_), panel * width(), begin, end, packed)) finite = false;
    transform(packed, begin, end, vectors_of(panel) * tiles_->lanes, to + start(group, panel));
  });
  return finite;
}

// A piece of the channels at a time, one axis after the other, the last one into its place.
void WinogradPanels::transform(const float* packed, int64_t begin, int64_t end, int64_t width, float* to) const {
  constexpr int64_t kPiece = 256;  // floats
  const int64_t pitch = tap_pitch<float>(depth_, width), size = depth_ * width;
  thread_local std::vector<float> stage(kMostPoints * kPiece);
  Coordinates pairs;
  for (int a = 0; a < kAxes; ++a) pairs[a] = axis_[a].transformed ? 2 : 1;
  const std::vector<Coordinates> taps = coordinates_of(pairs);
  for (const Coordinates& r : phases_) {
    for (int64_t p = begin * width; p < end * width; p += kPiece) {
      const int64_t count = std::min(kPiece, end * width - p);
      const float* rows[kMostPoints];
      for (size_t t = 0; t < taps.size(); ++t) {
        int64_t k = 0;
        for (int a = 0; a < kAxes; ++a) {
          k *= kernel_[a];
          if (axis_[a].transformed) k += r[a] + ((taps[t][a] == 0) == forward_ ? axis_[a].stride : 0);
        }
        rows[t] = packed + k * pitch + p;
      }
      float* room = stage.data();
      int64_t outer = int64_t(taps.size()), inner = 1;
      for (int a = kAxes - 1; a >= 0; --a) {
        if (!axis_[a].transformed) continue;
        outer /= 2;
        const float* next[kMostPoints];
        for (int64_t o = 0; o < outer; ++o)
          for (int64_t i = 0; i < inner; ++i) {
            const float* from[2] = {rows[2 * o * inner + i], rows[(2 * o + 1) * inner + i]};
            float* into[kPoints];
            for (int64_t e = 0; e < kPoints; ++e) {
              const int64_t at = (o * kPoints + e) * inner + i;
              next[at] = into[e] = outer == 1 ? to + at * size + p : room + at * kPiece;
            }
            tiles_->winograd_weights(from, into, count);
          }
        inner *= kPoints;
        room += outer * inner * kPiece;
        std::copy_n(next, outer * inner, rows);
      }
    }
    to += points_ * size;
  }
}

}  // namespace torch_ext::cpu
