// SPDX-License-Identifier: Apache-2.0
// backward_weights on matrix registers, which multiply 16 channels of x by 32 positions with 32 positions by 16 channels of y.
// The positions of a chunk are counted one after the other, whatever the shape of its images, so that small planes fill the
// registers as well as large ones: x is brought to planes in which each channel's positions lie side by side, once for all taps;
// for each tap and panel, the rows of y that they meet are brought side by side as pairs, zeros where there is none. float32 and
// float16 are sums of bf16 parts, as in gather.cpp, with a plane for each part.
#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "csrc/cpu/outer.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/split.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kPairs = 2, kUnits = 16;                      // positions of a pair; pairs of a row of a register
constexpr int64_t kResidentBytes = 3 << 19;                     // of x and y: three quarters of L2
constexpr int64_t kSliceChannels = 64, kPieceBytes = 32 << 10;  // of x and y, that a thread brings at a time

// Rows of channels of y, in halves; a row holds the parts of its values one behind the other, the largest first.
struct RowsOfY {
  const uint16_t* origin;  // where position 0 of sample 0 would lie
  int64_t sample, axis[kAxes], part;
};

class OuterMatrices final : public OuterSums<float> {
 public:
  OuterMatrices(const Problem& problem, const Tiles<float>& tiles, int threads, const Tiles<float>& exact);
  std::string describe() const override { return describe_cut() + (in_place_y_ ? "" : ", y boxed"); }
  bool sum_chunk(const Buffers& buffers, const Chunk& chunk, int64_t group, Range panels, std::byte* scratch, float* sums,
                 bool add, const Chunk* after) const override;

 private:
  bool sum_units(const Buffers& buffers, const Parallel& parallel) const override;
  bool load_x(const Buffers& buffers, const Chunk& chunk, int64_t group, Range m, uint16_t* planes) const;
  bool load_line(const std::byte* from, int64_t step, int64_t count, int64_t channels, uint16_t* to) const;
  bool load_y(const Buffers& buffers, int64_t first_channel, int64_t channels, Range samples, const Region& region,
              uint16_t* box) const;
  RowsOfY y_in_place(const Buffers& buffers) const;
  RowsOfY y_boxed(int64_t channels, int64_t first_sample, const Region& region, const uint16_t* box) const;
  bool point(const Chunk& chunk, const int64_t* tap, const RowsOfY& y) const;
  void sum(const uint16_t* x, int64_t positions, int64_t part_of_y, int64_t offset, const SumsUnit<float>& unit, float* pairs,
           bool add) const;

  // From one channel of x to the next, in halves: an odd number of cache lines, and room for whole registers.
  int64_t x_pitch() const { return round_up(chunk_positions_, 64) + 32; }
  int64_t x_plane() const { return round_up(m_, kUnits) * x_pitch(); }
  int64_t x_chunk() const { return split_.parts * x_plane(); }
  int64_t y_room(int64_t channels) const { return round_up(channels, 32); }
  int64_t pairs_plane() const { return round_up(parts_of(chunk_positions_, kPairs), kUnits) * width(); }

  Split split_;
  bool in_place_y_;
  int64_t chunk_positions_;
  std::vector<uint16_t> zeros_;  // a row of y
  Layout::Part x_part_{}, y_part_{}, pairs_part_{};
};

// The rows of y that the positions of a chunk meet, for one tap at a time.
thread_local std::vector<const uint16_t*> met;

OuterMatrices::OuterMatrices(const Problem& problem, const Tiles<float>& tiles, int threads, const Tiles<float>& exact)
    : OuterSums(problem, tiles, kPairs, nullptr),
      split_(split_of(problem)),
      in_place_y_(p_.type == Type::bf16 && (p_.y.channel == 1 || p_.geometry.y_channels * p_.geometry.groups == 1)) {
  const Geometry& g = p_.geometry;
  set_exact(make_exact_outer(p_, exact, threads, cut_));
  chunk_positions_ = std::accumulate(cut_.chunk_extent, cut_.chunk_extent + kAxes, cut_.chunk_samples, std::multiplies<>());
  const int64_t row = split_.parts * y_room(cut_.parts ? n_ : width());
  zeros_.resize(size_t(in_place_y_ ? g.groups * n_ : row));
  const int64_t x_bytes = x_chunk() * int64_t(sizeof(uint16_t));
  if (cut_.parts) {
    int64_t lengths[kAxes];
    longest_reach(false, lengths);
    x_part_ = layout_.per_thread(x_bytes);
    const int64_t rows = cut_.chunk_samples * lengths[0] * lengths[1] * lengths[2];
    y_part_ = layout_.per_thread(in_place_y_ ? 0 : rows * row * int64_t(sizeof(uint16_t)));
  } else {
    x_part_ = layout_.shared(g.groups * chunk_count() * x_bytes);
    const int64_t rows = g.groups * panels_ * g.batch * g.y_positions();
    y_part_ = layout_.shared(in_place_y_ ? 0 : rows * row * int64_t(sizeof(uint16_t)));
  }
  pairs_part_ = layout_.per_thread(split_.parts * pairs_plane() * int64_t(sizeof(float)));
  finish_layout(threads);
}

bool OuterMatrices::sum_chunk(const Buffers& buffers, const Chunk& c, int64_t group, Range panels, std::byte* scratch,
                              float* sums, bool add, const Chunk*) const {
  uint16_t* x = layout_.at<uint16_t>(scratch, x_part_);
  RowsOfY y = y_in_place(buffers);
  int64_t offset = group * n_;
  if (!load_x(buffers, c, group, {0, m_}, x)) return false;
  if (!in_place_y_) {
    const Region region = reach(c.x, false);
    uint16_t* box = layout_.at<uint16_t>(scratch, y_part_);
    if (!load_y(buffers, group * n_, n_, {c.sample_begin, c.sample_end}, region, box)) return false;
    y = y_boxed(n_, c.sample_begin, region, box);
    offset = 0;
  }
  float* const pairs = layout_.at<float>(scratch, pairs_part_);
  for_each_panel(
      group, panels, sums, add, [&](const int64_t* tap) { return point(c, tap, y); },
      [&](const SumsUnit<float>& unit) { sum(x, c.positions(), y.part, offset + unit.panel * width(), unit, pairs, add); });
  return true;
}

bool OuterMatrices::sum_units(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  std::atomic<bool> splits{true};
  uint16_t* all_x = layout_.at<uint16_t>(workspace, x_part_);
  const int64_t x_slices = parts_of(m_, kSliceChannels);
  parallel.for_each(g.groups * chunk_count() * x_slices, [&](int64_t index, int) {
    const int64_t of_group = index / x_slices, first = index % x_slices * kSliceChannels;
    const Range m{first, std::min(first + kSliceChannels, m_)};
    if (!load_x(buffers, chunk(of_group / g.groups), of_group % g.groups, m, all_x + of_group * x_chunk())) splits = false;
  });
  uint16_t* boxes = layout_.at<uint16_t>(workspace, y_part_);
  const RowsOfY of_box = y_boxed(width(), 0, {{0, 0, 0}, {g.axis[0].y, g.axis[1].y, g.axis[2].y}}, boxes);
  if (!in_place_y_) {
    const auto extent = [&](int a) { return g.axis[a].y; };
    int64_t piece[kAxes];
    cut_axes(extent, std::max<int64_t>(1, kPieceBytes / (of_box.axis[2] * int64_t(sizeof(uint16_t)))), piece);
    const int64_t pieces = piece_count(extent, piece);
    parallel.for_each(g.groups * panels_ * g.batch * pieces, [&](int64_t index, int) {
      const int64_t sample = index / pieces % g.batch, box = index / pieces / g.batch, first = box % panels_ * width();
      Range taken[kAxes];
      take_piece(index, extent, piece, taken);
      const Region region{{taken[0].begin, taken[1].begin, taken[2].begin}, {taken[0].end, taken[1].end, taken[2].end}};
      uint16_t* to = boxes + (box * g.batch + sample) * of_box.sample;
      for (int a = 0; a < kAxes; ++a) to += region.begin[a] * of_box.axis[a];
      const int64_t channel = box / panels_ * n_ + first;
      if (!load_y(buffers, channel, std::min(width(), n_ - first), {sample, sample + 1}, region, to)) splits = false;
    });
  }
  if (!splits) return false;
  // All taps of a panel and a slice while both stay in L2. Where all of x and y does, all of a tap, whose sums lie together.
  const int64_t row = split_.parts * y_room(n_), rows = g.groups * g.batch * g.y_positions();
  const bool resident = (g.groups * chunk_count() * x_chunk() + rows * row) * int64_t(sizeof(uint16_t)) <= kResidentBytes;
  for_each_unit(buffers, parallel, !resident, [&](const SumsUnit<float>& unit, std::byte* scratch) {
    RowsOfY y = in_place_y_ ? y_in_place(buffers) : of_box;
    if (!in_place_y_) y.origin += (unit.group * panels_ + unit.panel) * g.batch * of_box.sample;
    const int64_t offset = in_place_y_ ? unit.group * n_ + unit.panel * width() : 0;
    int64_t tap[kAxes];
    tap_of(unit.tap, tap);
    bool add = false;
    for (int64_t i = 0; i < chunk_count(); ++i) {
      const Chunk c = chunk(i);
      if (!point(c, tap, y)) continue;
      sum(all_x + (i * g.groups + unit.group) * x_chunk(), c.positions(), y.part, offset, unit,
          layout_.at<float>(scratch, pairs_part_), add);
      add = true;
    }
    if (!add) clear(unit);
  });
  return true;
}

// Some channels of planes[part][channel][position]; returns whether all is finite and can be split.
bool OuterMatrices::load_x(const Buffers& buffers, const Chunk& c, int64_t group, Range m, uint16_t* planes) const {
  const Strides& s = p_.x;
  // Samples and axes, of which neighbours are merged where they lie as one.
  int64_t extent[kAxes + 1] = {c.sample_end - c.sample_begin}, stride[kAxes + 1] = {s.outer};
  int64_t start = c.sample_begin * s.outer + (group * m_ + m.begin) * s.channel;
  for (int a = 0; a < kAxes; ++a) {
    extent[a + 1] = c.x.end[a] - c.x.begin[a], stride[a + 1] = s.axis[a];
    start += c.x.begin[a] * s.axis[a];
  }
  for (int a = kAxes; a > 0 && (extent[a - 1] == 1 || stride[a - 1] == extent[kAxes] * stride[kAxes]); --a)
    extent[kAxes] *= std::exchange(extent[a - 1], 1);
  const int64_t count = extent[kAxes], positions = c.positions(), end = round_up(positions, kPairs * kUnits);
  bool good = true;
  uint16_t* to = planes + m.begin * x_pitch();
  for (int64_t n = 0; n < extent[0]; ++n)
    for (int64_t i0 = 0; i0 < extent[1]; ++i0)
      for (int64_t i1 = 0; i1 < extent[2]; ++i1, to += count) {
        const int64_t index = start + n * stride[0] + i0 * stride[1] + i1 * stride[2];
        good = load_line(static_cast<const std::byte*>(element(buffers.x, p_.type, index)), stride[kAxes], count, m.size(), to) &&
               good;
      }
  for (int i = 0; i < split_.parts; ++i)
    for (int64_t row = m.begin; row < m.end; ++row) {
      uint16_t* channel = planes + i * x_plane() + row * x_pitch();
      std::fill(channel + positions, channel + end, uint16_t(0));
      if (p_.type == Type::bf16) good = tiles_->finite(reinterpret_cast<const float*>(channel), end / kPairs) && good;
    }
  return good;
}

// A line of positions, `step` apart, of some channels.
bool OuterMatrices::load_line(const std::byte* from, int64_t step, int64_t count, int64_t channels, uint16_t* to) const {
  constexpr int64_t kPiece = 64;  // positions whose parts stay in L1
  const int64_t pitch = x_pitch(), channel = p_.x.channel;
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  bool good = true;
  if (p_.type == Type::bf16) {
    if (channel == 1 && channels > 1) {
      tiles_->transpose_halves(halves, step, to, pitch, channels, count);
    } else if (step == 1) {
      for (int64_t m = 0; m < channels; ++m) std::copy_n(halves + m * channel, count, to + m * pitch);
    } else {
      for (int64_t m = 0; m < channels; ++m)
        for (int64_t p = 0; p < count; ++p) to[m * pitch + p] = halves[m * channel + p * step];
    }
  } else if (step == 1 && channel != 1) {
    float wide[kPiece];
    for (int64_t m = 0; m < channels; ++m)
      for (int64_t p = 0; p < count; p += kPiece) {
        const int64_t piece = std::min(kPiece, count - p);
        tiles_->widen(p_.type, element(from, p_.type, m * channel + p), wide, piece);
        good = tiles_->split(wide, piece, split_.parts, to + m * pitch + p, x_plane()) && good;
      }
  } else {
    thread_local std::vector<uint16_t> stage;
    const int64_t room = y_room(channels), row = split_.parts * room;
    stage.resize(size_t(kPiece * row));
    for (int64_t p = 0; p < count; p += kPiece) {
      const int64_t piece = std::min(kPiece, count - p);
      const Box line{{1, 1, piece}, {0, 0, step}, channels, channel};
      good = split_box(*tiles_, p_.type, element(from, p_.type, p * step), line, split_.parts, stage.data(), row, room) && good;
      for (int i = 0; i < split_.parts; ++i)
        tiles_->transpose_halves(stage.data() + i * room, row, to + i * x_plane() + p, pitch, channels, piece);
    }
  }
  return good;
}

RowsOfY OuterMatrices::y_in_place(const Buffers& buffers) const {
  return {static_cast<const uint16_t*>(buffers.y), p_.y.outer, {p_.y.axis[0], p_.y.axis[1], p_.y.axis[2]}, 0};
}

// Of a box of a region of samples from the first on, one behind the other.
RowsOfY OuterMatrices::y_boxed(int64_t channels, int64_t first_sample, const Region& region, const uint16_t* box) const {
  const int64_t room = y_room(channels), row = split_.parts * room;
  const auto extent = [&](int a) { return std::max<int64_t>(region.end[a] - region.begin[a], 0); };
  const int64_t line = extent(2) * row, plane = extent(1) * line, sample = extent(0) * plane;
  return {box - first_sample * sample - region.begin[0] * plane - region.begin[1] * line - region.begin[2] * row,
          sample,
          {plane, line, row},
          room};
}

// Brings a region of some samples to a box; returns whether all can be split.
bool OuterMatrices::load_y(const Buffers& buffers, int64_t first_channel, int64_t channels, Range samples, const Region& region,
                           uint16_t* box) const {
  const Strides& s = p_.y;
  const int64_t room = y_room(channels), row = split_.parts * room;
  Box shape{{}, {s.axis[0], s.axis[1], s.axis[2]}, channels, s.channel};
  int64_t corner = first_channel * s.channel;
  for (int a = 0; a < kAxes; ++a) {
    shape.extent[a] = std::max<int64_t>(region.end[a] - region.begin[a], 0);
    corner += region.begin[a] * s.axis[a];
  }
  bool good = true;
  for (int64_t n = samples.begin; n < samples.end; ++n, box += shape.positions() * row) {
    const void* from = element(buffers.y, p_.type, n * s.outer + corner);
    if (p_.type == Type::bf16) {
      load_box(*tiles_, p_.type, from, shape, reinterpret_cast<bf16*>(box), row);
    } else {
      good = split_box(*tiles_, p_.type, from, shape, split_.parts, box, row, room) && good;
    }
  }
  return good;
}

// Makes the list of the rows that a tap connects with the positions of a chunk, in their order; returns whether there are any.
bool OuterMatrices::point(const Chunk& c, const int64_t* tap, const RowsOfY& y) const {
  const Axis* axis = p_.geometry.axis;
  met.assign(size_t(round_up(c.positions(), kPairs * kUnits)), zeros_.data());
  Range inside[kAxes];
  if (!connected(c.x, tap, inside)) return false;
  const int64_t lines = c.x.end[1] - c.x.begin[1], length = c.x.end[2] - c.x.begin[2], step = y.axis[2] * axis[2].stride;
  for (int64_t n = c.sample_begin; n < c.sample_end; ++n)
    for (int64_t i0 = inside[0].begin; i0 < inside[0].end; ++i0)
      for (int64_t i1 = inside[1].begin; i1 < inside[1].end; ++i1) {
        const int64_t line = ((n - c.sample_begin) * (c.x.end[0] - c.x.begin[0]) + i0 - c.x.begin[0]) * lines + i1 - c.x.begin[1];
        const uint16_t** to = met.data() + line * length - c.x.begin[2];
        const uint16_t* row = y.origin + n * y.sample + axis[0].reach(i0, tap[0]) * y.axis[0] +
                              axis[1].reach(i1, tap[1]) * y.axis[1] + axis[2].reach(inside[2].begin, tap[2]) * y.axis[2];
        for (int64_t i2 = inside[2].begin; i2 < inside[2].end; ++i2, row += step) to[i2] = row;
      }
  return true;
}

// A unit of the tap whose rows have been listed.
void OuterMatrices::sum(const uint16_t* x, int64_t positions, int64_t part_of_y, int64_t offset, const SumsUnit<float>& unit,
                        float* pairs, bool add) const {
  const int64_t columns = std::min(width(), n_ - unit.panel * width());
  const int64_t count = round_up(parts_of(positions, kPairs), kUnits), pitch = round_up(columns, lanes());
  for (int i = 0; i < split_.parts; ++i)
    tiles_->pair_rows(met.data(), i * part_of_y + offset, count, columns, pairs + i * pairs_plane(), pitch);
  const OuterRun<float> run{reinterpret_cast<const float*>(x), pairs, count};
  OuterTile<float> tile{};
  tile.runs = &run, tile.run_count = 1, tile.b_pitch = pitch, tile.add = add, tile.a_step = x_pitch() / kPairs;
  tile.parts = split_.parts, tile.orders = split_.orders, tile.a_plane = x_plane() / kPairs, tile.b_plane = pairs_plane();
  sum_panel(unit.m, unit.panel, unit.sums, unit.pitch, tile);
}

}  // namespace

std::shared_ptr<Plan> make_outer_of_matrices(const Problem& p, const Tiles<float>& tiles, int threads,
                                             const Tiles<float>& exact) {
  return std::make_shared<OuterMatrices>(p, tiles, threads, exact);
}

}  // namespace torch_ext::cpu
