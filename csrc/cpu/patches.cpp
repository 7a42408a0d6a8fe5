// SPDX-License-Identifier: Apache-2.0
// Depthwise layers of planes with a stride as long as a vector (bilinear upsampling of class scores): lanes go along the kernel.
// A position of x meets a patch of y, whose lines lie side by side as those of the kernel do. For a line of each,
//   conv_transpose    y[i*stride - offset + k] += x[i] * w[k]    a tile of neighbouring cells, whose terms are the taps of a
//   phase backward_data     x[i] = sum over k of y[i*stride - offset + k] * w[k]    dots of lines of w and of y backward_weights
//   w[k] = sum over i of x[i] * y[i*stride - offset + k]    a tile of one row, whose terms are the positions
// Positions that are not there are left out, but for those of x in conv_transpose, which are zeros. Lines of 16 bits are
// converted on their way.
#include <algorithm>
#include <atomic>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItems = 64;  // to aim for, so that any number of threads up to that has work
// By measurement. Shorter strides and kernels leave vectors half empty, and results of many planes at once are written as fast
// from lanes along channels.
constexpr int64_t kMinStride = 8, kMinStrideForward = 12, kMinKernel = 16, kManyPlanes = 64;
// A result of so many bytes does not stay in the caches, and takes half of the time where these need not read it first.
constexpr int64_t kStreamedBytes = 16 << 20;

template <class Real>
class Patches final : public Plan {
 public:
  Patches(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // A plane of x, w or y: one channel of a sample, whose lines lie in the tensor, or converted in a stage.
  struct Plane {
    const void* tensor;
    const Strides* strides;
    int64_t start, extent;  // of the plane in the tensor, of a line
  };
  const Real* load_line(const Plane& plane, int64_t i0, int64_t i1, Real* stage) const;
  void store_line(const Plane& plane, int64_t i0, int64_t i1, const Real* line) const;
  Plane x_plane(const Buffers& b, int64_t n, int64_t c) const { return {b.x, &p_.x, n * p_.x.outer + c * p_.x.channel, line_.x}; }
  Plane y_plane(const Buffers& b, int64_t n, int64_t c) const { return {b.y, &p_.y, n * p_.y.outer + c * p_.y.channel, line_.y}; }
  Plane w_plane(const Buffers& b, int64_t c) const { return {b.w, &p_.w, c * p_.w.outer, line_.w}; }

  // Lines of two operands that are multiplied.
  using Pairs = std::vector<OuterRun<Real>>;
  // f(i0, i1, k0, k1): lines of the input and of the kernel that a line of the result sums over.
  template <class F>
  void each_pair(int64_t line, F f) const;
  bool finite_weights(const Buffers& buffers, const Parallel& parallel) const;
  void run_conv_transpose(const Buffers& buffers, int64_t item, std::byte* scratch) const;
  void sum_patches(const Pairs& pairs, const Real* bias, Pairs& runs, Real* y) const;
  void run_backward_data(const Buffers& buffers, int64_t item, std::byte* scratch) const;
  void multiply_patches(const Pairs& pairs, Pairs& runs, Real* x) const;
  void run_backward_weights(const Buffers& buffers, int64_t item, std::byte* scratch) const;
  void sum_weights(const Pairs& pairs, Pairs& runs, Real* w) const;

  int64_t width() const { return tiles_->max_vectors * tiles_->lanes; }  // of a tile

  Problem p_;
  const Tiles<Real>* tiles_;
  Axis line_;                        // the innermost axis
  GatherAxis axis_[2];               // the others; of backward_weights not used
  int64_t lines_, part_;             // of the result, in a plane; of an item
  Range cells_, positions_{};        // that a line of y has; of x with the zeros around it that these read
  Range whole_patches_;              // positions of x of which the whole patch is there
  std::vector<AlikePhases> phases_;  // no wider than a tile
  std::vector<Real> ones_;
  bool streams_;                       // lines of a large result
  std::shared_ptr<const Plan> exact_;  // for weights that are not finite, which zeros would spread
  Layout layout_;
  Layout::Part lines_part_, line_part_;
};

template <class Real>
Patches<Real>::Patches(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      line_(p_.geometry.axis[2]),
      axis_{{p_.geometry.axis[0], p_.operation}, {p_.geometry.axis[1], p_.operation}} {
  const Geometry& g = p_.geometry;
  const int64_t stride = line_.stride, before = parts_of(line_.offset, stride), real = sizeof(Real);
  cells_ = cells_of_line(line_);
  positions_ = {std::min<int64_t>(cells_.begin - parts_of(line_.w, stride) + 1, 0), std::max(line_.x, cells_.end)};
  whole_patches_.begin = std::min(before, line_.x);
  whole_patches_.end = std::clamp(line_.y + line_.offset < line_.w ? 0 : (line_.y + line_.offset - line_.w) / stride + 1,
                                  whole_patches_.begin, line_.x);
  phases_ = alike_phases(line_, width());
  ones_.assign(kMaxRows, Real(1));
  streams_ = p_.operation == Operation::conv_transpose && g.y_size() * bytes_of(p_.type) >= kStreamedBytes &&
             bytes_of(p_.type) == real && p_.y.axis[2] == 1;

  lines_ = axis_[0].out_extent * axis_[1].out_extent, part_ = 1;
  int64_t staged = 0;  // reals of lines that are multiplied
  if (p_.operation == Operation::conv_transpose) {
    staged = g.axis[0].x * g.axis[1].x * positions_.size() + g.axis[0].w * g.axis[1].w * line_.w;
    exact_ = make_exact_plan(p_, isa, threads);
  } else if (p_.operation == Operation::backward_data) {
    staged = g.axis[0].w * g.axis[1].w * (line_.w + line_.y);
  } else {
    lines_ = g.axis[0].w * g.axis[1].w, staged = g.axis[1].x * (line_.x + line_.y);
  }
  if (p_.operation != Operation::backward_weights)
    part_ = parts_of(lines_, std::clamp<int64_t>(parts_of(kItems, g.batch * g.groups), 1, lines_));
  lines_part_ = layout_.per_thread(staged * real);
  line_part_ = layout_.per_thread(std::max({line_.x, line_.w, cells_.size() * stride}) * real);
  layout_.finish(threads);
}

template <class Real>
std::string Patches<Real>::describe() const {
  return std::to_string(part_) + " of " + std::to_string(lines_) + " lines of a plane an item";
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
  parallel.for_each(planes * parts_of(lines_, part_), [&](int64_t item, int thread) {
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
void Patches<Real>::each_pair(int64_t line, F f) const {
  const int64_t o0 = line / axis_[1].out_extent, o1 = line % axis_[1].out_extent;
  const auto position = [&](int a, int64_t o, const Tap& tap) { return o / axis_[a].out_step * axis_[a].in_step + tap.delta; };
  for (const Tap& t0 : axis_[0].phases[size_t(o0 % axis_[0].out_step)]) {
    const int64_t i0 = position(0, o0, t0);
    for (const Tap& t1 : axis_[1].phases[size_t(o1 % axis_[1].out_step)]) {
      const int64_t i1 = position(1, o1, t1);
      if (i0 >= 0 && i0 < axis_[0].in_extent && i1 >= 0 && i1 < axis_[1].in_extent) f(i0, i1, t0.k, t1.k);
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
void Patches<Real>::run_conv_transpose(const Buffers& buffers, int64_t item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t parts = parts_of(lines_, part_), plane = item / parts, n = plane / g.groups, c = plane % g.groups;
  const Plane x = x_plane(buffers, n, c), y = y_plane(buffers, n, c), w = w_plane(buffers, c);
  Real* lines = layout_.template at<Real>(scratch, lines_part_);
  const int64_t pitch = positions_.size();
  std::fill_n(lines, g.axis[0].x * g.axis[1].x * pitch, Real(0));
  for (int64_t i0 = 0; i0 < g.axis[0].x; ++i0)
    for (int64_t i1 = 0; i1 < g.axis[1].x; ++i1) {
      Real* to = lines + (i0 * g.axis[1].x + i1) * pitch - positions_.begin;
      const Real* from = load_line(x, i0, i1, to);
      if (from != to) std::copy_n(from, line_.x, to);
    }
  Real* weights = lines + g.axis[0].x * g.axis[1].x * pitch;
  Real bias[kMaxVectors * kMaxLanes] = {};
  if (buffers.bias) tiles_->widen(p_.type, element(buffers.bias, p_.type, c), bias, 1);
  std::fill(std::begin(bias), std::end(bias), bias[0]);
  thread_local Pairs pairs, runs;
  Real* line = layout_.template at<Real>(scratch, line_part_);
  const Range of_item = part(item % parts, part_, lines_);
  for (int64_t o = of_item.begin; o < of_item.end; ++o) {
    pairs.clear();
    each_pair(o, [&](int64_t i0, int64_t i1, int64_t k0, int64_t k1) {
      Real* stage = weights + (k0 * g.axis[1].w + k1) * line_.w;
      pairs.push_back({lines + (i0 * g.axis[1].x + i1) * pitch - positions_.begin, load_line(w, k0, k1, stage), 0});
    });
    sum_patches(pairs, bias, runs, line);
    store_line(y, o / axis_[1].out_extent, o % axis_[1].out_extent, line + line_.offset - cells_.begin * line_.stride);
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

// Some lines of a plane of x.
template <class Real>
void Patches<Real>::run_backward_data(const Buffers& buffers, int64_t item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t parts = parts_of(lines_, part_), plane = item / parts, n = plane / g.groups, c = plane % g.groups;
  const Plane x = x_plane(buffers, n, c), y = y_plane(buffers, n, c), w = w_plane(buffers, c);
  thread_local Pairs pairs, runs;
  Real* line = layout_.template at<Real>(scratch, line_part_);
  const Range of_item = part(item % parts, part_, lines_);
  for (int64_t i = of_item.begin; i < of_item.end; ++i) {
    Real* stage = layout_.template at<Real>(scratch, lines_part_);
    pairs.clear();
    each_pair(i, [&](int64_t o0, int64_t o1, int64_t k0, int64_t k1) {
      pairs.push_back({load_line(w, k0, k1, stage), load_line(y, o0, o1, stage + line_.w), 0});
      stage += line_.w + line_.y;
    });
    multiply_patches(pairs, runs, line);
    store_line(x, i / axis_[1].out_extent, i % axis_[1].out_extent, line);
  }
}

// A line of x.
template <class Real>
void Patches<Real>::multiply_patches(const Pairs& pairs, Pairs& runs, Real* x) const {
  std::fill_n(x, line_.x, Real(0));
  const size_t most = size_t(std::max<int64_t>(1, kMaxTerms / parts_of(line_.w, tiles_->lanes)));  // pairs of a sum
  for (size_t first = 0; first < pairs.size(); first += most) {
    const size_t last = std::min(pairs.size(), first + most);
    for (int64_t i = 0, count; i < line_.x; i += count) {
      const bool whole = i >= whole_patches_.begin && i < whole_patches_.end;
      count = whole ? std::min<int64_t>(whole_patches_.end - i, tiles_->max_dot_taps[1]) : 1;
      int64_t offsets[kDotTaps];
      for (int64_t t = 0; t < count; ++t) offsets[t] = (i + t) * line_.stride - line_.offset;
      const int64_t begin = std::max<int64_t>(-offsets[0], 0), end = std::min(line_.w, line_.y - offsets[0]);
      if (begin >= end) continue;
      runs.clear();
      for (size_t k = first; k < last; ++k) runs.push_back({pairs[k].a + begin, pairs[k].b + begin, end - begin});
      tiles_->dot[1][count]({runs.data(), int64_t(runs.size()), 0, 0, offsets, x + i, 0});
    }
  }
}

// ---- backward_weights --------------------------------------------------------------------------------------------------------

// The line of the kernel that is the index-th where those come after each other that read the same lines of y.
int64_t by_residue(const Axis& axis, int64_t index) {
  for (int64_t r = 0; r < axis.stride; ++r)
    for (int64_t k = r; k < axis.w; k += axis.stride)
      if (index-- == 0) return k;
  return -1;
}

template <class Real>
void Patches<Real>::run_backward_weights(const Buffers& buffers, int64_t item, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t c = item / lines_, k0 = item % lines_ / g.axis[1].w, k1 = by_residue(g.axis[1], item % g.axis[1].w);
  Real* w = layout_.template at<Real>(scratch, line_part_);
  std::fill_n(w, line_.w, Real(0));
  thread_local Pairs pairs, runs;
  for (int64_t n = 0; n < g.batch; ++n)
    for (int64_t i0 = 0; i0 < g.axis[0].x; ++i0) {
      Real* stage = layout_.template at<Real>(scratch, lines_part_);
      pairs.clear();
      for (int64_t i1 = 0; i1 < g.axis[1].x; ++i1) {
        const int64_t o0 = g.axis[0].reach(i0, k0), o1 = g.axis[1].reach(i1, k1);
        if (o0 < 0 || o0 >= g.axis[0].y || o1 < 0 || o1 >= g.axis[1].y) continue;
        pairs.push_back(
            {load_line(x_plane(buffers, n, c), i0, i1, stage), load_line(y_plane(buffers, n, c), o0, o1, stage + line_.x), 0});
        stage += line_.x + line_.y;
      }
      sum_weights(pairs, runs, w);
    }
  store_line(w_plane(buffers, c), k0, k1, w);
}

// Adds the products of some lines of x and y.
template <class Real>
void Patches<Real>::sum_weights(const Pairs& pairs, Pairs& runs, Real* w) const {
  const auto sum = [&](int64_t i, int64_t count) {
    const int64_t start = i * line_.stride - line_.offset, most = std::max<int64_t>(1, kMaxTerms / count);
    const int64_t begin = std::max<int64_t>(-start, 0), end = std::min(line_.w, line_.y - start);
    for (size_t first = 0; first < pairs.size(); first += size_t(most)) {
      runs.clear();
      for (size_t k = first; k < std::min(pairs.size(), first + size_t(most)); ++k)
        runs.push_back({pairs[k].a + i, pairs[k].b + start + begin, count});
      for (int64_t k = begin; k < end; k += width()) {
        const int64_t columns = std::min(width(), end - k);
        tiles_->outer[parts_of(columns, tiles_->lanes)][1](
            {runs.data(), int64_t(runs.size()), 0, k - begin, 1, line_.stride, w + k, 0, columns, true, 1});
      }
    }
  };
  for (int64_t i = 0; i < whole_patches_.begin; ++i) sum(i, 1);
  for (int64_t i = whole_patches_.begin, count; i < whole_patches_.end; i += count)
    sum(i, count = even_part(whole_patches_.end - i, kMaxTerms));
  for (int64_t i = whole_patches_.end; i < line_.x; ++i) sum(i, 1);
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[2];
  if (g.x_channels != 1 || g.y_channels != 1 || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  if ((line.dilation > 1 && line.w > 1) || line.stride > line.y) return nullptr;  // lines are computed in whole cells
  const bool side_by_side = p.y.axis[2] == 1 && p.w.axis[2] == 1;
  const bool pays = p.operation == Operation::conv_transpose ? line.stride >= kMinStrideForward && g.groups < kManyPlanes
                                                             : line.stride >= kMinStride;
  if (!request.by_name && !(side_by_side && pays && line.w >= kMinKernel)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Patches<double>>(p, isa, request.threads);
  return std::make_shared<Patches<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_patches_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_patches_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_patches_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
