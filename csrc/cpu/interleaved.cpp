// SPDX-License-Identifier: Apache-2.0
// Depthwise layers whose channels lie side by side, with strides and kernels so long that a position of x meets a long run of y
// (bilinear upsampling of class scores): lanes go along positions and channels together, over lines of y where they lie. Along a
// line tap k of channel c is element k*channels + c of a run, y as well as weights, and x[i][c] repeats along it.
//   conv_transpose    the taps of a phase add to a cell, which is as many positions as the stride
//   backward_data     sums of runs of taps, a few lines of y at a time, whose taps are added in the end
//   backward_weights  a cell, loaded once, adds to all taps that it meets; each line of y is read once
// Terms that are not there are left out. Lines that are not of the type that is computed in are converted on their way.
#include "csrc/cpu/interleaved.h"

#include <algorithm>

#include "csrc/cpu/depthwise_gate.h"
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {
namespace {

// To aim for, so that any number of threads up to that has work; of backward_data, whose items share lines of y, for each of some
// threads.
constexpr int64_t kItems = 64, kItemsOfData = 8;
constexpr int64_t kManyPhases = 8;    // lines of y of a cell, from which on each is an item of backward_weights
constexpr int64_t kLines = 4;         // of y, in a block of conv_transpose and backward_weights
constexpr int64_t kRun = 1024;        // reals of a run of a cell: those of the weights of some taps stay in L1
constexpr int64_t kSums = 512;        // of a position, of backward_data
constexpr int64_t kTermsAtOnce = 16;  // of backward_data, from a few lines of y: fewer load and store sums more often
// Of what is converted, or read again by other lines of a block: a quarter of the L2 cache.
constexpr int64_t kBoxBytes = 256 << 10;
constexpr int64_t kSumsBytes = 1 << 20;  // of backward_data: two lines of them at a time are in use
constexpr int64_t kMinPiece = 8192;      // reals of a piece of a line of y: memory is read best in long runs

}  // namespace

template <class Real>
Interleaved<Real>::Interleaved(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      line_(p_.geometry.axis[2]),
      axis_{{p_.geometry.axis[0], p_.operation == Operation::backward_data ? p_.operation : Operation::conv_transpose},
            {p_.geometry.axis[1], p_.operation == Operation::backward_data ? p_.operation : Operation::conv_transpose}},
      channels_(p_.geometry.groups) {
  const Geometry& g = p_.geometry;
  const int64_t stride = line_.stride, lanes = tiles_->lanes, real = sizeof(Real);
  const bool data = p_.operation == Operation::backward_data, computes = bytes_of(p_.type) == real;
  const RepeatedRow row(channels_, lanes);
  period_ = row.period, pitch_ = row.size;
  x_in_place_ = !data && computes && p_.x.channel == 1 && pitch_ == channels_;
  y_side_by_side_ = p_.y.channel == 1 && p_.y.axis[2] == channels_;
  y_in_place_ = computes && y_side_by_side_;
  if (x_in_place_) pitch_ = p_.x.axis[2];

  phases_ = alike_phases(line_, std::max<int64_t>(1, kRun / channels_));
  taps_ = even_part(line_.w, std::max<int64_t>(1, std::min(kSums / channels_, g.w_positions() / kTermsAtOnce)));
  at_once_ = std::clamp<int64_t>(
      std::min(kTermsAtOnce / parts_of(line_.w, taps_), kBoxBytes / ((line_.y * channels_ + w_line()) * real)), 1, g.axis[1].w);

  choose_blocks(threads);
  ones_.assign(size_t(channels_), Real(1)), zeros_.assign(size_t(channels_), Real(0));

  weights_part_ = layout_.shared(parts_ * w_lines() * w_line() * real);
  bias_part_ = layout_.shared((period_ + lanes) * real);
  int64_t x_box = 0;
  if (!data && !x_in_place_)
    for (int64_t index = 0; index < blocks() / g.batch; ++index) {
      const Region of_x = reached(block(index).cells);
      int64_t size = pitch_;
      for (int a = 0; a < kAxes; ++a) size *= std::max<int64_t>(0, of_x.end[a] - of_x.begin[a]);
      x_box = std::max(x_box, size);
    }
  x_part_ = layout_.per_thread((data ? lines_ * cells_ * channels_ : x_box) * real);
  y_part_ = layout_.per_thread(
      y_in_place_ ? 0 : (data ? at_once_ * ((cells_ - 1) * stride + line_.w) : cells_ * stride) * channels_ * real);
  sums_part_ = layout_.per_thread(data ? lines_ * cells_ * taps_ * channels_ * real : 0);
  layout_.finish(threads);
}

// Blocks of lines as long as they can be.
template <class Real>
void Interleaved<Real>::choose_blocks(int threads) {
  const int64_t real = sizeof(Real);
  const bool data = p_.operation == Operation::backward_data, sums = p_.operation == Operation::backward_weights;
  all_cells_ = data ? Range{0, line_.x} : cells_of_line(line_);
  lines_ = axis_[1].cells, cells_ = all_cells_.size();
  const int64_t phases = axis_[0].out_step * axis_[1].out_step;
  if (sums && phases >= kManyPhases) phase_count_ = phases;
  const int64_t items = data ? (threads > 1 ? kItemsOfData * threads : 1) : sums ? parts_of(kItems / 2, phase_count_) : kItems;
  const int64_t least = data ? 1 : parts_of(kLines, axis_[1].out_step);
  const auto boxed = [&] {
    int64_t x = pitch_;
    const Region of_x = reached(block(0).cells);
    for (int a = 0; a < kAxes; ++a) x *= std::max<int64_t>(0, of_x.end[a] - of_x.begin[a] + 2);
    return real * std::max(x_in_place_ ? 0 : x, y_in_place_ ? 0 : cells_ * cell());
  };
  const auto many_lines = [&] {
    return blocks() < items || (data ? lines_ * cells_ * taps_ * channels_ * real > kSumsBytes : boxed() > kBoxBytes);
  };
  const auto long_lines = [&] {
    return blocks() < items || (data ? (cells_ * cell() + w_line()) * at_once_ * real : boxed()) > kBoxBytes;
  };
  while (lines_ > least && many_lines()) lines_ = parts_of(lines_, 2);
  while (cells_ * cell() >= 2 * kMinPiece && long_lines()) cells_ = parts_of(cells_, 2);
  if (sums) parts_ = std::min(blocks(), std::max<int64_t>(1, kItems / 2 / phase_count_));
}

template <class Real>
std::string Interleaved<Real>::describe() const {
  return std::to_string(lines_) + "x" + std::to_string(cells_) + " cells a block" +
         (p_.operation == Operation::backward_weights
              ? ", " + std::to_string(parts_) + " parts of " + std::to_string(phase_count_) + " phases"
              : "");
}

template <class Real>
int64_t Interleaved<Real>::blocks() const {
  return p_.geometry.batch * axis_[0].cells * parts_of(axis_[1].cells, lines_) * parts_of(all_cells_.size(), cells_);
}

template <class Real>
typename Interleaved<Real>::Block Interleaved<Real>::block(int64_t index) const {
  Block block{};
  const auto take = [&](int a, Range all, int64_t size) {
    const int64_t count = parts_of(all.size(), size), begin = all.begin + index % count * size;
    block.cells.begin[a] = begin, block.cells.end[a] = std::min(begin + size, all.end);
    index /= count;
  };
  take(2, all_cells_, cells_);
  take(1, {0, axis_[1].cells}, lines_);
  take(0, {0, axis_[0].cells}, 1);
  block.sample = index;
  return block;
}

// Positions of x that some cells of y meet.
template <class Real>
Region Interleaved<Real>::reached(const Region& cells) const {
  Region region;
  for (int a = 0; a < 2; ++a) {
    axis_[a].reach(cells.begin[a], cells.end[a], region.begin[a], region.end[a]);
    ++region.end[a];
  }
  region.begin[2] = std::max<int64_t>(0, cells.begin[2] - parts_of(line_.w, line_.stride) + 1);
  region.end[2] = std::min(line_.x, cells.end[2]);
  return region;
}

// Positions of a line of y in some cells.
template <class Real>
Range Interleaved<Real>::line_of(Range cells) const {
  return {std::max<int64_t>(0, cells.begin * line_.stride - line_.offset),
          std::min(line_.y, cells.end * line_.stride - line_.offset)};
}

// ---- Lines -------------------------------------------------------------------------------------------------------------------

template <class Real>
typename Interleaved<Real>::Rows Interleaved<Real>::load_x(const Buffers& buffers, int64_t sample, const Region& region,
                                                           Real* box) const {
  const Strides& s = p_.x;
  if (x_in_place_) return {static_cast<const Real*>(buffers.x) + sample * s.outer, s.axis[0], s.axis[1]};
  if (region.empty()) return {};
  Box shape{{}, {s.axis[0], s.axis[1], s.axis[2]}, channels_, s.channel};
  int64_t from = sample * s.outer;
  for (int a = 0; a < kAxes; ++a) {
    shape.extent[a] = region.end[a] - region.begin[a];
    from += region.begin[a] * s.axis[a];
  }
  load_box(*tiles_, p_.type, element(buffers.x, p_.type, from), shape, box, pitch_);
  for (Real* row = box; row < box + shape.positions() * pitch_; row += pitch_)
    for (int64_t c = channels_; c < pitch_; c += channels_) std::copy_n(row, std::min(channels_, pitch_ - c), row + c);
  const int64_t line = shape.extent[2] * pitch_, plane = shape.extent[1] * line;
  return {box - region.begin[0] * plane - region.begin[1] * line - region.begin[2] * pitch_, plane, line};
}

// Some positions of a line of y, as one run where they are.
template <class Real>
Box Interleaved<Real>::y_box(int64_t positions) const {
  const int64_t run = positions * channels_;
  if (y_side_by_side_) return {{1, 1, 1}, {0, 0, run}, run, 1};
  return {{1, 1, positions}, {0, 0, p_.y.axis[2]}, channels_, p_.y.channel};
}

// Some positions of a line; returns where the first of the line is or would be.
template <class Real>
const Real* Interleaved<Real>::load_y(const Buffers& buffers, int64_t sample, int64_t o0, int64_t o1, Range line,
                                      Real* box) const {
  const Strides& s = p_.y;
  const int64_t start = sample * s.outer + o0 * s.axis[0] + o1 * s.axis[1];
  if (y_in_place_) {
    // Asked for in the order of memory, which runs of several cells and lines at a time are not read in: tensors that are not in
    // cache take 0.5 to 0.8 of the time.
    const Real* y = static_cast<const Real*>(buffers.y) + start;
    for (int64_t i = line.begin * channels_; i < line.end * channels_; i += kCacheLine / int64_t(sizeof(Real)))
      __builtin_prefetch(y + i, 0, 2);
    return y;
  }
  load_box(*tiles_, p_.type, element(buffers.y, p_.type, start + line.begin * s.axis[2]), y_box(line.size()), box, channels_);
  return box - line.begin * channels_;
}

// f(position of y, cells, positions of a cell, rows of x, runs of weights), whose products are those of all taps that meet: from
// the position on, in so many cells.
template <class Real>
template <class W, class F>
void Interleaved<Real>::each_run(const std::vector<Pair<W>>& pairs, Range cells, F f) const {
  thread_local std::vector<const Real*> x;
  thread_local std::vector<W*> weights;
  const int64_t stride = line_.stride;
  for (const AlikePhases& phases : phases_) {
    Interior interior{std::max(cells.begin, first_reaching(line_.offset, phases.r.begin, stride)),
                      std::min(cells.end, first_reaching(line_.y + line_.offset + 1, phases.r.end, stride))};
    for (int64_t t = 0; t < phases.taps; ++t) interior.meet(1, -t, line_.x);
    for_each_run(interior, cells.begin, cells.end, [&](int64_t j, int64_t count) {
      const int64_t start = j * stride - line_.offset;
      const Range r{std::max(phases.r.begin, -start), std::min(phases.r.end, line_.y - start)};
      if (r.begin >= r.end) return;
      x.clear(), weights.clear();
      for (int64_t t = 0; t < phases.taps; ++t) {
        if (j - t < 0 || j - t >= line_.x) continue;
        for (const Pair<W>& pair : pairs) {
          x.push_back(pair.line + (j - t) * pitch_);
          weights.push_back(pair.weights + (r.begin + t * stride) * channels_);
        }
      }
      f(start + r.begin, count, r.size(), x, weights);
    });
  }
}

// f(o0, o1) for the lines of y in some cells.
template <class Real>
template <class F>
void Interleaved<Real>::each_line(const Region& cells, F f) const {
  const auto end = [&](int a) { return std::min(cells.end[a] * axis_[a].out_step, axis_[a].out_extent); };
  for (int64_t o0 = cells.begin[0] * axis_[0].out_step; o0 < end(0); ++o0)
    for (int64_t o1 = cells.begin[1] * axis_[1].out_step; o1 < end(1); ++o1) f(o0, o1);
}

// Lines of x with the weights that take them to a line of y.
template <class Real>
template <class W>
void Interleaved<Real>::pair_lines(const Rows& x, int64_t o0, int64_t o1, W* weights, std::vector<Pair<W>>& pairs) const {
  pairs.clear();
  for (const Tap& t0 : axis_[0].phases[size_t(o0 % axis_[0].out_step)])
    for (const Tap& t1 : axis_[1].phases[size_t(o1 % axis_[1].out_step)]) {
      const int64_t i0 = o0 / axis_[0].out_step + t0.delta, i1 = o1 / axis_[1].out_step + t1.delta;
      if (i0 < 0 || i0 >= axis_[0].in_extent || i1 < 0 || i1 >= axis_[1].in_extent) continue;
      pairs.push_back({x.at(i0, i1), weights + (t0.k * p_.geometry.axis[1].w + t1.k) * w_line()});
    }
}

template <class Real>
void Interleaved<Real>::load_weights(const Buffers& buffers, const Parallel& parallel) const {
  Real* weights = layout_.template at<Real>(static_cast<std::byte*>(buffers.workspace), weights_part_);
  const int64_t lines = p_.geometry.axis[1].w;
  parallel.for_each(w_lines(), [&](int64_t k, int) {
    const void* from = element(buffers.w, p_.type, k / lines * p_.w.axis[0] + k % lines * p_.w.axis[1]);
    load_box(*tiles_, p_.type, from, Box{{1, 1, line_.w}, {0, 0, p_.w.axis[2]}, channels_, p_.w.outer}, weights + k * w_line(),
             channels_);
  });
}

template <class Real>
void Interleaved<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  if (p_.operation == Operation::backward_weights) {
    Real* sums = layout_.template at<Real>(workspace, weights_part_);
    const int64_t size = w_lines() * w_line();
    parallel.for_each(parts_ * w_lines(), [&](int64_t line, int) { std::fill_n(sums + line * w_line(), w_line(), Real(0)); });
    parallel.for_each(parts_ * phase_count_, [&](int64_t item, int thread) {
      const int64_t part = item / phase_count_, phase = item % phase_count_;
      const Range of = even_range(part, parts_, blocks());
      for (int64_t index = of.begin; index < of.end; ++index)
        sum_block(buffers, block(index), phase, sums + part * size, layout_.thread(workspace, thread));
    });
    return store_weights(buffers, parallel);
  }
  load_weights(buffers, parallel);
  Real* bias = layout_.template at<Real>(workspace, bias_part_);
  load_bias(*tiles_, p_.type, buffers.bias, channels_, bias);
  for (int64_t c = channels_; c < period_ + tiles_->lanes; ++c) bias[c] = bias[c - channels_];
  parallel.for_each(blocks(), [&](int64_t index, int thread) {
    std::byte* scratch = layout_.thread(workspace, thread);
    p_.operation == Operation::conv_transpose ? run_conv_transpose(buffers, block(index), scratch)
                                              : run_backward_data(buffers, block(index), scratch);
  });
}

// ---- conv_transpose ----------------------------------------------------------------------------------------------------------

template <class Real>
void Interleaved<Real>::run_conv_transpose(const Buffers& buffers, const Block& block, std::byte* scratch) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Real* bias = layout_.template at<Real>(workspace, bias_part_);
  const Real* weights = layout_.template at<Real>(workspace, weights_part_);
  const Rows x = load_x(buffers, block.sample, reached(block.cells), layout_.template at<Real>(scratch, x_part_));
  const Range cells{block.cells.begin[2], block.cells.end[2]}, line = line_of(cells);
  Real* buffer = layout_.template at<Real>(scratch, y_part_);
  thread_local std::vector<Pair<const Real>> pairs;
  each_line(block.cells, [&](int64_t o0, int64_t o1) {
    pair_lines(x, o0, o1, weights, pairs);
    void* to = element(buffers.y, p_.type,
                       block.sample * p_.y.outer + o0 * p_.y.axis[0] + o1 * p_.y.axis[1] + line.begin * p_.y.axis[2]);
    Real* y = (y_in_place_ ? static_cast<Real*>(to) : buffer) - line.begin * channels_;
    each_run(pairs, cells, [&](int64_t o, int64_t count, int64_t positions, const auto& in, const auto& w) {
      const Ahead<Real> next{y + o * channels_ + p_.y.axis[1], cell()};
      tiles_->depthwise({in.data(), w.data(), int64_t(in.size()), pitch_, count, positions * channels_, bias, y + o * channels_,
                         cell(), &next, y_in_place_, period_});
    });
    if (!y_in_place_) store_box(*tiles_, p_.type, buffer, channels_, to, y_box(line.size()));
  });
}

// ---- backward_weights --------------------------------------------------------------------------------------------------------

// Adds what the lines of y of a block, or of one of its phases, contribute.
template <class Real>
void Interleaved<Real>::sum_block(const Buffers& buffers, const Block& block, int64_t phase, Real* sums,
                                  std::byte* scratch) const {
  const Rows x = load_x(buffers, block.sample, reached(block.cells), layout_.template at<Real>(scratch, x_part_));
  const Range cells{block.cells.begin[2], block.cells.end[2]}, line = line_of(cells);
  // Long lines are asked for while the ones before them are summed.
  const int64_t next_line = p_.y.axis[1] * axis_[1].out_step;
  const bool asks = y_in_place_ && phase_count_ > 1;
  thread_local std::vector<Pair<Real>> pairs;
  each_line(block.cells, [&](int64_t o0, int64_t o1) {
    if (phase_count_ > 1 && o0 % axis_[0].out_step * axis_[1].out_step + o1 % axis_[1].out_step != phase) return;
    pair_lines(x, o0, o1, sums, pairs);
    if (pairs.empty() || line.begin >= line.end) return;
    const Real* y = load_y(buffers, block.sample, o0, o1, line, layout_.template at<Real>(scratch, y_part_));
    each_run(pairs, cells, [&](int64_t o, int64_t count, int64_t positions, const auto& in, const auto& w) {
      const Ahead<Real> next{y + o * channels_ + next_line, cell()};
      tiles_->depthwise_sums({y + o * channels_, cell(), in.data(), pitch_, w.data(), int64_t(in.size()), count,
                              positions * channels_, &next, asks, period_});
    });
  });
}

template <class Real>
void Interleaved<Real>::store_weights(const Buffers& buffers, const Parallel& parallel) const {
  Real* sums = layout_.template at<Real>(static_cast<std::byte*>(buffers.workspace), weights_part_);
  const int64_t lines = p_.geometry.axis[1].w, size = w_lines() * w_line();
  parallel.for_each(w_lines(), [&](int64_t k, int) {
    Real* line = sums + k * w_line();
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < w_line(); ++i) line[i] += line[part * size + i];
    store_box(*tiles_, p_.type, line, channels_, element(buffers.w, p_.type, k / lines * p_.w.axis[0] + k % lines * p_.w.axis[1]),
              Box{{1, 1, line_.w}, {0, 0, p_.w.axis[2]}, channels_, p_.w.outer});
  });
}

template class Interleaved<float>;
template class Interleaved<double>;

namespace {

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!depthwise_chooses(DepthwiseKernel::interleaved, p, isa, request)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Interleaved<double>>(p, isa, request.threads);
  return std::make_shared<Interleaved<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_interleaved_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_interleaved_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_interleaved_portable(const Problem& p, const Request& request) {
  return make(p, Isa::portable, request);
}

}  // namespace torch_ext::cpu
