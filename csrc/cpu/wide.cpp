// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data where a group has few result channels (small groups, images), too few to fill vectors, or
// where channels lie as planes and bringing them to vectors would take as long as multiplying: lanes go along positions. The
// input of a block of cells is brought to planes in cache, one for each channel and each residue of the input position modulo
// in_step, with zeros around it, so that a tap is a constant offset into a plane. The two inner axes of a plane are run through
// as one long row: what falls on the border between two rows is computed and dropped, which is cheaper than half-empty vectors.
#include <algorithm>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"
#include "csrc/cpu/wide_gate.h"
#include "csrc/cpu/wide_lines.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kMinCells = 64;
constexpr double kItemFlops = 1e6;
constexpr int64_t kPacked = 64;  // channels of the weights of a tile that a thread packs at a time

template <class Real>
class Wide final : public Plan {
 public:
  Wide(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // All taps of one phase, as offsets into a plane, and the rows of the weights for each row count of a tile.
  struct Phase {
    int64_t r[kAxes];
    std::vector<int64_t> offsets;
    std::vector<int64_t> weight_offsets;  // of the taps, in the tensor
    int64_t packed;                       // where the phase starts in a group's packed weights
  };
  struct Block {
    int64_t sample, batch;  // a batch of groups
    Range cell[kAxes];
  };

  void choose_blocks(int threads);
  void index_phases();
  int64_t woven_channels() const;
  // Tiles with so many channels' phases that compute a line of so many cells.
  int64_t woven_parts(int64_t cells, int64_t channels) const {
    return parts_of(parts_of(cells, lanes()), tiles_->max_wide_vectors[channels * axis_[2].out_step]);
  }
  // The tallest tiles of several vectors.
  int64_t tall_rows() const;
  int64_t row_tiles() const { return int64_t(rows_.size()); }
  int64_t items() const;
  Block block(int64_t index) const;
  Upcoming upcoming(const Buffers& buffers, int64_t index) const;
  void pack_weights(const Buffers& buffers, int64_t group, Range columns, Range channels, Real* packed) const;
  void compute(const Block& block, const Real* planes, const Real* weights, const Real* bias, Real* lines, Real* results,
               const Strides& to, Upcoming& next) const;
  void compute_woven(const Block& block, const Real* planes, const Real* weights, const Real* bias, Real* results,
                     Upcoming& next) const;
  void multiply_woven(const Phase& phase, Range channels, const Real* in, int64_t part, int64_t positions, const Real* weights,
                      const Real* bias, Real* line, Upcoming& next) const;
  void compute_rows(int64_t positions, const Real* rows, const Real* weights, const Real* bias, Real* results,
                    Upcoming& next) const;
  void store(const Buffers& buffers, const Block& block, int64_t group, int64_t groups, const Real* results) const;

  int64_t lanes() const { return tiles_->lanes; }
  int64_t result_positions() const { return result_extent_[0] * result_extent_[1] * result_extent_[2]; }
  // Of the results of a block, in a box.
  Strides result_strides() const {
    return {0, result_positions(), {result_extent_[1] * result_extent_[2], result_extent_[2], 1}};
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  GatherAxis axis_[kAxes];
  PlaneAxis plane_axis_[kAxes];
  Strides in_, out_;
  int64_t depth_, columns_;  // channels of a group that are summed over, and of the result
  int64_t row_part_;         // of the latter, of the tallest tile
  std::vector<Range> rows_;  // and of each
  int64_t groups_;           // groups that share a box
  int64_t cells_[kAxes];     // of a block
  Planes<Real> planes_;
  int64_t result_extent_[kAxes];
  // Lines of a block are joined to one: those of the result as they lie, those of planes as rows of copies, one for each tap and
  // channel.
  bool unfolds_;
  int64_t row_pitch_;
  std::vector<int64_t> row_offsets_;  // of taps and channels in planes
  bool in_place_output_;              // lines of the result are woven right into the tensor
  bool woven_;                        // by the tiles: rows of one are all phases of the innermost axis, of some channels
  bool streams_;                      // those of a large result
  int64_t group_weights_;             // packed for one group: of the taps that reach a position, and no others
  int64_t line_;                      // cells of a flattened plane, in whole vectors
  std::vector<Phase> phases_;
  std::shared_ptr<const Plan> exact_;  // for values that are not finite
  Layout layout_;
  Layout::Part weights_part_, bias_part_, planes_part_, rows_part_, lines_part_, results_part_;
};

template <class Real>
Wide<Real>::Wide(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      axis_{{p_.geometry.axis[0], p_.operation}, {p_.geometry.axis[1], p_.operation}, {p_.geometry.axis[2], p_.operation}},
      plane_axis_{PlaneAxis(axis_[0]), PlaneAxis(axis_[1]), PlaneAxis(axis_[2])} {
  const Geometry& g = p_.geometry;
  const bool forward = p_.operation == Operation::conv_transpose;
  in_ = forward ? p_.x : p_.y;
  out_ = forward ? p_.y : p_.x;
  depth_ = forward ? g.x_channels : g.y_channels;
  columns_ = forward ? g.y_channels : g.x_channels;
  in_place_output_ = bytes_of(p_.type) == int64_t(sizeof(Real)) && (out_.axis[2] == 1 || axis_[2].out_extent == 1);
  unfolds_ = unfolds_planes(p_);
  woven_ = weaves(p_);
  streams_ = woven_ && g.y_size() * bytes_of(p_.type) >= kStreamedResultBytes;
  row_part_ = even_part(columns_, unfolds_ ? tall_rows() : woven_ ? woven_channels() : tiles_->max_wide_rows);
  for_each_piece(columns_, row_part_, [&](const Range& rows) { rows_.push_back(rows); });
  choose_blocks(threads);
  index_phases();
  const int64_t real = sizeof(Real);
  weights_part_ = layout_.shared(g.groups * group_weights_ * real);
  bias_part_ = layout_.shared(g.groups * columns_ * real);
  // A tile may read up to a line's padding past the last plane.
  planes_part_ = layout_.per_thread((groups_ * depth_ * planes_.size() + line_) * real);
  rows_part_ = layout_.per_thread(unfolds_ ? (int64_t(row_offsets_.size()) * row_pitch_ + lanes()) * real : 0);
  lines_part_ = layout_.per_thread(unfolds_ || woven_ ? 0 : axis_[2].out_step * row_part_ * line_ * real);
  results_part_ = layout_.per_thread(in_place_output_ ? 0 : groups_ * columns_ * result_positions() * real);
  layout_.finish(threads);
  exact_ = make_exact_plan(p_, isa, threads);
}

// Of results whose phases make the rows of a tile, so that the fewest tiles compute a line (in three vectors of 96 results with 4
// channels 0.75 of the time of 6).
template <class Real>
int64_t Wide<Real>::woven_channels() const {
  const int64_t step = axis_[2].out_step;
  int64_t best = 1, fewest = INT64_MAX;
  for (int64_t channels = 1; channels * step <= tiles_->max_wide_rows; ++channels) {
    const int64_t tiles = parts_of(columns_, channels) * woven_parts(axis_[2].cells, channels);
    if (tiles <= fewest) best = channels, fewest = tiles;
  }
  return even_part(columns_, best);
}

// Rows that come from cache rather than from memory in the order of the planes leave loads to spare: tiles of 8x3 take 0.97 of
// the time of 13x2 where there are 32 registers; of 16, 6x2 leave room for all else that a tile needs (0.88 of 4x3).
template <class Real>
int64_t Wide<Real>::tall_rows() const {
  constexpr int kRowsOfFewRegisters = 6;
  const int vectors = tiles_->max_wide_rows > kRowsOfFewRegisters ? 3 : 2;
  int64_t rows = 1;
  while (rows < tiles_->max_wide_rows && tiles_->max_wide_vectors[rows + 1] >= vectors) ++rows;
  return rows;
}

template <class Real>
void Wide<Real>::choose_blocks(int threads) {
  const Geometry& g = p_.geometry;
  // Channels that lie side by side are read together.
  const bool interleaved = in_.channel == 1 || out_.channel == 1;
  groups_ = std::min(g.groups, interleaved ? std::max<int64_t>(1, lanes() / std::max(depth_, columns_)) : 1);
  int64_t in_per_cell = depth_, out_per_cell = columns_, cells = g.batch;
  for (int a = 0; a < kAxes; ++a) {
    in_per_cell *= int64_t(plane_axis_[a].residues.size());
    out_per_cell *= axis_[a].out_step;
    cells *= axis_[a].cells;
  }
  // Lines that are woven go where they belong, so that there need not be room for those of all phases.
  const bool by_lines = in_place_output_ && !woven_ && !unfolds_ && axis_[2].out_step > 1;
  const WideLines lines(*tiles_, axis_, plane_axis_, depth_, columns_, row_part_);
  if (unfolds_) in_per_cell = std::max(in_per_cell, depth_ * g.w_positions());
  const int64_t reals = woven_ ? in_per_cell : std::max(in_per_cell, out_per_cell);
  const int64_t cell_bytes = groups_ * (by_lines ? lines.bytes() : reals * int64_t(sizeof(Real)));
  int64_t limit = std::max<int64_t>(1, kWideBoxBytes / cell_bytes);
  const double flops = 2.0 * double(cells) * double(g.groups * columns_ * depth_) * double(g.w_positions());
  const int64_t wanted = threads > 1 ? std::min<int64_t>(int64_t(flops / kItemFlops), 2 * threads) : 1;
  for (;; limit = std::max(kMinCells, limit * 7 / 8)) {
    cut_axes([&](int a) { return axis_[a].cells; }, limit, cells_);
    if (by_lines) cells_[1] = lines.at_once(cells_[1], cells_[2]);
    if (limit <= kMinCells || (items() >= wanted && shared_evenly(items(), flops, threads))) break;
  }
  planes_ = Planes<Real>(*tiles_, p_.type, axis_, plane_axis_, in_, cells_);
  for (int a = 0; a < kAxes; ++a) result_extent_[a] = cells_[a] * axis_[a].out_step;
  row_pitch_ = row_pitch(cells_[0] * cells_[1] * cells_[2], sizeof(Real));
  line_ = round_up((cells_[1] - 1) * planes_.pitch(1) + cells_[2], lanes());
}

template <class Real>
void Wide<Real>::index_phases() {
  group_weights_ = 0;
  for (int64_t r0 = 0; r0 < axis_[0].out_step; ++r0)
    for (int64_t r1 = 0; r1 < axis_[1].out_step; ++r1)
      for (int64_t r2 = 0; r2 < axis_[2].out_step; ++r2) {
        Phase phase{{r0, r1, r2}, {}, {}, group_weights_};
        for (const PlaneTap& t0 : plane_axis_[0].phases[r0])
          for (const PlaneTap& t1 : plane_axis_[1].phases[r1])
            for (const PlaneTap& t2 : plane_axis_[2].phases[r2]) {
              phase.offsets.push_back(planes_.offset(t0, t1, t2));
              phase.weight_offsets.push_back(t0.k * p_.w.axis[0] + t1.k * p_.w.axis[1] + t2.k * p_.w.axis[2]);
            }
        if (unfolds_)
          for (const int64_t offset : phase.offsets)
            for (int64_t c = 0; c < depth_; ++c) row_offsets_.push_back(offset + c * planes_.size());
        group_weights_ += int64_t(phase.offsets.size()) * depth_ * columns_;
        phases_.push_back(std::move(phase));
      }
}

template <class Real>
int64_t Wide<Real>::items() const {
  return p_.geometry.batch * parts_of(p_.geometry.groups, groups_) * piece_count([&](int a) { return axis_[a].cells; }, cells_);
}

template <class Real>
typename Wide<Real>::Block Wide<Real>::block(int64_t index) const {
  Block block;
  take_piece(
      index, [&](int a) { return axis_[a].cells; }, cells_, block.cell);
  const int64_t batches = parts_of(p_.geometry.groups, groups_);
  block.batch = index % batches, block.sample = index / batches;
  return block;
}

template <class Real>
Upcoming Wide<Real>::upcoming(const Buffers& buffers, int64_t index) const {
  const bool forward = p_.operation == Operation::conv_transpose;
  // A gradient of data reads few planes and writes many: from tables that do not ask, it asks for neither (189 layers of heads of
  // images: 0.88 of the time, and 0.87 where nothing is in cache).
  if (index >= items() || (!forward && !tiles_->asks)) return Upcoming();
  const void *in = forward ? buffers.x : buffers.y, *out = forward ? buffers.y : buffers.x;
  const Block b = block(index);
  const int64_t first = b.batch * groups_, count = std::min(groups_, p_.geometry.groups - first);
  const int64_t lines = unfolds_ ? 1 : cells_[0] * int64_t(phases_.size()), line = unfolds_ ? row_pitch_ : line_;
  int64_t steps = count * row_tiles() * lines * parts_of(line / lanes(), tiles_->max_wide_vectors[row_part_]);
  if (unfolds_) steps *= parts_of(int64_t(row_offsets_.size()), kAskedChannels);
  Patch read{{b.sample, b.sample + 1}, {first * depth_, (first + count) * depth_}, {}}, written = read;
  written.channel = {first * columns_, (first + count) * columns_};
  planes_.reach(b.cell, read.axis);
  for (int a = 0; a < kAxes; ++a) written.axis[a] = axis_[a].written_by(b.cell[a]);
  if (woven_)
    steps = count * row_tiles() * cells_[0] * cells_[1] * (int64_t(phases_.size()) / axis_[2].out_step) *
            woven_parts(cells_[2], row_part_) * (tiles_->asks ? parts_of(depth_, kAskedChannels) : 1);
  Upcoming next(steps);
  next.reads(p_.type, in, in_, read);
  if (!woven_) next.writes(p_.type, out, out_, written);
  return next;
}

template <class Real>
std::string Wide<Real>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "block " + text(cells_[0]) + "x" + text(cells_[1]) + "x" + text(cells_[2]) + " of " + text(groups_) + " groups, " +
         text(items()) + " items";
}

template <class Real>
void Wide<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  Real* weights = layout_.at<Real>(workspace, weights_part_);
  Real* bias = layout_.at<Real>(workspace, bias_part_);
  load_bias(*tiles_, p_.type, buffers.bias, g.groups * columns_, bias);
  const int64_t parts = parts_of(depth_, kPacked);
  parallel.for_each(g.groups * row_tiles() * parts, [&](int64_t index, int) {
    const int64_t group = index / parts / row_tiles();
    pack_weights(buffers, group, rows_[size_t(index / parts % row_tiles())], part(index % parts, kPacked, depth_),
                 weights + group * group_weights_);
  });
  // An infinity or NaN times the zeros around a plane would spoil positions that do not read it.
  if (!tiles_->finite(weights, g.groups * group_weights_)) return exact_->run(buffers, parallel);
  parallel.for_each(items(), [&](int64_t index, int thread) {
    std::byte* scratch = layout_.thread(workspace, thread);
    Real* planes = layout_.at<Real>(scratch, planes_part_);
    Real* results = layout_.at<Real>(scratch, results_part_);
    const Block block = this->block(index);
    const int64_t first = block.batch * groups_, count = std::min(groups_, g.groups - first);
    const void* in = p_.operation == Operation::conv_transpose ? buffers.x : buffers.y;
    planes_.load(element(in, p_.type, block.sample * in_.outer + first * depth_ * in_.channel), block.cell, count * depth_,
                 planes);
    std::fill_n(planes + count * depth_ * planes_.size(), line_, Real(0));
    Upcoming next = upcoming(buffers, index + 1);
    Real* to = results;
    Strides strides = result_strides();
    if (in_place_output_) {
      strides = out_;
      to = static_cast<Real*>(p_.operation == Operation::conv_transpose ? buffers.y : buffers.x) + block.sample * out_.outer +
           first * columns_ * out_.channel;
      for (int a = 0; a < kAxes; ++a) to += block.cell[a].begin * axis_[a].out_step * out_.axis[a];
    }
    if (unfolds_) {
      Real* rows = layout_.at<Real>(scratch, rows_part_);
      planes_.unfold(planes, block.cell, row_offsets_, rows, row_pitch_);
      return compute_rows(block.cell[0].size() * block.cell[1].size() * block.cell[2].size(), rows, weights, bias, to, next);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Real *of_planes = planes + i * depth_ * planes_.size(), *of_weights = weights + (first + i) * group_weights_,
                 *of_bias = bias + (first + i) * columns_;
      Real* of_results = to + i * columns_ * strides.channel;
      woven_ ? compute_woven(block, of_planes, of_weights, of_bias, of_results, next)
             : compute(block, of_planes, of_weights, of_bias, layout_.at<Real>(scratch, lines_part_), of_results, strides, next);
    }
    if (!in_place_output_) store(buffers, block, first, count, results);
    if (streams_) publish_streamed();
  });
}

// packed[phase][rows of a tile][tap][c][row], for some channels of those rows.
template <class Real>
void Wide<Real>::pack_weights(const Buffers& buffers, int64_t group, Range columns, Range channels, Real* packed) const {
  const bool forward = p_.operation == Operation::conv_transpose;
  const int64_t depth_stride = forward ? p_.w.outer : p_.w.channel, column_stride = forward ? p_.w.channel : p_.w.outer;
  const int64_t step = woven_ ? axis_[2].out_step : 1;
  visit(p_.type, [&](auto scalar) {
    const auto* of_group = static_cast<const decltype(scalar)*>(buffers.w) + group * p_.geometry.x_channels * p_.w.outer;
    for (const Phase& phase : phases_) {
      const int64_t taps = int64_t(phase.weight_offsets.size()), rows = columns.size() * step, r = woven_ ? phase.r[2] : 0;
      // Those of phases that are woven lie side by side from where the first one starts.
      Real* of_phase = packed + phase.packed - r * taps * depth_ * columns_ + columns.begin * step * depth_ * taps + r;
      for (int64_t t = 0; t < taps; ++t)
        for (int64_t c = channels.begin; c < channels.end; ++c) {
          const auto* from = of_group + phase.weight_offsets[size_t(t)] + c * depth_stride + columns.begin * column_stride;
          Real* to = of_phase + (t * depth_ + c) * rows;
          for (int64_t i = 0; i < columns.size(); ++i) to[i * step] = Real(widen(from[i * column_stride]));
        }
    }
  });
}

// The results of one group in a block: results[column*strides.channel + o*strides.axis] where o counts from the block's corner.
template <class Real>
void Wide<Real>::compute(const Block& block, const Real* planes, const Real* weights, const Real* bias, Real* lines,
                         Real* results, const Strides& strides, Upcoming& next) const {
  const int64_t pitch = planes_.pitch(1), height = block.cell[1].size(), width = block.cell[2].size();
  const int64_t vectors = parts_of((height - 1) * pitch + width, lanes()), step = axis_[2].out_step;
  std::vector<const Real*> tap_weights;
  int64_t extent[kAxes];  // of the results
  for (int a = 0; a < kAxes; ++a)
    extent[a] = std::min(block.cell[a].end * axis_[a].out_step, axis_[a].out_extent) - block.cell[a].begin * axis_[a].out_step;
  for (const Range& of_tile : rows_) {
    const int64_t m = of_tile.begin, rows = of_tile.size(), most = tiles_->max_wide_vectors[rows];
    for (int64_t j0 = 0; j0 < block.cell[0].size(); ++j0)
      for (size_t first = 0; first < phases_.size(); first += size_t(step)) {
        const int64_t o0 = j0 * axis_[0].out_step + phases_[first].r[0];
        if (o0 >= extent[0]) continue;
        // The phases of the innermost axis, side by side, then woven into lines of the result.
        for (int64_t r2 = 0; r2 < step; ++r2) {
          const Phase& phase = phases_[first + size_t(r2)];
          const int64_t taps = int64_t(phase.offsets.size());
          const int64_t channels = std::clamp<int64_t>(kMaxTerms / std::max<int64_t>(taps, 1), 1, depth_);
          const int64_t count = parts_of(vectors, most);
          const Real* packed = weights + phase.packed + m * depth_ * taps;
          tap_weights.clear();
          for (int64_t t = 0; t < taps; ++t) tap_weights.push_back(packed + t * depth_ * rows);
          for (int64_t i = 0, done = 0; i < count; ++i) {
            const int64_t part = (vectors - done) / (count - i);
            for (int64_t c = 0; c < depth_; c += channels)
              tiles_->wide[rows][part]({planes + j0 * planes_.pitch(0) + c * planes_.size() + done * lanes(), planes_.size(), c,
                                        std::min(channels, depth_ - c), taps, phase.offsets.data(), tap_weights.data(),
                                        c ? nullptr : bias + m, lines + r2 * rows * line_ + done * lanes(), line_,
                                        part * lanes()});
            done += part;
            next.step();
          }
        }
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j1 = 0, o1 = phases_[first].r[1]; j1 < height && o1 < extent[1]; ++j1, o1 += axis_[1].out_step)
            tiles_->weave(lines + i * line_ + j1 * pitch, rows * line_, step,
                          results + (m + i) * strides.channel + o0 * strides.axis[0] + o1 * strides.axis[1], extent[2]);
      }
  }
}

// The same with tiles that weave. Some of the input stays in L1 while everything is multiplied with it.
template <class Real>
void Wide<Real>::compute_woven(const Block& block, const Real* planes, const Real* weights, const Real* bias, Real* results,
                               Upcoming& next) const {
  const int64_t step = axis_[2].out_step, width = block.cell[2].size(), vectors = parts_of(width, lanes());
  const int64_t count = woven_parts(width, row_part_);
  int64_t most_taps = 1;
  for (const Phase& phase : phases_) most_taps = std::max(most_taps, int64_t(phase.offsets.size()));
  const int64_t channels = std::clamp<int64_t>(kMaxTerms / most_taps, 1, depth_);
  for (int64_t j0 = 0; j0 < block.cell[0].size(); ++j0)
    for (int64_t j1 = 0; j1 < block.cell[1].size(); ++j1)
      for (int64_t i = 0, done = 0, part; i < count; ++i, done += part) {
        part = (vectors - done) / (count - i);
        const int64_t position = done * lanes();
        const Real* in = planes + j0 * planes_.pitch(0) + j1 * planes_.pitch(1) + position;
        for (int64_t c = 0; c < depth_; c += channels)
          for (size_t first = 0; first < phases_.size(); first += size_t(step)) {
            const Phase& phase = phases_[first];
            const int64_t o0 = j0 * axis_[0].out_step + phase.r[0], o1 = j1 * axis_[1].out_step + phase.r[1];
            if (block.cell[0].begin * axis_[0].out_step + o0 >= axis_[0].out_extent) continue;
            if (block.cell[1].begin * axis_[1].out_step + o1 >= axis_[1].out_extent) continue;
            Real* line = results + o0 * out_.axis[0] + o1 * out_.axis[1] + position * step;
            multiply_woven(phase, {c, std::min(c + channels, depth_)}, in, part, std::min(part * lanes(), width - position),
                           weights, bias, line, next);
          }
      }
}

// Of some channels that are summed over and a part of a line, all channels of the result.
template <class Real>
void Wide<Real>::multiply_woven(const Phase& phase, Range channels, const Real* in, int64_t part, int64_t positions,
                                const Real* weights, const Real* bias, Real* line, Upcoming& next) const {
  const int64_t step = axis_[2].out_step, taps = int64_t(phase.offsets.size());
  const bool begin_lines = reinterpret_cast<uintptr_t>(line) % kCacheLine == 0 && out_.channel * sizeof(Real) % kCacheLine == 0;
  const bool streams = streams_ && channels.size() == depth_ && begin_lines;
  thread_local std::vector<const Real*> tap_weights;
  for (const Range& of_tile : rows_) {
    const int64_t m = of_tile.begin, rows = of_tile.size() * step;
    tap_weights.clear();
    for (int64_t t = 0; t < taps; ++t) tap_weights.push_back(weights + phase.packed + (m * taps * step + t * rows) * depth_);
    tiles_->wide[rows][part]({in + channels.begin * planes_.size(), planes_.size(), channels.begin, channels.size(), taps,
                              phase.offsets.data(), tap_weights.data(), channels.begin ? nullptr : bias + m,
                              line + m * out_.channel, out_.channel, positions, 0, tiles_->asks ? &next : nullptr, step,
                              streams});
    if (!tiles_->asks) next.step();
  }
}

// The same as one product of the weights and the rows of a block of so many positions, into the tensor.
template <class Real>
void Wide<Real>::compute_rows(int64_t positions, const Real* rows, const Real* weights, const Real* bias, Real* results,
                              Upcoming& next) const {
  const int64_t vectors = parts_of(positions, lanes()), terms = int64_t(row_offsets_.size()), pitch = out_.channel, start = 0;
  for (const Range& of_tile : rows_) {
    const int64_t m = of_tile.begin, height = of_tile.size(), count = parts_of(vectors, tiles_->max_wide_vectors[height]);
    const Real* packed = weights + m * terms;
    for (int64_t i = 0, done = 0; i < count; ++i) {
      const int64_t part = (vectors - done) / (count - i), first = done * lanes();
      int64_t t = 0;
      do  // also where no tap reaches anything
        tiles_->wide[height][part]({rows + t * row_pitch_ + first, row_pitch_, t, std::min(kMaxTerms, terms - t), 1, &start,
                                    &packed, t ? nullptr : bias + m, results + m * pitch + first, pitch,
                                    std::min(part * lanes(), positions - first), 0, tiles_->asks ? &next : nullptr});
      while ((t += kMaxTerms) < terms);
      done += part;
    }
  }
}

template <class Real>
void Wide<Real>::store(const Buffers& buffers, const Block& block, int64_t group, int64_t groups, const Real* results) const {
  void* out = p_.operation == Operation::conv_transpose ? buffers.y : buffers.x;
  int64_t begin[kAxes], extent[kAxes];
  for (int a = 0; a < kAxes; ++a) {
    begin[a] = block.cell[a].begin * axis_[a].out_step;
    extent[a] = std::min(block.cell[a].end * axis_[a].out_step, axis_[a].out_extent) - begin[a];
  }
  const int64_t start = block.sample * out_.outer + group * columns_ * out_.channel + begin[2] * out_.axis[2];
  for (int64_t o0 = 0; o0 < extent[0]; ++o0)
    for (int64_t o1 = 0; o1 < extent[1]; ++o1)
      store_planes(*tiles_, p_.type, results + (o0 * result_extent_[1] + o1) * result_extent_[2], result_positions(),
                   element(out, p_.type, start + (begin[0] + o0) * out_.axis[0] + (begin[1] + o1) * out_.axis[1]), out_.axis[2],
                   extent[2], out_.channel, groups * columns_);
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation == Operation::backward_weights || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  if (!request.by_name && !wide_pays(p, isa, request)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Wide<double>>(p, isa, request.threads);
  return std::make_shared<Wide<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_wide_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_wide_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_wide_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
