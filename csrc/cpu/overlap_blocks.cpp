// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/overlap_blocks.h"

#include <algorithm>

namespace torch_ext::cpu {
namespace {

constexpr int64_t kLinesBytes = 48 << 10;  // of a product: read at once by the overlap-add
// Of the input of a block, and of its results, where they are not used in place; of the former less where tiles do not ask for
// what they read next, whose channels are then fewer pages (64 to 2 channels, 256x256, k2 s2: 0.83 of the time; 64 to 1,
// 32x32x32: 0.93).
constexpr int64_t kBoxBytes = 256 << 10, kUnaskedBoxBytes = 96 << 10;
// Of input that tiles read in place once for each tap of the middle axis, so that what is read again, and what is asked for,
// stays near, also where others use the caches (128 to 3 channels, 64x64 to 192x192, k4 s2: 0.3 to 0.9 of the time; 64 to 3,
// 256x256, k3 s1: 0.3 to 0.7). As a whole, little input is near.
constexpr int64_t kReadAgainBytes = 128 << 10, kNearBytes = 512 << 10;
constexpr int64_t kLeastLine = 128;  // cells of the innermost axis, of a part of a line
constexpr int64_t kPage = 4096;
constexpr int64_t kEdges = 8;  // lines of a block for each that it shares with others
constexpr double kItemFlops = 1e6, kLongItemFlops = 1e7;
constexpr int64_t kItems = 64;

}  // namespace

int64_t terms_of_line(const Geometry& g) {
  return g.x_channels * parts_of(g.axis[0].w, g.axis[0].stride) * parts_of(g.axis[1].w, g.axis[1].stride);
}

OverlapBlocks::OverlapBlocks(const Problem& problem, const OfTiles& tiles, int threads)
    : p_(problem),
      threads_(threads),
      axis_{{p_.geometry.axis[0], p_.operation}, {p_.geometry.axis[1], p_.operation}, {p_.geometry.axis[2], p_.operation}},
      columns_(p_.geometry.y_channels),
      taps2_(p_.geometry.axis[2].w),
      of_tiles_(tiles) {
  const bool same_type = tiles.terms == 1 && bytes_of(p_.type) == tiles.real;
  const int64_t length = axis_[2].in_extent;
  in_place_input_ = same_type && (p_.x.axis[2] == 1 || length == 1) && (p_.x.axis[1] == length || axis_[1].in_extent == 1);
  // Where tiles do not ask, planes a multiple of a page apart share a few sets of the cache, and had better be brought together
  // than read again, by more rows of tiles or, of short sums, by other phases. All others are faster in place (320 to 1 channel,
  // k7 s1, 400: 0.43 of the time; 512 to 1, k16 s8, 3999: 0.65; 400 layers of more than 16 channels 0.9).
  const bool again = rows() > 2 * tiles.max_rows || terms_of_line(p_.geometry) < kMaxTerms;
  if (!tiles.asks && again && planes_share_sets()) in_place_input_ = false;
  in_place_output_ = same_type && (p_.y.axis[2] == 1 || axis_[2].out_extent == 1);
  choose_line();
  choose_lines();
}

// Of the cache, as they lie a multiple of a page apart.
bool OverlapBlocks::planes_share_sets() const { return p_.x.channel * of_tiles_.real % kPage == 0; }

int64_t OverlapBlocks::wanted() const { return std::clamp<int64_t>(int64_t(p_.geometry.flops() / kItemFlops), 1, kItems); }

// Long items where threads share them evenly, as more lines fill vectors better and are fewer products (384 to 1 channel, k9 s4,
// 20x20: 0.74 of the time; 100 layers 0.95).
bool OverlapBlocks::enough_items() const {
  const int64_t most = wanted(), count = items();
  const bool even = 7 * round_up(count, threads_) <= 8 * count;
  return 2 * count > (even ? std::min(most, int64_t(p_.geometry.flops() / kLongItemFlops)) : most);
}

int64_t OverlapBlocks::box_bytes() const { return of_tiles_.asks ? kBoxBytes : kUnaskedBoxBytes; }

// Input positions of the innermost axis that some of its cells need: a whole line where they are all.
Range OverlapBlocks::line_of(Range cells) const {
  if (cells.size() == axis_[2].cells) return {0, axis_[2].in_extent};
  int64_t first, last;
  axis_[2].reach(cells.begin, cells.end, first, last);
  return first > last ? Range{0, 0} : Range{first, last + 1};
}

int64_t OverlapBlocks::items() const {
  return p_.geometry.batch * p_.geometry.groups * piece_count([&](int a) { return axis_[a].cells; }, block_);
}

// Lines that do not fit a box, or are fewer than items, are cut into even parts, of which what they read besides is a small part.
void OverlapBlocks::choose_line() {
  const Geometry& g = p_.geometry;
  const int64_t lines = axis_[0].cells * axis_[1].cells;
  block_[2] = axis_[2].cells;
  const int64_t reads = axis_[2].reached(1), least = std::max(kLeastLine, 4 * reads);
  const auto fits = [&] { return in_place_input_ || depth() * (block_[2] + reads) * of_tiles_.real <= box_bytes(); };
  while (block_[2] / 2 >= least && (!fits() || 2 * g.batch * g.groups * lines * parts_of(axis_[2].cells, block_[2]) <= wanted()))
    block_[2] = parts_of(block_[2], 2);
  for (int64_t part = block_[2]; block_[2] < axis_[2].cells && part > block_[2] * 3 / 4; --part)
    if (shared_evenly(g.batch * g.groups * lines * parts_of(axis_[2].cells, part), g.flops())) {
      block_[2] = part;
      break;
    }
  width_ = 1;
  for_each_piece(axis_[2].cells, block_[2], [&](const Range& cells) { width_ = std::max(width_, line_of(cells).size()); });
}

// Whole lines, as many as there is room for, but of enough items.
void OverlapBlocks::choose_lines() {
  const bool cut = block_[2] < axis_[2].cells;
  int64_t limit = cut ? 1 : axis_[0].cells * axis_[1].cells;
  const int64_t line_bytes = depth() * width_ * of_tiles_.real;
  if (!in_place_input_) limit = std::min(limit, box_bytes() / line_bytes);
  if (!in_place_output_)
    limit =
        std::min(limit, kBoxBytes / (columns_ * axis_[0].out_step * axis_[1].out_step * axis_[2].out_extent * of_tiles_.real));
  limit = std::max<int64_t>(limit, 1);
  const int64_t least_joined = std::min(kEdges * edge_lines(), axis_[1].cells), most_joined = joined_cells();
  joined_ = !cut && most_joined > 0 && std::min(limit, most_joined) >= least_joined;
  if (!joined_ && in_place_input_ && edge_lines() > 0 && axis_[0].in_extent * axis_[1].in_extent * line_bytes > kNearBytes)
    limit = std::clamp(kReadAgainBytes / line_bytes, std::min(edge_lines(), limit), limit);
  for (;; limit = std::max<int64_t>(1, limit / 2)) {
    block_[1] = even_part(axis_[1].cells, joined_ ? std::min(limit, most_joined) : middle_lines(limit));
    const int64_t room = std::max<int64_t>(1, limit / block_[1]);
    block_[0] = even_part(axis_[0].cells, room);
    if (enough_items() || limit == 1 || (joined_ && limit < 2 * least_joined)) break;
  }
  // Whole rows of the input in a product: those of a block, or some, or a single one.
  const int64_t most =
      joined_ ? axis_[1].reached(block_[1]) : std::clamp<int64_t>(kLinesBytes / (rows() * width_ * of_tiles_.real), 1, block_[1]);
  line_pitch_ = round_up(most * width_, of_tiles_.lanes);
}

// Of the middle axis, of so many lines of a block: all of them, but fewer where a box would bring the same planes again for each
// cell of the outer axis, which takes as long as few rows are multiplied (64 to 1 channel, 32x32x32, k4 s2: 0.9 of the time; k3
// s1 0.8 to 0.9; of 12 rows and more 1.05 to 1.2).
int64_t OverlapBlocks::middle_lines(int64_t lines) const {
  constexpr int64_t kFewRows = 8;
  if (of_tiles_.asks || in_place_input_ || rows() > kFewRows || axis_[0].cells == 1 || axis_[0].reached(1) == 1) return lines;
  int64_t side = 1;
  while (side * side < lines) ++side;
  return side;
}

// How many more lines than its own a block reads along the middle axis.
int64_t OverlapBlocks::edge_lines() const { return std::max<int64_t>(axis_[1].reached(1) - 1, 0); }

// Cells of the middle axis whose taps make rows of a product that stay in cache, 0 where they had better be its terms. Few rows
// leave a tile waiting for its input, which is read for each of those taps and not once (64 to 1 channel, 64x64, k3 s1: 0.7 of
// the time; 256 to 1, 28x28, k4 s2: 0.7; 64 to 2, 256x256, k2 s2: 0.8; of 6 rows and more, or pairs, 1 to 1.2). What several
// tiles read had better stay in L1, which planes that are a multiple of a page apart do not (64 to 1, 32x32x32, k4 s2: 1.05);
// with half as many registers tiles are low anyway (1.1).
int64_t OverlapBlocks::joined_cells() const {
  constexpr int64_t kJoinedBytes = 128 << 10, kFewRows = 4, kLeastDepth = 32;
  const int64_t real = of_tiles_.real, few = columns_ * taps2_, rows = few * p_.geometry.axis[1].w;
  if (of_tiles_.terms > 1 || p_.geometry.axis[1].w == 1 || few > kFewRows || depth() < kLeastDepth) return 0;
  const bool stays = of_tiles_.asks && !(in_place_input_ && planes_share_sets());
  if (rows > of_tiles_.max_rows && !stays) return 0;
  return std::max<int64_t>(kJoinedBytes / (rows * width_ * real) - edge_lines(), 0);
}

}  // namespace torch_ext::cpu
