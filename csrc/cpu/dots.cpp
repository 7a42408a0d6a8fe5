// SPDX-License-Identifier: Apache-2.0
// backward_weights where a group has too few output channels to fill a vector (small groups, images): lanes go along
// positions, and each weight is a dot product of a plane of x with a shifted plane of y. Positions are cut into blocks whose
// planes fit the cache. Threads share out the groups or, where those are few, the blocks, in parts whose number depends on the
// shape alone and which are added in a fixed order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kBoxBytes = 96 << 10;           // of the planes of y of a block
constexpr int64_t kXBoxBytes = 192 << 10;         // of those of x, where they are not used in place
constexpr int64_t kRowsBytes = 384 << 10;         // of the rows of y of a block, where planes are unfolded
constexpr int64_t kMostPositions = 2048;          // of several samples: rows of x that stay in L1
constexpr int64_t kMaxChannels = 4;               // output channels of a group, of which outer leaves most lanes empty
constexpr int64_t kMaxPairs = 4;                  // channel pairs of a group, in any case
constexpr int64_t kMinGroups = 8;                 // fewer do not occupy the threads
constexpr int64_t kMinParts = 8, kMaxParts = 16;  // that the positions are summed in, where groups are few
constexpr int64_t kMinLine = 512;                 // of positions, from which on lines are cut for them
constexpr double kPartFlops = 32e6;               // of a layer that is worth parts

// Of what is computed in or, where the processor multiplies pairs of bf16, of bf16 as they lie: pairs are neighbouring positions.
template <class Element>
class Dots final : public Plan {
 public:
  using Real = typename Operand<Element>::Real;
  Dots(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  void choose_blocks();
  bool unfolding_pays() const;
  void cut_planes(int64_t room);
  int64_t block_count() const;
  void sum_block(const Buffers& buffers, int64_t index, int64_t group, int64_t groups, std::byte* scratch, Real* sums) const;
  bool store(const Buffers& buffers, int64_t channel, const Real* sums) const;

  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t positions() const { return cells_[0] * cells_[1] * cells_[2]; }  // of a block, in a sample
  int64_t group_sums() const { return p_.geometry.x_channels * columns(); }
  int64_t columns() const { return int64_t(offsets_.size()); }

  Problem p_;
  const Tiles<Real>* tiles_;
  // y is gathered as backward_data gathers it: its cells are the positions of x.
  GatherAxis axis_[kAxes];
  PlaneAxis plane_axis_[kAxes];
  bool in_place_x_, unfolds_;
  int64_t groups_, batches_;              // groups that a thread takes at a time, and how many times
  int64_t block_samples_, cells_[kAxes];  // of a block
  int64_t parts_;                         // of the blocks
  Planes<Element> y_planes_;
  std::vector<int64_t> offsets_;         // of output channels and taps into the planes of y of a group
  int64_t row_pitch_;                    // of the rows that these are unfolded to
  std::vector<int64_t> row_offsets_;     // of those
  std::vector<int64_t> weight_offsets_;  // of those in the tensor; taps that reach nothing are left out
  std::shared_ptr<const Plan> exact_;    // for values that are not finite
  Layout layout_;
  Layout::Part sums_part_, x_part_, y_part_, rows_part_;
};

template <class Element>
const auto& tiles_of(Isa isa) {
  if constexpr (Operand<Element>::terms == 2) {
    return pair_tiles();
  } else {
    return tiles<Element>(isa);
  }
}

template <class Element>
Dots<Element>::Dots(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles_of<Element>(isa)),
      axis_{{p_.geometry.axis[0], Operation::backward_data},
            {p_.geometry.axis[1], Operation::backward_data},
            {p_.geometry.axis[2], Operation::backward_data}},
      plane_axis_{PlaneAxis(axis_[0]), PlaneAxis(axis_[1]), PlaneAxis(axis_[2])} {
  const Geometry& g = p_.geometry;
  const bool interleaved = p_.x.channel == 1 || p_.y.channel == 1;  // channels that lie side by side are read together
  groups_ = std::min(g.groups, interleaved ? std::max<int64_t>(1, tiles_->lanes / std::max(g.x_channels, g.y_channels)) : 1);
  batches_ = parts_of(g.groups, groups_);
  in_place_x_ = bytes_of(p_.type) == int64_t(sizeof(Element)) && (p_.x.axis[2] == 1 || g.axis[2].x == 1);
  unfolds_ = unfolding_pays();
  choose_blocks();
  parts_ = batches_ >= kMinGroups ? 1 : std::min(kMaxParts, block_count());
  while (parts_ > kMinParts && !shared_evenly(parts_ * batches_, p_.geometry.flops())) --parts_;
  y_planes_ = Planes<Element>(*tiles_, p_.type, axis_, plane_axis_, p_.y, cells_);
  for (int64_t channel = 0; channel < g.y_channels; ++channel)
    for (const PlaneTap& t0 : plane_axis_[0].phases[0])
      for (const PlaneTap& t1 : plane_axis_[1].phases[0])
        for (const PlaneTap& t2 : plane_axis_[2].phases[0]) {
          offsets_.push_back(channel * y_planes_.size() + y_planes_.offset(t0, t1, t2));
          weight_offsets_.push_back(channel * p_.w.channel + t0.k * p_.w.axis[0] + t1.k * p_.w.axis[1] + t2.k * p_.w.axis[2]);
        }
  const int64_t size = sizeof(Element), y_planes = groups_ * g.y_channels * y_planes_.size();
  row_pitch_ = row_pitch(positions(), size);
  for (int64_t t = 0; unfolds_ && t < columns(); ++t) row_offsets_.push_back(t * row_pitch_);
  sums_part_ = layout_.shared(parts_ * g.groups * group_sums() * int64_t(sizeof(Real)));
  x_part_ = layout_.per_thread(in_place_x_ ? 0 : groups_ * g.x_channels * block_samples_ * positions() * size);
  // Lines are joined in whole vectors.
  y_part_ = layout_.per_thread((unfolds_ ? y_planes + tiles_->lanes : block_samples_ * y_planes) * size);
  rows_part_ = layout_.per_thread(unfolds_ ? (block_samples_ * columns() * row_pitch_ + tiles_->lanes) * size : 0);
  layout_.finish(threads);
  exact_ = make_exact_plan(p_, isa, threads);
}

template <class Element>
void Dots<Element>::choose_blocks() {
  const Geometry& g = p_.geometry;
  int64_t y_per_cell = g.y_channels;
  for (const PlaneAxis& axis : plane_axis_) y_per_cell *= int64_t(axis.residues.size());
  int64_t room = std::max<int64_t>(1, kBoxBytes / (groups_ * y_per_cell * int64_t(sizeof(Element))));
  if (unfolds_) room = std::clamp<int64_t>(kRowsBytes / (g.y_channels * taps() * int64_t(sizeof(Element))), 1, room);
  if (!in_place_x_) room = std::clamp<int64_t>(kXBoxBytes / (groups_ * g.x_channels * int64_t(sizeof(Element))), 1, room);
  // Blocks enough for the parts.
  block_samples_ = 1;
  const int64_t least = batches_ < kMinGroups && p_.geometry.flops() > kPartFlops ? kMinParts : 1;
  if (unfolds_) {
    cut_axes([&](int a) { return axis_[a].cells; }, room, cells_);
  } else {
    cells_[2] = even_part(axis_[2].cells, room);
    int64_t lines = room / cells_[2];
    cut_planes(lines);
    // Few large blocks of a long sum are made smaller until threads share them.
    const auto shared = [&] {
      return batches_ >= kMinGroups || block_count() >= kMaxParts || shared_evenly(block_count() * batches_, p_.geometry.flops());
    };
    while (!shared() && lines > 1) cut_planes(--lines);
    for (int64_t pieces = 2; !shared() && cells_[2] > kMinLine; ++pieces) cells_[2] = parts_of(axis_[2].cells, pieces);
  }
  if (unfolds_) room = std::min(room, kMostPositions);
  block_samples_ = std::clamp<int64_t>(room / positions(), 1, std::max<int64_t>(g.batch / least, 1));
  int64_t& height = cells_[unfolds_ && cells_[0] > 1 ? 0 : 1];  // lines that are joined follow each other
  while (block_count() < least && height > 1) height = parts_of(height, 2);
}

// Where positions follow each other in x from line to line, the lines of a block can be joined to one: in x as they lie, in y as
// rows of copies, one for each channel and tap. A copy takes as long as two multiply-adds, and each channel of x saves the empty
// lanes at the end of a line, or the time between lines of one vector. (64 and 1 channel, k4 s2, 14x14: 0.8 of the time.)
template <class Element>
bool Dots<Element>::unfolding_pays() const {
  constexpr int64_t kMostColumns = 128, kCopy = 2;
  const Geometry& g = p_.geometry;
  const int64_t line = g.axis[2].x, lanes = tiles_->lanes;
  const int64_t lost = round_up(line, lanes) - line + (line > lanes ? 0 : lanes / 8);
  const bool pays = lost * g.x_channels > kCopy * line;
  return in_place_x_ && groups_ == 1 && g.y_channels * taps() <= kMostColumns && pays && positions_follow(p_);
}

// Cuts the two outer axes into even pieces with room for about so many lines of cells, such that the blocks read each line of y
// as few times as can be.
template <class Element>
void Dots<Element>::cut_planes(int64_t room) {
  double least = 0;
  for (int64_t height = 1; height == 1 || height <= std::min(axis_[0].cells, room); ++height) {
    const int64_t piece[] = {even_part(axis_[0].cells, height), even_part(axis_[1].cells, std::max<int64_t>(1, room / height))};
    const double reads = double(axis_[0].reached(piece[0]) * axis_[1].reached(piece[1])) / double(piece[0] * piece[1]);
    if (height == 1 || reads < least) least = reads, std::copy_n(piece, 2, cells_);
  }
}

template <class Element>
int64_t Dots<Element>::block_count() const {
  return parts_of(p_.geometry.batch, block_samples_) * piece_count([&](int a) { return axis_[a].cells; }, cells_);
}

template <class Element>
std::string Dots<Element>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "block " + text(block_samples_) + "x" + text(cells_[0]) + "x" + text(cells_[1]) + "x" + text(cells_[2]) + " of " +
         text(groups_) + " groups, " + text(parts_) + " parts" + (in_place_x_ ? "" : ", x boxed");
}

template <class Element>
void Dots<Element>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t all = p_.geometry.groups, blocks = block_count();
  Real* sums = layout_.at<Real>(workspace, sums_part_);
  parallel.for_each(parts_ * batches_, [&](int64_t index, int thread) {
    const int64_t part = index / batches_, first = index % batches_ * groups_, count = std::min(groups_, all - first);
    Real* of_part = sums + (part * all + first) * group_sums();
    std::fill_n(of_part, count * group_sums(), Real(0));
    const Range of = even_range(part, parts_, blocks);
    for (int64_t block = of.begin; block < of.end; ++block)
      sum_block(buffers, block, first, count, layout_.thread(workspace, thread), of_part);
  });
  std::atomic<bool> finite{true};
  parallel.for_each(all * p_.geometry.x_channels, [&](int64_t channel, int) {
    Real* to = sums + channel * columns();
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < columns(); ++i) to[i] += to[part * all * group_sums() + i];
    if (!store(buffers, channel, to)) finite = false;
  });
  // An infinity or NaN in x may have met the zeros around y, in taps that do not connect the two.
  if (!finite) exact_->run(buffers, parallel);
}

// Adds one block of positions to sums[group][ic][oc, tap].
template <class Element>
void Dots<Element>::sum_block(const Buffers& buffers, int64_t index, int64_t group, int64_t groups, std::byte* scratch,
                              Real* sums) const {
  const Geometry& g = p_.geometry;
  Range cell[kAxes];
  take_piece(
      index, [&](int a) { return axis_[a].cells; }, cells_, cell);
  const int64_t first_sample = index * block_samples_, last_sample = std::min(first_sample + block_samples_, g.batch);
  const int64_t of_sample = cell[0].size() * cell[1].size() * cell[2].size();
  const int64_t x_pitch = in_place_x_ ? p_.x.channel : (last_sample - first_sample) * of_sample;
  const int64_t y_sample = groups * g.y_channels * y_planes_.size();
  Element* x_box = layout_.at<Element>(scratch, x_part_);
  Element* y_box = layout_.at<Element>(scratch, y_part_);
  thread_local std::vector<OuterRun<Element>> runs;  // of group 0
  runs.clear();
  for (int64_t n = first_sample; n < last_sample; ++n) {
    Element* y = unfolds_ ? y_box : y_box + (n - first_sample) * y_sample;
    y_planes_.load(element(buffers.y, p_.type, n * p_.y.outer + group * g.y_channels * p_.y.channel), cell, groups * g.y_channels,
                   y);
    if (unfolds_) {
      Element* rows = layout_.at<Element>(scratch, rows_part_) + (n - first_sample) * columns() * row_pitch_;
      y_planes_.unfold(y, cell, offsets_, rows, row_pitch_);
      const int64_t corner = cell[0].begin * p_.x.axis[0] + cell[1].begin * p_.x.axis[1] + cell[2].begin * p_.x.axis[2];
      runs.push_back({static_cast<const Element*>(
                          element(buffers.x, p_.type, n * p_.x.outer + group * g.x_channels * p_.x.channel + corner)),
                      rows, of_sample});
      continue;
    }
    for (int64_t i0 = 0; i0 < cell[0].size(); ++i0)
      for (int64_t i1 = 0; i1 < cell[1].size(); ++i1) {
        const void* x = element(buffers.x, p_.type,
                                n * p_.x.outer + group * g.x_channels * p_.x.channel + (cell[0].begin + i0) * p_.x.axis[0] +
                                    (cell[1].begin + i1) * p_.x.axis[1] + cell[2].begin * p_.x.axis[2]);
        Element* line = x_box + int64_t(runs.size()) * cell[2].size();
        if (!in_place_x_)
          load_planes(*tiles_, p_.type, x, p_.x.axis[2], cell[2].size(), p_.x.channel, groups * g.x_channels, line, x_pitch);
        runs.push_back({in_place_x_ ? static_cast<const Element*>(x) : line,
                        y + i0 * y_planes_.pitch(0) + i1 * y_planes_.pitch(1), cell[2].size()});
      }
  }
  const int64_t* offsets = (unfolds_ ? row_offsets_ : offsets_).data();
  for (int64_t i = 0; i < groups; ++i) {
    Real* of_group = sums + i * group_sums();
    for (int64_t ic = 0, rows; ic < g.x_channels; ic += rows) {
      rows = std::min<int64_t>(kDotRows, g.x_channels - ic);
      int64_t asked = ic + rows;  // the channel that is asked for
      for (int64_t t = 0, count; t < columns(); t += count, ++asked) {
        count = even_part(columns() - t, tiles_->max_dot_taps[rows]);
        const bool asks = in_place_x_ && asked < std::min(ic + 2 * rows, g.x_channels);
        dot_of<Element>(*tiles_, rows, count)({runs.data(), int64_t(runs.size()), ic * x_pitch, x_pitch, offsets + t,
                                               of_group + ic * columns() + t, columns(), asks ? (asked - ic) * x_pitch : 0});
      }
    }
    for (OuterRun<Element>& run : runs) run.a += g.x_channels * x_pitch, run.b += g.y_channels * y_planes_.size();
  }
}

// The weights of one channel of x, of all groups. Returns whether all are finite.
template <class Element>
bool Dots<Element>::store(const Buffers& buffers, int64_t channel, const Real* sums) const {
  const Geometry& g = p_.geometry;
  const auto weight = [&](int64_t offset) { return element(buffers.w, p_.type, channel * p_.w.outer + offset); };
  // Taps that reach nothing are zero.
  if (columns() < g.y_channels * taps())
    for (int64_t oc = 0; oc < g.y_channels; ++oc)
      for (int64_t k0 = 0; k0 < g.axis[0].w; ++k0)
        for (int64_t k1 = 0; k1 < g.axis[1].w; ++k1)
          for (int64_t k2 = 0; k2 < g.axis[2].w; ++k2) {
            const Real zero = 0;
            const int64_t offset = oc * p_.w.channel + k0 * p_.w.axis[0] + k1 * p_.w.axis[1] + k2 * p_.w.axis[2];
            tiles_->narrow(p_.type, &zero, weight(offset), 1);
          }
  bool finite = true;
  for (int64_t offset : weight_offsets_) {
    finite = finite && std::isfinite(*sums);
    tiles_->narrow(p_.type, sums++, weight(offset), 1);
  }
  return finite;
}

// The lanes of a dot product are added in the end, which only long lines pay for where there are many of them: by measurement
// against outer, whose tiles are partly empty with few channels of y. Planes of more than a few of these are worth their order
// where few channels of x meet them or where they are not strided, and where channels lie side by side if each y meets some taps.
// (2 to 6 channels, k4 s2, 100x100: 0.3 of the time in NCX, 0.5 in NXC; 20 to 8 of 8 groups, k3 s1, 128x128: 0.6 and 1.0; 1 to
// 16, k7 s2, 14x14: 0.7.)
bool few_channels(const Geometry& g, int64_t lanes, bool planes) {
  constexpr int64_t kPairsOfPosition = 4, kMostPairs = 160, kFewChannels = 3, kLongLine = 32, kFewInputs = 8, kLeastMet = 4,
                    kLeastInputs = 2;
  const Axis* axis = g.axis;
  const int64_t line = axis[2].x, met = taps_met(g);
  const bool dense = met == g.w_positions(), one_or_two = longest_stride(g) <= 2;
  const int64_t half = lanes / 2, most = lanes * 3 / 4;
  const bool worth_planes = (planes || met >= kLeastMet) && (g.x_channels <= kFewInputs || (planes && dense));
  const bool some = g.y_channels <= (dense ? most : half) && worth_planes;
  const bool least_inputs =
      g.x_channels <= kLeastInputs && one_or_two && met >= 2 && g.y_channels <= (dense && line >= kLongLine ? 2 * lanes : most);
  if (g.y_channels > kMaxChannels && !some && !least_inputs) return false;
  return g.x_channels * g.y_channels <= std::min(kPairsOfPosition * line, kMostPairs) ||
         (g.y_channels <= kFewChannels && line >= kLongLine);
}

// The same where vectors are shorter, by measurement of 320 layers with 8 lanes: in planes of few multiplications for what
// `outer` would bring in order there (5 to 5 channels, 1-D k5 s2: 0.28 of the time; 1 to 10, k8 s2, 200x200: 0.30; 20 to 6, k2
// s2: 0.45; 10 to 5, k5 s2: 0.53; 5 to 8, k8 s4, 2.8), and of few pairs along long lines (12 layers: 0.61; 3 to 8, k7 s1,
// 100x100: 0.36; 8 to 6, k8 s2, 200x200: 0.38; 12 to 8, k8 s2, 100x100: 1.39; 6 to 16, k4 s2, 64x64: 2.1), but side by side of
// fewer pairs, whose lanes are added for each (32 to 4, k6 s3, 128x128: 2; 20 to 4: 2; 8 to 3: 0.7; of 16 bits 0.9).
bool few_channels_of_short_vectors(const Problem& p, int64_t lanes, bool planes) {
  constexpr int64_t kMostPerMoved = 24, kFewInputs = 2, kMostSideBySide = 32, kLongestStride = 3;
  constexpr int64_t kLongLine = 64, kMostPairsOfLine = 128;
  const Geometry& g = p.geometry;
  const bool of_line = planes && g.axis[kAxes - 1].x >= kLongLine && g.x_channels * g.y_channels <= kMostPairsOfLine &&
                       2 * g.y_channels <= 3 * lanes;
  const bool few = of_line || few_channels(g, lanes, planes);
  if (!planes) return few && (g.y_channels <= 2 || g.x_channels * g.y_channels <= kMostSideBySide || bytes_of(p.type) == 2);
  if (g.groups > 1 || longest_stride(g) > kLongestStride || g.w_positions() == 1) return few;
  const int64_t products = g.x_channels * g.y_channels * g.w_positions(), moved = g.x_channels + newly_met(g);
  return few || (g.y_channels <= lanes && products <= kMostPerMoved * moved) ||
         (g.x_channels <= kFewInputs && g.y_channels <= 2 * lanes);
}

// Whether groups are so narrow that tiles of one group each are mostly empty in outer, where y meets some taps or lines are long.
// (4 groups of 2 to 3 channels, k7 s1, 8 lines of 1000: 0.13 of the time in NXC; 16 of 4 to 3, k4 s2, 16x16: 0.26; 2 of 1 to 16,
// k7 s1, 16x16: 0.43 in NCX; 32 of 3 to 12, k8 s4, 200 positions: 0.58; but 8 of 1 to 24, k5 s1, 8x8x8: 1.9, and in NXC with 8
// lanes 4 of 3 to 8, k3 s2, 28x28: 1.4.)
bool narrow_groups(const Geometry& g, int64_t lanes, bool planes) {
  constexpr int64_t kMostPairs = 63, kLeastPositions = 64, kLine = 14, kShortLine = 8, kPairsOfShort = 18;
  constexpr int64_t kMostStrided = 12, kMostOfLongStride = 8, kFewPairs = 12, kLongLine = 50;
  constexpr double kPairsOfPosition = 4.5;
  const int64_t pairs = g.x_channels * g.y_channels, line = g.axis[kAxes - 1].x, longest = longest_stride(g);
  if (g.groups == 1 || pairs > kMostPairs || g.batch * g.x_positions() < kLeastPositions) return false;
  if (line < (pairs <= kPairsOfShort ? kShortLine : kLine)) return false;
  if (longest > 1 && g.y_channels > (longest > 2 ? kMostOfLongStride : kMostStrided)) return false;
  const bool meets = double(2 * g.w_positions()) >= 3 * strides_of(g);  // more than one tap
  if (planes) return double(pairs) < kPairsOfPosition * double(line) && (meets || g.y_channels <= kMaxChannels);
  return (longest == 1 || lanes == kMaxLanes) && (meets || (pairs <= kFewPairs && line >= kLongLine));
}

// Whether of output channels and taps there are enough for each vector of x that is loaded: some where x and y lie as planes,
// which need no other order, or where outer has one or two channels of y for a vector of 16; else many.
bool many_columns(const Geometry& g, int64_t lanes, bool planes) {
  constexpr int64_t kLeast = 64, kLeastOfPlanes = 4, kLeastOfOne = 16, kMostPairsOfOne = 48, kLeastMet = 2;
  const bool one = g.y_channels <= lanes / 8 && g.x_channels * g.y_channels <= kMostPairsOfOne && taps_met(g) >= kLeastMet;
  return g.y_channels * g.w_positions() >= (planes ? kLeastOfPlanes : one ? kLeastOfOne : kLeast);
}

constexpr int64_t kLineOfPairs = 28;  // positions, from which on sums of pairs of bf16 are worth their lanes

// Pairs of bf16 of few channels of x, of which outer leaves more lanes empty than of floats. (1 to 20 channels, k5 s2, 56x56:
// 0.35 of the time; 2 to 16, k6 s1, 28x28: 0.4; 3 to 24, k8 s2, 40x40: 1.3; along one axis, 4 to 20, k12 s2: 0.45, 2 to 64, k5
// s1: 0.45 and 0.7, 2 to 96, k4 s2: 1.0 and 0.6.)
bool few_inputs_of_pairs(const Geometry& g) {
  constexpr int64_t kMostInputs = 2, kMostResults = 24, kLongLine = 1000, kMostInputsOfLong = 4, kMostResultsOfLong = 64;
  const int64_t line = g.axis[kAxes - 1].x;
  if (line >= kLineOfPairs && g.x_channels <= kMostInputs && g.y_channels <= kMostResults) return true;
  const bool one_line = x_is_line(g) && g.w_positions() == g.axis[kAxes - 1].w;
  return one_line && line >= kLongLine && g.x_channels <= kMostInputsOfLong && g.y_channels <= kMostResultsOfLong;
}

// Pairs of bf16 that outer brings in order, and rounds tiles of, for longer than it multiplies them: of few weights for many
// positions. (8 to 40 channels, k1, 100x100: 0.42 of the time in NCX; 4 to 12, k3 s2, 64x64: 0.27 and 0.28; 3 to 16, k7 s1,
// 128x128: 0.35 and 0.42; but 3 to 48, volumes of 32, k2 s2: 8; 16 to 64, 100x100: 1.9.)
bool few_weights_of_pairs(const Geometry& g, bool planes) {
  constexpr int64_t kMostWeights = 5119, kMostResults = 24, kMostResultsOfDense = 96, kMostPairs = 127, kLongStride = 4,
                    kLeastPositions = 256;
  const Axis* axis = g.axis;
  if (g.groups > 1 || g.batch * g.x_positions() < kLeastPositions || axis[kAxes - 1].x < kLineOfPairs / 2) return false;
  const bool dense = longest_stride(g) == 1;
  if (!planes)
    return g.x_channels * g.y_channels <= kMostPairs && g.y_channels <= kMostResults && axis[kAxes - 1].stride < kLongStride;
  const bool volume = axis[0].x > 1;
  return g.w_size() <= kMostWeights && g.y_channels <= (dense ? kMostResultsOfDense : kMostResults) && (dense || !volume);
}

// Where a pair takes as long as two floats, it still need not be widened: sums of few pairs of channels wait for that (64 to 2,
// k2 s2, 256x256: 0.64 of the time; 1 to 1, k12 s2: 0.64; 4 to 4, k4 s2, in volumes: 1.4).
bool halves_pay(const Geometry& g) {
  constexpr int64_t kFewChannels = 2;
  return g.axis[kAxes - 1].x >= kLineOfPairs && std::min(g.x_channels, g.y_channels) <= kFewChannels;
}

// Whether planes of y have so many phases, each of few positions of few channels, that bringing them takes longer than all that
// is multiplied, which `reorder` and `outer` do faster (3 to 3 channels, 24x24, k16 s16: 2 to 3; 2 to 8, 48x48, k16 s8: 3; 4 to
// 8, volumes of 16, k8 s4: 2.7; 6 to 8, 96x96, k4 s4: 1.5 to 2; pairs of 6 to 5, k32 s16: 4, of 4 to 4: 0.6).
bool many_phases(const Problem& p, bool pairs) {
  constexpr double kManyPhases = 64;
  constexpr int64_t kLongRow = 40, kLeastOfRow = 6;  // of channels and taps, where each y meets one
  constexpr int64_t kLeastOfPairs = 5;
  const Geometry& g = p.geometry;
  if (y_is_line(g) || p.y.channel == 1) return false;
  if (strides_of(g) >= kManyPhases) return !pairs || g.y_channels >= kLeastOfPairs;
  return !pairs && taps_met(g) == 1 && g.y_channels >= kLeastOfRow && g.y_channels * g.w_positions() > kLongRow;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  const bool few_pairs = g.x_channels * g.y_channels <= kMaxPairs;
  const bool planes = p.x.axis[2] == 1 && p.y.axis[2] == 1;
  const bool pairs = isa == Isa::avx512_bf16;
  const int64_t lanes = lanes_of(p.type, isa);
  const bool few = isa < Isa::avx512 ? few_channels_of_short_vectors(p, lanes, planes)
                                     : few_channels(g, lanes, planes) || (pairs && few_inputs_of_pairs(g));
  const bool few_weights = pairs && pairs_are_fast() && few_weights_of_pairs(g, planes);
  const bool suits =
      few_weights || (few && many_columns(g, lanes, planes) && !many_phases(p, pairs)) || narrow_groups(g, lanes, planes);
  if (!few_pairs && !suits && !positions_suit(p, request.isa) && !request.by_name) return nullptr;
  if (pairs) {
    if (p.type != Type::bf16 || !(request.by_name || pairs_are_fast() || halves_pay(g))) return nullptr;
    return std::make_shared<Dots<bf16>>(p, isa, request.threads);
  }
  if (p.type == Type::f64) return std::make_shared<Dots<double>>(p, isa, request.threads);
  return std::make_shared<Dots<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_dots_avx512_bf16(const Problem& p, const Request& request) {
  return make(p, Isa::avx512_bf16, request);
}
std::shared_ptr<Plan> make_dots_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_dots_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_dots_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
