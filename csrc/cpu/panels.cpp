// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/panels.h"

#include <algorithm>
#include <atomic>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

WeightsMatrix weights_matrix(const Problem& p) {
  WeightsMatrix m{};
  const bool forward = p.operation == Operation::conv_transpose;
  m.depth = forward ? p.geometry.x_channels : p.geometry.y_channels;
  m.depth_stride = forward ? p.w.outer : p.w.channel;
  m.columns = forward ? p.geometry.y_channels : p.geometry.x_channels;
  m.columns_stride = forward ? p.w.channel : p.w.outer;
  for (int a = 0; a < kAxes; ++a) m.taps[a] = p.geometry.axis[a].w, m.tap_stride[a] = p.w.axis[a];
  return m;
}

Upcoming weights_ahead(const Problem& p, const void* weights, int64_t group, Range columns, Range channels, int64_t steps) {
  const bool forward = p.operation == Operation::conv_transpose;
  Patch patch{forward ? channels : columns, forward ? columns : channels, {}};
  for (int a = 0; a < kAxes; ++a) patch.axis[a] = {0, p.geometry.axis[a].w};
  Upcoming ahead(steps);
  ahead.reads(p.type, element(weights, p.type, group * p.geometry.x_channels * p.w.outer), p.w, patch);
  return ahead;
}

template <class In>
Panels<In>::Panels(const Problem& p, const Tiles<Real>& tiles, int parts, int64_t room)
    : tiles_(&tiles),
      type_(p.type),
      parts_(parts),
      groups_(p.geometry.groups),
      group_stride_(p.w.outer * p.geometry.x_channels),
      taps_(p.geometry.w_positions()) {
  constexpr int64_t kTerms = Operand<In>::terms;
  const WeightsMatrix matrix = weights_matrix(p);
  depth_ = round_up(parts_of(matrix.depth, kTerms), tiles.depth_step);
  room_ = room > 0 ? room : depth_;
  const int64_t total = parts_of(matrix.columns, tiles.lanes);
  vectors_ = even_part(total, tiles.max_vectors);
  count_ = parts_of(total, vectors_);
  last_vectors_ = total - (count_ - 1) * vectors_;
  for (int64_t vectors : {vectors_, last_vectors_})
    packers_.emplace_back(tiles, type_, matrix, vectors * tiles.lanes, kSplit ? 1 : kTerms, kSplit ? kTerms * depth_ : room_);
}

template <class In>
bool Panels<In>::pack(const void* weights, const Parallel& parallel, Real* to) const {
  constexpr int64_t kPackBytes = 64 << 10;  // for one thread at a time
  constexpr int64_t kRows = 16;             // units
  std::atomic<bool> good{true};
  const auto pack_part = [&](int64_t group_index, int64_t panel_index, Range units, Range taps) {
    const void* of_group = element(weights, type_, group_index * group_stride_);
    Real* of_panel = to + group_index * group() + panel_index * panel();
    const auto& packer = packers_[panel_index == count_ - 1];
    if (!(kSplit ? pack_split(of_group, panel_index, units, taps, of_panel)
                 : packer.pack(of_group, panel_index * width(), units, taps, of_panel)))
      good = false;
  };
  if (packers_[0].columns_together() && count_ > 1) {
    // The columns of all panels lie side by side: a few rows for all of them at a time, while the TLB knows their pages.
    const int64_t of_tap = kRows * count_ * width() * int64_t(sizeof(Real));
    const int64_t at_once = std::clamp<int64_t>(kPackBytes / of_tap, 1, taps_);
    const int64_t slices = parts_of(depth_, kRows), steps = parts_of(taps_, at_once);
    parallel.for_each(groups_ * slices * steps, [&](int64_t index, int) {
      const int64_t row = index / steps % slices * kRows, tap = index % steps * at_once;
      const Range units{row, std::min(row + kRows, depth_)}, taps{tap, std::min(tap + at_once, taps_)};
      for (int64_t p = 0; p < count_; ++p) pack_part(index / steps / slices, p, units, taps);
    });
    return good;
  }
  // Where the channels of a tap lie side by side, long runs of those of a few taps; else all taps of a few channels.
  const bool by_tap = !kSplit && packers_[0].by_tap();
  const int64_t unit = panel() / std::max<int64_t>(taps_ * depth_, 1) * int64_t(sizeof(Real));
  const int64_t fit = std::max<int64_t>(1, kPackBytes / (by_tap ? unit : unit * taps_));
  const int64_t run = std::clamp<int64_t>(depth_, 1, round_up(fit, kRows));
  const int64_t at_once = by_tap ? std::clamp<int64_t>(fit / run, 1, taps_) : taps_;
  const int64_t slices = parts_of(depth_, run), steps = parts_of(taps_, at_once);
  parallel.for_each(groups_ * count_ * slices * steps, [&](int64_t index, int) {
    const int64_t panel = index / steps / slices, row = index / steps % slices * run, tap = index % steps * at_once;
    pack_part(panel / count_, panel % count_, {row, std::min(row + run, depth_)}, {tap, std::min(tap + at_once, taps_)});
  });
  return good;
}

template <class In>
bool Panels<In>::pack(const void* weights, int64_t group, Range panels, Range units, Real* to) const {
  constexpr int64_t kRows = 4;  // of columns, for one panel after the other while their lines are in L1
  const int64_t rows = packers_[0].columns_together() && panels.size() > 1 ? kRows : units.size();
  bool finite = true;
  for (int64_t c = units.begin; c < units.end; c += rows)
    for (int64_t p = panels.begin; p < panels.end; ++p)
      finite = packers_[p == count_ - 1].pack(element(weights, type_, group * group_stride_), p * width(),
                                              {c, std::min(c + rows, units.end)}, {0, taps_},
                                              to + (p - panels.begin) * panel() - units.begin * vectors_of(p) * tiles_->lanes) &&
               finite;
  return finite;
}

// Some units and taps of a panel.
template <class In>
bool Panels<In>::pack_split(const void* weights, int64_t panel, Range units, Range taps, Real* to) const {
  if constexpr (kSplit) {
    constexpr int64_t kTerms = Operand<In>::terms;
    const int64_t columns = vectors_of(panel) * tiles_->lanes, from_tap = tap_pitch<Real>(kTerms * depth_, columns);
    thread_local std::vector<Real> whole;
    whole.resize(size_t(taps_ * from_tap));
    const Range channels{kTerms * units.begin, kTerms * units.end};
    packers_[panel == count_ - 1].pack(weights, panel * width(), channels, taps, whole.data());
    bool splits = true;
    for (int64_t k = taps.begin; k < taps.end; ++k)
      for (int64_t c = units.begin; c < units.end; ++c) {
        const Real* row = whole.data() + k * from_tap + kTerms * c * columns;
        Real* unit = to + k * tap(vectors_of(panel)) + c * columns;
        splits = split_pairs(*tiles_, row, row + columns, columns, parts_, unit, depth_ * columns) && splits;
      }
    return splits;
  }
  return false;
}

template class Panels<float>;
template class Panels<double>;
template class Panels<bf16>;
template class Panels<SplitBf16>;

}  // namespace torch_ext::cpu
