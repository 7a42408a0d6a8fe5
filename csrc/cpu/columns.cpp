// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/columns.h"

#include <algorithm>
#include <type_traits>

#include "csrc/cpu/pack.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kLongLink = 256;  // worth the call of a tile

template <class Real>
Real read(const void* base, Type type, int64_t index) {
  return visit(type, [&](auto scalar) { return Real(widen(static_cast<const decltype(scalar)*>(base)[index])); });
}

}  // namespace

template <class Real>
Columns<Real>::Columns(const Problem& problem, const Tiles<Real>& tiles, bool taps_inside)
    : p_(problem),
      tiles_(&tiles),
      positions_(p_.geometry.batch * p_.geometry.x_positions()),
      y_positions_(p_.geometry.batch * p_.geometry.y_positions()),
      // A tap moves a line of each channel, which else would keep each other from staying in L1 (64 to 256 channels, k2 s2, 8x8:
      // twice the time).
      y_pitch_(taps_inside ? apart(tiles, y_positions_) : y_positions_),
      taps_inside_(taps_inside),
      reached_(size_t(taps())) {
  const Axis* axis = p_.geometry.axis;
  for (int64_t k = 0; k < taps(); ++k)
    tap_offset_.push_back(k / (axis[1].w * axis[2].w) * p_.w.axis[0] + k / axis[2].w % axis[1].w * p_.w.axis[1] +
                          k % axis[2].w * p_.w.axis[2]);
  for (int64_t m = 0; m < positions_; ++m) link_taps(m);
  line_ = axis[2].y;
  for (int a = 1; a >= 0 && p_.y.axis[a] == line_ * p_.y.axis[2]; --a) line_ *= axis[a].y;
}

template <class Real>
void Columns<Real>::link_taps(int64_t m) {
  const Axis* axis = p_.geometry.axis;
  int64_t i[kAxes], sample = m;
  for (int a = kAxes - 1; a >= 0; sample /= axis[a--].x) i[a] = sample % axis[a].x;
  for (int64_t k = 0; k < taps(); ++k) {
    const int64_t k2 = k % axis[2].w;
    const int64_t o0 = axis[0].reach(i[0], k / (axis[1].w * axis[2].w)), o1 = axis[1].reach(i[1], k / axis[2].w % axis[1].w);
    const int64_t o2 = axis[2].reach(i[2], k2);
    if (o0 < 0 || o0 >= axis[0].y || o1 < 0 || o1 >= axis[1].y || o2 < 0 || o2 >= axis[2].y) continue;
    reached_[size_t(k)] = true;
    const int64_t y = ((sample * axis[0].y + o0) * axis[1].y + o1) * axis[2].y + o2;
    Link* last = links_.empty() ? nullptr : &links_.back();
    if (k2 > 0 && last && last->m == m && last->tap + last->count == k && last->y + last->count * step() == y) {
      ++last->count;
    } else {
      links_.push_back({m, k, y, 1});
    }
  }
}

template <class Real>
std::vector<Run> Columns<Real>::runs(int64_t first, int64_t count, int64_t row_channels, bool all_taps) const {
  if (taps_inside_) return {{first * p_.w.channel, 0, count * p_.w.channel}};
  std::vector<Run> runs;
  for (size_t k = 0; k < reached_.size(); ++k)
    if (all_taps || reached_[k]) runs.push_back({tap_offset_[k] + first * p_.w.channel, int64_t(k) * row_channels, count});
  return runs;
}

// Calls move(where a line of y begins, in elements, its position). Of some channels, `y` is y[c][position] where taps lie inside,
// else y[position][c].
template <class Real>
template <class Move>
void Columns<Real>::for_each_line(int64_t channel, Move move) const {
  const Geometry& g = p_.geometry;
  for (int64_t n = 0; n < g.batch; ++n)
    for (int64_t p = 0; p < g.y_positions(); p += line_) {
      const int64_t o1 = p / g.axis[2].y % g.axis[1].y, o0 = p / (g.axis[2].y * g.axis[1].y);
      move(n * p_.y.outer + channel * p_.y.channel + o0 * p_.y.axis[0] + o1 * p_.y.axis[1], n * g.y_positions() + p);
    }
}

template <class Real>
template <class In>
void Columns<Real>::load(const void* tensor, int64_t channel, int64_t count, In* y, In* columns, int64_t pitch,
                         int64_t row_channels) const {
  for_each_line(channel, [&](int64_t offset, int64_t position) {
    const void* from = element(tensor, p_.type, offset);
    if (taps_inside_) {
      if constexpr (std::is_same_v<In, Real>) {
        load_planes(*tiles_, p_.type, from, p_.y.axis[2], line_, p_.y.channel, count, y + position, y_pitch_);
      } else {  // as they are: a box of rows of positions
        load_box(*tiles_, p_.type, from, Box{{1, 1, count}, {0, 0, p_.y.channel}, line_, p_.y.axis[2]}, y + position, y_pitch_);
      }
    } else {
      load_box(*tiles_, p_.type, from, Box{{1, 1, line_}, {0, 0, p_.y.axis[2]}, count, p_.y.channel}, y + position * count,
               count);
    }
  });
  for (int64_t m = 0; m < positions_; ++m)
    for (const Run& run : runs(0, count, row_channels, true)) std::fill_n(columns + m * pitch + run.columns, run.length, In());
  if constexpr (std::is_same_v<In, Real>)
    if (in_short_pieces() && tiles_->copy_links) return tiles_->copy_links(linked<Real, const Real>(count, columns, pitch, y));
  for_each_link(y, count, columns, pitch, row_channels, [](const In* from, In* to, auto length, int64_t step) {
    if (step == 1) {
      std::copy_n(from, length, to);
    } else {
      for (int64_t e = 0; e < length; ++e) to[e] = from[e * step];
    }
  });
}

template <class Real>
void Columns<Real>::store(const Real* columns, int64_t pitch, int64_t row_channels, const void* bias, int64_t channel,
                          int64_t count, Real* y, void* tensor) const {
  const auto start = [&](int64_t c) { return bias ? read<Real>(bias, p_.type, channel + c) : Real(0); };
  if (taps_inside_) {
    for (int64_t c = 0; c < count; ++c) std::fill_n(y + c * y_pitch_, y_positions_, start(c));
  } else {
    for (int64_t c = 0; c < count; ++c) y[c] = start(c);
    for (int64_t p = 1; p < y_positions_; ++p) std::copy_n(y, count, y + p * count);
  }
  if (in_short_pieces() && tiles_->add_links) {
    tiles_->add_links(linked<const Real, Real>(count, columns, pitch, y));
  } else {
    for_each_link(y, count, columns, pitch, row_channels, [&](Real* to, const Real* from, auto length, int64_t step) {
      if (step == 1 && length >= kLongLink) {
        tiles_->add_rows(sizeof(Real) == sizeof(float) ? Type::f32 : Type::f64, from, 0, 1, length, to);
      } else if (step == 1) {  // which compilers vectorize
        for (int64_t e = 0; e < length; ++e) to[e] += from[e];
      } else {
        for (int64_t e = 0; e < length; ++e) to[e * step] += from[e];
      }
    });
  }
  for_each_line(channel, [&](int64_t offset, int64_t position) {
    void* to = element(tensor, p_.type, offset);
    if (taps_inside_) {
      store_planes(*tiles_, p_.type, y + position, y_pitch_, to, p_.y.axis[2], line_, p_.y.channel, count);
    } else {
      store_box(*tiles_, p_.type, y + position * count, count, to, Box{{1, 1, line_}, {0, 0, p_.y.axis[2]}, count, p_.y.channel});
    }
  });
}

template <class Real>
template <class In>
Real Columns<Real>::product(const void* weights, int64_t row, Range channels, const In* columns_of_m, int64_t m) const {
  Real sum = 0;
  for (const Link& link : links_)
    for (int64_t k = link.tap; link.m == m && k < link.tap + link.count; ++k)
      for (int64_t c = 0; c < channels.size(); ++c)
        sum += read<Real>(weights, p_.type, row * p_.w.outer + (channels.begin + c) * p_.w.channel + tap_offset_[size_t(k)]) *
               Real(widen(columns_of_m[taps_inside_ ? c * taps() + k : k * channels.size() + c]));
  return sum;
}

template <class Real>
template <class In>
std::vector<Real> Columns<Real>::row_of_weights(const Real* x, int64_t x_pitch, const In* y, int64_t count, const In* columns,
                                                int64_t pitch) const {
  std::vector<Real> sums(size_t(count * taps()), Real(0));
  for_each_link(y, count, columns, pitch, count, [&](const In* from, const In* to, int64_t length, int64_t step) {
    const int64_t m = (to - columns) / pitch, column = (to - columns) % pitch;
    for (int64_t e = 0; e < length; ++e) sums[size_t(column + e)] += x[m * x_pitch] * Real(widen(from[e * step]));
  });
  return sums;
}

template class Columns<float>;
template class Columns<double>;
#define TORCH_EXT_COLUMNS_OF(Real, In)                                                                \
  template void Columns<Real>::load(const void*, int64_t, int64_t, In*, In*, int64_t, int64_t) const; \
  template Real Columns<Real>::product(const void*, int64_t, Range, const In*, int64_t) const;        \
  template std::vector<Real> Columns<Real>::row_of_weights(const Real*, int64_t, const In*, int64_t, const In*, int64_t) const;
TORCH_EXT_COLUMNS_OF(float, float)
TORCH_EXT_COLUMNS_OF(float, bf16)
TORCH_EXT_COLUMNS_OF(double, double)
#undef TORCH_EXT_COLUMNS_OF

}  // namespace torch_ext::cpu
