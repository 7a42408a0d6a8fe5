// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/rows.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {
namespace {

// Whether rows so many bytes apart lie in so few sets of the L1 cache that those of a chunk evict each other. Then a copy costs
// less: 10 to 35 % of the time of layers of 64 and 128 channels.
bool share_sets(int64_t bytes) { return std::gcd(bytes, int64_t(4096)) >= 512; }

// How far ahead rows are asked for on the way through them to pairs (gradients of weights, channels last, 192 to 192 channels,
// 37x37, k4 s4: 0.9 of the time; 64 to 1, volumes of 32: 0.86; 64 to 2, 256x256: 0.9).
constexpr int64_t kAheadBytes = 2048;

}  // namespace

template <class In>
Rows<In>::Rows(const Tiles<Real>& tiles, Type type, const Strides& strides, int64_t extent, int64_t channels, const Region& whole,
               int64_t apart, int64_t step, int64_t gap, std::vector<bool> used)
    : tiles_(&tiles),
      type_(type),
      strides_(strides),
      extent_(extent),
      channels_(channels),
      whole_(whole),
      step_(step),
      gap_(gap),
      used_(std::move(used)),
      in_place_(std::is_same_v<In, Real> && channels_follow<Real>(type, strides, channels) &&
                !(extent > 1 && share_sets(apart * strides.axis[2] * int64_t(sizeof(Real))))) {}

template <class In>
void Rows<In>::set_room(int64_t room) {
  // An odd number of cache lines spreads neighbouring rows over all sets of the L1 cache.
  pitch_ = round_up(room, tiles_->lanes);
  if (pitch_ * int64_t(sizeof(Real)) % (2 * kCacheLine) == 0) pitch_ += kCacheLine / int64_t(sizeof(Real));
}

template <class In>
int64_t Rows<In>::box_bytes(int64_t samples, const int64_t* lengths) const {
  // A tile may read a whole vector of the last row.
  const int64_t rows = parts_of(lengths[2], step_), slack = kMaxLanes * int64_t(sizeof(Real));
  return slack + samples * lengths[0] * lengths[1] * rows * pitch_ * int64_t(sizeof(Real));
}

template <class In>
int64_t Rows<In>::box_bytes(int64_t samples) const {
  int64_t lengths[kAxes];
  for (int a = 0; a < kAxes; ++a) lengths[a] = std::max<int64_t>(whole_.end[a] - whole_.begin[a], 0);
  return box_bytes(samples, lengths);
}

template <class In>
auto Rows<In>::view(const void* tensor, int64_t group) const -> RowView<Real> {
  const Strides& s = strides_;
  return {
      static_cast<const Real*>(tensor) + group * channels_ * s.channel, s.outer, {s.axis[0], s.axis[1], s.axis[2]}, s.channel};
}

template <class In>
auto Rows<In>::boxed(const Region& region, Real* box) const -> RowView<Real> {
  const int64_t line = rows(region, 2) * pitch_, plane = rows(region, 1) * line;
  RowView<Real> view{box, rows(region, 0) * plane, {plane, line, pitch_}, 1};
  view.origin -= region.begin[0] * plane + region.begin[1] * line + region.begin[2] / step_ * pitch_;
  return view;
}

template <class In>
auto Rows<In>::load(const void* tensor, int64_t first_channel, int64_t channels, int64_t sample_begin, int64_t sample_end,
                    const Region& region, Real* box, std::atomic<bool>& finite) const -> RowView<Real> {
  if (region.empty()) return {};
  const Strides& s = strides_;
  RowView<Real> view = boxed(region, box);
  for (int64_t n = sample_begin; n < sample_end; ++n, box += view.sample) {
    const int64_t offset = n * s.outer + first_channel * s.channel;
    if constexpr (std::is_same_v<In, Real>) {
      Box shape{{}, {s.axis[0], s.axis[1], s.axis[2]}, channels, s.channel};
      int64_t corner = offset;
      for (int a = 0; a < kAxes; ++a) {
        shape.extent[a] = region.end[a] - region.begin[a];
        corner += region.begin[a] * s.axis[a];
      }
      load_box(*tiles_, type_, element(tensor, type_, corner), shape, box, pitch_);
    } else {
      for (int64_t p0 = region.begin[0]; p0 < region.end[0]; ++p0)
        for (int64_t p1 = region.begin[1]; p1 < region.end[1]; ++p1) {
          const void* from = element(tensor, type_, offset + p0 * s.axis[0] + p1 * s.axis[1]);
          Real* to = box + (p0 - region.begin[0]) * view.axis[0] + (p1 - region.begin[1]) * view.axis[1];
          const Line line{static_cast<const uint16_t*>(from), s.axis[2], s.channel};
          if (!load_pairs(line, region.begin[2], rows(region, 2), channels, to)) finite = false;
        }
    }
  }
  view.origin -= sample_begin * view.sample;
  return view;
}

// `count` rows of pairs, the first of which starts at position `begin` of the line. Returns whether all is finite.
template <class In>
bool Rows<In>::load_pairs(Line line, int64_t begin, int64_t count, int64_t channels, Real* to) const {
  if constexpr (Operand<In>::terms == 2) {
    const int64_t low = std::max<int64_t>(begin, 0), high = std::min(extent_, begin + (count - 1) * step_ + gap_ + 1);
    const bool follow = line.channel == 1;
    if (!follow && low < high) {
      thread_local std::vector<uint16_t> stage;
      const int64_t pitch = round_up(channels, 32);
      stage.resize(size_t((high - low) * pitch));
      const Box shape{{1, 1, high - low}, {0, 0, line.position}, channels, line.channel};
      load_box(*tiles_, Type::bf16, line.at + low * line.position, shape, reinterpret_cast<bf16*>(stage.data()), pitch);
      line = {stage.data() - low * pitch, pitch, 1};
    }
    const auto row = [&](int64_t position) {
      return position >= low && position < high ? line.at + position * line.position : nullptr;
    };
    const int64_t row_bytes = channels * bytes_of(Type::bf16), ahead = gap_ + parts_of(kAheadBytes, row_bytes);
    bool finite = true;
    const int64_t period = int64_t(used_.size());
    int64_t rest = (begin % period + period) % period;
    for (int64_t r = 0; r < count; ++r, begin += step_, to += pitch_) {
      if (follow) ask_near(line.at + (begin + ahead) * line.position, row_bytes);
      if (used_[size_t(rest)]) finite = tiles_->pair(row(begin), row(begin + gap_), to, channels) && finite;
      rest = rest + step_ < period ? rest + step_ : (rest + step_) % period;
    }
    return finite;
  }
  return false;
}

template <class In>
auto Rows<In>::load_all(const void* tensor, int64_t samples, int64_t groups, int64_t slice_bytes, Real* box,
                        const Parallel& parallel, std::atomic<bool>& finite) const -> RowView<Real> {
  if (in_place_) return view(tensor, 0);
  if (whole_.empty()) return {};  // nothing is ever read
  // Slices of the first long axis.
  int axis = 0;
  while (axis < kAxes - 1 && whole_.end[axis] - whole_.begin[axis] == 1) ++axis;
  RowView<Real> all = boxed(whole_, box);
  const int64_t step = axis == kAxes - 1 ? step_ : 1, count = rows(whole_, axis);
  const int64_t slice = std::clamp<int64_t>(slice_bytes / (all.axis[axis] * int64_t(sizeof(Real))), 1, count);
  const int64_t slices = parts_of(count, slice);
  parallel.for_each(samples * slices, [&](int64_t index, int) {
    const int64_t n = index / slices, first = index % slices * slice;
    Region region = whole_;
    region.begin[axis] += first * step;
    region.end[axis] = std::min(region.begin[axis] + slice * step, region.end[axis]);
    load(tensor, 0, groups * channels_, n, n + 1, region, box + n * all.sample + first * all.axis[axis], finite);
  });
  return all;
}

template class Rows<float>;
template class Rows<double>;
template class Rows<bf16>;

}  // namespace torch_ext::cpu
