// SPDX-License-Identifier: Apache-2.0
// All three operations where there are few positions of x (the 1x1 bottleneck of a U-Net, the first layer of a generator):
// weights are read, or written, once and in the order in which they lie in memory, as packing them would cost more than it gains.
// With
//   columns[m][(c, k)] = y at the output position that position m of x reaches through tap k, channel c
// the operations are products of x[m][i] and weights[i][(c, k)], whose rows are contiguous:
//   conv_transpose    columns[m] = sum over i of x[m][i] * weights[i], added into y (col2im)
//   backward_data     x[m][i] = columns[m] . weights[i], with columns taken from y (im2col)
//   backward_weights  weights[i] = sum over m of x[m][i] * columns[m]
// Weights of 16 bits are converted a piece at a time, in the L1 cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kMaxPositions = 16, kMaxDotPositions = 6;  // of x: beyond this packed weights are faster, by measurement
constexpr int64_t kMinWeights = 16 << 10;                    // below this packing costs nothing
constexpr int64_t kMaxLinks = 64 << 10;                      // pairs of a position and a tap
constexpr int64_t kItems = 64, kTerms = 128;                 // of a sum in a tile, for the accuracy of long sums
constexpr int64_t kRunBytes = 2048;                          // of a row of weights that an item reads, at least
constexpr int64_t kRows = 16;                                // of weights at a time
constexpr int64_t kPiece = 512;                              // elements of a row of weights that are converted at a time

// A contiguous piece of a row of weights, and of a row of columns.
struct Run {
  int64_t weights, columns, length;
};

// Position m of x reaches position y, both counted through all samples, through a tap.
struct Link {
  int64_t m, tap, y;
};

template <class Real>
Real read(const void* base, Type type, int64_t index) {
  return visit(type, [&](auto scalar) { return Real(widen(static_cast<const decltype(scalar)*>(base)[index])); });
}

template <class Real>
void write(Real value, void* base, Type type, int64_t index) {
  visit(type, [&](auto scalar) {
    using Stored = decltype(scalar);
    narrow(decltype(widen(scalar))(value), static_cast<Stored*>(base)[index]);
  });
}

template <class Real>
class Native final : public Plan {
 public:
  Native(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  void link();
  std::vector<Run> runs(int64_t first_channel, int64_t last_channel, bool all_taps) const;
  // Of a tap in a row of columns, which has the order of the weights.
  int64_t column(int64_t tap) const { return taps_inside_ ? tap_offset_[size_t(tap)] : tap * p_.geometry.y_channels; }
  int64_t x_of(int64_t m, int64_t channel) const;
  const Real* weights(const void* w, int64_t index, int64_t rows, int64_t row_pitch, int64_t count, Real* stage) const;
  void conv_transpose(const Buffers& buffers, int64_t group, int64_t part, int thread) const;
  void backward_data(const Buffers& buffers, int64_t group, int64_t part) const;
  void backward_weights(const Buffers& buffers, int64_t group, int64_t part) const;
  void gather_columns(const Buffers& buffers, int64_t group, Real* columns) const;
  Real sum_exactly(const Buffers& buffers, int64_t m, int64_t i) const;
  void sum_exactly(const Buffers& buffers, int64_t i, Real* row) const;
  void product(int64_t rows, const OuterRun<Real>& run, int64_t a_pitch, int64_t b_pitch, Real* out, int64_t out_pitch,
               int64_t columns, bool add) const;

  Problem p_;
  const Tiles<Real>* tiles_;
  int64_t positions_, length_;       // rows of x; elements of a row of weights
  bool in_place_;                    // weights are of the type that is computed in
  bool taps_inside_;                 // the taps of an output channel lie together, else the channels of a tap
  int64_t part_channels_, parts_;    // of an item: output channels in conv_transpose, else input channels
  std::vector<int64_t> tap_offset_;  // in a row of weights
  std::vector<int64_t> reached_;     // taps with a link
  std::vector<Link> links_;
  std::vector<int64_t> y_offset_;  // of a position, in elements
  Layout layout_;
  Layout::Part x_part_, columns_part_, thread_columns_part_;
};

template <class Real>
Native<Real>::Native(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      positions_(p_.geometry.batch * p_.geometry.x_positions()),
      length_(p_.geometry.y_channels * p_.geometry.w_positions()),
      in_place_(bytes_of(p_.type) == int64_t(sizeof(Real))),
      taps_inside_(p_.w.channel != 1) {
  const Geometry& g = p_.geometry;
  link();
  const bool forward = p_.operation == Operation::conv_transpose;
  const int64_t channels = forward ? g.y_channels : g.x_channels, real = sizeof(Real);
  const int64_t least = forward ? parts_of(kRunBytes, bytes_of(p_.type) * (taps_inside_ ? g.w_positions() : 1)) : 1;
  part_channels_ = std::min(channels, std::max(least, parts_of(channels, kItems)));
  parts_ = parts_of(channels, part_channels_);
  x_part_ = layout_.shared(g.groups * positions_ * g.x_channels * real);
  columns_part_ = layout_.shared(forward ? 0 : g.groups * positions_ * length_ * real);
  thread_columns_part_ = layout_.per_thread(forward ? positions_ * length_ * real : 0);
  layout_.finish(threads);
}

template <class Real>
void Native<Real>::link() {
  const Geometry& g = p_.geometry;
  reached_.resize(size_t(g.w_positions()));
  for (int64_t k = 0; k < g.w_positions(); ++k) {
    const int64_t at[kAxes] = {k / (g.axis[1].w * g.axis[2].w), k / g.axis[2].w % g.axis[1].w, k % g.axis[2].w};
    tap_offset_.push_back(at[0] * p_.w.axis[0] + at[1] * p_.w.axis[1] + at[2] * p_.w.axis[2]);
    for (int64_t m = 0; m < positions_; ++m) {
      int64_t rest = m, y = 0, extent = 1;
      bool inside = true;
      for (int a = kAxes - 1; a >= 0; extent *= g.axis[a--].y) {
        const int64_t o = g.axis[a].reach(rest % g.axis[a].x, at[a]);
        rest /= g.axis[a].x;
        inside = inside && o >= 0 && o < g.axis[a].y;
        y += o * extent;
      }
      if (!inside) continue;
      links_.push_back({m, k, rest * extent + y});
      reached_[size_t(k)] = true;
    }
  }
  for (int64_t n = 0; n < g.batch; ++n)
    for (int64_t o0 = 0; o0 < g.axis[0].y; ++o0)
      for (int64_t o1 = 0; o1 < g.axis[1].y; ++o1)
        for (int64_t o2 = 0; o2 < g.axis[2].y; ++o2)
          y_offset_.push_back(n * p_.y.outer + o0 * p_.y.axis[0] + o1 * p_.y.axis[1] + o2 * p_.y.axis[2]);
}

// What a row of weights holds of the output channels [first, last): of all taps, or of those that reach a position.
template <class Real>
std::vector<Run> Native<Real>::runs(int64_t first, int64_t last, bool all_taps) const {
  if (taps_inside_) return {{first * p_.w.channel, first * p_.w.channel, (last - first) * p_.w.channel}};
  std::vector<Run> runs;
  for (size_t k = 0; k < reached_.size(); ++k)
    if (all_taps || reached_[k]) runs.push_back({tap_offset_[k] + first, column(int64_t(k)) + first, last - first});
  return runs;
}

template <class Real>
std::string Native<Real>::describe() const {
  return std::to_string(positions_) + " positions, " + std::to_string(part_channels_) + " channels an item";
}

template <class Real>
int64_t Native<Real>::x_of(int64_t m, int64_t channel) const {
  const Geometry& g = p_.geometry;
  int64_t at = channel * p_.x.channel;
  for (int a = kAxes - 1; a >= 0; --a) at += m % g.axis[a].x * p_.x.axis[a], m /= g.axis[a].x;
  return at + m * p_.x.outer;
}

// `count` elements of each of some rows, from `index` on: in place, row_pitch apart, or converted, `count` apart.
template <class Real>
const Real* Native<Real>::weights(const void* w, int64_t index, int64_t rows, int64_t row_pitch, int64_t count,
                                  Real* stage) const {
  if (in_place_) return static_cast<const Real*>(w) + index;
  for (int64_t r = 0; r < rows; ++r) tiles_->widen(p_.type, element(w, p_.type, index + r * row_pitch), stage + r * count, count);
  return stage;
}

template <class Real>
void Native<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  // x[group][i][m] for conv_transpose, x[group][m][i] for backward_weights.
  const bool by_channel = p_.operation == Operation::conv_transpose;
  Real* x = layout_.at<Real>(workspace, x_part_);
  for (int64_t m = 0; p_.operation != Operation::backward_data && m < positions_; ++m)
    for (int64_t i = 0; i < g.groups * g.x_channels; ++i)
      x[by_channel ? i * positions_ + m : (i / g.x_channels * positions_ + m) * g.x_channels + i % g.x_channels] =
          read<Real>(buffers.x, p_.type, x_of(m, i));
  if (p_.operation != Operation::conv_transpose)
    parallel.for_each(g.groups, [&](int64_t group, int) {
      gather_columns(buffers, group, layout_.at<Real>(workspace, columns_part_) + group * positions_ * length_);
    });
  parallel.for_each(g.groups * parts_, [&](int64_t index, int thread) {
    const int64_t group = index / parts_, part = index % parts_;
    if (p_.operation == Operation::conv_transpose) {
      conv_transpose(buffers, group, part, thread);
    } else if (p_.operation == Operation::backward_data) {
      backward_data(buffers, group, part);
    } else {
      backward_weights(buffers, group, part);
    }
  });
}

// out[r*out_pitch + n] (+)= sum over p < run.count of run.a[p*a_pitch + r] * run.b[p*b_pitch + n] for r < rows, n < columns.
template <class Real>
void Native<Real>::product(int64_t rows, const OuterRun<Real>& run, int64_t a_pitch, int64_t b_pitch, Real* out,
                           int64_t out_pitch, int64_t columns, bool add) const {
  const int64_t width = tiles_->max_vectors * tiles_->lanes;
  for (int64_t n = 0; n < columns; n += width) {
    const int64_t count = std::min(width, columns - n), vectors = parts_of(count, tiles_->lanes);
    const int64_t parts = parts_of(rows, tiles_->max_rows[vectors]);
    for (int64_t part = 0, r = 0; part < parts; ++part) {
      const int64_t height = (rows - r) / (parts - part);
      tiles_->outer[vectors][height]({&run, 1, r, n, a_pitch, b_pitch, out + r * out_pitch + n, out_pitch, count, add});
      r += height;
    }
  }
}

template <class Real>
void Native<Real>::conv_transpose(const Buffers& buffers, int64_t group, int64_t part, int thread) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  const int64_t first = part * part_channels_, last = std::min(first + part_channels_, g.y_channels);
  const Real* x = layout_.at<Real>(workspace, x_part_) + group * g.x_channels * positions_;
  Real* columns = layout_.at<Real>(layout_.thread(workspace, thread), thread_columns_part_);
  // A few rows of weights at a time, each read as far as the item goes.
  alignas(64) Real stage[kRows * kPiece];
  for (int64_t i = 0; i < g.x_channels; i += kRows) {
    const int64_t rows = std::min(kRows, g.x_channels - i), row = (group * g.x_channels + i) * p_.w.outer;
    for (const Run& run : runs(first, last, false)) {
      const int64_t piece = in_place_ ? run.length : kPiece;
      for (int64_t n = 0; n < run.length; n += piece) {
        const int64_t count = std::min(piece, run.length - n);
        const Real* w = weights(buffers.w, row + run.weights + n, rows, p_.w.outer, count, stage);
        product(positions_, {x + i * positions_, w, rows}, positions_, in_place_ ? p_.w.outer : count, columns + run.columns + n,
                length_, count, i > 0);
      }
    }
  }
  thread_local std::vector<Real> line;
  for (int64_t c = first; c < last; ++c) {
    const int64_t channel = group * g.y_channels + c;
    line.assign(y_offset_.size(), buffers.bias ? read<Real>(buffers.bias, p_.type, channel) : Real(0));
    for (const Link& link : links_) line[size_t(link.y)] += columns[link.m * length_ + column(link.tap) + c * p_.w.channel];
    for (size_t k = 0; k < line.size(); ++k) write(line[k], buffers.y, p_.type, channel * p_.y.channel + y_offset_[k]);
  }
}

template <class Real>
void Native<Real>::gather_columns(const Buffers& buffers, int64_t group, Real* columns) const {
  const Geometry& g = p_.geometry;
  std::fill_n(columns, positions_ * length_, Real(0));
  for (const Link& link : links_) {
    Real* to = columns + link.m * length_ + column(link.tap);
    const int64_t from = group * g.y_channels * p_.y.channel + y_offset_[size_t(link.y)];
    for (int64_t c = 0; c < g.y_channels; ++c) to[c * p_.w.channel] = read<Real>(buffers.y, p_.type, from + c * p_.y.channel);
  }
}

template <class Real>
void Native<Real>::backward_data(const Buffers& buffers, int64_t group, int64_t part) const {
  const Geometry& g = p_.geometry;
  const int64_t first = part * part_channels_, last = std::min(first + part_channels_, g.x_channels);
  const Real* columns =
      layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), columns_part_) + group * positions_ * length_;
  const auto of_row = runs(0, g.y_channels, false);
  alignas(64) Real stage[kTerms * kMaxLanes];
  const int64_t most = kTerms * tiles_->lanes;
  for (int64_t i = first; i < last; ++i) {
    const int64_t channel = group * g.x_channels + i;
    for (int64_t m = 0; m < positions_; m += kDotTaps) {
      const int64_t count = std::min<int64_t>(kDotTaps, positions_ - m);
      Real sums[kDotTaps] = {};
      int64_t offsets[kDotTaps];
      for (int64_t t = 0; t < count; ++t) offsets[t] = t * length_;
      for (const Run& run : of_row)
        for (int64_t n = 0; n < run.length; n += most) {
          const int64_t length = std::min(most, run.length - n);
          const OuterRun<Real> piece{weights(buffers.w, channel * p_.w.outer + run.weights + n, 1, 0, length, stage),
                                     columns + m * length_ + run.columns + n, length};
          tiles_->dot[1][count]({&piece, 1, 0, 0, offsets, sums, 0});
        }
      for (int64_t t = 0; t < count; ++t) {
        // An infinity or NaN among the weights may have met the zero of a position that does not read it.
        if (!std::isfinite(sums[t])) sums[t] = sum_exactly(buffers, m + t, channel);
        write(sums[t], buffers.x, p_.type, x_of(m + t, channel));
      }
    }
  }
}

// x[m][channel] from what position m reaches and nothing else.
template <class Real>
Real Native<Real>::sum_exactly(const Buffers& buffers, int64_t m, int64_t channel) const {
  const Geometry& g = p_.geometry;
  const int64_t y = channel / g.x_channels * g.y_channels * p_.y.channel;
  Real sum = 0;
  for (const Link& link : links_)
    for (int64_t c = 0; link.m == m && c < g.y_channels; ++c)
      sum += read<Real>(buffers.w, p_.type, channel * p_.w.outer + c * p_.w.channel + tap_offset_[size_t(link.tap)]) *
             read<Real>(buffers.y, p_.type, y + c * p_.y.channel + y_offset_[size_t(link.y)]);
  return sum;
}

template <class Real>
void Native<Real>::backward_weights(const Buffers& buffers, int64_t group, int64_t part) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  const int64_t first = part * part_channels_, last = std::min(first + part_channels_, g.x_channels);
  const Real* x = layout_.at<Real>(workspace, x_part_) + group * positions_ * g.x_channels;
  const Real* columns = layout_.at<Real>(workspace, columns_part_) + group * positions_ * length_;
  const int64_t channel = group * g.x_channels;
  alignas(64) Real stage[kRows * kPiece];
  const auto of_row = runs(0, g.y_channels, true);
  for (int64_t i = first; i < last; i += kRows) {
    const int64_t rows = std::min(kRows, last - i), row = (channel + i) * p_.w.outer;
    for (const Run& run : of_row) {
      const int64_t piece = in_place_ ? run.length : kPiece;
      for (int64_t n = 0; n < run.length; n += piece) {
        const int64_t count = std::min(piece, run.length - n);
        void* w = element(buffers.w, p_.type, row + run.weights + n);
        product(rows, {x + i, columns + run.columns + n, positions_}, g.x_channels, length_,
                in_place_ ? static_cast<Real*>(w) : stage, in_place_ ? p_.w.outer : count, count, false);
        for (int64_t r = 0; !in_place_ && r < rows; ++r)
          tiles_->narrow(p_.type, stage + r * count, element(w, p_.type, r * p_.w.outer), count);
      }
    }
  }
  // An infinity or NaN in x has met the zeros of taps that do not read it.
  thread_local std::vector<Real> sums;
  for (int64_t i = first; i < last; ++i) {
    bool finite = true;
    for (int64_t m = 0; m < positions_; ++m) finite = finite && std::isfinite(x[m * g.x_channels + i]);
    if (finite) continue;
    sums.assign(size_t(length_), Real(0));
    sum_exactly(buffers, channel + i, sums.data());
    for (const Run& run : of_row)
      tiles_->narrow(p_.type, sums.data() + run.columns, element(buffers.w, p_.type, (channel + i) * p_.w.outer + run.weights),
                     run.length);
  }
}

// A row of weights, in the order of columns, from what each tap connects and nothing else.
template <class Real>
void Native<Real>::sum_exactly(const Buffers& buffers, int64_t channel, Real* row) const {
  const Geometry& g = p_.geometry;
  const int64_t y = channel / g.x_channels * g.y_channels * p_.y.channel;
  for (const Link& link : links_)
    for (int64_t c = 0; c < g.y_channels; ++c)
      row[column(link.tap) + c * p_.w.channel] +=
          read<Real>(buffers.x, p_.type, x_of(link.m, channel)) *
          read<Real>(buffers.y, p_.type, y + c * p_.y.channel + y_offset_[size_t(link.y)]);
}

// Whether rows of weights are contiguous: all of (channel, taps), or at least the channels of a tap.
bool contiguous_rows(const Problem& p) {
  const Geometry& g = p.geometry;
  if (p.w.channel == 1) return true;
  int64_t taps = 1;
  for (int a = kAxes - 1; a >= 0; taps *= g.axis[a--].w)
    if (g.axis[a].w > 1 && p.w.axis[a] != taps) return false;
  return p.w.channel == taps;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0 || !contiguous_rows(p)) return nullptr;
  const int64_t positions = g.batch * g.x_positions();
  if (positions > kMaxLinks / g.w_positions()) return nullptr;
  const int64_t most = p.operation == Operation::backward_data ? kMaxDotPositions : kMaxPositions;
  if (!request.by_name && (p.prepacked || positions > most || g.w_size() < kMinWeights * g.groups)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Native<double>>(p, isa, request.threads);
  return std::make_shared<Native<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_native_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_native_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_native_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
