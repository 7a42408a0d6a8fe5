// SPDX-License-Identifier: Apache-2.0
// As native.cpp, for weights whose input channels lie side by side (XOI): a contiguous row of them is that of a tap and an output
// channel, n. With columns of y in that order (columns.h) the operations are products of x[m][i], columns[m][n] and
// weights[n][i]:
//   conv_transpose    columns[m][n] = x[m] . weights[n], added into y (col2im)
//   backward_data     x[m] = sum over n of columns[m][n] * weights[n], with columns taken from y (im2col)
//   backward_weights  weights[n] = sum over m of columns[m][n] * x[m]
// Rows of the output channels of a tap follow one another, so that all is read, or written, in long runs; taps that reach nothing
// are not read. Weights of 16 bits are converted a piece at a time, in cache.
#include <cmath>
#include <vector>

#include "csrc/cpu/columns.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/native.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

// Positions of x, beyond which packed weights are faster, by measurement: of rows of so many weights for each of them, and of
// weights that are read from memory.
constexpr int64_t kMaxPositions = 16, kChannelsOfPosition = 16, kMaxPositionsOfLarge = 64;
constexpr int64_t kItems = 64;     // that output channels are shared out in
constexpr int64_t kMinPart = 12;   // output channels of an item, at least
constexpr int64_t kParts = 16;     // of the rows of weights that backward_data sums apart
constexpr int64_t kChannels = 64;  // of x that are converted at a time
constexpr int64_t kSlice = 1024;   // of a row, that is multiplied with all positions while in cache
static_assert(kDotTaps * kSlice <= kRowsShared * kPiece && kWritten <= kRowsShared, "a stage has room for all");

template <class Real>
class NativeXoi final : public Plan {
 public:
  NativeXoi(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  void load_x(const Buffers& buffers, int64_t group, Range of_x) const;
  void load_columns(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const;
  void conv_transpose(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const;
  void backward_data(const Buffers& buffers, int64_t group, int64_t part, std::byte* scratch) const;
  void store_x(const Buffers& buffers, int64_t group, Range of_x) const;
  void backward_weights(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const;

  const void* weights(const Buffers& buffers, int64_t group, int64_t offset) const {
    return element(buffers.w, p_.type, group * p_.geometry.x_channels + offset);
  }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t x_pitch() const { return apart(*tiles_, p_.geometry.x_channels); }
  bool whole_rows() const { return p_.operation == Operation::backward_data; }
  int64_t columns_pitch() const { return apart(*tiles_, (whole_rows() ? p_.geometry.y_channels : part_) * taps()); }
  Real* x_of(const Buffers& buffers, int64_t group) const {
    return layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), x_part_) + group * positions_ * x_pitch();
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  Columns<Real> columns_;
  int64_t positions_;              // rows of x
  bool in_place_;                  // weights are of the type that is computed in
  int64_t part_, parts_;           // output channels of an item
  std::vector<Run> rows_;          // of weights that backward_data multiplies: output channels of a tap
  int64_t row_parts_;              // of them all, each of which is summed apart
  std::vector<int64_t> x_offset_;  // of a position, in elements
  Layout layout_;
  Layout::Part x_part_, all_columns_part_, terms_part_, columns_part_, y_part_, stage_part_, sums_part_;
};

template <class Real>
NativeXoi<Real>::NativeXoi(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      columns_(p_, *tiles_, false),
      positions_(columns_.positions()),
      in_place_(bytes_of(p_.type) == int64_t(sizeof(Real))),
      x_offset_(position_offsets(p_)) {
  const Geometry& g = p_.geometry;
  const double flops = g.flops();
  const bool data = p_.operation == Operation::backward_data, written = p_.operation == Operation::backward_weights;
  part_ = shared_part(g.y_channels, written ? kWritten : std::max(parts_of(g.y_channels, kItems), kMinPart), flops,
                      [&](int64_t parts) { return g.groups * parts; });
  parts_ = parts_of(g.y_channels, part_);
  rows_ = columns_.runs(0, g.y_channels, g.y_channels, false);
  row_parts_ = flops < kManyThreadsFlops ? kParts : 4 * kParts;
  const int64_t real = sizeof(Real), rows = g.y_channels * taps();
  x_part_ = layout_.shared(data ? 0 : g.groups * positions_ * x_pitch() * real);
  all_columns_part_ = layout_.shared(data ? g.groups * positions_ * columns_pitch() * real : 0);
  terms_part_ = layout_.shared(data ? g.groups * rows * positions_ * real : 0);
  columns_part_ = layout_.per_thread(data ? 0 : positions_ * columns_pitch() * real);
  y_part_ = layout_.per_thread(part_ * columns_.y_pitch() * real);
  stage_part_ = layout_.per_thread(kRowsShared * kPiece * real);
  sums_part_ = layout_.shared(data ? g.groups * row_parts_ * positions_ * x_pitch() * real : 0);
  layout_.finish(threads);
}

template <class Real>
std::string NativeXoi<Real>::describe() const {
  return std::to_string(positions_) + " positions, " +
         (whole_rows() ? std::to_string(row_parts_) + " parts" : std::to_string(part_) + " channels of y an item");
}

template <class Real>
void NativeXoi<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  const Geometry& g = p_.geometry;
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const auto for_each_part = [&](auto f) {
    parallel.for_each(g.groups * parts_, [&](int64_t index, int thread) {
      f(index / parts_, part(index % parts_, part_, g.y_channels), layout_.thread(workspace, thread));
    });
  };
  const auto for_each_chunk = [&](auto f) {
    const int64_t chunks = parts_of(g.x_channels, kChannels);
    parallel.for_each(g.groups * chunks,
                      [&](int64_t index, int) { f(index / chunks, part(index % chunks, kChannels, g.x_channels)); });
  };
  switch (p_.operation) {
    case Operation::conv_transpose:
      for_each_chunk([&](auto... chunk) { load_x(buffers, chunk...); });
      return for_each_part([&](auto... part) { conv_transpose(buffers, part...); });
    case Operation::backward_weights:
      for_each_chunk([&](auto... chunk) { load_x(buffers, chunk...); });
      return for_each_part([&](auto... part) { backward_weights(buffers, part...); });
    case Operation::backward_data:
      for_each_part([&](auto... part) { load_columns(buffers, part...); });
      parallel.for_each(g.groups * row_parts_, [&](int64_t index, int thread) {
        backward_data(buffers, index / row_parts_, index % row_parts_, layout_.thread(workspace, thread));
      });
      return for_each_chunk([&](auto... chunk) { store_x(buffers, chunk...); });
  }
}

// x[m][i] of some channels.
template <class Real>
void NativeXoi<Real>::load_x(const Buffers& buffers, int64_t group, Range of_x) const {
  load_positions(*tiles_, p_, x_offset_, buffers.x, group * p_.geometry.x_channels + of_x.begin, of_x.size(), false,
                 x_of(buffers, group) + of_x.begin, x_pitch());
}

template <class Real>
void NativeXoi<Real>::conv_transpose(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t count = channels.size(), pitch = columns_pitch(), height = even_part(positions_, kDotRows);
  const Real* x = x_of(buffers, group);
  Real *columns = layout_.at<Real>(scratch, columns_part_), *stage = layout_.at<Real>(scratch, stage_part_);
  std::fill_n(columns, positions_ * pitch, Real(0));
  const auto runs = columns_.runs(channels.begin, count, count, false);
  for (int64_t i = 0; i < g.x_channels; i += kSlice) {
    const int64_t length = std::min(kSlice, g.x_channels - i);
    for (const Run& run : runs)
      for (int64_t c = 0, rows; c < count; c += rows) {
        rows = std::min<int64_t>(tiles_->max_dot_taps[height], count - c);
        const int64_t first = run.weights + c * p_.w.channel + i, w_pitch = in_place_ ? p_.w.channel : kSlice;
        for (int64_t r = 0; !in_place_ && r < rows; ++r)
          tiles_->widen(p_.type, weights(buffers, group, first + r * p_.w.channel), stage + r * kSlice, length);
        const Real* w = in_place_ ? static_cast<const Real*>(weights(buffers, group, first)) : stage;
        int64_t offsets[kDotTaps];
        for (int64_t r = 0; r < rows; ++r) offsets[r] = r * w_pitch;
        for (int64_t m = 0; m < positions_; m += height) {
          const OuterRun<Real> piece{x + m * x_pitch() + i, w, length};
          tiles_->dot[std::min(height, positions_ - m)][rows](
              {&piece, 1, 0, x_pitch(), offsets, columns + m * pitch + run.columns + c, pitch});
        }
      }
  }
  const int64_t channel = group * g.y_channels + channels.begin;
  columns_.store(columns, pitch, count, buffers.bias, channel, count, layout_.at<Real>(scratch, y_part_), buffers.y);
}

// Columns of some channels, columns[m][n], and the same as terms[n][m].
template <class Real>
void NativeXoi<Real>::load_columns(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const {
  const int64_t all = p_.geometry.y_channels, pitch = columns_pitch();
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  Real* columns = layout_.at<Real>(workspace, all_columns_part_) + group * positions_ * pitch + channels.begin;
  Real* terms = layout_.at<Real>(workspace, terms_part_) + (group * all * taps() + channels.begin) * positions_;
  columns_.load(buffers.y, group * all + channels.begin, channels.size(), layout_.at<Real>(scratch, y_part_), columns, pitch,
                all);
  for (int64_t n = 0; n < all * taps(); n += all)
    tiles_->transpose_rows(columns + n, pitch, terms + n * positions_, positions_, channels.size(), positions_);
}

// sums[group][part][m][i] = what some rows of weights contribute to x.
template <class Real>
void NativeXoi<Real>::backward_data(const Buffers& buffers, int64_t group, int64_t part, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t all = int64_t(rows_.size()) * g.y_channels;
  const Range taken = even_range(part, row_parts_, all);
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Real* terms = layout_.at<Real>(workspace, terms_part_) + group * g.y_channels * taps() * positions_;
  Real* sums = layout_.at<Real>(workspace, sums_part_) + (group * row_parts_ + part) * positions_ * x_pitch();
  std::fill_n(sums, positions_ * x_pitch(), Real(0));
  const int64_t at_once = rows_at_once(g.y_channels, positions_);
  for (int64_t n = taken.begin, rows; n < taken.end; n += rows) {
    const int64_t c = n % g.y_channels;
    const Run& run = rows_[size_t(n / g.y_channels)];
    rows = std::min({at_once, g.y_channels - c, taken.end - n});
    multiply_rows<Real>(*tiles_, p_.type, weights(buffers, group, run.weights + c * p_.w.channel), p_.w.channel, rows,
                        g.x_channels, terms + (run.columns + c) * positions_, positions_, positions_, sums, x_pitch(), true,
                        n + rows < taken.end, layout_.at<Real>(scratch, stage_part_));
  }
}

// x[m][i] = the sums of all parts.
template <class Real>
void NativeXoi<Real>::store_x(const Buffers& buffers, int64_t group, Range of_x) const {
  const Geometry& g = p_.geometry;
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t of_part = positions_ * x_pitch(), first = group * g.x_channels;
  const Real* columns = layout_.at<Real>(workspace, all_columns_part_) + group * positions_ * columns_pitch();
  Real* sums = layout_.at<Real>(workspace, sums_part_) + group * row_parts_ * of_part;
  for (int64_t m = 0; m < positions_; ++m) {
    Real* row = sums + m * x_pitch();
    for (int64_t part = 1; part < row_parts_; ++part)
      for (int64_t i = of_x.begin; i < of_x.end; ++i) row[i] += row[part * of_part + i];
    // An infinity or NaN among the weights may have met the zero of a position that does not read it.
    for (int64_t i = of_x.begin; i < of_x.end; ++i)
      if (!std::isfinite(row[i]))
        row[i] = columns_.product(buffers.w, first + i, {0, g.y_channels}, columns + m * columns_pitch(), m);
  }
  store_positions(*tiles_, p_, x_offset_, sums + of_x.begin, x_pitch(), false, buffers.x, first + of_x.begin, of_x.size());
}

template <class Real>
void NativeXoi<Real>::backward_weights(const Buffers& buffers, int64_t group, Range channels, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t count = channels.size(), pitch = columns_pitch();
  const Real* x = x_of(buffers, group);
  Real *columns = layout_.at<Real>(scratch, columns_part_), *y = layout_.at<Real>(scratch, y_part_);
  Real* stage = layout_.at<Real>(scratch, stage_part_);
  columns_.load(buffers.y, group * g.y_channels + channels.begin, count, y, columns, pitch, count);
  const auto runs = columns_.runs(channels.begin, count, count, true);
  const auto at = [&](const Run& run, int64_t c, int64_t i) {
    return const_cast<void*>(weights(buffers, group, run.weights + c * p_.w.channel + i));
  };
  for (const Run& run : runs)
    for (int64_t c = 0; c < count; c += kWritten)
      write_rows(*tiles_, p_.type, at(run, c, 0), p_.w.channel, std::min(kWritten, count - c), g.x_channels,
                 columns + run.columns + c, pitch, x, x_pitch(), positions_, c + kWritten < count, stage, streams_weights(p_));
  if (streams_weights(p_)) publish_streamed();
  // An infinity or NaN in x has met the zeros of taps that do not read it.
  for (int64_t i : not_finite<Real>(*tiles_, x, x_pitch(), positions_, g.x_channels)) {
    const std::vector<Real> row = columns_.row_of_weights(x + i, x_pitch(), y, count, columns, pitch);
    for (const Run& run : runs)
      for (int64_t c = 0; c < count; ++c) tiles_->narrow(p_.type, &row[size_t(run.columns + c)], at(run, c, i), 1);
  }
}

// Positions beyond which packed weights are faster.
int64_t most_positions(const Problem& p, Isa isa) {
  const int64_t most = std::min(kMaxPositions, p.geometry.x_channels / kChannelsOfPosition);
  if (multiplies_pairs(p.type, isa)) return most / 2;
  if (p.geometry.w_size() * bytes_of(p.type) < kLargeWeights) return most;
  return p.geometry.x_channels >= kLongRun ? kMaxPositionsOfLarge : kMaxPositions;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0 || p.w.outer != 1 || p.w.channel == 1) return nullptr;
  const int64_t positions = g.batch * g.x_positions();
  if (positions > kMaxLinks / g.w_positions() || g.batch * g.y_positions() > kMaxResults) return nullptr;
  if (!request.by_name && (p.prepacked || positions > most_positions(p, request.isa) || g.w_size() < kMinWeights * g.groups))
    return nullptr;
  if (p.type == Type::f64) return std::make_shared<NativeXoi<double>>(p, isa, request.threads);
  return std::make_shared<NativeXoi<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_native_xoi_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_native_xoi_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_native_xoi_portable(const Problem& p, const Request& request) {
  return make(p, Isa::portable, request);
}

}  // namespace torch_ext::cpu
