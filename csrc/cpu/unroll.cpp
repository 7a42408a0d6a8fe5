// SPDX-License-Identifier: Apache-2.0
// conv_transpose with few input channels and the stride 1 along the innermost axis, whose sums of a tap would be too short: the
// taps of a line become input channels. With x padded by zeros along that axis and K taps,
//   x'[o][(t, c)] = x[o + offset - (K-1) + t][c],  w'[(t, c)] = w[K-1-t][c]:
// the rows of x' overlap, so that they are no more than x with channels last, each K positions long (MEC of Cho and Brand, 2017,
// "MEC: memory-efficient convolution for deep neural network").
#include <algorithm>
#include <atomic>
#include <cmath>

#include "csrc/core/scalar.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

// Channels of y: below so many lanes go along positions, which pairs of bf16 need longer sums for: of so many terms in a line
// and, but on matrix registers, of so many lines of so few channels of x.
constexpr int64_t kLeastResults = 16, kLeastResultsOfPairs = 9, kLeastResultsOfLongSums = 4;
constexpr int64_t kLongSum = 16, kLinesOfLongSum = 8, kFewChannels = 3;
constexpr int64_t kLeastTapsOfLine = 3;
constexpr double kMostlyInside = 0.75;  // of the products of a line; the others are with zeros
constexpr int64_t kLinesOfItem = 8;

class Unroll final : public Plan {
 public:
  Unroll(const Problem& problem, const Request& request);
  std::string describe() const override {
    return std::to_string(line_axis().w) + " taps of a line as channels of " + inner_->kernel + " " + inner_->describe();
  }
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  const Axis& line_axis() const { return p_.geometry.axis[kAxes - 1]; }
  int64_t line() const { return (line_axis().y + line_axis().w - 1) * p_.geometry.x_channels; }  // elements, zeros included
  Problem unrolled() const;
  template <class T>
  void pad_line(const T* x, T* to, int64_t index) const;
  template <class T>
  bool turn_taps(const T* w, T* to, int64_t index) const;

  Problem p_;
  Isa isa_;
  std::shared_ptr<const Plan> inner_, exact_;
  Layout layout_;
  Layout::Part x_part_, w_part_, inner_part_;
};

Unroll::Unroll(const Problem& problem, const Request& request) : p_(problem), isa_(request.isa) {
  const Geometry& g = p_.geometry;
  inner_ = make_plan(unrolled(), request.isa, request.threads);
  exact_ = make_exact_plan(p_, request.isa, request.threads);
  x_part_ = layout_.shared(g.batch * g.axis[0].x * g.axis[1].x * line() * bytes_of(p_.type));
  w_part_ = layout_.shared(g.w_size() * bytes_of(p_.type));
  inner_part_ = layout_.shared(inner_->workspace_bytes());
}

Problem Unroll::unrolled() const {
  Problem p = p_;
  Geometry& g = p.geometry;
  const int64_t channels = g.x_channels;
  Axis& a = g.axis[kAxes - 1];
  g.x_channels *= a.w;
  p.x = {g.axis[0].x * g.axis[1].x * line(), 1, {g.axis[1].x * line(), line(), channels}};
  p.w = {g.y_channels, 1, {g.axis[1].w * g.x_channels * g.y_channels, g.x_channels * g.y_channels, 0}};
  a = {a.y, 1, a.y};
  return p;
}

void Unroll::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  std::atomic<bool> finite{true};
  Buffers inner = buffers;
  inner.x = layout_.at<void>(workspace, x_part_);
  inner.w = layout_.at<void>(workspace, w_part_);
  inner.workspace = layout_.at<void>(workspace, inner_part_);
  visit(p_.type, [&](auto scalar) {
    using T = decltype(scalar);
    parallel.for_each(g.axis[0].w * g.axis[1].w, [&](int64_t index, int) {
      if (!turn_taps(static_cast<const T*>(buffers.w), static_cast<T*>(inner.w), index)) finite = false;
    });
    const int64_t lines = g.batch * g.axis[0].x * g.axis[1].x;
    parallel.for_each(parts_of(lines, kLinesOfItem), [&](int64_t index, int) {
      const Range some = part(index, kLinesOfItem, lines);
      for (int64_t i = some.begin; i < some.end; ++i) pad_line(static_cast<const T*>(buffers.x), static_cast<T*>(inner.x), i);
    });
  });
  // An infinity or NaN would meet the zeros beside a line.
  finite ? inner_->run(inner, parallel) : exact_->run(buffers, parallel);
}

template <class T>
void Unroll::pad_line(const T* x, T* to, int64_t index) const {
  const Geometry& g = p_.geometry;
  const Axis& a = line_axis();
  const int64_t i1 = index % g.axis[1].x, i0 = index / g.axis[1].x % g.axis[0].x, n = index / g.axis[1].x / g.axis[0].x;
  const T* from = x + n * p_.x.outer + i0 * p_.x.axis[0] + i1 * p_.x.axis[1];
  const int64_t channels = g.x_channels, first = a.offset - (a.w - 1), positions = a.y + a.w - 1;  // first: of x, may be outside
  const Range inside{std::clamp<int64_t>(-first, 0, positions), std::clamp<int64_t>(a.x - first, 0, positions)};
  to += index * line();
  std::fill_n(to, inside.begin * channels, T{});
  from += (first + inside.begin) * p_.x.axis[kAxes - 1];
  T* const rows = to + inside.begin * channels;
  if (p_.x.channel == 1 && p_.x.axis[kAxes - 1] == channels) {
    std::copy_n(from, std::max<int64_t>(inside.size(), 0) * channels, rows);
  } else if (inside.size() > 0) {
    copy_box(isa_, p_.type, from, {{1, 1, inside.size()}, {0, 0, p_.x.axis[kAxes - 1]}, channels, p_.x.channel}, rows, channels);
  }
  std::fill(to + std::max(inside.begin, inside.end) * channels, to + line(), T{});
}

// Those of one position of the outer axes, to[(t, c)][channel of y]. Returns whether all are finite.
template <class T>
bool Unroll::turn_taps(const T* w, T* to, int64_t index) const {
  const Geometry& g = p_.geometry;
  const int64_t taps = line_axis().w, row = g.x_channels * g.y_channels;
  w += index / g.axis[1].w * p_.w.axis[0] + index % g.axis[1].w * p_.w.axis[1];
  to += index * taps * row;
  for (int64_t c = 0; c < g.x_channels; ++c)  // from the last row of taps up to the first
    copy_box(isa_, p_.type, w + c * p_.w.outer, {{1, 1, taps}, {0, 0, p_.w.axis[kAxes - 1]}, g.y_channels, p_.w.channel},
             to + (taps - 1) * row + c * g.y_channels, -row);
  if constexpr (sizeof(T) == 2) {
    bool finite = true;
    for (int64_t i = 0; i < taps * row; ++i) finite &= std::isfinite(widen(to[i]));
    return finite;
  } else {
    return tiles<T>(isa_).finite(to, taps * row);
  }
}

bool takes(const Problem& p) {
  const Geometry& g = p.geometry;
  const Axis& a = g.axis[kAxes - 1];
  if (p.operation != Operation::conv_transpose || g.groups > 1 || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0)
    return false;
  return a.stride == 1 && a.dilation == 1 && a.w > 1;
}

// With vectors of 8 other kernels of few channels take so much longer that zeros beside a line cost less (18 layers of small
// planes and of whole borders: 0.56 of the time; 3 to 192 channels, k11 s1, 14x14: 0.5).
bool short_vectors(const Request& request) { return request.isa < Isa::avx512; }

// From a vector of input channels on a tap is a sum of its own. (4 to 48 channels, k4 s1: 0.6 of the time; 1 to 128, k9 s1: 0.7;
// 8 to 64, k3 s1: 0.95.)
bool sums_are_short(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  const Axis& a = g.axis[kAxes - 1];
  const int64_t most = tiles<float>(request.isa).lanes;
  const bool pairs = multiplies_pairs(p.type, request.isa), matrices = request.isa >= Isa::amx;
  const bool many_lines = g.x_channels <= kFewChannels && g.axis[0].w * g.axis[1].w >= kLinesOfLongSum;
  const bool long_sums = g.x_channels * a.w >= kLongSum && (matrices || many_lines);
  const bool whole_pairs = g.x_channels > kFewChannels || g.x_channels % 2 == 0;
  const int64_t least = !pairs        ? kLeastResults
                        : long_sums   ? kLeastResultsOfLongSums
                        : whole_pairs ? kLeastResultsOfPairs
                                      : kLeastResults;
  const bool inside = short_vectors(request) || double(products_of(a)) >= kMostlyInside * double(a.y * a.w);
  return g.x_channels <= most && g.y_channels >= least && a.w >= kLeastTapsOfLine && inside;
}

}  // namespace

std::shared_ptr<Plan> make_unroll(const Problem& p, const Request& request) {
  if (!takes(p)) return nullptr;
  const bool worth_it = p.y.channel == 1 && sums_are_short(p, request);
  return worth_it || request.by_name ? std::make_shared<Unroll>(p, request) : nullptr;
}

// Planes that are not better summed with lanes along positions, nor by fewer products: enough of them for turning the taps, and
// of more than one line each, in which `gather` makes them rows (2 to 96 channels, k9 s1, 40x40: 0.8 of the time; 4 to 64, 8x8x8,
// k5 s1: 0.83; 1 to 40, k9 s1: 0.4; one line 1.0; 12 to 128, k9 s1, 10x10: 1.3). With vectors of 8 they come before `wide` (58
// of 110 layers change: 0.74 of the time; volumes of 6, 1 to 128 channels, k3 s1: 0.38; lines 0.81; of 16 bits lines 1.13).
std::shared_ptr<Plan> make_unroll_planes(const Problem& p, const Request& request) {
  constexpr int64_t kLeastPositions = 250, kLeastOfLongSums = 600, kLongTap = 8, kShortTap = 4, kFewResults = 64,
                    kLeastResultsOf16Bits = 32;
  if (!takes(p)) return nullptr;
  const Geometry& g = p.geometry;
  const int64_t least = g.x_channels > kLongTap ? kLeastOfLongSums : kLeastPositions;
  const int64_t positions = g.batch * g.y_positions();
  const bool floats = bytes_of(p.type) > 2, planes = !x_is_line(g);
  const bool many = short_vectors(request)
                        ? (positions >= kLeastPositions || (g.x_channels <= kShortTap && g.y_channels <= kFewResults)) &&
                              (floats || (planes && g.y_channels >= kLeastResultsOf16Bits))
                        : planes && positions >= least;
  const bool worth_it = p.y.channel != 1 && many && sums_are_short(p, request);
  return worth_it || request.by_name ? std::make_shared<Unroll>(p, request) : nullptr;
}

}  // namespace torch_ext::cpu
