// SPDX-License-Identifier: Apache-2.0
// All three operations where there are few positions of x (the 1x1 bottleneck of a U-Net, the first layers of a generator or of a
// vocoder): weights are read, or written, once and in the order in which they lie in memory, as packing them would cost more than
// it gains. With columns of y in their order (columns.h) the operations are products of x[m][i] and weights[i][(c, k)], whose
// rows are contiguous:
//   conv_transpose    columns[m] = sum over i of x[m][i] * weights[i], added into y (col2im)
//   backward_data     x[m][i] = columns[m] . weights[i], with columns taken from y (im2col)
//   backward_weights  weights[i] = sum over m of x[m][i] * columns[m]
// Where vectors multiply pairs of bf16, those are pairs of channels of x, of elements of a row as they lie, and of positions:
// each time of what is summed over, so that a zero beside the last of an odd number meets nothing but another one. Other weights
// of 16 bits are converted a piece at a time, in cache, and where many positions share them so are all others: their rows often
// lie a multiple of a page apart, which would put them into a few sets of the L1 cache.
#include "csrc/cpu/native.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "csrc/cpu/columns.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/native_gate.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kPositions = 128;  // of an item that multiplies them by pieces of rows
constexpr int64_t kItems = 64;
constexpr int64_t kFewChannels = 12;  // of y, whose columns are all made before y is
constexpr int64_t kRunBytes = 2048;   // of a row of weights that an item reads, at least
// Of weights that so few positions share that they take as long as memory does, which is read best in longer runs. (512 to 512
// channels, k4 s2, 1x1: 0.6 of the time of tiles that take turns with more rows of 2 KB.)
constexpr int64_t kRunBytesOfFew = 4096;
constexpr int64_t kChannels = 64;  // of x that are brought in order at a time
// Gradients: columns of an item, and where these are too few to read or write weights in runs of kRunBytes; items that parts of
// the columns and of the rows of weights make up. Columns of backward_data that fit L2 are made once for all rows, also where
// taps are many (k8 s4, 256 to 128 channels, 5x5: 0.75 of the time).
constexpr int64_t kColumnBytes = 128 << 10, kFewColumnBytes = 512 << 10, kMostItems = 16;
// Rows of weights at a time of backward_data, and elements of them. Of weights where they lie fewer rows come in time where few
// positions share them (1024 to 512 channels, k4 s2, 4x4 to 5x4, from memory: 0.86 to 0.94 of the time; 7x7: 1.05).
constexpr int64_t kDotted = 32, kSlice = 1024, kDottedOfFew = 16, kFewPositions = 48;
// Positions that tiles take in so many passes over the rows of weights are too few tiles for all of the next rows, if each asks
// for one (1024 to 512 channels, k4 s2, 2x2 to 4x3: 0.75 to 0.9 of the time).
constexpr int64_t kPassesOfFew = 2;

template <class In>
class Native final : public Plan {
  using Real = typename Operand<In>::Real;  // in which is summed
  static constexpr int64_t kTerms = Operand<In>::terms;

 public:
  Native(const Problem& problem, const Tiles<Real>& tiles, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  void load_x(const Buffers& buffers, int64_t group, Range channels, Real* x) const;
  void load_columns(const Buffers& buffers, int64_t group, Range channels, In* columns, std::byte* scratch) const;
  void run_conv_transpose(const Buffers& buffers, const Parallel& parallel) const;
  std::vector<Run> longest_runs(Range channels, int64_t row_channels, bool all_taps = false) const;
  std::vector<Run> pieces_of_row(double flops) const;
  void multiply(const Buffers& buffers, int64_t group, Range positions, std::span<const Run> runs, Real* columns,
                std::byte* scratch) const;
  void multiply_and_turn(const Real* weights, std::span<const Run> runs, const Real* x, Real* columns, Real* turned) const;
  void run_backward_data(const Buffers& buffers, const Parallel& parallel) const;
  void backward_data(const Buffers& buffers, int64_t group, Range channels, Range of_x, const In* columns,
                     std::byte* scratch) const;
  void add_dots(const Real* weights, int64_t pitch, int64_t rows, const Real* column, int64_t length, Real* sums,
                const Real* next = nullptr, int64_t next_rows = 0) const;
  void add_last_products(const In* weight, int64_t rows, const In* column, Real* sums) const;
  void store_x(const Buffers& buffers, int64_t group, Range channels) const;
  void backward_weights(const Buffers& buffers, int64_t group, Range channels, Range of_x, std::byte* scratch) const;

  static Real* reals(In* values) { return reinterpret_cast<Real*>(values); }
  static const Real* reals(const In* values) { return reinterpret_cast<const Real*>(values); }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t width() const { return tiles_->max_vectors * tiles_->lanes; }  // of a tile
  // Whether conv_transpose reads rows of weights side by side to their ends.
  bool reads_rows() const { return p_.operation == Operation::conv_transpose && kTerms == 1 && positions_ <= kRowsPositions; }
  int64_t run_bytes() const { return reads_rows() ? kRunBytesOfFew : kRunBytes; }
  int64_t x_pitch() const {
    if (p_.operation != Operation::conv_transpose) return apart(*tiles_, p_.geometry.x_channels);
    return turned_ ? positions_ : apart(*tiles_, positions_);
  }
  int64_t x_of_group() const {
    return parts_of(p_.operation == Operation::conv_transpose ? p_.geometry.x_channels : positions_, kTerms) * x_pitch();
  }
  // Of reals forward, else of In.
  int64_t columns_pitch() const {
    const int64_t row = (all_columns_ ? p_.geometry.y_channels : part_channels_) * taps();
    return p_.operation == Operation::conv_transpose ? apart(*tiles_, row) : kTerms * apart(*tiles_, parts_of(row, kTerms));
  }
  int64_t sums_parts() const { return all_columns_ ? 1 : parts_; }
  int64_t sums_of_part() const { return p_.geometry.groups * p_.geometry.x_channels * positions_; }

  Problem p_;
  const Tiles<Real>* tiles_;
  Columns<Real> columns_;
  int64_t positions_;  // rows of x
  bool in_place_;      // weights are of the type that is computed in
  bool turned_;        // conv_transpose takes lanes along positions
  // Columns are made of all channels before y is, or after: weights are read in the runs of a whole row. Else of those of an
  // item.
  bool all_columns_;
  int64_t part_channels_, parts_;  // of y, brought in order together
  int64_t part_rows_, row_parts_;  // of weights, of an item of a gradient
  std::vector<int64_t> x_offset_;  // of a position, in elements
  std::vector<Run> pieces_;        // of a row of weights: the items of conv_transpose, where it makes all columns
  Layout layout_;
  Layout::Part x_part_, all_columns_part_, columns_part_, pairs_part_, y_part_, stage_part_, sums_part_;
};

template <class In>
Native<In>::Native(const Problem& problem, const Tiles<Real>& tiles, int threads)
    : p_(problem),
      tiles_(&tiles),
      columns_(p_, *tiles_, p_.w.channel != 1),
      positions_(columns_.positions()),
      in_place_(bytes_of(p_.type) == int64_t(sizeof(Real))),
      x_offset_(position_offsets(p_)) {
  const Geometry& g = p_.geometry;
  const int64_t least = parts_of(run_bytes(), bytes_of(p_.type) * (columns_.taps_inside() ? taps() : 1));
  const double flops = g.flops();
  const auto of_groups = [&](int64_t parts) { return g.groups * parts; };
  const auto with_rows = [&](int64_t parts) { return g.groups * parts * parts_of(kMostItems, parts); };
  const bool data = p_.operation == Operation::backward_data, forward = p_.operation == Operation::conv_transpose;
  const bool written = p_.operation == Operation::backward_weights;
  const int64_t real = sizeof(Real), of_column = forward ? real : sizeof(In), of_channel = positions_ * taps() * of_column;
  all_columns_ = g.groups * g.y_channels * of_channel <= kMostColumnBytes &&
                 (data ? taps() < kManyTaps || g.groups * g.y_channels * of_channel <= kFewColumnBytes
                       : forward && (!columns_.taps_inside() || g.y_channels <= kFewChannels));
  if (forward || all_columns_) {
    part_channels_ = shared_part(g.y_channels, std::max(least, parts_of(g.y_channels, kItems)), flops, of_groups);
    part_rows_ = shared_part(g.x_channels, kDotted, flops, of_groups);
    if (forward && all_columns_) {
      pieces_ = pieces_of_row(flops);
      if (!columns_.taps_inside()) part_channels_ = std::min(round_up(part_channels_, tiles_->lanes), g.y_channels);
    }
  } else {
    const int64_t fit = std::max(kColumnBytes / of_channel, std::min(least, kMostColumnBytes / of_channel));
    part_channels_ = shared_part(g.y_channels, std::max<int64_t>(fit, 1), flops, with_rows);
    part_rows_ = round_up(parts_of(g.x_channels, parts_of(kMostItems, parts_of(g.y_channels, part_channels_))),
                          data ? kDotRows : kWritten);
  }
  parts_ = parts_of(g.y_channels, part_channels_);
  row_parts_ = parts_of(g.x_channels, part_rows_);

  turned_ = forward && in_place_ && positions_ > kShared && positions_ <= width() && positions_ % tiles_->lanes == 0;
  x_part_ = layout_.shared(data ? 0 : g.groups * x_of_group() * real);
  all_columns_part_ = layout_.shared(all_columns_ ? g.groups * positions_ * columns_pitch() * of_column : 0);
  sums_part_ = layout_.shared(data ? sums_parts() * sums_of_part() * real : 0);
  columns_part_ = layout_.per_thread(all_columns_ ? 0 : positions_ * columns_pitch() * of_column);
  pairs_part_ = layout_.per_thread(written && kTerms == 2 ? parts_of(positions_, kTerms) * columns_pitch() * real : 0);
  y_part_ = layout_.per_thread(part_channels_ * columns_.y_pitch() * of_column);
  int64_t longest = pieces_.empty() ? part_channels_ * taps() : 0;
  for (const Run& piece : pieces_) longest = std::max(longest, piece.length);
  stage_part_ = layout_.per_thread((turned_        ? longest * positions_
                                    : reads_rows() ? 0
                                    : forward      ? kRowsShared * kPiece
                                    : data         ? kDotted * kSlice
                                                   : kWritten * kPiece) *
                                   real);
  layout_.finish(threads);
}

template <class In>
std::string Native<In>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(positions_) + " positions, " +
         (!pieces_.empty() ? text(pieces_.front().length) + " weights of a row"
          : all_columns_   ? text(part_rows_) + " channels of x"
                           : text(part_channels_) + " channels of y") +
         " an item";
}

// x[i][m] for conv_transpose, x[m][i] for backward_weights; i or m is that of a pair where there are pairs.
template <class In>
void Native<In>::load_x(const Buffers& buffers, int64_t group, Range channels, Real* x) const {
  const bool planes = p_.operation == Operation::conv_transpose;
  const int64_t first = group * p_.geometry.x_channels + channels.begin, count = channels.size();
  x += planes ? channels.begin / kTerms * x_pitch() : channels.begin;
  if constexpr (kTerms == 1) {
    load_positions(*tiles_, p_, x_offset_, buffers.x, first, count, planes, x, x_pitch());
  } else {
    load_pairs_of_positions(*tiles_, p_, x_offset_, buffers.x, first, count, planes, x, x_pitch());
  }
}

// Columns of some channels, the first of a row.
template <class In>
void Native<In>::load_columns(const Buffers& buffers, int64_t group, Range channels, In* columns, std::byte* scratch) const {
  const int64_t all = p_.geometry.y_channels;
  columns_.load(buffers.y, group * all + channels.begin, channels.size(), layout_.at<In>(scratch, y_part_), columns,
                columns_pitch(), all_columns_ ? all : channels.size());
}

template <class In>
void Native<In>::run(const Buffers& buffers, const Parallel& parallel) const {
  if (p_.operation == Operation::backward_data) return run_backward_data(buffers, parallel);
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  const int64_t chunks = parts_of(g.x_channels, kChannels);
  parallel.for_each(g.groups * chunks, [&](int64_t index, int) {
    load_x(buffers, index / chunks, part(index % chunks, kChannels, g.x_channels),
           layout_.at<Real>(workspace, x_part_) + index / chunks * x_of_group());
  });
  if (p_.operation == Operation::conv_transpose) return run_conv_transpose(buffers, parallel);
  parallel.for_each(g.groups * parts_ * row_parts_, [&](int64_t index, int thread) {
    const int64_t y_part = index / row_parts_;
    backward_weights(buffers, y_part / parts_, part(y_part % parts_, part_channels_, g.y_channels),
                     part(index % row_parts_, part_rows_, g.x_channels), layout_.thread(workspace, thread));
  });
}

template <class In>
void Native<In>::run_conv_transpose(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  const int64_t of_group = positions_ * columns_pitch(), pieces = int64_t(pieces_.size());
  const int64_t some = turned_ ? positions_ : even_part(positions_, kPositions), chunks = parts_of(positions_, some);
  Real* all_columns = layout_.at<Real>(workspace, all_columns_part_);
  if (all_columns_)
    parallel.for_each(g.groups * chunks * pieces, [&](int64_t index, int thread) {
      const int64_t group = index / pieces / chunks;
      multiply(buffers, group, part(index / pieces % chunks, some, positions_),
               std::span(pieces_).subspan(size_t(index % pieces), 1), all_columns + group * of_group,
               layout_.thread(workspace, thread));
    });
  parallel.for_each(g.groups * parts_, [&](int64_t index, int thread) {
    const int64_t group = index / parts_, y_channels = g.y_channels;
    const Range channels = part(index % parts_, part_channels_, y_channels);
    std::byte* scratch = layout_.thread(workspace, thread);
    const int64_t first = channels.begin * (columns_.taps_inside() ? taps() : 1);
    Real* columns = all_columns_ ? all_columns + group * of_group + first : layout_.at<Real>(scratch, columns_part_);
    if (!all_columns_)
      multiply(buffers, group, {0, positions_}, columns_.runs(channels.begin, channels.size(), channels.size(), false), columns,
               scratch);
    columns_.store(columns, columns_pitch(), all_columns_ ? y_channels : channels.size(), buffers.bias,
                   group * y_channels + channels.begin, channels.size(), layout_.at<Real>(scratch, y_part_), buffers.y);
  });
}

template <class In>
void Native<In>::run_backward_data(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  if (all_columns_) {
    In* columns = layout_.at<In>(workspace, all_columns_part_);
    parallel.for_each(g.groups * parts_, [&](int64_t index, int thread) {
      const int64_t group = index / parts_;
      const Range channels = part(index % parts_, part_channels_, g.y_channels);
      load_columns(buffers, group, channels,
                   columns + group * positions_ * columns_pitch() + channels.begin * (columns_.taps_inside() ? taps() : 1),
                   layout_.thread(workspace, thread));
    });
    return parallel.for_each(g.groups * row_parts_, [&](int64_t index, int thread) {
      const int64_t group = index / row_parts_;
      const Range of_x = part(index % row_parts_, part_rows_, g.x_channels);
      backward_data(buffers, group, {0, g.y_channels}, of_x, columns + group * positions_ * columns_pitch(),
                    layout_.thread(workspace, thread));
      store_x(buffers, group, of_x);
    });
  }
  parallel.for_each(g.groups * parts_ * row_parts_, [&](int64_t index, int thread) {
    const int64_t group = index / row_parts_ / parts_;
    const Range channels = part(index / row_parts_ % parts_, part_channels_, g.y_channels);
    std::byte* scratch = layout_.thread(workspace, thread);
    In* columns = layout_.at<In>(scratch, columns_part_);
    load_columns(buffers, group, channels, columns, scratch);
    backward_data(buffers, group, channels, part(index % row_parts_, part_rows_, g.x_channels), columns, scratch);
  });
  const int64_t chunks = parts_of(g.x_channels, kChannels);
  parallel.for_each(g.groups * chunks,
                    [&](int64_t index, int) { store_x(buffers, index / chunks, part(index % chunks, kChannels, g.x_channels)); });
}

// What a row of weights holds of the first channels of a row of columns, of the taps that reach y or of all, in the longest runs.
template <class In>
std::vector<Run> Native<In>::longest_runs(Range channels, int64_t row_channels, bool all_taps) const {
  std::vector<Run> longest;
  for (const Run& run : columns_.runs(channels.begin, channels.size(), row_channels, all_taps)) {
    const Run* last = longest.empty() ? nullptr : &longest.back();
    if (last && last->weights + last->length == run.weights && last->columns + last->length == run.columns) {
      longest.back().length += run.length;
    } else {
      longest.push_back(run);
    }
  }
  return longest;
}

// Of so many elements each, but for the last one of a run.
std::vector<Run> cut_runs(const std::vector<Run>& runs, int64_t length) {
  std::vector<Run> pieces;
  for (const Run& run : runs)
    for (int64_t n = 0; n < run.length; n += length)
      pieces.push_back({run.weights + n, run.columns + n, std::min(length, run.length - n)});
  return pieces;
}

// Even pieces of whole tiles, of the taps that reach y; as long as kRunBytes where threads share them evenly.
template <class In>
std::vector<Run> Native<In>::pieces_of_row(double flops) const {
  const Geometry& g = p_.geometry;
  const std::vector<Run> whole = longest_runs({0, g.y_channels}, g.y_channels);
  for (int64_t tiles = std::max<int64_t>(1, run_bytes() / bytes_of(p_.type) / width());; --tiles) {
    std::vector<Run> pieces = cut_runs(whole, tiles * width());
    if (tiles == 1 || shared_evenly(g.groups * int64_t(pieces.size()), flops)) return pieces;
  }
}

// columns[m][run] = sum over i of x[m][i] * weights[i][run] for some positions m; a few rows of weights at a time, each read as
// far as the item goes.
template <class In>
void Native<In>::multiply(const Buffers& buffers, int64_t group, Range positions, std::span<const Run> runs, Real* columns,
                          std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const Real* x = layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), x_part_) + group * x_of_group();
  Real* stage = layout_.at<Real>(scratch, stage_part_);
  const void* of_group = element(buffers.w, p_.type, group * g.x_channels * p_.w.outer);
  if (turned_) return multiply_and_turn(static_cast<const Real*>(of_group), runs, x, columns, stage);
  if (reads_rows()) {
    for (const Run& run : runs)
      tiles_->rows[positions.size()]({x + positions.begin, element(of_group, p_.type, run.weights), p_.type, x_pitch(),
                                      p_.w.outer, g.x_channels, columns + positions.begin * columns_pitch() + run.columns,
                                      columns_pitch(), run.length});
    return;
  }
  const int64_t at_once = rows_at_once(g.x_channels, positions.size(), kTerms);
  for (int64_t i = 0; i < g.x_channels; i += at_once) {
    const int64_t rows = std::min(at_once, g.x_channels - i);
    for (const Run& run : runs)
      multiply_rows<In>(*tiles_, p_.type, element(of_group, p_.type, i * p_.w.outer + run.weights), p_.w.outer, rows, run.length,
                        x + i / kTerms * x_pitch() + positions.begin, x_pitch(), positions.size(),
                        columns + positions.begin * columns_pitch() + run.columns, columns_pitch(), i > 0,
                        i + rows < g.x_channels, stage);
  }
}

// The same from turned[n of all runs][m].
template <class In>
void Native<In>::multiply_and_turn(const Real* weights, std::span<const Run> runs, const Real* x, Real* columns,
                                   Real* turned) const {
  const int64_t channels = p_.geometry.x_channels, rows = rows_turned<Real>(channels, positions_);
  for (int64_t i = 0; i < channels; i += rows) {
    Real* to = turned;
    for (const Run& run : runs) {
      multiply_turned(*tiles_, weights + i * p_.w.outer + run.weights, p_.w.outer, std::min(rows, channels - i), run.length,
                      x + i * positions_, positions_, to, i > 0, &run == &runs.back() && i + rows < channels);
      to += run.length * positions_;
    }
  }
  for (const Run& run : runs) {
    tiles_->transpose_rows(turned, positions_, columns + run.columns, columns_pitch(), positions_, run.length);
    turned += run.length * positions_;
  }
}

// What some channels of y, whose columns these are, contribute to some of x: sums[part][group][channel of x][m].
template <class In>
void Native<In>::backward_data(const Buffers& buffers, int64_t group, Range channels, Range of_x, const In* columns,
                               std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t pitch = columns_pitch(), sums_part = channels.begin / part_channels_;
  Real* stage = layout_.at<Real>(scratch, stage_part_);
  Real* sums = layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), sums_part_) + sums_part * sums_of_part() +
               (group * g.x_channels + of_x.begin) * positions_;
  std::fill_n(sums, of_x.size() * positions_, Real(0));
  const int64_t end = group * g.x_channels + of_x.end;
  const std::vector<Run> pieces = cut_runs(longest_runs(channels, channels.size()), kTerms * kSlice);  // of a row
  const bool in_place = kTerms == 1 ? in_place_ : p_.w.outer % kTerms == 0;
  const auto* weights = static_cast<const In*>(buffers.w);  // where in place, or pairs
  const int64_t at_once = in_place && positions_ <= kFewPositions ? kDottedOfFew : kDotted;
  for (int64_t first = group * g.x_channels + of_x.begin; first < end; first += at_once) {
    const int64_t rows = std::min(at_once, end - first);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [offset, column, length] = pieces[i];
      const int64_t from = first * p_.w.outer + offset;
      // The next piece of these rows, or the first one of those that follow.
      const bool last = i + 1 == pieces.size();
      const Run& after = pieces[last ? 0 : i + 1];
      const int64_t next = (last ? first + rows : first) * p_.w.outer + after.weights;
      const int64_t next_rows = last ? std::min(at_once, end - first - rows) : rows;
      if (in_place) {
        add_dots(reals(weights + from), p_.w.outer / kTerms, rows, reals(columns + column), length / kTerms, sums,
                 reals(weights + next), next_rows);
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          if (tiles_->asks && r < next_rows)
            ask_for(element(buffers.w, p_.type, next + r * p_.w.outer), after.length * bytes_of(p_.type));
          const int64_t row = from + r * p_.w.outer;
          if constexpr (kTerms == 1) {
            tiles_->widen(p_.type, element(buffers.w, p_.type, row), stage + r * kSlice, length);
          } else {
            std::copy_n(weights + row, length, reinterpret_cast<In*>(stage + r * kSlice));
          }
        }
        add_dots(stage, kSlice, rows, reals(columns + column), length / kTerms, sums);
      }
      if (length % kTerms) add_last_products(weights + from + length - 1, rows, columns + column + length - 1, sums);
    }
    // An infinity or NaN among the weights may have met the zero of a position that does not read it.
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t m = 0; m < positions_; ++m)
        if (Real& sum = sums[r * positions_ + m]; !std::isfinite(sum))
          sum = columns_.product(buffers.w, first + r, channels, columns + m * pitch, m);
    sums += rows * positions_;
  }
}

// sums[r][m] += the sum over so many reals of those of a row of weights times those of a column. Each tile asks for a row of what
// is multiplied next, or for as many as it has itself.
template <class In>
void Native<In>::add_dots(const Real* weights, int64_t pitch, int64_t rows, const Real* column, int64_t length, Real* sums,
                          const Real* next, int64_t next_rows) const {
  const int64_t most = tiles_->max_dot_taps[kDotRows], height = even_part(rows, kDotRows), step = columns_pitch() / kTerms;
  const bool few = positions_ <= kPassesOfFew * most;
  const int64_t asking = few ? height : 1;
  int64_t offsets[kDotTaps], asked = 0;
  for (int64_t t = 0; t < kDotTaps; ++t) offsets[t] = t * step;
  for (int64_t m = 0; m < positions_; m += most)
    for (int64_t r = 0; r < rows; r += height, asked += asking) {
      const Real* row = weights + r * pitch;
      const OuterRun<Real> run{row, column + m * step, length};
      const bool asks = asked + asking <= next_rows;
      tiles_->dot[std::min(height, rows - r)][std::min(most, positions_ - m)](
          {&run, 1, 0, pitch, offsets, sums + r * positions_ + m, positions_, asks ? next + asked * pitch - row : 0,
           asks && few});
    }
}

// sums[r][m] += the product of one weight of each row and one of each of the columns: the last of an odd number.
template <class In>
void Native<In>::add_last_products(const In* weight, int64_t rows, const In* column, Real* sums) const {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t m = 0; m < positions_; ++m)
      sums[r * positions_ + m] += Real(widen(weight[r * p_.w.outer])) * Real(widen(column[m * columns_pitch()]));
}

// x[m][i] = the sums of all parts.
template <class In>
void Native<In>::store_x(const Buffers& buffers, int64_t group, Range channels) const {
  const int64_t first = group * p_.geometry.x_channels + channels.begin, count = channels.size() * positions_;
  Real* sums = layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), sums_part_) + first * positions_;
  for (int64_t other = 1; other < sums_parts(); ++other)
    for (int64_t j = 0; j < count; ++j) sums[j] += sums[other * sums_of_part() + j];
  store_positions(*tiles_, p_, x_offset_, sums, positions_, true, buffers.x, first, channels.size());
}

template <class In>
void Native<In>::backward_weights(const Buffers& buffers, int64_t group, Range channels, Range of_x, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const Real* x = layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), x_part_) + group * x_of_group();
  In *columns = layout_.at<In>(scratch, columns_part_), *y = layout_.at<In>(scratch, y_part_);
  Real *stage = layout_.at<Real>(scratch, stage_part_), *terms = reals(columns);
  const int64_t count = channels.size(), pitch = columns_pitch();
  load_columns(buffers, group, channels, columns, scratch);
  if constexpr (kTerms == 2) {
    terms = layout_.at<Real>(scratch, pairs_part_);
    const auto* halves = reinterpret_cast<const uint16_t*>(columns);
    for (int64_t m = 0; m < positions_; m += 2)
      tiles_->pair(halves + m * pitch, m + 1 < positions_ ? halves + (m + 1) * pitch : nullptr, terms + m / 2 * pitch,
                   count * taps());
  }
  const auto of_row = longest_runs(channels, count, true);
  const auto at = [&](int64_t i, const Run& run) {
    return element(buffers.w, p_.type, (group * g.x_channels + i) * p_.w.outer + run.weights);
  };
  for (int64_t i = of_x.begin; i < of_x.end; i += kWritten)
    for (const Run& run : of_row)
      write_rows(*tiles_, p_.type, at(i, run), p_.w.outer, std::min(kWritten, of_x.end - i), run.length, x + i, x_pitch(),
                 terms + run.columns, pitch, parts_of(positions_, kTerms), i + kWritten < of_x.end, stage, streams_weights(p_));
  if (streams_weights(p_)) publish_streamed();
  // An infinity or NaN in x has met the zeros of taps that do not read it.
  for (int64_t wrong : not_finite<In>(*tiles_, x + of_x.begin, x_pitch(), positions_, of_x.size())) {
    const int64_t i = of_x.begin + wrong;
    std::vector<Real> of_channel;
    for (int64_t m = 0; m < positions_; ++m)
      of_channel.push_back(Real(widen(reinterpret_cast<const In*>(x + m / kTerms * x_pitch() + i)[m % kTerms])));
    const std::vector<Real> row = columns_.row_of_weights(of_channel.data(), 1, y, count, columns, pitch);
    for (const Run& run : of_row) tiles_->narrow(p_.type, row.data() + run.columns, at(i, run), run.length);
  }
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!native_takes(p) || (!request.by_name && !native_pays(p, request))) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Native<double>>(p, tiles<double>(isa), request.threads);
  return std::make_shared<Native<float>>(p, tiles<float>(isa), request.threads);
}

}  // namespace

#if defined(__x86_64__)
std::shared_ptr<Plan> make_native_avx512_bf16(const Problem& p, const Request& request) {
  if (p.type != Type::bf16 || !native_takes(p) || (!request.by_name && !native_of_pairs_pays(p, request))) return nullptr;
  return std::make_shared<Native<bf16>>(p, pair_tiles(), request.threads);
}
#endif
std::shared_ptr<Plan> make_native_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_native_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_native_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
