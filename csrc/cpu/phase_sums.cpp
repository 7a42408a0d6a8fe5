// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/phase_sums.h"

#include <algorithm>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kFewChannels = 16;
constexpr int64_t kLongTerms = 1024;  // where tiles read panels from L2 as fast, and sums are rounded to 16 bits
constexpr int64_t kTapsAtOnce = 64;
// Tiles of fewer terms are done before the lines of their results have come: they ask for those of the next one (0.7 to 0.8 of
// the time of 2 to 32 terms where results are not in cache; of 64 floats 0.97, of 64 pairs 1.02).
constexpr int64_t kShortSum = 64;
constexpr int64_t kFarBytes = 256 << 10;  // of a panel's weights for a phase, which come from far away then

}  // namespace

template <class Real>
PhaseSums<Real>::PhaseSums(const Tiles<Real>& tiles, Type type, Split split, int64_t depth, bool ask_for_rows)
    : tiles_(&tiles), type_(type), split_(split), depth_(depth), ask_for_rows_(ask_for_rows) {}

template <class Real>
int64_t PhaseSums<Real>::slice(int64_t vectors) const {
  if (tiles_->matrices) return kLongTerms;
  return std::clamp<int64_t>(kPanelBytes / (vectors * tiles_->lanes * int64_t(sizeof(Real))), 8, kMaxTerms);
}

template <class Real>
int64_t PhaseSums<Real>::units_at_once(int64_t vectors) const {
  return round_up(parts_of(depth_, parts_of(depth_, slice(vectors))), tiles_->depth_step);
}

template <class Real>
void PhaseSums<Real>::run(const Phase<Real>& phase, const PhasePanel<Real>& panel, Range units) const {
  const bool first = phase.fresh && units.begin == 0, last = phase.done && units.end == depth_;
  if (phase.taps == 0) {
    if (first || last) run(phase, panel, {0, 0, 0, 0, first, last});
    return;
  }
  const int64_t slice = this->slice(panel.vectors), part = units_at_once(panel.vectors);
  // Of few channels shorter sums: there torch, which sums each tap by itself, has shorter ones too.
  const int64_t terms = (depth_ > kFewChannels ? slice : slice / 2) * tiles_->chains[panel.vectors];
  const int64_t taps_at_once = std::clamp<int64_t>(terms / std::max<int64_t>(depth_, 1), 1, kTapsAtOnce);
  // Taps are summed together by their place among all of the phase, so that no bit depends on which of them a block leaves out.
  for (int64_t c = units.begin; c < units.end; c += part)
    for (int64_t tap = 0, next; tap < phase.taps; tap = next) {
      for (next = tap + 1; next < phase.taps && phase.tap_order[next] / taps_at_once == phase.tap_order[tap] / taps_at_once;)
        ++next;
      run(phase, panel,
          {tap, next - tap, c, std::min(part, units.end - c), first && c == units.begin && tap == 0,
           last && c + part >= units.end && next == phase.taps});
    }
}

// Of the taps that follow, or of the units that do, of the first ones; null after the last ones of a phase, where these and those
// of other panels stay in cache, and for tiles that do not ask.
template <class Real>
const Real* PhaseSums<Real>::next_weights(const Phase<Real>& phase, const PhasePanel<Real>& panel, const Pass& pass) const {
  const int64_t width = panel.vectors * tiles_->lanes;
  if (!tiles_->asks || pass.taps == 0 || phase.taps * depth_ * width * int64_t(sizeof(Real)) < kFarBytes) return nullptr;
  const bool same_units = pass.first_tap + pass.taps < phase.taps;
  const int64_t tap = same_units ? pass.first_tap + pass.taps : 0, unit = pass.first + (same_units ? 0 : pass.depth);
  return unit < depth_ ? panel.weights + phase.tap_index[tap] * panel.tap_pitch + unit * width : nullptr;
}

template <class Real>
void PhaseSums<Real>::run(const Phase<Real>& phase, const PhasePanel<Real>& panel, const Pass& pass) const {
  const Real* tap_panels[kTapsAtOnce];
  for (int64_t t = 0; t < pass.taps; ++t) tap_panels[t] = panel.weights + phase.tap_index[pass.first_tap + t] * panel.tap_pitch;
  GatherTile<Real> tile{0,
                        phase.rows + pass.first_tap * phase.positions,
                        phase.positions,
                        tap_panels,
                        pass.taps,
                        pass.first,
                        pass.depth,
                        phase.out,
                        narrow() ? panel.sums_offset : panel.out_offset,
                        pass.fresh ? panel.bias : nullptr,
                        panel.columns,
                        0,
                        pass.done ? phase.narrow : nullptr,
                        panel.out_offset * bytes_of(type_),
                        type_,
                        split_.parts,
                        split_.orders,
                        depth_};
  const int64_t tallest = tiles_->max_rows[panel.vectors];
  if (tiles_->matrices) {
    tile.count = int(phase.positions);
    return tiles_->gather[panel.vectors][tallest](tile);
  }
  const int64_t count = parts_of(phase.positions, tallest);
  // While these weights are used, the next ones are asked for, a share of them by each tile (2048 to 256 channels, k4 s2, 8x6,
  // packed ahead: 0.8 of the time).
  const Real* next = next_weights(phase, panel, pass);
  const int64_t share = next ? tile.ask_for(next, panel.vectors * tiles_->lanes, count) : 0;
  for (int64_t i = 0, m = 0; i < count; ++i) {
    // Tiles of even height.
    const int64_t rows = std::min(round_up((phase.positions - m) / (count - i), tiles_->row_step), phase.positions - m);
    tile.count = int(rows);
    tile.next = ask_for_rows_ && m + 2 * rows <= phase.positions ? rows : 0;
    tile.asked_results = pass.taps * pass.depth < kShortSum && m + 2 * rows <= phase.positions ? rows : 0;
    if (panel.ahead) panel.ahead->step();
    tiles_->gather[panel.vectors][rows](tile);
    tile.soon += share;
    tile.rows += rows;
    tile.out += rows;
    if (tile.narrow) tile.narrow += rows;
    m += rows;
  }
}

template <class Real>
void PhaseSums<Real>::run_exactly(const Phase<Real>& phase, const PhasePanel<Real>& panel, Range units, const Real* zeros) const {
  const auto sum = tiles_->gather[panel.vectors][1];
  const int64_t sums_offset = narrow() ? panel.sums_offset : panel.out_offset;
  for (int64_t i = 0; i < phase.positions; ++i) {
    if (units.begin == 0) sum({1, nullptr, 0, nullptr, 0, 0, 0, phase.out + i, sums_offset, panel.bias, panel.columns});
    for (int64_t t = 0; t < phase.taps; ++t) {
      const Real* const* row = phase.rows + t * phase.positions + i;
      const Real* tap_panel = panel.weights + phase.tap_index[t] * panel.tap_pitch;
      if (*row != zeros)
        sum({1, row, 0, &tap_panel, 1, units.begin, units.size(), phase.out + i, sums_offset, nullptr, panel.columns});
    }
    if (narrow() && units.end == depth_)
      sum({1, nullptr, 0, nullptr, 0, 0, 0, phase.out + i, sums_offset, nullptr, panel.columns, 0, phase.narrow + i,
           panel.out_offset * bytes_of(type_), type_});
  }
}

template class PhaseSums<float>;
template class PhaseSums<double>;

}  // namespace torch_ext::cpu
