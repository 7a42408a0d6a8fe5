// SPDX-License-Identifier: Apache-2.0
// Depthwise layers of planes with a stride as long as a vector (bilinear upsampling of class scores): lanes go along the kernel.
// A position of x meets a patch of y, whose lines lie side by side as those of the kernel do. Lines of y are taken one after the
// other, so that y, by far the largest tensor, is read or written once and in the order of memory. For a line of each,
//   conv_transpose    y[i*stride - offset + k] += x[i] * w[k]
//     a tile of neighbouring cells, whose terms are the taps of a phase
//   backward_data     x[i] += sum over k of y[i*stride - offset + k] * w[k]
//     sums of the products of each lane, which are added in the end
//   backward_weights  w[k] += sum over i of x[i] * y[i*stride - offset + k]
//     a tile of one row, whose terms are the positions
// Positions that are not there are left out, but for those of x in conv_transpose, which are zeros. Lines of 16 bits are
// converted on their way.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "csrc/cpu/depthwise_gate.h"
#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItems = 16;  // to aim for, of each thread of some
// Of the sums of backward_data, which then stay in the L2 cache, and of lines of y that they take at once, in that of L1.
constexpr int64_t kSumsBytes = 256 << 10, kBlockBytes = 16 << 10;

template <class Real>
class Patches final : public Plan {
 public:
  Patches(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // A plane of x, w or y: one channel of a sample.
  struct Plane {
    const void* tensor;
    const Strides* strides;
    int64_t start, extent;  // of the plane in the tensor, of a line
  };
  Plane x_plane(const Buffers& b, int64_t n, int64_t c) const { return {b.x, &p_.x, n * p_.x.outer + c * p_.x.channel, line_.x}; }
  Plane y_plane(const Buffers& b, int64_t n, int64_t c) const { return {b.y, &p_.y, n * p_.y.outer + c * p_.y.channel, line_.y}; }
  Plane w_plane(const Buffers& b, int64_t c) const { return {b.w, &p_.w, c * p_.w.outer, line_.w}; }

  // Lines lie in the tensor, or converted in a stage.
  const Real* load_line(const Plane& plane, int64_t i0, int64_t i1, Real* stage) const;
  void store_line(const Plane& plane, int64_t i0, int64_t i1, const Real* line) const;
  struct Lines {
    const Real* start;
    int64_t pitch[2];
    const Real* line(int64_t i0, int64_t i1) const { return start + i0 * pitch[0] + i1 * pitch[1]; }
  };
  Lines load_lines(const Plane& plane, Range lines0, Range lines1, Real* stage) const;
  Lines load_weights(const Buffers& buffers, int64_t c, std::byte* scratch) const {
    const Axis* axis = p_.geometry.axis;
    return load_lines(w_plane(buffers, c), {0, axis[0].w}, {0, axis[1].w}, layout_.template at<Real>(scratch, weights_part_));
  }

  // Some of what is computed of a plane, or in backward_weights of a channel of all samples.
  struct Item {
    int64_t n, c;
    Range part;
  };
  Item item(int64_t index) const {
    const int64_t parts = parts_of(all_, part_), plane = index / parts, groups = p_.geometry.groups;
    return {plane / groups, plane % groups, part(index % parts, part_, all_)};
  }

  // f(i0, i1, k0, k1): lines of x and of the kernel that meet in a line of y.
  template <class F>
  void each_pair(int64_t o0, int64_t o1, F f) const;

  // Positions of x next to each other, and columns that are there of the patches of all of them.
  struct Positions {
    int64_t first, count;
    Range columns;
  };
  void add_positions(int64_t first, int64_t count, int64_t most_columns);

  bool finite_weights(const Buffers& buffers, const Parallel& parallel) const;
  void run_conv_transpose(const Buffers& buffers, const Item& item, std::byte* scratch) const;
  using Pairs = std::vector<OuterRun<Real>>;  // lines of x and of the kernel
  void sum_patches(const Pairs& pairs, const Real* bias, Pairs& runs, Real* y) const;
  void run_backward_data(const Buffers& buffers, const Item& item, std::byte* scratch) const;
  std::pair<Range, Range> outer_axes(Range lines) const;
  // Neighbouring lines of y, and those of x that may read them, along the two outer axes.
  struct Block {
    Range y[2], x[2];
  };
  void multiply_block(const Block& block, Range lines, const Lines& w, const Lines& y, Real* sums, Upcoming& next) const;
  void multiply_patches(const Lines& w, const Lines& y, int64_t lines, Real* sums, Upcoming& next) const;
  void add_lanes(const Real* lanes, Real* x) const;
  void run_backward_weights(const Buffers& buffers, const Item& item, std::byte* scratch) const;
  void sum_weights(const Real* x, const Real* y, Real* w) const;

  int64_t width() const { return tiles_->max_vectors * tiles_->lanes; }  // of a tile

  Problem p_;
  const Tiles<Real>* tiles_;
  Axis line_;           // the innermost axis
  GatherAxis axis_[2];  // the others, as conv_transpose reads them
  // Of an item, and of all in a plane: lines of y, or of x in backward_data; in backward_weights residues modulo the stride of
  // the middle axis, whose lines of y meet no line of the kernel that those of other residues do.
  int64_t part_, all_;
  Range cells_, positions_{};        // that a line of y has; of x with the zeros around it that these read
  std::vector<AlikePhases> phases_;  // no wider than a tile
  std::vector<Positions> of_line_;   // of a gradient
  std::vector<int64_t> offsets_;     // of neighbouring patches
  std::vector<Real> ones_;
  // Of backward_data: lines of y that are taken at once, and sums of a position, the lanes of a vector, but where the kernel is a
  // single line.
  int64_t block_ = 1, lanes_ = 1;
  bool streams_;                       // lines of a large result
  std::shared_ptr<const Plan> exact_;  // for weights that are not finite, which zeros would spread
  Layout layout_;
  Layout::Part plane_part_, weights_part_, line_part_, sums_part_;
};

template <class Real>
Patches<Real>::Patches(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      line_(p_.geometry.axis[2]),
      axis_{{p_.geometry.axis[0], Operation::conv_transpose}, {p_.geometry.axis[1], Operation::conv_transpose}} {
  const Geometry& g = p_.geometry;
  const int64_t stride = line_.stride, real = sizeof(Real), planes = g.batch * g.groups;
  const int64_t x_lines = g.axis[0].x * g.axis[1].x, w_lines = g.axis[0].w * g.axis[1].w;
  cells_ = cells_of_line(line_);
  positions_ = {std::min<int64_t>(cells_.begin - parts_of(line_.w, stride) + 1, 0), std::max(line_.x, cells_.end)};
  phases_ = alike_phases(line_, width());
  ones_.assign(std::max<int64_t>(kMaxRows, tiles_->lanes), Real(1));
  streams_ = p_.operation == Operation::conv_transpose && g.y_size() * bytes_of(p_.type) >= kStreamedResultBytes &&
             bytes_of(p_.type) == real && p_.y.axis[2] == 1;

  const bool data = p_.operation == Operation::backward_data, weights = p_.operation == Operation::backward_weights;
  all_ = data ? x_lines : weights ? g.axis[1].stride : g.axis[0].y * g.axis[1].y;
  const int64_t items = threads > 1 ? kItems * threads : 1;
  part_ = parts_of(all_, std::clamp<int64_t>(parts_of(items, weights ? g.groups : planes), 1, all_));
  int64_t most = kMaxTerms, columns = width();
  if (data) {
    lanes_ = w_lines > 1 ? tiles_->lanes : 1;
    part_ = std::min(part_, std::max<int64_t>(1, kSumsBytes / (line_.x * lanes_ * real)));
    block_ = std::clamp<int64_t>(kBlockBytes / (line_.y * real), 1,
                                 std::max<int64_t>(1, kMaxTerms / parts_of(line_.w, tiles_->lanes)));
    most = w_lines > 1 ? kLineTerms : tiles_->max_dot_taps[1], columns = line_.w;
    for (int64_t t = 0; t < most; ++t) offsets_.push_back(t * stride);
  }
  if (p_.operation == Operation::conv_transpose) {
    exact_ = make_exact_plan(p_, isa, threads);
  } else {
    const int64_t before = std::min(parts_of(line_.offset, stride), line_.x);
    const int64_t end = std::clamp(first_reaching(line_.y - line_.w + 1, -line_.offset, stride), before, line_.x);
    for (int64_t i = 0; i < before; ++i) add_positions(i, 1, columns);
    for (int64_t i = before, count; i < end; i += count) add_positions(i, count = even_part(end - i, most), columns);
    for (int64_t i = end; i < line_.x; ++i) add_positions(i, 1, columns);
  }
  plane_part_ = layout_.per_thread((data ? block_ * line_.y : x_lines * positions_.size()) * real);
  weights_part_ = layout_.per_thread(weights ? 0 : w_lines * line_.w * real);
  line_part_ = layout_.per_thread(std::max({line_.x, line_.w, line_.y, cells_.size() * stride}) * real);
  sums_part_ = layout_.per_thread((data ? part_ * line_.x * lanes_ : weights ? w_lines * line_.w : 0) * real);
  layout_.finish(threads);
}

template <class Real>
void Patches<Real>::add_positions(int64_t first, int64_t count, int64_t most_columns) {
  const int64_t start = first * line_.stride - line_.offset, end = std::min(line_.w, line_.y - start);
  for (int64_t k = std::max<int64_t>(-start, 0); k < end; k += most_columns)
    of_line_.push_back({first, count, {k, std::min(k + most_columns, end)}});
}

template <class Real>
std::string Patches<Real>::describe() const {
  return std::to_string(part_) + " of " + std::to_string(all_) +
         (p_.operation == Operation::backward_weights ? " residues" : " lines") + " of a plane an item";
}

template <class Real>
const Real* Patches<Real>::load_line(const Plane& plane, int64_t i0, int64_t i1, Real* stage) const {
  const Strides& s = *plane.strides;
  const void* line = element(plane.tensor, p_.type, plane.start + i0 * s.axis[0] + i1 * s.axis[1]);
  if (bytes_of(p_.type) == int64_t(sizeof(Real)) && s.axis[2] == 1) return static_cast<const Real*>(line);
  load_planes(*tiles_, p_.type, line, s.axis[2], plane.extent, 0, 1, stage, plane.extent);
  return stage;
}

template <class Real>
typename Patches<Real>::Lines Patches<Real>::load_lines(const Plane& plane, Range lines0, Range lines1, Real* stage) const {
  const Strides& s = *plane.strides;
  const Real* first = load_line(plane, lines0.begin, lines1.begin, stage);
  if (first != stage) return {first, {s.axis[0], s.axis[1]}};
  for (int64_t i0 = 0; i0 < lines0.size(); ++i0)
    for (int64_t i1 = 0; i1 < lines1.size(); ++i1)
      load_line(plane, lines0.begin + i0, lines1.begin + i1, stage + (i0 * lines1.size() + i1) * plane.extent);
  return {stage, {lines1.size() * plane.extent, plane.extent}};
}

template <class Real>
void Patches<Real>::store_line(const Plane& plane, int64_t i0, int64_t i1, const Real* line) const {
  const Strides& s = *plane.strides;
  void* to = element(const_cast<void*>(plane.tensor), p_.type, plane.start + i0 * s.axis[0] + i1 * s.axis[1]);
  if (streams_) return tiles_->stream(line, to, plane.extent * int64_t(sizeof(Real)));
  store_planes(*tiles_, p_.type, line, plane.extent, to, s.axis[2], plane.extent, 0, 1);
}

template <class Real>
void Patches<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  if (p_.operation == Operation::conv_transpose && !finite_weights(buffers, parallel)) return exact_->run(buffers, parallel);
  const Geometry& g = p_.geometry;
  const int64_t planes = p_.operation == Operation::backward_weights ? g.groups : g.batch * g.groups;
  parallel.for_each(planes * parts_of(all_, part_), [&](int64_t index, int thread) {
    const Item item = this->item(index);
    std::byte* scratch = layout_.thread(workspace, thread);
    switch (p_.operation) {
      case Operation::conv_transpose:
        return run_conv_transpose(buffers, item, scratch);
      case Operation::backward_data:
        return run_backward_data(buffers, item, scratch);
      case Operation::backward_weights:
        return run_backward_weights(buffers, item, scratch);
    }
  });
}

template <class Real>
template <class F>
void Patches<Real>::each_pair(int64_t o0, int64_t o1, F f) const {
  const int64_t cell0 = o0 / axis_[0].out_step, cell1 = o1 / axis_[1].out_step;
  for (const Tap& t0 : axis_[0].phases[size_t(o0 - cell0 * axis_[0].out_step)]) {
    const int64_t i0 = cell0 + t0.delta;
    if (i0 < 0 || i0 >= axis_[0].in_extent) continue;
    for (const Tap& t1 : axis_[1].phases[size_t(o1 - cell1 * axis_[1].out_step)]) {
      const int64_t i1 = cell1 + t1.delta;
      if (i1 >= 0 && i1 < axis_[1].in_extent) f(i0, i1, t0.k, t1.k);
    }
  }
}

// ---- conv_transpose ----------------------------------------------------------------------------------------------------------

template <class Real>
bool Patches<Real>::finite_weights(const Buffers& buffers, const Parallel& parallel) const {
  const Axis* axis = p_.geometry.axis;
  std::atomic<bool> finite{true};
  parallel.for_each(p_.geometry.groups, [&](int64_t c, int thread) {
    Real* stage = layout_.template at<Real>(layout_.thread(static_cast<std::byte*>(buffers.workspace), thread), line_part_);
    for (int64_t k0 = 0; k0 < axis[0].w; ++k0)
      for (int64_t k1 = 0; k1 < axis[1].w; ++k1)
        if (!tiles_->finite(load_line(w_plane(buffers, c), k0, k1, stage), line_.w)) finite = false;
  });
  return finite;
}

// Some lines of a plane of y.
template <class Real>
void Patches<Real>::run_conv_transpose(const Buffers& buffers, const Item& item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const Plane x = x_plane(buffers, item.n, item.c), y = y_plane(buffers, item.n, item.c);
  const Lines w = load_weights(buffers, item.c, scratch);
  Real* lines = layout_.template at<Real>(scratch, plane_part_);
  const int64_t pitch = positions_.size();
  std::fill_n(lines, g.axis[0].x * g.axis[1].x * pitch, Real(0));
  for (int64_t i0 = 0; i0 < g.axis[0].x; ++i0)
    for (int64_t i1 = 0; i1 < g.axis[1].x; ++i1) {
      Real* to = lines + (i0 * g.axis[1].x + i1) * pitch - positions_.begin;
      const Real* from = load_line(x, i0, i1, to);
      if (from != to) std::copy_n(from, line_.x, to);
    }
  Real bias[kMaxVectors * kMaxLanes] = {};
  if (buffers.bias) tiles_->widen(p_.type, element(buffers.bias, p_.type, item.c), bias, 1);
  std::fill(std::begin(bias), std::end(bias), bias[0]);
  thread_local Pairs pairs, runs;
  Real* line = layout_.template at<Real>(scratch, line_part_);
  for (int64_t o = item.part.begin; o < item.part.end; ++o) {
    const int64_t o0 = o / g.axis[1].y, o1 = o % g.axis[1].y;
    pairs.clear();
    each_pair(o0, o1, [&](int64_t i0, int64_t i1, int64_t k0, int64_t k1) {
      pairs.push_back({lines + (i0 * g.axis[1].x + i1) * pitch - positions_.begin, w.line(k0, k1), 0});
    });
    sum_patches(pairs, bias, runs, line);
    store_line(y, o0, o1, line + line_.offset - cells_.begin * line_.stride);
  }
  if (streams_) publish_streamed();
}

// A line of y, in whole cells. Tap t of a phase reads position cell - t; what every result contains once is a term too.
template <class Real>
void Patches<Real>::sum_patches(const Pairs& pairs, const Real* bias, Pairs& runs, Real* y) const {
  for (const AlikePhases& phases : phases_) {
    runs.assign(1, {ones_.data(), bias, 1});
    for (const auto& pair : pairs)
      if (phases.taps) runs.push_back({pair.a + cells_.begin, pair.b + phases.r.begin, phases.taps});
    const int64_t columns = phases.r.size(), vectors = parts_of(columns, tiles_->lanes);
    const int64_t most = even_part(cells_.size(), tiles_->max_rows[vectors]);
    OuterTile<Real> tile{runs.data(),        int64_t(runs.size()), 0,       0,    -1, line_.stride,
                         y + phases.r.begin, line_.stride,         columns, false};
    for (int64_t cell = 0, rows; cell < cells_.size(); cell += rows, tile.out += rows * line_.stride) {
      rows = std::min(most, cells_.size() - cell);
      tiles_->outer[vectors][rows](tile);
      for (size_t k = 1; k < runs.size(); ++k) runs[k].a += rows;
    }
  }
}

// ---- backward_data -----------------------------------------------------------------------------------------------------------

// Positions of y that some of x read.
Range read_by(const Axis& axis, Range x) {
  return {std::max<int64_t>(axis.reach(x.begin, 0), 0), std::min(axis.reach(x.end - 1, axis.w - 1) + 1, axis.y)};
}

// Those of some positions of x that may read some of y, and the taps that one of them reads these with.
Range readers(const Axis& axis, Range x, Range y) {
  return {std::max(x.begin, first_reaching(y.begin, axis.reach(0, axis.w - 1), axis.stride)),
          std::min(x.end, first_reaching(y.end, axis.reach(0, 0), axis.stride))};
}
Range taps_of(const Axis& axis, int64_t i, Range y) {
  const auto first = [&](int64_t o) { return std::min(first_reaching(o, axis.reach(i, 0), axis.dilation), axis.w); };
  return {first(y.begin), first(y.end)};
}

// Which positions along the two outer axes some lines of a plane of x have.
template <class Real>
std::pair<Range, Range> Patches<Real>::outer_axes(Range lines) const {
  const int64_t extent = p_.geometry.axis[1].x, first = lines.begin / extent, last = (lines.end - 1) / extent;
  return {{first, last + 1}, first < last ? Range{0, extent} : Range{lines.begin - first * extent, lines.end - first * extent}};
}

// Some lines of a plane of x.
template <class Real>
void Patches<Real>::run_backward_data(const Buffers& buffers, const Item& item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const Plane x = x_plane(buffers, item.n, item.c), y = y_plane(buffers, item.n, item.c);
  const Lines w = load_weights(buffers, item.c, scratch);
  Real *line = layout_.template at<Real>(scratch, line_part_), *sums = layout_.template at<Real>(scratch, sums_part_);
  Real* stage = layout_.template at<Real>(scratch, plane_part_);
  const int64_t pitch = line_.x * lanes_, extent1 = g.axis[1].x;
  std::fill_n(sums, item.part.size() * pitch, Real(0));

  const auto [x0, x1] = outer_axes(item.part);
  const Range y0 = read_by(g.axis[0], x0), y1 = read_by(g.axis[1], x1);
  // Blocks are the same for any parts, and so are the bits of sums.
  const auto block_from = [&](int64_t o) { return Range{o, std::min(o - o % block_ + block_, y1.end)}; };
  for (int64_t o0 = y0.begin; o0 < y0.end; ++o0)
    for (Range block0{o0, o0 + 1}, block1 = block_from(y1.begin); block1.size() > 0; block1 = block_from(block1.end)) {
      const Block block{{block0, block1}, {readers(g.axis[0], x0, block0), readers(g.axis[1], x1, block1)}};
      if (block.x[0].size() <= 0 || block.x[1].size() <= 0 || of_line_.empty()) continue;
      Upcoming next(block.x[0].size() * block.x[1].size() * int64_t(of_line_.size()));
      next.reads(p_.type, buffers.y, p_.y,
                 {{item.n, item.n + 1}, {item.c, item.c + 1}, {block0, block_from(block1.end), {0, line_.y}}});
      multiply_block(block, item.part, w, load_lines(y, block0, block1, stage), sums, next);
    }

  for (int64_t i = item.part.begin; i < item.part.end; ++i, sums += pitch) {
    if (lanes_ > 1) add_lanes(sums, line);
    store_line(x, i / extent1, i % extent1, lanes_ > 1 ? line : sums);
  }
}

// Adds what a block of lines of y contributes to the sums of some lines of x.
template <class Real>
void Patches<Real>::multiply_block(const Block& block, Range lines, const Lines& w, const Lines& y, Real* sums,
                                   Upcoming& next) const {
  const Axis *outer = &p_.geometry.axis[0], *middle = &p_.geometry.axis[1];
  for (int64_t i0 = block.x[0].begin; i0 < block.x[0].end; ++i0) {
    const Range k0 = taps_of(*outer, i0, block.y[0]);
    for (int64_t i1 = block.x[1].begin; k0.size() > 0 && i1 < block.x[1].end; ++i1) {
      const Range k1 = taps_of(*middle, i1, block.y[1]);
      const int64_t i = i0 * middle->x + i1;
      if (k1.size() <= 0 || i < lines.begin || i >= lines.end) continue;
      const Real* first = y.line(0, middle->reach(i1, k1.begin) - block.y[1].begin);
      multiply_patches({w.line(k0.begin, k1.begin), {0, w.pitch[1]}}, {first, {0, y.pitch[1] * middle->dilation}}, k1.size(),
                       sums + (i - lines.begin) * line_.x * lanes_, next);
    }
  }
}

// Adds the products of some lines of the kernel and of y to the sums of a line of x.
template <class Real>
void Patches<Real>::multiply_patches(const Lines& w, const Lines& y, int64_t lines, Real* sums, Upcoming& next) const {
  for (const Positions& some : of_line_) {
    const Real *of_w = w.start + some.columns.begin,
               *of_y = y.start + some.first * line_.stride - line_.offset + some.columns.begin;
    Real* to = sums + some.first * lanes_;
    next.step();
    if (lanes_ > 1) {
      tiles_->line_sums[some.count]({of_w, w.pitch[1], of_y, y.pitch[1], offsets_.data(), lines, some.columns.size(), to});
    } else {
      const OuterRun<Real> run{of_w, of_y, some.columns.size()};
      tiles_->dot[1][some.count]({&run, 1, 0, 0, offsets_.data(), to, 0});
    }
  }
}

// A line of x.
template <class Real>
void Patches<Real>::add_lanes(const Real* lanes, Real* x) const {
  std::fill_n(x, line_.x, Real(0));
  int64_t offsets[kDotTaps];
  for (int64_t t = 0; t < kDotTaps; ++t) offsets[t] = t * tiles_->lanes;
  for (int64_t i = 0, count; i < line_.x; i += count) {
    count = std::min<int64_t>(line_.x - i, tiles_->max_dot_taps[1]);
    const OuterRun<Real> run{ones_.data(), lanes + i * tiles_->lanes, tiles_->lanes};
    tiles_->dot[1][count]({&run, 1, 0, 0, offsets, x + i, 0});
  }
}

// ---- backward_weights --------------------------------------------------------------------------------------------------------

// The lines of a channel's kernel of some residues.
template <class Real>
void Patches<Real>::run_backward_weights(const Buffers& buffers, const Item& item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const Axis& middle = g.axis[1];
  const Range residues = item.part;
  Real *line = layout_.template at<Real>(scratch, line_part_), *sums = layout_.template at<Real>(scratch, sums_part_);
  std::fill_n(sums, g.axis[0].w * middle.w * line_.w, Real(0));
  for (int64_t n = 0; n < g.batch; ++n) {
    const Plane y = y_plane(buffers, n, item.c);
    const Lines x =
        load_lines(x_plane(buffers, n, item.c), {0, g.axis[0].x}, {0, middle.x}, layout_.template at<Real>(scratch, plane_part_));
    for (int64_t o0 = 0; o0 < g.axis[0].y; ++o0)
      for (int64_t start = 0; start < middle.y; start += middle.stride)
        for (int64_t o1 = start + residues.begin; o1 < std::min(start + residues.end, middle.y); ++o1) {
          const Real* of_y = nullptr;
          each_pair(o0, o1, [&](int64_t i0, int64_t i1, int64_t k0, int64_t k1) {
            if (!of_y) of_y = load_line(y, o0, o1, line);
            sum_weights(x.line(i0, i1), of_y, sums + (k0 * middle.w + k1) * line_.w);
          });
        }
  }
  for (int64_t k1 = 0; k1 < middle.w; ++k1) {
    const int64_t reach = middle.reach(0, k1) % middle.stride, residue = reach < 0 ? reach + middle.stride : reach;
    if (residue < residues.begin || residue >= residues.end) continue;
    for (int64_t k0 = 0; k0 < g.axis[0].w; ++k0)
      store_line(w_plane(buffers, item.c), k0, k1, sums + (k0 * middle.w + k1) * line_.w);
  }
}

// Adds the products of a line of x and one of y to a line of the kernel.
template <class Real>
void Patches<Real>::sum_weights(const Real* x, const Real* y, Real* w) const {
  for (const Positions& some : of_line_) {
    const int64_t k = some.columns.begin, columns = some.columns.size();
    const OuterRun<Real> run{x + some.first, y + some.first * line_.stride - line_.offset + k, some.count};
    tiles_->outer[parts_of(columns, tiles_->lanes)][1]({&run, 1, 0, 0, 1, line_.stride, w + k, 0, columns, true, 1});
  }
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!depthwise_chooses(DepthwiseKernel::patches, p, isa, request)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Patches<double>>(p, isa, request.threads);
  return std::make_shared<Patches<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_patches_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_patches_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_patches_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
