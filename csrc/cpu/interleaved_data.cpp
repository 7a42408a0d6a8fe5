// SPDX-License-Identifier: Apache-2.0
// backward_data of interleaved.cpp.
#include <algorithm>

#include "csrc/cpu/interleaved.h"

namespace torch_ext::cpu {

template <class Real>
void Interleaved<Real>::run_backward_data(const Buffers& buffers, const Block& block, std::byte* scratch) const {
  const Real* weights = layout_.template at<Real>(static_cast<std::byte*>(buffers.workspace), weights_part_);
  const Range lines{block.cells.begin[1], block.cells.end[1]}, positions{block.cells.begin[2], block.cells.end[2]};
  const Range line{std::max<int64_t>(0, line_.reach(positions.begin, 0)),
                   std::min(line_.y, line_.reach(positions.end - 1, line_.w - 1) + 1)};
  const int64_t pitch = taps_ * channels_, i0 = block.cells.begin[0];
  Real* const sums = layout_.template at<Real>(scratch, sums_part_);
  Real* const rows = layout_.template at<Real>(scratch, x_part_);
  std::fill_n(sums, lines.size() * positions.size() * pitch, Real(0));
  thread_local std::vector<Pair<const Real>> pairs;
  thread_local std::vector<const Real*> y, in, w;
  const Axis& axis = p_.geometry.axis[1];
  Range reached;  // lines of y
  axis_[1].reach(lines.begin, lines.end, reached.begin, reached.end);
  ++reached.end;
  for (const Tap& t0 : axis_[0].phases[0]) {
    const int64_t o0 = i0 * axis_[0].in_step + t0.delta;
    if (o0 < 0 || o0 >= axis_[0].in_extent || line.begin >= line.end) continue;
    // In the same groups for any blocks, and so to the same bits.
    for (int64_t first = reached.begin, last; first < reached.end; first = last) {
      last = std::min(first - first % at_once_ + at_once_, reached.end);
      Real* box = layout_.template at<Real>(scratch, y_part_);
      y.clear();
      for (int64_t o1 = first; o1 < last; ++o1, box += line.size() * channels_)
        y.push_back(load_y(buffers, block.sample, o0, o1, line, box));
      for (int64_t i1 = lines.begin; i1 < lines.end; ++i1) {
        pairs.clear();
        for (int64_t k1 = std::max<int64_t>(0, parts_of(first - axis.reach(i1, 0), axis.dilation)); k1 < axis.w; ++k1) {
          const int64_t o1 = axis.reach(i1, k1);
          if (o1 >= last) break;
          if (o1 >= first) pairs.push_back({y[size_t(o1 - first)], weights + (t0.k * axis.w + k1) * w_line()});
        }
        if (!pairs.empty())
          sum_patches(pairs, positions, sums + ((i1 - lines.begin) * positions.size() - positions.begin) * pitch);
      }
    }
  }
  in.clear();
  for (int64_t k = 0; k < taps_; ++k) in.push_back(sums + k * channels_);
  w.assign(size_t(taps_), ones_.data());
  tiles_->depthwise(
      {in.data(), w.data(), taps_, pitch, lines.size() * positions.size(), channels_, zeros_.data(), rows, channels_});
  void* to = element(buffers.x, p_.type,
                     block.sample * p_.x.outer + i0 * p_.x.axis[0] + lines.begin * p_.x.axis[1] + positions.begin * p_.x.axis[2]);
  store_box(*tiles_, p_.type, rows, channels_, to,
            Box{{1, lines.size(), positions.size()}, {0, p_.x.axis[1], p_.x.axis[2]}, channels_, p_.x.channel});
}

// Adds the products of some lines of y and of weights to the sums of each position, `taps_` rows.
template <class Real>
void Interleaved<Real>::sum_patches(const std::vector<Pair<const Real>>& pairs, Range positions, Real* sums) const {
  thread_local std::vector<const Real*> y, weights;
  Interior interior{positions.begin, positions.end};
  interior.meet(line_.stride, line_.reach(0, 0), line_.y), interior.meet(line_.stride, line_.reach(0, line_.w - 1), line_.y);
  for_each_run(interior, positions.begin, positions.end, [&](int64_t i, int64_t run) {
    const int64_t start = line_.reach(i, 0);
    const Range there{std::max<int64_t>(0, -start), std::min(line_.w, line_.y - start)};
    // Runs of taps, those together that are as long.
    for (int64_t k = 0, end; k < line_.w; k = end) {
      const auto run_of = [&](int64_t first) { return Range{std::max(first, there.begin), std::min(first + taps_, there.end)}; };
      const Range taps = run_of(k);
      end = k + taps_;
      if (taps.begin >= taps.end) continue;
      y.clear(), weights.clear();
      const auto push = [&](int64_t first) {
        for (const auto& pair : pairs) {
          y.push_back(pair.line + (start + first) * channels_);
          weights.push_back(pair.weights + first * channels_);
        }
      };
      push(taps.begin);
      for (; taps.size() == taps_ && end < line_.w && run_of(end).size() == taps_; end += taps_) push(end);
      tiles_->depthwise({y.data(), weights.data(), int64_t(y.size()), cell(), run, taps.size() * channels_, nullptr,
                         sums + (i * taps_ + taps.begin - k) * channels_, taps_ * channels_});
    }
  });
}

template void Interleaved<float>::run_backward_data(const Buffers&, const Block&, std::byte*) const;
template void Interleaved<double>::run_backward_data(const Buffers&, const Block&, std::byte*) const;

}  // namespace torch_ext::cpu
