// SPDX-License-Identifier: Apache-2.0
// conv_transpose with few output channels (image heads, the last layer of a vocoder): too few to fill a vector, so lanes go along
// positions, and the taps of the innermost axis join the channels as rows of a matrix product
//   lines[(channel, k2)][i1, i2] = sum over the taps of the outer axes, input channels of w[c, channel, k] * x[c, i0, i1, i2]
// whose right side is the input as it lies in memory, whole rows at a time. The innermost axis is then an overlap-add of those
// lines. Nothing is multiplied by a zero of a border, and each loaded vector serves as many rows as a tile has. bf16 are
// multiplied as pairs of input channels where instructions for that are fast, vectors or matrices.
#include "csrc/cpu/overlap.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/overlap_blocks.h"
#include "csrc/cpu/overlap_gate.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kMinPairedOfMatrices = 16;  // below it bringing them to matrix registers costs more than it saves

template <class In>
class Overlap final : public Plan, private OverlapBlocks {
  using Real = typename Operand<In>::Real;  // in which is summed
  static constexpr int64_t kTerms = Operand<In>::terms;

 public:
  Overlap(const Problem& problem, const Tiles<Real>& tiles, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // What one item computes: cells of one group of one sample, from so many positions of the innermost axis.
  struct Block {
    int64_t sample, group;
    Range cell[kAxes], line;
  };
  // Where the planes of the input lie, and the results go: the first channel, position 0 of the outer axes, the first of the
  // block of the innermost.
  struct View {
    Real* origin;
    int64_t channel, axis[2];
  };

  void list_overlaps();
  Block block(int64_t index) const;
  void pack_weights(const void* weights, Real* packed) const;
  View load(const Buffers& buffers, const Block& block, Real* box) const;
  void compute(const Block& block, const View& in, const View& out, const Real* weights, const Real* bias, Real* lines,
               Upcoming& next) const;
  void multiply(const Real* in, int64_t channel_pitch, int64_t count, const std::vector<int64_t>& offsets,
                const std::vector<const Real*>& weights, Real* lines, Upcoming& next) const;
  Upcoming upcoming(const Buffers& buffers, int64_t index) const;
  void store(const Buffers& buffers, const Block& block, const Real* results) const;

  int64_t lanes() const { return tiles_->lanes; }
  // Where tiles read the input themselves, they ask for that of the next block, or, from tables that do not, for the next lines
  // of their own. A box is soon in cache.
  bool tiles_ask() const { return tiles_->asks && in_place_input_; }
  bool tiles_ask_for_lines() const { return !tiles_->asks && in_place_input_; }
  int64_t tile_weights() const { return round_up(row_part(), tiles_->row_step) * depth(); }
  int64_t tap_weights() const { return parts_of(rows(), row_part()) * tile_weights(); }
  int64_t group_weights() const { return term_taps() * tap_weights(); }
  int64_t room() const { return rows() + round_up(row_part(), tiles_->row_step); }  // of lines, of a product
  int64_t result_line(const Block& b) const {
    return std::min(b.cell[2].end * axis_[2].out_step, axis_[2].out_extent) - b.cell[2].begin * axis_[2].out_step;
  }
  int64_t result_rows(int axis) const { return block_[axis] * axis_[axis].out_step; }

  const Tiles<Real>* tiles_;
  int64_t box_pitch_, result_pitch_;
  // Of one channel: the taps of a phase of the innermost axis that are added up, for each phase of the middle axis where those
  // are rows, too, its taps one after the other.
  std::vector<std::vector<OverlapTap>> overlapped_;
  Layout layout_;
  Layout::Part weights_part_, bias_part_, box_part_, results_part_, lines_part_;
};

template <class In>
Overlap<In>::Overlap(const Problem& problem, const Tiles<Real>& tiles, int threads)
    : OverlapBlocks(problem,
                    {.terms = kTerms,
                     .real = int64_t(sizeof(Real)),
                     .lanes = tiles.lanes,
                     .depth_step = tiles.depth_step,
                     .max_rows = tiles.max_wide_rows,
                     .asks = tiles.asks},
                    threads),
      tiles_(&tiles) {
  list_overlaps();
  int64_t box_rows = 1;
  for (int a = 0; a < 2; ++a) {
    int64_t longest = 0;
    for_each_piece(axis_[a].cells, block_[a],
                   [&](const Range& cells) { longest = std::max(longest, axis_[a].read_by(cells).size()); });
    box_rows *= longest;
  }
  const Geometry& g = p_.geometry;
  const int64_t real = sizeof(Real);
  // An odd number of cache lines, so that the channels of a position lie in different sets of the cache.
  box_pitch_ = round_up(box_rows * width_, 2 * 64 / real) + 64 / real;
  result_pitch_ = result_rows(0) * result_rows(1) * std::min(result_rows(2), axis_[2].out_extent);
  weights_part_ = layout_.shared(g.groups * group_weights() * real);
  bias_part_ = layout_.shared(g.groups * columns_ * real);
  box_part_ = layout_.per_thread(in_place_input_ ? 0 : depth() * box_pitch_ * real);
  results_part_ = layout_.per_thread(in_place_output_ ? 0 : columns_ * result_pitch_ * real);
  lines_part_ = layout_.per_thread((room() * line_pitch_ + axis_[2].out_step * round_up(block_[2], lanes())) * real);
  layout_.finish(threads);
}

// In the order of the taps of the middle axis.
template <class In>
void Overlap<In>::list_overlaps() {
  const std::vector<std::vector<Tap>> alone{{{0, 0}}};
  for (const auto& of_line : joined_ ? axis_[1].phases : alone)
    for (const auto& taps : axis_[2].phases) {
      overlapped_.emplace_back();
      for (const Tap& t1 : of_line)
        for (const Tap& t2 : taps)
          overlapped_.back().push_back({(t1.k * taps2_ + t2.k) * line_pitch_ + t1.delta * width_, t2.delta});
    }
}

template <class In>
typename Overlap<In>::Block Overlap<In>::block(int64_t index) const {
  Block b;
  take_piece(
      index, [&](int a) { return axis_[a].cells; }, block_, b.cell);
  b.line = line_of(b.cell[2]);
  b.group = index % p_.geometry.groups;
  b.sample = index / p_.geometry.groups;
  return b;
}

template <class In>
std::string Overlap<In>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(rows()) + " rows in tiles of " + text(row_part()) + ", block " + text(block_[0]) + "x" + text(block_[1]) + "x" +
         text(block_[2]) + (in_place_input_ ? "" : ", input boxed") + (in_place_output_ ? "" : ", output boxed");
}

template <class In>
void Overlap<In>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  Real* weights = layout_.at<Real>(workspace, weights_part_);
  Real* bias = layout_.at<Real>(workspace, bias_part_);
  load_bias(*tiles_, p_.type, buffers.bias, g.groups * columns_, bias);
  parallel.for_each(g.groups * term_taps(), [&](int64_t index, int) {
    const int64_t group = index / term_taps(), k0 = index % term_taps() / term_taps1(), k1 = index % term_taps1();
    const int64_t corner = group * g.x_channels * p_.w.outer + k0 * p_.w.axis[0] + k1 * p_.w.axis[1];
    pack_weights(element(buffers.w, p_.type, corner), weights + index * tap_weights());
  });
  parallel.for_each(items(), [&](int64_t index, int thread) {
    std::byte* scratch = layout_.thread(workspace, thread);
    const Block of = block(index);
    Real* results = layout_.at<Real>(scratch, results_part_);
    View out{results, result_pitch_, {result_rows(1) * result_line(of), result_line(of)}};
    if (in_place_output_) {
      out = {static_cast<Real*>(buffers.y) + of.sample * p_.y.outer + of.group * columns_ * p_.y.channel +
                 of.cell[2].begin * axis_[2].out_step,
             p_.y.channel,
             {p_.y.axis[0], p_.y.axis[1]}};
    } else {
      for (int a = 0; a < 2; ++a) out.origin -= of.cell[a].begin * axis_[a].out_step * out.axis[a];
    }
    Upcoming next = upcoming(buffers, index + 1);
    const ForTiles<Real> ready(*tiles_);
    compute(of, load(buffers, of, layout_.at<Real>(scratch, box_part_)), out, weights + of.group * group_weights(),
            bias + of.group * columns_, layout_.at<Real>(scratch, lines_part_), next);
    if (!in_place_output_) store(buffers, of, results);
  });
}

// Of one term of the taps: packed[rows of a tile][c][row], or [row][c] for matrices; row = channel*rows_of_channel + k2, or,
// where the taps of the middle axis are rows, + k1*taps2 + k2.
template <class In>
void Overlap<In>::pack_weights(const void* from, Real* to) const {
  if (kTerms > 1) std::fill_n(to, tap_weights(), Real(0));
  visit(p_.type, [&](auto scalar) {
    const auto* weights = static_cast<const decltype(scalar)*>(from);
    for (int64_t m = 0; m < rows(); m += row_part(), to += tile_weights()) {
      const int64_t height = std::min(row_part(), rows() - m);
      for (int64_t i = 0; i < height; ++i) {
        const int64_t channel = (m + i) / rows_of_channel(), tap = (m + i) % rows_of_channel();
        const auto* row = weights + channel * p_.w.channel + tap / taps2_ * p_.w.axis[1] + tap % taps2_ * p_.w.axis[2];
        for (int64_t c = 0; c < p_.geometry.x_channels; ++c) {
          Real* unit = to + (tiles_->matrices ? i * depth() + c / kTerms : c / kTerms * height + i);
          if constexpr (kTerms == 1) {
            *unit = Real(widen(row[c * p_.w.outer]));
          } else {
            std::memcpy(reinterpret_cast<In*>(unit) + c % kTerms, row + c * p_.w.outer, sizeof(In));
          }
        }
      }
    }
  });
}

// The input of a block as planes whose rows follow each other.
template <class In>
auto Overlap<In>::load(const Buffers& buffers, const Block& block, Real* box) const -> View {
  const Geometry& g = p_.geometry;
  const int64_t start = block.sample * p_.x.outer + block.group * g.x_channels * p_.x.channel + block.line.begin * p_.x.axis[2];
  const int64_t width = block.line.size();
  if (in_place_input_) return {static_cast<Real*>(buffers.x) + start, p_.x.channel, {p_.x.axis[0], p_.x.axis[1]}};
  int64_t first[2], last[2];
  for (int a = 0; a < 2; ++a) axis_[a].reach(block.cell[a].begin, block.cell[a].end, first[a], last[a]);
  const int64_t height = std::max<int64_t>(last[1] - first[1] + 1, 0);
  // Rows that follow each other are one long row.
  const int64_t rows = p_.x.axis[1] == width * p_.x.axis[2] ? height : 1;
  Real* to = box;
  for (int64_t i0 = first[0]; i0 <= last[0]; ++i0)
    for (int64_t i1 = first[1]; i1 <= last[1]; i1 += rows, to += rows * width) {
      const void* from = element(buffers.x, p_.type, start + i0 * p_.x.axis[0] + i1 * p_.x.axis[1]);
      if constexpr (kTerms == 1) {
        load_planes(*tiles_, p_.type, from, p_.x.axis[2], rows * width, p_.x.channel, g.x_channels, to, box_pitch_);
      } else {
        load_pairs(*tiles_, static_cast<const uint16_t*>(from), p_.x.axis[2], rows * width, p_.x.channel, g.x_channels, to,
                   box_pitch_);
      }
    }
  for (int64_t c = parts_of(g.x_channels, kTerms); c < depth(); ++c) std::fill_n(box + c * box_pitch_, box_pitch_, Real(0));
  return {box - (first[0] * height + first[1]) * width, box_pitch_, {height * width, width}};
}

template <class In>
Upcoming Overlap<In>::upcoming(const Buffers& buffers, int64_t index) const {
  if (index >= items()) return Upcoming();
  const Geometry& g = p_.geometry;
  const Block b = block(index);
  const int64_t vectors = parts_of(most_rows() * width_, lanes());
  const int64_t products = joined_ ? 1 : parts_of(block_[1], most_rows()) * axis_[1].out_step;
  const int64_t steps = block_[0] * axis_[0].out_step * products * parts_of(rows(), row_part()) *
                        parts_of(vectors, tiles_->max_wide_vectors[row_part()]) *
                        (tiles_ask() ? parts_of(depth(), kAskedChannels) : 1);
  Patch read{{b.sample, b.sample + 1}, {b.group * g.x_channels, (b.group + 1) * g.x_channels}, {}}, written = read;
  written.channel = {b.group * columns_, (b.group + 1) * columns_};
  for (int a = 0; a < 2; ++a) read.axis[a] = axis_[a].read_by(b.cell[a]), written.axis[a] = axis_[a].written_by(b.cell[a]);
  read.axis[2] = b.line;
  written.axis[2] = {b.cell[2].begin * axis_[2].out_step, b.cell[2].begin * axis_[2].out_step + result_line(b)};
  Upcoming next(steps);
  if (!tiles_ask_for_lines()) next.reads(p_.type, buffers.x, p_.x, read);
  next.writes(p_.type, buffers.y, p_.y, written);
  return next;
}

// The taps that read a position inside the input for cell j: their deltas fall from tap to tap, so they are [begin, end).
struct Reached {
  size_t begin, end;
  bool operator==(const Reached&) const = default;
};
Reached reached(const std::vector<Tap>& taps, int64_t j, int64_t extent) {
  Reached r{0, taps.size()};
  while (r.begin < r.end && j + taps[r.begin].delta >= extent) ++r.begin;
  while (r.end > r.begin && j + taps[r.end - 1].delta < 0) --r.end;
  return r;
}

template <class In>
void Overlap<In>::compute(const Block& block, const View& in, const View& out, const Real* weights, const Real* bias, Real* lines,
                          Upcoming& next) const {
  const GatherAxis &axis0 = axis_[0], &axis1 = axis_[1];
  const int64_t width = block.line.size(), step = axis_[2].out_step;
  const Range read = axis1.read_by(block.cell[1]);
  std::vector<int64_t> offsets;
  std::vector<const Real*> tap_pointers;
  std::vector<OverlapPhase> phases(static_cast<size_t>(step));
  for (int64_t r0 = 0; r0 < axis0.out_step; ++r0)
    for (int64_t j0 = block.cell[0].begin; j0 < block.cell[0].end; ++j0) {
      const int64_t o0 = j0 * axis0.out_step + r0;
      if (o0 >= axis0.out_extent) continue;
      const Reached taps0 = reached(axis0.phases[r0], j0, axis0.in_extent);
      // The product for some lines of cells, and those taps of the middle axis.
      const auto multiply_lines = [&](Range of, const Tap* first, const Tap* last) {
        offsets.clear(), tap_pointers.clear();
        for (size_t t0 = taps0.begin; t0 < taps0.end; ++t0)
          for (const Tap* t1 = first; t1 < last; ++t1) {
            const Tap& tap = axis0.phases[r0][t0];
            offsets.push_back((j0 + tap.delta) * in.axis[0] + (of.begin + t1->delta) * in.axis[1]);
            tap_pointers.push_back(weights + (tap.k * term_taps1() + t1->k) * tap_weights());
          }
        multiply(in.origin, in.channel, of.size() * width, offsets, tap_pointers, lines, next);
      };
      constexpr Tap kAlone{0, 0};
      if (joined_ && read.size() > 0) multiply_lines(read, &kAlone, &kAlone + 1);
      for (int64_t r1 = 0; r1 < axis1.out_step; ++r1) {
        const std::vector<Tap>& of_phase = axis1.phases[r1];
        const int64_t end1 = std::min(block.cell[1].end, parts_of(axis1.out_extent - r1, axis1.out_step));
        for (int64_t j1 = block.cell[1].begin, end; j1 < end1; j1 = end) {
          const Reached taps1 = reached(of_phase, j1, axis1.in_extent);
          const int64_t last = joined_ ? end1 : std::min(end1, j1 + most_rows());
          for (end = j1 + 1; end < last && reached(of_phase, end, axis1.in_extent) == taps1;) ++end;
          if (!joined_) multiply_lines({j1, end}, of_phase.data() + taps1.begin, of_phase.data() + taps1.end);
          const Reached added = joined_ ? taps1 : Reached{0, 1};
          for (int64_t r2 = 0; r2 < step; ++r2) {
            const size_t of_tap = axis_[2].phases[size_t(r2)].size();
            phases[size_t(r2)] = {overlapped_[size_t((joined_ ? r1 * step : 0) + r2)].data() + added.begin * of_tap,
                                  int64_t((added.end - added.begin) * of_tap)};
          }
          for (int64_t channel = 0; channel < columns_; ++channel)
            tiles_->overlap({lines + channel * rows_of_channel() * line_pitch_ + (joined_ ? j1 - read.begin : 0) * width, width,
                             width, block.cell[2].begin - block.line.begin, phases.data(), step, bias[channel],
                             out.origin + channel * out.channel + o0 * out.axis[0] + (j1 * axis1.out_step + r1) * out.axis[1],
                             axis1.out_step * out.axis[1], end - j1, result_line(block), lines + room() * line_pitch_});
        }
      }
    }
}

// lines[row*line_pitch + p] = sum over taps and channels of weights[tap][c][row] * in[c*channel_pitch + offsets[tap] + p], p <
// count.
template <class In>
void Overlap<In>::multiply(const Real* in, int64_t channel_pitch, int64_t count, const std::vector<int64_t>& offsets,
                           const std::vector<const Real*>& weights, Real* lines, Upcoming& next) const {
  static constexpr Real kZeros[kWideRows] = {};
  const int64_t depth = this->depth(), taps = int64_t(offsets.size()), vectors = parts_of(count, lanes());
  // Of pairs, the rounding of the result is far above that of any sum.
  const int64_t channels = kTerms > 1 ? depth : std::clamp<int64_t>(kMaxTerms / std::max<int64_t>(taps, 1), 1, depth);
  thread_local std::vector<const Real*> of_tiles;
  of_tiles.clear();
  for (int64_t tile = 0; tile < parts_of(rows(), row_part()); ++tile)
    for (const Real* tap : weights) of_tiles.push_back(tap + tile * tile_weights());
  const int64_t tallest = row_part(), parts = parts_of(vectors, tiles_->max_wide_vectors[tallest]);
  // Some of the input stays in L1 while all rows are multiplied with it, of which the first ask for lines.
  const auto product = [&](int64_t c, int64_t i) {
    const auto start = [&](int64_t part) { return vectors * part / parts * lanes(); };
    const int64_t first = start(i), columns = start(i + 1) - first, at = c * channel_pitch + first;
    const int64_t follows = i + 1 < parts ? at + columns : c + channels < depth ? (c + channels) * channel_pitch : at;
    for (int64_t m = 0, tile = 0; m < rows(); m += tallest, ++tile) {
      tiles_->wide[std::min(tallest, rows() - m)][columns / lanes()](
          {in + at, channel_pitch, c, std::min(channels, depth - c), taps, offsets.data(), of_tiles.data() + tile * taps,
           c ? nullptr : kZeros, lines + m * line_pitch_ + first, line_pitch_, std::min(columns, count - first), depth,
           tiles_ask() ? &next : nullptr, 1, false, m == 0 && tiles_ask_for_lines() ? follows - at : 0});
      if (!tiles_ask() && c == 0) next.step();
    }
  };
  if (tiles_ask_for_lines()) {  // mostly in the same pages
    for (int64_t c = 0; c < depth; c += channels)
      for (int64_t i = 0; i < parts; ++i) product(c, i);
  } else {
    for (int64_t i = 0; i < parts; ++i)
      for (int64_t c = 0; c < depth; c += channels) product(c, i);
  }
}

template <class In>
void Overlap<In>::store(const Buffers& buffers, const Block& block, const Real* results) const {
  Range o[2];
  for (int a = 0; a < 2; ++a) o[a] = axis_[a].written_by(block.cell[a]);
  const int64_t start =
      block.sample * p_.y.outer + block.group * columns_ * p_.y.channel + block.cell[2].begin * axis_[2].out_step * p_.y.axis[2];
  const int64_t line = result_line(block);
  for (int64_t o0 = o[0].begin; o0 < o[0].end; ++o0)
    for (int64_t o1 = o[1].begin; o1 < o[1].end; ++o1)
      store_planes(*tiles_, p_.type, results + ((o0 - o[0].begin) * result_rows(1) + o1 - o[1].begin) * line, result_pitch_,
                   element(buffers.y, p_.type, start + o0 * p_.y.axis[0] + o1 * p_.y.axis[1]), p_.y.axis[2], line, p_.y.channel,
                   columns_);
}

template <class In>
std::shared_ptr<Plan> make_of(const Problem& p, const Tiles<typename Operand<In>::Real>& tiles, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::conv_transpose || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  if (!request.by_name && !overlap_pays<In>(p, tiles, request)) return nullptr;
  return std::make_shared<Overlap<In>>(p, tiles, request.threads);
}

// `winograd`, where the instruction set has it, comes first where a vector is full.
using Make = std::shared_ptr<Plan> (*)(const Problem&, const Request&);
std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request, Make winograd = nullptr) {
  if (p.type == Type::f64) return make_of<double>(p, tiles<double>(isa), request);
  const bool full = p.geometry.y_channels >= tiles<float>(isa).lanes;
  return full && winograd && !request.by_name && winograd(p, request) ? nullptr : make_of<float>(p, tiles<float>(isa), request);
}

}  // namespace

std::shared_ptr<Plan> make_overlap_of_pairs(const Problem& p, const Tiles<float>& tiles, const Request& request) {
  return p.type == Type::bf16 ? make_of<bf16>(p, tiles, request) : nullptr;
}

#if defined(__x86_64__)
std::shared_ptr<Plan> make_overlap_amx(const Problem& p, const Request& request) {
  return request.by_name || p.geometry.x_channels >= kMinPairedOfMatrices ? make_overlap_of_pairs(p, amx_tiles(), request)
                                                                          : nullptr;
}
std::shared_ptr<Plan> make_overlap_avx512_bf16(const Problem& p, const Request& request) {
  return request.by_name || pairs_are_fast() ? make_overlap_of_pairs(p, pair_tiles(), request) : nullptr;
}
#endif
std::shared_ptr<Plan> make_overlap_avx512(const Problem& p, const Request& request) {
  return make(p, Isa::avx512, request, make_winograd_avx512);
}
std::shared_ptr<Plan> make_overlap_avx2(const Problem& p, const Request& request) {
  return make(p, Isa::avx2, request, make_winograd_avx2);
}
std::shared_ptr<Plan> make_overlap_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
