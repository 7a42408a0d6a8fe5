// SPDX-License-Identifier: Apache-2.0
// Depthwise layers: lanes along the channels, row by row. Every position sums the terms that there are, so that borders need no
// zeros. Rows that are not of the type that is computed in, or whose channels do not lie side by side, are brought to a box in
// cache, and results on their way out to a line.
#include <algorithm>
#include <vector>

#include "csrc/cpu/depthwise_gate.h"
#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/rows.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItems = 64;            // items to aim for, so that any number of threads up to that has work
constexpr int64_t kBoxBytes = 256 << 10;  // of the rows of an item: a quarter of the L2 cache
constexpr int64_t kChannels = 128;        // at a time: the weights of sixteen taps stay in L1

// Halves the longer one of a block's lines and the positions of a line, but not to less than what makes the block's overlap with
// its neighbours matter; returns whether that was possible.
bool halve(int64_t& lines, int64_t& positions) {
  constexpr int64_t kLines = 4, kPositions = 32;
  int64_t& longer = lines > kLines || (lines > 1 && positions <= kPositions) ? lines : positions;
  if (&longer == &positions && positions <= kPositions) return false;
  longer = parts_of(longer, 2);
  return true;
}

// Where rows of positions with all their channels lie.
template <class Real>
struct RowsOf {
  const Real* origin;
  int64_t plane, line, position;  // strides
};

// x or y as rows: in place, or brought to a box.
template <class Real>
class Side {
 public:
  Side(const Tiles<Real>& tiles, const Problem& p, bool is_x)
      : tiles_(&tiles), type_(p.type), strides_(is_x ? p.x : p.y), channels_(p.geometry.groups) {
    in_place_ = channels_follow<Real>(type_, strides_, channels_);
    one_line_ = (is_x ? p.geometry.axis[1].x : p.geometry.axis[1].y) == 1;
  }
  bool in_place() const { return in_place_; }
  // Of a box of so many positions.
  int64_t box_bytes(int64_t positions) const { return in_place_ ? 0 : positions * channels_ * int64_t(sizeof(Real)); }
  // From a position that is computed with to one that soon will be: so many lines further on, or where there is one line, so many
  // positions.
  int64_t ahead(int64_t lines, int64_t positions) const {
    return one_line_ ? positions * strides_.axis[2] : lines * strides_.axis[1];
  }
  // A region of a sample.
  RowsOf<Real> load(const void* tensor, int64_t sample, const Region& region, Real* box) const {
    const Strides& s = strides_;
    if (in_place_) return {static_cast<const Real*>(tensor) + sample * s.outer, s.axis[0], s.axis[1], s.axis[2]};
    if (region.empty()) return {};
    Box shape{{}, {s.axis[0], s.axis[1], s.axis[2]}, channels_, s.channel};
    int64_t from = sample * s.outer;
    for (int a = 0; a < kAxes; ++a) {
      shape.extent[a] = region.end[a] - region.begin[a];
      from += region.begin[a] * s.axis[a];
    }
    load_box(*tiles_, type_, element(tensor, type_, from), shape, box, channels_);
    const int64_t line = shape.extent[2] * channels_, plane = shape.extent[1] * line;
    return {box - region.begin[0] * plane - region.begin[1] * line - region.begin[2] * channels_, plane, line, channels_};
  }

 private:
  const Tiles<Real>* tiles_;
  Type type_;
  Strides strides_;
  int64_t channels_;
  bool in_place_, one_line_;
};

// ---- conv_transpose, backward_data -------------------------------------------------------------------------------------------

template <class Real>
class Depthwise final : public Plan {
 public:
  Depthwise(const Problem& p, const Tiles<Real>& tiles, int threads)
      : p_(p),
        tiles_(&tiles),
        axis_{{p.geometry.axis[0], p.operation}, {p.geometry.axis[1], p.operation}, {p.geometry.axis[2], p.operation}},
        in_(tiles, p, p.operation == Operation::conv_transpose),
        out_(tiles, p, p.operation != Operation::conv_transpose),
        channels_(p.geometry.groups) {
    lines_ = axis_[1].cells, cells_ = axis_[2].cells;
    while (p.geometry.batch * blocks() < kItems || in_.box_bytes(reach(0, 1) * reach(1, lines_) * reach(2, cells_)) > kBoxBytes)
      if (!halve(lines_, cells_)) break;
    in_ahead_ = in_.ahead(axis_[1].in_step, cells_ * axis_[2].in_step);
    out_ahead_ = out_.ahead(1, cells_ * axis_[2].out_step);
    weights_part_ = layout_.shared(p.geometry.w_positions() * channels_ * int64_t(sizeof(Real)));
    bias_part_ = layout_.shared(channels_ * int64_t(sizeof(Real)));
    box_part_ = layout_.per_thread(in_.box_bytes(reach(0, 1) * reach(1, lines_) * reach(2, cells_)));
    line_part_ = layout_.per_thread(out_.box_bytes(cells_ * axis_[2].out_step));
    layout_.finish(threads);
  }
  std::string describe() const override {
    return "blocks of " + std::to_string(lines_) + "x" + std::to_string(cells_) + " cells" +
           (in_.in_place() ? "" : ", input boxed") + (out_.in_place() ? "" : ", output by the line");
  }
  int64_t workspace_bytes() const override { return layout_.bytes(); }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Real* weights = layout_.template at<Real>(workspace, weights_part_);
    const Axis* axis = p_.geometry.axis;
    int64_t tap = 0;
    for (int64_t k0 = 0; k0 < axis[0].w; ++k0)
      for (int64_t k1 = 0; k1 < axis[1].w; ++k1)
        for (int64_t k2 = 0; k2 < axis[2].w; ++k2, ++tap)
          load_planes(*tiles_, p_.type, element(buffers.w, p_.type, k0 * p_.w.axis[0] + k1 * p_.w.axis[1] + k2 * p_.w.axis[2]),
                      p_.w.outer, channels_, 0, 1, weights + tap * channels_, channels_);
    Real* bias = layout_.template at<Real>(workspace, bias_part_);
    load_bias(*tiles_, p_.type, buffers.bias, channels_, bias);
    parallel.for_each(p_.geometry.batch * blocks(), [&](int64_t index, int thread) {
      Region cells;
      const int64_t size[kAxes] = {1, lines_, cells_};
      for (int a = kAxes - 1; a >= 0; --a) {
        const int64_t count = parts_of(axis_[a].cells, size[a]), block = index % count;
        index /= count;
        cells.begin[a] = block * size[a], cells.end[a] = std::min(cells.begin[a] + size[a], axis_[a].cells);
      }
      run_block(buffers, index, cells, weights, bias, layout_.thread(workspace, thread));
    });
  }

 private:
  // Of a sample.
  int64_t blocks() const { return axis_[0].cells * parts_of(axis_[1].cells, lines_) * parts_of(axis_[2].cells, cells_); }
  // Of some cells of an axis, at most.
  int64_t reach(int axis, int64_t cells) const {
    int64_t longest = 0;
    for (int64_t j = 0; j < axis_[axis].cells && cells > 0; j += cells) {
      int64_t first, last;
      axis_[axis].reach(j, std::min(j + cells, axis_[axis].cells), first, last);
      longest = std::max(longest, last - first + 1);
    }
    return longest;
  }

  // All phases of a block of cells.
  void run_block(const Buffers& buffers, int64_t sample, const Region& cells, const Real* weights, const Real* bias,
                 std::byte* scratch) const {
    const bool forward = p_.operation == Operation::conv_transpose;
    const Strides& out = forward ? p_.y : p_.x;
    void* result = forward ? buffers.y : buffers.x;
    Region reached;
    for (int a = 0; a < kAxes; ++a) {
      axis_[a].reach(cells.begin[a], cells.end[a], reached.begin[a], reached.end[a]);
      ++reached.end[a];
    }
    const RowsOf<Real> in =
        in_.load(forward ? buffers.x : buffers.y, sample, reached, layout_.template at<Real>(scratch, box_part_));
    Real* line = layout_.template at<Real>(scratch, line_part_);
    const int64_t first = cells.begin[2] * axis_[2].out_step;
    const int64_t extent = std::min(cells.end[2] * axis_[2].out_step, axis_[2].out_extent) - first;
    thread_local std::vector<Row> rows;
    for (int64_t o0 = cells.begin[0] * axis_[0].out_step; o0 < end_of(cells, 0); ++o0)
      for (int64_t o1 = cells.begin[1] * axis_[1].out_step; o1 < end_of(cells, 1); ++o1) {
        rows.clear();
        for (const Tap& t0 : axis_[0].phases[size_t(o0 % axis_[0].out_step)])
          for (const Tap& t1 : axis_[1].phases[size_t(o1 % axis_[1].out_step)]) {
            const int64_t i0 = o0 / axis_[0].out_step * axis_[0].in_step + t0.delta;
            const int64_t i1 = o1 / axis_[1].out_step * axis_[1].in_step + t1.delta;
            if (i0 < 0 || i0 >= axis_[0].in_extent || i1 < 0 || i1 >= axis_[1].in_extent) continue;
            rows.push_back({in.origin + i0 * in.plane + i1 * in.line,
                            weights + (t0.k * p_.geometry.axis[1].w + t1.k) * p_.geometry.axis[2].w * channels_});
          }
        void* to = element(result, p_.type, sample * out.outer + o0 * out.axis[0] + o1 * out.axis[1] + first * out.axis[2]);
        if (out_.in_place()) {
          run_line(rows, cells, in.position, bias, static_cast<Real*>(to), out.axis[2]);
        } else {
          run_line(rows, cells, in.position, bias, line, channels_);
          store_box(*tiles_, p_.type, line, channels_, to, Box{{1, 1, extent}, {0, 0, out.axis[2]}, channels_, out.channel});
        }
      }
  }
  int64_t end_of(const Region& cells, int axis) const {
    return std::min(cells.end[axis] * axis_[axis].out_step, axis_[axis].out_extent);
  }

  struct Row {
    const Real *in, *weights;
  };
  // A line of the results of a block, from the lines of the input that reach it.
  void run_line(const std::vector<Row>& rows, const Region& cells, int64_t in_position, const Real* bias, Real* to,
                int64_t position) const {
    const GatherAxis& axis = axis_[2];
    const int64_t first = cells.begin[2];
    thread_local std::vector<const Real*> in, weights;
    thread_local std::vector<Ahead<Real>> ahead;
    for (int64_t r = 0; r < axis.out_step; ++r) {
      const std::vector<Tap>& taps = axis.phases[size_t(r)];
      const int64_t end = std::min(cells.end[2], parts_of(axis.out_extent - r, axis.out_step));
      Interior interior{first, end};
      for (const Tap& tap : taps) interior.meet(axis.in_step, tap.delta, axis.in_extent);
      for_each_run(interior, first, end, [&](int64_t j, int64_t positions) {
        in.clear(), weights.clear();
        for (const Row& row : rows)
          for (const Tap& tap : taps) {
            const int64_t i = j * axis.in_step + tap.delta;
            if (i < 0 || i >= axis.in_extent) continue;
            in.push_back(row.in + i * in_position), weights.push_back(row.weights + tap.k * channels_);
          }
        Real* const out = to + ((j - first) * axis.out_step + r) * position;
        ahead.clear();
        if (out_.in_place()) ahead.push_back({out + out_ahead_, axis.out_step * position});
        if (in_.in_place())
          for (const Row& row : rows)
            for (int64_t u = 0; u < axis.in_step; ++u)
              ahead.push_back({row.in + (j * axis.in_step + u) * in_position + in_ahead_, axis.in_step * in_position});
        for (int64_t c = 0; c < channels_; c += kChannels) {
          tiles_->depthwise({in.data(), weights.data(), int64_t(in.size()), axis.in_step * in_position, positions,
                             std::min(kChannels, channels_ - c), bias + c, out + c, axis.out_step * position, ahead.data(),
                             int64_t(ahead.size())});
          for (auto* pointers : {&in, &weights})
            for (const Real*& pointer : *pointers) pointer += kChannels;
          for (Ahead<Real>& row : ahead) row.from += kChannels;
        }
      });
    }
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  GatherAxis axis_[kAxes];
  Side<Real> in_, out_;
  int64_t channels_, lines_, cells_;  // of a block, in cells
  int64_t in_ahead_, out_ahead_;
  Layout layout_;
  Layout::Part weights_part_, bias_part_, box_part_, line_part_;
};

// ---- backward_weights --------------------------------------------------------------------------------------------------------

template <class Real>
class DepthwiseWeights final : public Plan {
 public:
  DepthwiseWeights(const Problem& p, const Tiles<Real>& tiles, int threads)
      : p_(p), tiles_(&tiles), x_(tiles, p, true), y_(tiles, p, false), channels_(p.geometry.groups) {
    const Geometry& g = p.geometry;
    lines_ = g.axis[1].x, columns_ = g.axis[2].x;
    while (blocks() < kItems ||
           std::max(x_.box_bytes(lines_ * columns_), y_.box_bytes(met(1, lines_) * met(2, columns_))) > kBoxBytes)
      if (!halve(lines_, columns_)) break;
    x_ahead_ = x_.ahead(1, columns_);
    y_ahead_ = y_.ahead(g.axis[1].stride, columns_ * g.axis[2].stride);
    parts_ = std::min(kItems, blocks());
    sums_part_ = layout_.shared(parts_ * sums() * int64_t(sizeof(Real)));
    x_part_ = layout_.per_thread(x_.box_bytes(lines_ * columns_));
    y_part_ = layout_.per_thread(y_.box_bytes(met(1, lines_) * met(2, columns_)));
    layout_.finish(threads);
  }
  std::string describe() const override {
    return std::to_string(parts_) + " parts, blocks of " + std::to_string(lines_) + "x" + std::to_string(columns_) +
           (x_.in_place() ? "" : ", x boxed") + (y_.in_place() ? "" : ", y boxed");
  }
  int64_t workspace_bytes() const override { return layout_.bytes(); }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Real* sums_of_parts = layout_.template at<Real>(workspace, sums_part_);
    parallel.for_each(parts_, [&](int64_t part, int thread) {
      Real* of_part = sums_of_parts + part * sums();
      std::fill_n(of_part, sums(), Real(0));
      const Range of = even_range(part, parts_, blocks());
      for (int64_t block = of.begin; block < of.end; ++block)
        sum_block(buffers, block, of_part, layout_.thread(workspace, thread));
    });
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < sums(); ++i) sums_of_parts[i] += sums_of_parts[part * sums() + i];
    const Axis* axis = p_.geometry.axis;
    for (int64_t k0 = 0; k0 < axis[0].w; ++k0)
      for (int64_t k1 = 0; k1 < axis[1].w; ++k1)
        for (int64_t k2 = 0; k2 < axis[2].w; ++k2, sums_of_parts += channels_)
          store_planes(*tiles_, p_.type, sums_of_parts, channels_,
                       element(buffers.w, p_.type, k0 * p_.w.axis[0] + k1 * p_.w.axis[1] + k2 * p_.w.axis[2]), p_.w.outer,
                       channels_, 0, 1);
  }

 private:
  int64_t sums() const { return p_.geometry.w_positions() * channels_; }
  // Of x, of all samples.
  int64_t blocks() const {
    const Geometry& g = p_.geometry;
    return g.batch * g.axis[0].x * parts_of(g.axis[1].x, lines_) * parts_of(g.axis[2].x, columns_);
  }
  // Positions of y that `count` positions of x meet along an axis, at most.
  int64_t met(int axis, int64_t count) const {
    const Axis& a = p_.geometry.axis[axis];
    return std::min(a.y, a.reach(count - 1, a.w - 1) - a.reach(0, 0) + 1);
  }

  // Adds what a block of positions of x contributes.
  void sum_block(const Buffers& buffers, int64_t block, Real* sums, std::byte* scratch) const {
    const Axis* axis = p_.geometry.axis;
    const int64_t size[kAxes] = {1, lines_, columns_};
    Region of_x, of_y;
    for (int a = kAxes - 1; a >= 0; --a) {
      const int64_t count = parts_of(axis[a].x, size[a]);
      of_x.begin[a] = block % count * size[a], of_x.end[a] = std::min(of_x.begin[a] + size[a], axis[a].x);
      of_y.begin[a] = std::max<int64_t>(axis[a].reach(of_x.begin[a], 0), 0);
      of_y.end[a] = std::min(axis[a].reach(of_x.end[a] - 1, axis[a].w - 1) + 1, axis[a].y);
      block /= count;
    }
    if (of_x.empty() || of_y.empty()) return;
    const RowsOf<Real> x = x_.load(buffers.x, block, of_x, layout_.template at<Real>(scratch, x_part_));
    for (int64_t k0 = 0; k0 < axis[0].w; ++k0) {
      of_y.begin[0] = axis[0].reach(of_x.begin[0], k0), of_y.end[0] = of_y.begin[0] + 1;
      if (of_y.begin[0] < 0 || of_y.begin[0] >= axis[0].y) continue;
      const RowsOf<Real> y = y_.load(buffers.y, block, of_y, layout_.template at<Real>(scratch, y_part_));
      for (int64_t i1 = of_x.begin[1]; i1 < of_x.end[1]; ++i1)
        sum_line(x.origin + of_x.begin[0] * x.plane + i1 * x.line, x.position, y.origin + of_y.begin[0] * y.plane, y, of_x, i1,
                 sums + k0 * axis[1].w * axis[2].w * channels_);
    }
  }

  // One line of a block of x with the lines of a plane of y.
  void sum_line(const Real* x, int64_t x_position, const Real* y_plane, const RowsOf<Real>& y, const Region& of_x, int64_t i1,
                Real* sums) const {
    const Axis *lines = &p_.geometry.axis[1], *axis = &p_.geometry.axis[2];
    thread_local std::vector<const Real*> b;
    thread_local std::vector<Real*> to;
    thread_local std::vector<Ahead<Real>> ahead;
    Interior interior{of_x.begin[2], of_x.end[2]};
    for (int64_t k = 0; k < axis->w; ++k) interior.meet(axis->stride, axis->reach(0, k), axis->y);
    for_each_run(interior, of_x.begin[2], of_x.end[2], [&](int64_t i, int64_t count) {
      b.clear(), to.clear(), ahead.clear();
      if (x_.in_place()) ahead.push_back({x + i * x_position + x_ahead_, x_position});
      for (int64_t k1 = 0; k1 < lines->w; ++k1) {
        const int64_t o1 = lines->reach(i1, k1);
        if (o1 < 0 || o1 >= lines->y) continue;
        for (int64_t k2 = 0; k2 < axis->w; ++k2) {
          const int64_t o2 = axis->reach(i, k2);
          if (o2 < 0 || o2 >= axis->y) continue;
          const Real* const row = y_plane + o1 * y.line + o2 * y.position;
          if (y_.in_place() && k1 + lines->stride >= lines->w && k2 < axis->stride)
            ahead.push_back({row + y_ahead_, axis->stride * y.position});
          b.push_back(row), to.push_back(sums + (k1 * axis->w + k2) * channels_);
        }
      }
      tiles_->depthwise_sums({x + i * x_position, x_position, b.data(), axis->stride * y.position, to.data(), int64_t(b.size()),
                              count, channels_, ahead.data(), int64_t(ahead.size())});
    });
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  Side<Real> x_, y_;
  int64_t channels_, lines_, columns_, parts_;  // of a block of x; parts of all blocks
  int64_t x_ahead_, y_ahead_;
  Layout layout_;
  Layout::Part sums_part_, x_part_, y_part_;
};

template <class Real>
std::shared_ptr<Plan> make_typed(const Problem& p, Isa isa, int threads) {
  if (p.operation == Operation::backward_weights) return std::make_shared<DepthwiseWeights<Real>>(p, tiles<Real>(isa), threads);
  return std::make_shared<Depthwise<Real>>(p, tiles<Real>(isa), threads);
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!depthwise_chooses(DepthwiseKernel::depthwise, p, isa, request)) return nullptr;
  return p.type == Type::f64 ? make_typed<double>(p, isa, request.threads) : make_typed<float>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_depthwise_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_depthwise_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_depthwise_portable(const Problem& p, const Request& request) {
  return make(p, Isa::portable, request);
}

}  // namespace torch_ext::cpu
