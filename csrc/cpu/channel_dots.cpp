// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data where a group has few channels of the result, and those that are summed over, times the taps,
// are many: lanes go along what is summed. With the channels of a position side by side, a result is the sum of the dot products
// of a few runs: the channels of neighbouring taps of a line follow each other in the input, and so they do in the weights, which
// are brought into that order. No lane is empty, however few the results are, and nothing is multiplied by a border.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kBlockBytes = 512 << 10;     // of the input of a block, or of its results
constexpr int64_t kRun = 1024;                 // elements of a run
constexpr int64_t kChunkBytes = 32 << 10;      // of the weights that stay in L1 from tile to tile
constexpr int64_t kMinCells = 48, kItems = 4;  // of a block; for each of some threads

template <class Element>
class ChannelDots final : public Plan {
 public:
  using Real = typename Operand<Element>::Real;
  ChannelDots(const Problem& problem, const Tiles<Real>& tiles, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // Neighbouring cells of a phase that reach the input with the same of its taps.
  struct Segment {
    Range cells, taps;
  };
  // One of an axis: the result's position in a cell, and the taps in the order of what they read.
  struct Phase {
    int64_t r;
    std::vector<Tap> taps;
    std::vector<Segment> segments;
  };
  struct Block {
    int64_t sample, group;
    Range cell[kAxes], written[kAxes];
    int64_t extent(int a) const { return written[a].size(); }
    int64_t results() const { return extent(0) * extent(1) * extent(2); }
  };
  // Channels of position 0, and from one position of an axis to the next.
  struct Input {
    const Element* origin;
    int64_t step[kAxes];
  };
  // The cells of a block that have a phase and these of its taps in common.
  struct Part {
    Range cells[kAxes], taps[kAxes];
  };
  // Of one: what its cells sum, where that lies from position 0 on, and the places of their results in those of a channel.
  struct Lists {
    std::vector<OuterRun<Element>> runs;
    std::vector<int64_t> offsets, places;
  };
  // Of the weights of a line of taps, which begin with a cache line.
  int64_t line_pitch(const Phase& phase) const {
    return round_up(int64_t(phase.taps.size()) * channels_, kCacheLine / int64_t(sizeof(Element)));
  }
  static Phase phase_of(const GatherAxis& axis, int64_t r);
  void choose_blocks(int threads);
  int64_t blocks() const {
    return piece_count([&](int a) { return axis_[a].cells; }, block_cells_);
  }
  int64_t phase_count() const { return int64_t(phases_[0].size() * phases_[1].size() * phases_[2].size()); }
  const Phase& phase(int a, int64_t index) const;
  void pack(const Buffers& buffers, int64_t column, int64_t index, Element* weights) const;
  Input load(const Buffers& buffers, const Block& block, Element* box) const;
  Block block(int64_t index) const;
  const void* input(const Buffers& b) const { return p_.operation == Operation::conv_transpose ? b.x : b.y; }
  Upcoming upcoming(const Buffers& buffers, int64_t index) const;
  template <class F>
  void for_each_part(const Block& block, int64_t index, F f) const;
  void list_runs(const Part& part, const Input& in, int64_t index, const Element* weights,
                 std::vector<OuterRun<Element>>& runs) const;
  void list_cells(const Part& part, const Input& in, const Block& block, int64_t index, Lists& lists) const;
  void sum_phase(const Block& block, const Input& in, int64_t index, const Element* weights, Lists& lists, Real* sums,
                 Upcoming& next) const;
  void sum_runs(std::span<const OuterRun<Element>> runs, const Lists& cells, int64_t results, Real* sums, Upcoming& next) const;

  Problem p_;
  const Tiles<Real>* tiles_;
  GatherAxis axis_[kAxes];
  Strides in_, out_;
  int64_t channels_, columns_;  // of a group: summed over, and of the result
  bool in_place_;
  std::vector<Phase> phases_[kAxes];
  std::vector<int64_t> weights_of_;  // where those of each phase of all axes start in a row
  int64_t row_;                      // from the weights of a result to those of the next
  int64_t block_cells_[kAxes];
  Layout layout_;
  Layout::Part weights_part_, bias_part_, box_part_, sums_part_;
};

template <class Element>
ChannelDots<Element>::ChannelDots(const Problem& problem, const Tiles<Real>& tiles, int threads)
    : p_(problem),
      tiles_(&tiles),
      axis_{{p_.geometry.axis[0], p_.operation}, {p_.geometry.axis[1], p_.operation}, {p_.geometry.axis[2], p_.operation}},
      in_(p_.operation == Operation::conv_transpose ? p_.x : p_.y),
      out_(p_.operation == Operation::conv_transpose ? p_.y : p_.x),
      channels_(weights_matrix(p_).depth),
      columns_(weights_matrix(p_).columns),
      in_place_(channels_follow<Element>(p_.type, in_, channels_)) {
  for (int a = 0; a < kAxes; ++a)
    for (int64_t r = 0; r < int64_t(axis_[a].phases.size()); ++r) phases_[a].push_back(phase_of(axis_[a], r));
  int64_t length = 0;
  for (int64_t index = 0; index < phase_count(); ++index) {
    weights_of_.push_back(length);
    length += int64_t(phase(0, index).taps.size() * phase(1, index).taps.size()) * line_pitch(phase(2, index));
  }
  row_ = row_pitch(length, sizeof(Element));
  choose_blocks(threads);
  int64_t in_box = channels_, results = columns_;
  for (int a = 0; a < kAxes; ++a) {
    int64_t longest = 0;
    for_each_piece(axis_[a].cells, block_cells_[a],
                   [&](const Range& cells) { longest = std::max(longest, axis_[a].read_by(cells).size()); });
    in_box *= longest;
    results *= block_cells_[a] * axis_[a].out_step;
  }
  const Geometry& g = p_.geometry;
  weights_part_ = layout_.shared(g.groups * columns_ * row_ * int64_t(sizeof(Element)));
  bias_part_ = layout_.shared(g.groups * columns_ * int64_t(sizeof(Real)));
  box_part_ = layout_.per_thread(in_place_ ? 0 : in_box * int64_t(sizeof(Element)));
  sums_part_ = layout_.per_thread(results * int64_t(sizeof(Real)));
  layout_.finish(threads);
}

template <class Element>
typename ChannelDots<Element>::Phase ChannelDots<Element>::phase_of(const GatherAxis& axis, int64_t r) {
  Phase phase{r, axis.phases[size_t(r)], {}};
  std::sort(phase.taps.begin(), phase.taps.end(), [](const Tap& a, const Tap& b) { return a.delta < b.delta; });
  const int64_t cells = parts_of(axis.out_extent - r, axis.out_step);
  for (int64_t j = 0; j < cells; ++j) {
    const auto before = [&](int64_t position) {
      return std::lower_bound(phase.taps.begin(), phase.taps.end(), position - j * axis.in_step,
                              [](const Tap& tap, int64_t delta) { return tap.delta < delta; }) -
             phase.taps.begin();
    };
    const Range taps{before(0), before(axis.in_extent)};
    Segment* last = phase.segments.empty() ? nullptr : &phase.segments.back();
    if (last && last->taps.begin == taps.begin && last->taps.end == taps.end) {
      ++last->cells.end;
    } else {
      phase.segments.push_back({{j, j + 1}, taps});
    }
  }
  return phase;
}

template <class Element>
void ChannelDots<Element>::choose_blocks(int threads) {
  int64_t in_per_cell = channels_ * int64_t(sizeof(Element)), out_per_cell = columns_ * int64_t(sizeof(Real));
  for (const GatherAxis& axis : axis_) in_per_cell *= axis.in_step, out_per_cell *= axis.out_step;
  int64_t room = std::max<int64_t>(1, kBlockBytes / std::max(in_per_cell, out_per_cell));
  const auto cut = [&] { cut_axes([&](int a) { return axis_[a].cells; }, room, block_cells_); };
  cut();
  while (threads > 1 && room > kMinCells && p_.geometry.batch * p_.geometry.groups * blocks() < kItems * threads)
    room /= 2, cut();
}

template <class Element>
const typename ChannelDots<Element>::Phase& ChannelDots<Element>::phase(int a, int64_t index) const {
  for (int inner = kAxes - 1; inner > a; --inner) index /= int64_t(phases_[inner].size());
  return phases_[a][size_t(index) % phases_[a].size()];
}

template <class Element>
std::string ChannelDots<Element>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "block " + text(block_cells_[0]) + "x" + text(block_cells_[1]) + "x" + text(block_cells_[2]) +
         (in_place_ ? "" : ", input boxed");
}

template <class Element>
void ChannelDots<Element>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  Element* weights = layout_.at<Element>(workspace, weights_part_);
  Real* bias = layout_.at<Real>(workspace, bias_part_);
  load_bias(*tiles_, p_.type, buffers.bias, g.groups * columns_, bias);
  parallel.for_each(g.groups * columns_ * phase_count(),
                    [&](int64_t index, int) { pack(buffers, index / phase_count(), index % phase_count(), weights); });
  void* out = p_.operation == Operation::conv_transpose ? buffers.y : buffers.x;
  parallel.for_each(g.batch * g.groups * blocks(), [&](int64_t index, int thread) {
    std::byte* scratch = layout_.thread(workspace, thread);
    const Block block = this->block(index);
    Upcoming next = upcoming(buffers, index + 1);
    const Input in = load(buffers, block, layout_.at<Element>(scratch, box_part_));
    Real* sums = layout_.at<Real>(scratch, sums_part_);
    const int64_t results = block.results();
    Lists lists;
    for (int64_t c = 0; c < columns_; ++c) std::fill_n(sums + c * results, results, bias[block.group * columns_ + c]);
    for (int64_t phase = 0; phase < phase_count(); ++phase)
      sum_phase(block, in, phase, weights + block.group * columns_ * row_, lists, sums, next);
    for (int64_t o0 = 0; o0 < block.extent(0); ++o0)
      for (int64_t o1 = 0; o1 < block.extent(1); ++o1) {
        void* line = element(out, p_.type,
                             block.sample * out_.outer + block.group * columns_ * out_.channel +
                                 (block.written[0].begin + o0) * out_.axis[0] + (block.written[1].begin + o1) * out_.axis[1] +
                                 block.written[2].begin * out_.axis[2]);
        store_planes(*tiles_, p_.type, sums + (o0 * block.extent(1) + o1) * block.extent(2), results, line, out_.axis[2],
                     block.extent(2), out_.channel, columns_);
      }
  });
}

template <class Element>
typename ChannelDots<Element>::Block ChannelDots<Element>::block(int64_t index) const {
  Block block;
  take_piece(
      index, [&](int a) { return axis_[a].cells; }, block_cells_, block.cell);
  block.group = index % p_.geometry.groups, block.sample = index / p_.geometry.groups;
  for (int a = 0; a < kAxes; ++a) block.written[a] = axis_[a].written_by(block.cell[a]);
  return block;
}

// What a block reads, in about as many steps as it has tiles. (In channels_last, 3 to 96 channels, k6 s2, 128x128: 0.63 of the
// time; 6 to 64, k4 s2, a line of 16000: 0.5; in planes 0.75 to 1.05.)
template <class Element>
Upcoming ChannelDots<Element>::upcoming(const Buffers& buffers, int64_t index) const {
  if (index >= p_.geometry.batch * p_.geometry.groups * blocks()) return Upcoming();
  const Block block = this->block(index);
  const int64_t rows = even_part(columns_, kDotRows);
  int64_t steps =
      phase_count() * parts_of(columns_, rows) * parts_of(row_ * rows * int64_t(sizeof(Element)), phase_count() * kChunkBytes);
  int64_t cells = 1;
  for (const Range& cell : block.cell) cells *= cell.size();
  steps *= parts_of(cells, tiles_->max_dot_taps[rows]);
  Patch read{{block.sample, block.sample + 1}, {block.group * channels_, (block.group + 1) * channels_}, {}};
  for (int a = 0; a < kAxes; ++a) read.axis[a] = axis_[a].read_by(block.cell[a]);
  Upcoming next(steps);
  next.reads(p_.type, input(buffers), in_, read);
  return next;
}

// The weights of one result channel, of all groups, in one phase.
template <class Element>
void ChannelDots<Element>::pack(const Buffers& buffers, int64_t column, int64_t index, Element* weights) const {
  const WeightsMatrix matrix = weights_matrix(p_);
  Box box{{}, {}, channels_, matrix.depth_stride};
  int64_t from = column / columns_ * p_.geometry.x_channels * p_.w.outer + column % columns_ * matrix.columns_stride;
  for (int a = 0; a < kAxes; ++a) {
    const std::vector<Tap>& taps = phase(a, index).taps;
    if (taps.empty()) return;
    box.extent[a] = int64_t(taps.size());
    box.stride[a] = taps.size() > 1 ? (taps[1].k - taps[0].k) * p_.w.axis[a] : 0;
    from += taps[0].k * p_.w.axis[a];
  }
  Element* to = weights + column * row_ + weights_of_[size_t(index)];
  Box line = box;
  line.extent[0] = line.extent[1] = 1;
  const int64_t pitch = line_pitch(phase(2, index));
  for (int64_t i0 = 0; i0 < box.extent[0]; ++i0)
    for (int64_t i1 = 0; i1 < box.extent[1]; ++i1, to += pitch)
      load_box(*tiles_, p_.type, element(buffers.w, p_.type, from + i0 * box.stride[0] + i1 * box.stride[1]), line, to,
               channels_);
}

template <class Element>
typename ChannelDots<Element>::Input ChannelDots<Element>::load(const Buffers& buffers, const Block& block, Element* box) const {
  const void* tensor = input(buffers);
  int64_t from = block.sample * in_.outer + block.group * channels_ * in_.channel;
  if (in_place_) return {static_cast<const Element*>(element(tensor, p_.type, from)), {in_.axis[0], in_.axis[1], in_.axis[2]}};
  Box shape{{}, {in_.axis[0], in_.axis[1], in_.axis[2]}, channels_, in_.channel};
  int64_t step = channels_, origin = 0;
  Input in{box, {}};
  for (int a = kAxes - 1; a >= 0; --a) {
    const Range read = axis_[a].read_by(block.cell[a]);
    shape.extent[a] = std::max<int64_t>(read.size(), 0);
    from += read.begin * in_.axis[a];
    in.step[a] = step, origin += read.begin * step;
    step *= shape.extent[a];
  }
  if (step > 0) load_box(*tiles_, p_.type, element(tensor, p_.type, from), shape, box, channels_);
  in.origin = box - origin;
  return in;
}

// f(part) for each of a block.
template <class Element>
template <class F>
void ChannelDots<Element>::for_each_part(const Block& block, int64_t index, F f) const {
  Part part;
  const auto each = [&](int a, auto next) {
    for (const Segment& s : phase(a, index).segments) {
      part.cells[a] = {std::max(s.cells.begin, block.cell[a].begin), std::min(s.cells.end, block.cell[a].end)};
      part.taps[a] = s.taps;
      if (part.cells[a].size() > 0 && s.taps.size() > 0) next();
    }
  };
  each(0, [&] { each(1, [&] { each(2, [&] { f(part); }); }); });
}

// Those of neighbouring taps of a line are one, where their channels follow each other in the input.
template <class Element>
void ChannelDots<Element>::list_runs(const Part& part, const Input& in, int64_t index, const Element* weights,
                                     std::vector<OuterRun<Element>>& runs) const {
  const std::vector<Tap>*taps[kAxes] = {&phase(0, index).taps, &phase(1, index).taps, &phase(2, index).taps}, &line = *taps[2];
  const int64_t pitch = line_pitch(phase(2, index));
  const bool follow = in.step[2] == channels_;
  runs.clear();
  for (int64_t i0 = part.taps[0].begin; i0 < part.taps[0].end; ++i0)
    for (int64_t i1 = part.taps[1].begin; i1 < part.taps[1].end; ++i1)
      for (int64_t i2 = part.taps[2].begin, end; i2 < part.taps[2].end; i2 = end) {
        const int64_t delta = line[size_t(i2)].delta;
        for (end = i2 + 1; follow && end < part.taps[2].end && line[size_t(end)].delta == delta + end - i2;) ++end;
        const Element* a = weights + weights_of_[size_t(index)] + (i0 * int64_t(taps[1]->size()) + i1) * pitch + i2 * channels_;
        const Element* b = in.origin + (*taps[0])[size_t(i0)].delta * in.step[0] + (*taps[1])[size_t(i1)].delta * in.step[1] +
                           delta * in.step[2];
        const int64_t count = (end - i2) * channels_, piece = round_up(even_part(count, kRun), 64);
        for (int64_t n = 0; n < count; n += piece) runs.push_back({a + n, b + n, std::min(piece, count - n)});
      }
}

template <class Element>
void ChannelDots<Element>::list_cells(const Part& part, const Input& in, const Block& block, int64_t index, Lists& lists) const {
  const auto offset = [&](int a, int64_t j) { return j * axis_[a].in_step * in.step[a]; };
  const int64_t r[kAxes] = {phase(0, index).r, phase(1, index).r, phase(2, index).r};
  const auto place = [&](int a, int64_t j) { return j * axis_[a].out_step + r[a] - block.written[a].begin; };
  lists.offsets.clear(), lists.places.clear();
  for (int64_t j0 = part.cells[0].begin; j0 < part.cells[0].end; ++j0)
    for (int64_t j1 = part.cells[1].begin; j1 < part.cells[1].end; ++j1) {
      const int64_t line_offset = offset(0, j0) + offset(1, j1), line = place(0, j0) * block.extent(1) + place(1, j1);
      for (int64_t j2 = part.cells[2].begin; j2 < part.cells[2].end; ++j2) {
        lists.offsets.push_back(line_offset + offset(2, j2));
        lists.places.push_back(line * block.extent(2) + place(2, j2));
      }
    }
}

// Runs are taken some at a time, whose weights stay in L1.
template <class Element>
void ChannelDots<Element>::sum_phase(const Block& block, const Input& in, int64_t index, const Element* weights, Lists& lists,
                                     Real* sums, Upcoming& next) const {
  const int64_t row_bytes = std::min<int64_t>(columns_, kDotRows) * int64_t(sizeof(Element));
  for_each_part(block, index, [&](const Part& part) {
    list_runs(part, in, index, weights, lists.runs);
    list_cells(part, in, block, index, lists);
    for (size_t first = 0, end; first < lists.runs.size(); first = end) {
      int64_t bytes = 0;
      for (end = first; end < lists.runs.size() && (end == first || bytes < kChunkBytes); ++end)
        bytes += lists.runs[end].count * row_bytes;
      sum_runs(std::span(lists.runs).subspan(first, end - first), lists, block.results(), sums, next);
    }
  });
}

// Adds to results of the block, at these places of each channel's, the products of runs of weights with the input at the offsets.
template <class Element>
void ChannelDots<Element>::sum_runs(std::span<const OuterRun<Element>> runs, const Lists& cells, int64_t results, Real* sums,
                                    Upcoming& next) const {
  const int64_t all = int64_t(cells.offsets.size());
  for (int64_t c = 0, rows; c < columns_; c += rows, sums += rows * results) {
    rows = even_part(columns_ - c, kDotRows);
    const int64_t most = even_part(all, tiles_->max_dot_taps[rows]);
    for (int64_t p = 0; p < all; p += most) {
      const int64_t count = std::min(most, all - p);
      const int64_t *offsets = cells.offsets.data() + p, *places = cells.places.data() + p;
      const auto tile = dot_of<Element>(*tiles_, rows, count);
      next.step();
      if (places[count - 1] - places[0] == count - 1) {
        tile({runs.data(), int64_t(runs.size()), c * row_, row_, offsets, sums + places[0], results});
        continue;
      }
      Real dots[kDotRows * kDotTaps] = {};
      tile({runs.data(), int64_t(runs.size()), c * row_, row_, offsets, dots, kDotTaps});
      for (int64_t k = 0; k < count; ++k) {
        Real* to = sums + places[k];
        for (int64_t m = 0; m < rows; ++m) to[m * results] += dots[m * kDotTaps + k];
      }
    }
  }
}

// Planes of few channels of x and y, of so many phases that all other kernels mostly gather and scatter, where a line's taps lie
// side by side once they are in a box (8 to 6 channels, volumes of 16, k4 s4: 0.4 of the time; 3 to 5, k6 s3: 0.33; 8 to 3,
// 48x48, k32 s16: 0.45; 12 to 4, 64x64, k16 s16: 0.7; but 12 to 4, 48x48, k5 s5: 1.2, and along one axis 1.5 to 3).
bool few_planes(const Problem& p) {
  constexpr int64_t kFewInputs = 8, kMostInputs = 12, kManyOutputs = 8;
  constexpr double kManyPhases = 25, kManyPhasesOfMost = 64, kPhasesOfMany = 16;
  const Geometry& g = p.geometry;
  if (g.groups > 1 || p.y.channel == 1 || y_is_line(g) || g.x_channels > kMostInputs) return false;
  const double least = g.x_channels > kFewInputs ? kManyPhasesOfMost : g.y_channels < kManyOutputs ? kManyPhases : kPhasesOfMany;
  return strides_of(g) >= least;
}

// What a result takes, in lanes of multiply-adds: those of its runs, which are whole vectors, and what each run and each result
// take besides.
constexpr double kOfRun = 8, kOfResult = 100;
constexpr int64_t kLeastRun = 24;

// By measurement of 260 layers of 1 to 40 input channels of a group, of four types and with 8 lanes: 0.77 of their time (2 to 160
// channels, k16 s4, 10x10: 0.2; 3 to 96, k5 s1, 20x20: 0.6; 8 to 512, k2 s2: 0.45; 20 to 192, k5 s1: 0.85; but 4 to 16 of 2
// groups, k10 s2 d2, runs of 8 channels: 2.9; 5 to 20, k3 s1: 1.4; 56 to 512 of 2 groups, k12 s8, 16 positions: 2.8).
bool pays_for_data(const Problem& p, Isa isa) {
  constexpr int64_t kFewInputs = 5, kLongSum = 1280;  // beside which lanes along positions pay without a stride
  constexpr int64_t kLongSumOfPlanes = 2100, kManyPositions = 1024, kFewMirrored = 3;
  constexpr int64_t kWeightsOfPosition = 8192;  // more are packed for longer than they are multiplied
  constexpr int64_t kLeastChannels = 8;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  const bool pairs = isa == Isa::avx512_bf16;
  const int64_t columns = g.x_channels, terms = g.y_channels * g.w_positions(), lanes = lanes_of(p.type, isa);
  const bool follow = line.dilation == 1 && (g.groups == 1 || p.y.channel != 1);
  const int64_t run = follow ? line.w * g.y_channels : g.y_channels;
  const bool stride_one = longest_stride(g) == 1;
  // Planes are left to `overlap`, with x and y exchanged.
  const bool mirrors = stride_one && p.y.channel != 1 && g.groups == 1 && columns <= kFewMirrored && p.type != Type::f64 &&
                       g.batch * g.x_positions() >= kManyPositions;
  if (few_planes(p) && !pairs) return true;
  if (columns % lanes == 0 || run < kLeastRun || g.y_channels < kLeastChannels) return false;
  if (terms * columns > kWeightsOfPosition * g.batch * g.x_positions()) return false;
  if (stride_one && columns <= kFewInputs && terms < (mirrors ? kLongSumOfPlanes : kLongSum)) return false;
  if (mirrors && columns == 1 && isa == Isa::avx512) return false;
  const double of_runs = double(terms / run) * (double(round_up(run, pairs ? 2 * lanes : lanes)) + kOfRun);
  return of_runs + kOfResult < double(terms) * lanes_timed(p.type, isa, columns) / double(columns);
}

// Forward, what a result sums of x: all of it, and what lies side by side.
double sum_of_result(const Geometry& g) { return double(g.x_channels * g.w_positions()) / strides_of(g); }
double run_of_result(const Geometry& g) {
  const Axis& line = g.axis[kAxes - 1];
  return double(line.dilation == 1 ? g.x_channels * line.w : g.x_channels) / double(line.stride);
}

// The same for 2 to 12 output channels of as many layers, where x is read in place and planes are not mostly borders, in which
// few cells have their taps in common, nor phases fill tiles as channels. (512 to 3 channels, k4 s2, 32x32: 0.84 of the time; 320
// to 10, k3 s1, 8 lines of 100: 0.75; 256 to 2, 12000, k4 s2: 0.55; 320 to 6, k10 s1, 16x16: 1.5; 96 to 8, 48x48, k6 s2: 1.7.)
bool pays_forward(const Problem& p, bool pairs) {
  constexpr int64_t kLeastPositions = 256, kMostOutputs = 12, kCellsOfTap = 4;
  constexpr double kLeastSum = 768, kLeastSumOfLong = 480, kLongSum = 1025, kLongRun = 128, kVeryLongRun = 384;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  if (g.groups > 1 || p.x.channel != 1 || g.y_channels < 2 || g.y_channels > kMostOutputs) return false;
  for (const Axis& a : g.axis)
    if (a.w > 1 && kCellsOfTap * a.w > a.x * a.stride) return false;
  const double run = run_of_result(g), sum = sum_of_result(g);
  const int64_t phases = std::gcd(std::gcd(line.stride, line.offset), line.w);
  const bool folds = phases > 1 && sum < kLongSum && g.y_channels * phases >= kMaxLanes;
  const double least = !pairs && line.w > line.stride && run >= kVeryLongRun ? kLeastSumOfLong : kLeastSum;
  return !folds && sum >= least && run >= kLongRun && g.batch * g.x_positions() >= kLeastPositions;
}

// Vectors of 8 leave `overlap` less of an advantage: of up to 6 output channels sums may be shorter, planes small, and have their
// borders (46 layers: 0.67 of the time; 128 to 3 channels, volumes of 8, k3 s1: 0.52; 512 to 1, k5 s1, 64x64: 0.42; 40 to 1, k3
// s1, volumes of 16: 0.63; 384 to 1, k5 s2, 14x14: 0.77; but 16 to 4, k3 s1, 14x14: 1.2; 64 to 1, volumes of 32, k4 s2: 1.16).
// Longer strides are left to it (56 to 1, k9 s3, 120x120: 1.15; 512 to 1, k16 s8, 3999: 1.45), patches to `unfold`, and phases of
// more channels fill tiles (192 to 8, k5 s2, 32x32: 1.4).
bool pays_forward_with_short_vectors(const Problem& p) {
  constexpr int64_t kMostOutputs = 6, kLeastRowOfPatches = 16, kLeastPositionsOfPhases = 100;
  constexpr double kLeastSum = 200, kLeastLength = 64, kLeastSumOfPhase = 480, kLeastRunOfPhase = 192, kLeastMet = 0.55;
  const Geometry& g = p.geometry;
  const double phases = strides_of(g), taps = double(g.w_positions()), run = run_of_result(g), sum = sum_of_result(g);
  if (pays_forward(p, false)) return g.y_channels <= kMostOutputs || phases == 1;
  const double met = products_of(g) * phases / (double(g.batch * g.y_positions()) * taps);  // of what the taps of results reach
  if (g.groups > 1 || g.y_channels > kMostOutputs || p.x.channel != 1 || met < kLeastMet) return false;
  if (phases == 1) return run >= kLeastLength && (sum >= kLeastSum || taps == 1);
  const bool patches = taps == phases && taps * double(g.y_channels) >= kLeastRowOfPatches;
  return longest_stride(g) <= 2 && !patches && sum >= kLeastSumOfPhase && run >= kLeastRunOfPhase &&
         g.batch * g.x_positions() >= kLeastPositionsOfPhases;
}

// Gradients of data with somewhat more than 8 channels, by vectors of 8, but of short lines (5 layers: 0.80 of the time in
// planes, 0.9 of channels side by side; 12 to 96 channels, k4 s2, 56x56: 0.77 and 1.0; 20 to 384, k4 s2, 1000: 0.76; but k10 s5,
// 50: 1.7).
bool left_to_winograd(const Problem& p, Isa isa, const Request& request) {
  constexpr int64_t kShortLine = 200;
  const Geometry& g = p.geometry;
  if (isa != Isa::avx2 || g.x_channels <= lanes_of(p.type, isa) || (x_is_line(g) && g.x_positions() < kShortLine)) return false;
  return make_winograd_avx2(p, request) != nullptr;
}

// With the longest vectors that there are, unless matrix registers multiply.
bool takes(const Problem& p, Isa isa, const Request& request) {
  const Isa longest = std::min(request.isa, Isa::avx512);
  const bool of_pairs = p.type == Type::bf16 && request.isa >= Isa::avx512_bf16 && pairs_are_fast();
  if (isa != (of_pairs ? Isa::avx512_bf16 : longest) || gather_takes_matrices(p, request)) return false;
  if (p.operation == Operation::backward_data) return pays_for_data(p, isa) && !left_to_winograd(p, isa, request);
  return isa == Isa::avx2 ? pays_forward_with_short_vectors(p) : pays_forward(p, isa == Isa::avx512_bf16);
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  constexpr int64_t kMostPhases = 1024;
  const Geometry& g = p.geometry;
  if (p.operation == Operation::backward_weights || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  if (p.operation == Operation::conv_transpose && strides_of(g) > kMostPhases) return nullptr;
  if (isa == Isa::avx512_bf16 && p.type != Type::bf16) return nullptr;
  if (!request.by_name && !takes(p, isa, request)) return nullptr;
  if (isa == Isa::avx512_bf16) return std::make_shared<ChannelDots<bf16>>(p, pair_tiles(), request.threads);
  if (p.type == Type::f64) return std::make_shared<ChannelDots<double>>(p, tiles<double>(isa), request.threads);
  return std::make_shared<ChannelDots<float>>(p, tiles<float>(isa), request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_channel_dots_avx512_bf16(const Problem& p, const Request& request) {
  return make(p, Isa::avx512_bf16, request);
}
std::shared_ptr<Plan> make_channel_dots_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_channel_dots_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_channel_dots_portable(const Problem& p, const Request& request) {
  return make(p, Isa::portable, request);
}

}  // namespace torch_ext::cpu
