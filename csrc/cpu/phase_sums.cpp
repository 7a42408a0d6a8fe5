// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/phase_sums.h"

#include <algorithm>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kFewChannels = 16;
constexpr int64_t kLongTerms = 1024;  // where tiles read panels from L2 as fast, and sums are rounded to 16 bits
constexpr int64_t kTapsAtOnce = 64;

}  // namespace

template <class Real>
PhaseSums<Real>::PhaseSums(const Tiles<Real>& tiles, Type type, Split split, int64_t depth, bool ask_for_rows)
    : tiles_(&tiles), type_(type), split_(split), depth_(depth), ask_for_rows_(ask_for_rows) {}

template <class Real>
void PhaseSums<Real>::run(const Phase<Real>& phase, const PhasePanel<Real>& panel) const {
  if (phase.taps == 0) return run(phase, panel, {0, 0, 0, 0, phase.fresh, phase.done});
  // A slice of the panel that fits L1 at a time: several taps, or a part of one.
  const int64_t width = panel.vectors * tiles_->lanes;
  const int64_t slice =
      tiles_->depth_step > 1 ? kLongTerms : std::clamp<int64_t>(kPanelBytes / (width * int64_t(sizeof(Real))), 8, kMaxTerms);
  // Of few channels shorter sums: there torch, which sums each tap by itself, has shorter ones too.
  const int64_t terms = depth_ > kFewChannels ? slice : slice / 2;
  const int64_t taps_at_once = std::clamp<int64_t>(terms / std::max<int64_t>(depth_, 1), 1, kTapsAtOnce);
  const int64_t parts = parts_of(depth_, slice), part = round_up(parts_of(depth_, parts), tiles_->depth_step);
  // Taps are summed together by their place among all of the phase, so that no bit depends on which of them a block leaves out.
  for (int64_t tap = 0, next; tap < phase.taps; tap = next) {
    for (next = tap + 1; next < phase.taps && phase.tap_order[next] / taps_at_once == phase.tap_order[tap] / taps_at_once;)
      ++next;
    for (int64_t c = 0; c < depth_; c += part)
      run(phase, panel,
          {tap, next - tap, c, std::min(part, depth_ - c), phase.fresh && tap == 0 && c == 0,
           phase.done && next == phase.taps && c + part >= depth_});
  }
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
                        narrow() ? 0 : panel.out_offset,
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
  for (int64_t i = 0, m = 0; i < count; ++i) {
    // Tiles of even height.
    const int64_t rows = std::min(round_up((phase.positions - m) / (count - i), tiles_->row_step), phase.positions - m);
    tile.count = int(rows);
    tile.next = ask_for_rows_ && m + 2 * rows <= phase.positions ? rows : 0;
    tiles_->gather[panel.vectors][rows](tile);
    tile.rows += rows;
    tile.out += rows;
    if (tile.narrow) tile.narrow += rows;
    m += rows;
  }
}

template <class Real>
void PhaseSums<Real>::run_exactly(const Phase<Real>& phase, const PhasePanel<Real>& panel, const Real* zeros) const {
  const auto sum = tiles_->gather[panel.vectors][1];
  const int64_t sums_offset = narrow() ? 0 : panel.out_offset;
  for (int64_t i = 0; i < phase.positions; ++i) {
    sum({1, nullptr, 0, nullptr, 0, 0, 0, phase.out + i, sums_offset, panel.bias, panel.columns});
    for (int64_t t = 0; t < phase.taps; ++t) {
      const Real* const* row = phase.rows + t * phase.positions + i;
      const Real* tap_panel = panel.weights + phase.tap_index[t] * panel.tap_pitch;
      if (*row != zeros) sum({1, row, 0, &tap_panel, 1, 0, depth_, phase.out + i, sums_offset, nullptr, panel.columns});
    }
    if (narrow())
      sum({1, nullptr, 0, nullptr, 0, 0, 0, phase.out + i, 0, nullptr, panel.columns, 0, phase.narrow + i,
           panel.out_offset * bytes_of(type_), type_});
  }
}

template class PhaseSums<float>;
template class PhaseSums<double>;

}  // namespace torch_ext::cpu
