// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/weight_sums.h"

#include <algorithm>

#include "csrc/cpu/pack.h"

namespace torch_ext::cpu {
namespace {

// Of sums, that a thread adds a part to another at a time, in long runs, as parts come from L3; and that it stores.
constexpr int64_t kAddedBytes = 8 << 10, kStoreBytes = 16 << 10;

}  // namespace

template <class Real>
WeightSums<Real>::WeightSums(const Problem& problem, const Tiles<Real>& tiles, bool swapped, int64_t pitch)
    : p_(problem),
      tiles_(&tiles),
      swapped_(swapped),
      m_(swapped ? p_.geometry.y_channels : p_.geometry.x_channels),
      n_(swapped ? p_.geometry.x_channels : p_.geometry.y_channels),
      pitch_(pitch ? pitch : round_up(n_, tiles.lanes)) {
  const int64_t total = parts_of(n_, lanes());
  vectors_ = even_part(total, tiles.max_vectors);
  panels_ = parts_of(total, vectors_);
}

// Lanes go along the side that fills a tile, or is twice the other one; where both or none does, along the one that is contiguous
// in the result.
template <class Real>
bool WeightSums<Real>::swapped_suits(const Problem& p, const Tiles<Real>& tiles) {
  const int64_t x = p.geometry.x_channels, y = p.geometry.y_channels, full = tiles.max_vectors * tiles.lanes;
  const bool x_narrow = x < std::min(full, 2 * y), y_narrow = y < std::min(full, 2 * x);
  return !tiles.matrices && (x_narrow == y_narrow ? p.w.outer == 1 && x > 1 : y_narrow);
}

template <class Real>
void WeightSums<Real>::tap_of(int64_t index, int64_t* tap) const {
  for (int a = kAxes - 1; a >= 0; --a) {
    tap[a] = index % p_.geometry.axis[a].w;
    index /= p_.geometry.axis[a].w;
  }
}

template <class Real>
int64_t WeightSums<Real>::result_of(int64_t group, int64_t tap) const {
  int64_t k[kAxes], at = group * p_.geometry.x_channels * p_.w.outer;
  tap_of(tap, k);
  for (int a = 0; a < kAxes; ++a) at += k[a] * p_.w.axis[a];
  return at;
}

template <class Real>
void WeightSums<Real>::sum_panel(Range m, int64_t panel, Real* sums, int64_t pitch, OuterTile<Real> tile, bool chains,
                                 std::span<Upcoming> next) const {
  tile.columns = columns(panel), tile.out_pitch = pitch;
  const int64_t vectors = parts_of(tile.columns, lanes());
  const auto* tiles = chains ? tiles_->outer_chains[vectors] : tiles_->outer[vectors];
  const int64_t count = parts_of(m.size(), (chains ? tiles_->max_chain_rows : tiles_->max_rows)[vectors]);
  for (int64_t i = 0, at = m.begin; i < count; ++i) {
    const int64_t rows = std::min(round_up((m.end - at) / (count - i), tiles_->row_step), m.end - at);
    tile.a_offset = at * tile.a_step, tile.out = sums + (at - m.begin) * pitch, tile.rows = int(rows);
    for (Upcoming& ahead : next) ahead.step();
    tiles[rows](tile);
    at += rows;
  }
}

// Adds the parts in their order and brings the sums into the result's layout, some rows at a time; where they are transposed on
// the way, also one tap at a time.
template <class Real>
void WeightSums<Real>::store(const Buffers& buffers, const Parallel& parallel, Real* sums, int64_t parts) const {
  const Geometry& g = p_.geometry;
  const int64_t part_stride = g.groups * group_sums(), run = kAddedBytes / int64_t(sizeof(Real));
  if (parts > 1)
    parallel.for_each(parts_of(part_stride, run), [&](int64_t index, int) {
      const Range added = {index * run, std::min((index + 1) * run, part_stride)};
      for (const Real* part = sums + part_stride; part < sums + parts * part_stride; part += part_stride)
        for (int64_t i = added.begin; i < added.end; ++i) sums[i] += part[i];
    });
  const int64_t at_once = transposed() ? 1 : taps(), least = transposed() ? std::min<int64_t>(lanes(), m_) : 1;
  const int64_t row_bytes = at_once * pitch_ * int64_t(sizeof(Real));
  const int64_t rows = std::clamp<int64_t>(kStoreBytes / row_bytes, least, m_);
  const int64_t slices = parts_of(m_, rows), steps = taps() / at_once;
  parallel.for_each(g.groups * steps * slices, [&](int64_t index, int) {
    const int64_t group = index / slices / steps, first = index / slices % steps * at_once, begin = index % slices * rows;
    const int64_t end = std::min(begin + rows, m_);
    const Real* of_group = sums + group * group_sums();
    store_rows(buffers, group, {first, first + at_once}, {begin, end}, {0, n_}, of_group + (first * m_ + begin) * pitch_,
               tap_sums(), pitch_);
  });
}

template <class Real>
void WeightSums<Real>::store_rows(const Buffers& buffers, int64_t group, Range taps, Range m, Range n, const Real* sums,
                                  int64_t tap_pitch, int64_t pitch) const {
  const Geometry& g = p_.geometry;
  const int64_t corner = m.begin * m_stride() + n.begin * n_stride();
  if (!transposed()) {  // all taps
    const Box box{{g.axis[0].w, g.axis[1].w, g.axis[2].w}, {p_.w.axis[0], p_.w.axis[1], p_.w.axis[2]}, n.size(), n_stride()};
    const int64_t first = result_of(group, 0) + corner;
    for (int64_t row = 0; row < m.size(); ++row)
      store_box(*tiles_, p_.type, sums + row * pitch, tap_pitch, element(buffers.w, p_.type, first + row * m_stride()), box);
    return;
  }
  for (int64_t t = taps.begin; t < taps.end; ++t, sums += tap_pitch)
    store_box(*tiles_, p_.type, sums, pitch, element(buffers.w, p_.type, result_of(group, t) + corner),
              {{1, 1, m.size()}, {0, 0, 1}, n.size(), n_stride()});
}

template class WeightSums<float>;
template class WeightSums<double>;

}  // namespace torch_ext::cpu
