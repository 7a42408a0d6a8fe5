// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/gather_input.h"

#include <algorithm>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kMostBeyond = 16;  // positions of a line outside the input, as zeros in a box
constexpr int64_t kMostNowhere = 4;  // one of so many results may be computed for nothing, so that rows are evenly spaced
constexpr int64_t kShortLine = 64;   // cells of which so many are near a border that a box with zeros pays

}  // namespace

template <class In>
GatherInput<In>::GatherInput(const Problem& p, const Tiles<Real>& tiles, Split split, const GatherAxis* axis, int64_t channels,
                             int64_t depth)
    : tiles_(&tiles),
      type_(p.type),
      split_(split),
      strides_(p.operation == Operation::conv_transpose ? p.x : p.y),
      axis_(axis),
      channels_(channels),
      depth_(depth),
      pitch_(row_pitch(split.parts * depth * kTerms, sizeof(In))),
      // Of lines shorter than a register's rows the same position of 16 samples is evenly spaced.
      by_sample_(tiles_->matrices && axis[2].cells < kRowsOfRegister && p.geometry.batch >= kRowsOfRegister) {
  const bool whole = !kSplit && channels_ == depth_ * kTerms;
  const Range line = line_of(0, axis_[2].cells);
  const bool needs_zeros = axis_[2].cells < kShortLine && (line.begin < 0 || line.end > axis_[2].in_extent);
  in_place_ = whole && channels_follow<In>(type_, strides_, channels_) && !by_sample_ && !needs_zeros;
}

// With zeros for those outside the input where matrix registers load rows: at once only where they are evenly spaced.
template <class In>
Range GatherInput<In>::line_of(int64_t begin, int64_t end) const {
  Range line;
  axis_[2].reach(begin, end, line.begin, line.end);
  if (line.end < line.begin) return {0, 0};
  if (tiles_->matrices) {
    Range beyond;
    axis_[2].reach_beyond(begin, end, beyond.begin, beyond.end);
    if (beyond.size() <= line.size() + kMostBeyond) line = beyond;
  }
  return {line.begin, line.end + 1};
}

// Where the cells are not whole blocks of rows of a register: on through the zeros to the next line of a box, or to the end of a
// block, whichever is less; 0 where that would be many, or nothing would be even.
template <class In>
int64_t GatherInput<In>::listed(int64_t begin, int64_t end) const {
  const int64_t cells = end - begin;
  if (!tiles_->matrices || in_place_ || by_sample_ || cells % kRowsOfRegister == 0) return 0;
  const Range line = line_of(begin, end);
  Range beyond;
  axis_[2].reach_beyond(begin, end, beyond.begin, beyond.end);
  if (line.begin > beyond.begin || line.end <= beyond.end) return 0;
  int64_t least = round_up(cells, kRowsOfRegister);
  if (axis_[1].in_step == 1 && axis_[2].in_step == 1) least = std::min(least, line.size());
  return (least - cells) * kMostNowhere <= cells ? least : 0;
}

template <class In>
RowsAt<const std::byte> GatherInput<In>::load(const void* in, const CellBlock& block, int64_t group, Range line, In* box,
                                              bool& splits) const {
  const int64_t start = group * channels_ * strides_.channel, size = sizeof(In);
  if (in_place_)
    return {static_cast<const std::byte*>(element(in, type_, start)),
            strides_.outer * size,
            {strides_.axis[0] * size, strides_.axis[1] * size, strides_.axis[2] * size}};
  Box shape{{}, {strides_.axis[0], strides_.axis[1], strides_.axis[2]}, channels_, strides_.channel};
  int64_t offset = start, first[kAxes];
  bool empty = false;
  for (int a = 0; a < kAxes; ++a) {
    int64_t last;
    axis_[a].reach(block.cell[a].begin, block.cell[a].end, first[a], last);
    empty = empty || last < first[a];
    shape.extent[a] = last - first[a] + 1;
    offset += first[a] * strides_.axis[a];
  }
  if (empty) return {};
  const int64_t before = std::max<int64_t>(first[2] - line.begin, 0), lines = shape.extent[0] * shape.extent[1];
  const int64_t row = pitch_ * size, sample = lines * line.size() * pitch_;
  const bool whole = line.size() == shape.extent[2];
  Box of_line = shape;
  of_line.extent[0] = of_line.extent[1] = 1;
  for (int64_t n = block.sample.begin; n < block.sample.end; ++n) {
    const std::byte* from = static_cast<const std::byte*>(element(in, type_, n * strides_.outer + offset));
    for (int64_t l = 0; l < (whole ? 1 : lines); ++l) {
      In* to = box + (n - block.sample.begin) * sample + l * line.size() * pitch_;
      const void* source = element(from, type_, l / shape.extent[1] * shape.stride[0] + l % shape.extent[1] * shape.stride[1]);
      std::fill(to, to + before * pitch_, In{});
      if (!load_rows(source, whole ? shape : of_line, to + before * pitch_)) splits = false;
      std::fill(to + (before + shape.extent[2]) * pitch_, to + line.size() * pitch_, In{});
    }
  }
  for (int64_t p = 0; !kSplit && channels_ < kTerms * depth_ && p < block.sample.size() * lines * line.size(); ++p)
    std::fill(box + p * pitch_ + channels_, box + p * pitch_ + kTerms * depth_, In{});
  RowsAt<const std::byte> rows{
      reinterpret_cast<const std::byte*>(box), sample * size, {shape.extent[1] * line.size() * row, line.size() * row, row}};
  rows.origin = rows.at(-block.sample.begin, -first[0], -first[1], -line.begin);
  return rows;
}

// Returns whether all can be split.
template <class In>
bool GatherInput<In>::load_rows(const void* from, const Box& shape, In* to) const {
  if constexpr (kSplit) {
    return split_box(*tiles_, type_, from, shape, split_.parts, reinterpret_cast<uint16_t*>(to), pitch_, kTerms * depth_);
  } else {
    load_box(*tiles_, type_, from, shape, to, pitch_);
    return true;
  }
}

template class GatherInput<float>;
template class GatherInput<double>;
template class GatherInput<bf16>;
template class GatherInput<SplitBf16>;

}  // namespace torch_ext::cpu
