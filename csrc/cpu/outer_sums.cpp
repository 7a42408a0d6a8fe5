// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/outer_sums.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/split.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;  // of rows of a and b: a quarter of the L2 cache
// Of a chunk: below the former the trip of a tile's sums to L2 and back costs more than rows that come from L3.
constexpr int64_t kMinPositions = 128, kMaxPositions = 256;
// Where the sums stay in L1 their trip costs little, and the sums of chunks about as long as there are chunks are the most
// accurate.
constexpr int64_t kSmallSumsBytes = 32 << 10, kMinShortPositions = 24;
// The same for matrix registers, whose sums cost four times as much of a tile's time and which come with 2 MB of L2.
constexpr int64_t kMatrixPositions = 512, kMatrixChunkBytes = 5 << 18;
constexpr int64_t kParts = 16, kManyParts = 64;  // that the positions are summed in; the latter for long sums
// The sums of more parts than fit into L2 together come from memory and go back: 6 to 20 % of the time, and as long as matrix
// registers take for the products of a part, which has as few of them as can be. Fewer than this bring the same positions to too
// many threads.
constexpr int64_t kPartsBytes = 1 << 20, kMinParts = 4;
// Fewer positions are not cut into parts, of at least so many: adding one costs as much as summing a position. Planes are brought
// to rows: by parts, which then stay in cache, many weights take 0.7 to 0.95 of the time from half as many positions on; and from
// a quarter on, tensors of many times the sums, which all taps of a part read while it is there (120 layers: 0.87 in NXC, 0.92 in
// NCX, of short vectors 0.73 and 0.87; of less than the bytes below 0.95 to 1.1).
constexpr int64_t kPositionsOfParts = 2048, kPositionsOfPart = 128;
constexpr int64_t kManySums = 128 << 10, kLargeTensors = 2 << 20, kTensorsOfSums = 8;
constexpr int64_t kLeastChunk = 64;            // positions; above it chunks may be as small as there are parts
constexpr int64_t kMostPartsBytes = 64 << 20;  // never more than these
// Of weights that one thread sums at a time: 20 to 50 microseconds; matrix registers share what they bring to pairs among more.
constexpr double kUnitFlops = 4e6, kMatrixUnitFlops = 8e6;
// Sums of all weights from which on units are of all taps; of such a unit: a quarter of L2, which is twice as large where there
// are matrix registers.
constexpr int64_t kLargeSums = 3 << 20, kUnitSums = 256 << 10, kMatrixUnitSums = 512 << 10;

}  // namespace

int64_t Chunk::positions() const {
  int64_t count = sample_end - sample_begin;
  for (int a = 0; a < kAxes; ++a) count *= x.end[a] - x.begin[a];
  return count;
}

Region whole_x(const Problem& p) {
  Region x{};
  for (int a = 0; a < kAxes; ++a) x.end[a] = p.geometry.axis[a].x;
  return x;
}

template <class Real>
OuterSums<Real>::OuterSums(const Problem& problem, const Tiles<Real>& tiles, int terms, const Cut* cut)
    : Sums(problem, tiles, cut ? cut->swapped : Sums::swapped_suits(problem, tiles), cut ? cut->pitch : 0), terms_(terms) {
  if (cut) {
    cut_ = *cut;
  } else {
    choose_cut();
  }
  choose_units();
  // 201 random layers of channels that lie together: 0.93 of the time; 384 to 160, k6 s2, 4x4: 0.52; 384 to 128, k4 s4,
  // 14x14: 1.03.
  in_place_ = !cut_.parts && !taps_together_ && Sums::fit_result();
  sums_part_ = layout_.shared(taps_together_ || in_place_ ? 0 : std::max<int64_t>(cut_.parts, 1) * sums_bytes());
  unit_part_ = layout_.per_thread(taps_together_ ? taps() * unit_tap() * int64_t(sizeof(Real)) : 0);
}

template <class Real>
void OuterSums<Real>::finish_layout(int threads) {
  if (exact_ && cut_.parts) exact_part_ = layout_.per_thread(exact_->scratch_bytes());
  if (cut_.parts) slices_ = std::max<int64_t>(even_slices(cut_.parts, threads), 1);
  layout_.finish(threads);
}

// As few as threads share evenly, as each brings its part's positions to cache for itself; 0 where they share none so.
template <class Real>
int64_t OuterSums<Real>::even_slices(int64_t parts, int64_t threads) const {
  const int64_t panels = panels_of_taps();
  for (int64_t slices = 1; slices <= std::min(panels, kManyParts); ++slices)
    if (even(panels, slices) && shared_evenly(parts * p_.geometry.groups * slices, p_.geometry.flops(), threads)) return slices;
  return 0;
}

// Rows of whole tiles; up to twice as many units where threads share these evenly.
template <class Real>
void OuterSums<Real>::choose_units() {
  const Geometry& g = p_.geometry;
  const double of_row = 2.0 * double(g.batch * g.x_positions()) * double(width()) / terms_;
  const int64_t tallest = tiles_->max_rows[vectors_], row_bytes = taps() * width() * int64_t(sizeof(Real));
  const int64_t fit = (tiles_->matrices ? kMatrixUnitSums : kUnitSums) / row_bytes;
  // Results whose channels lie together are written faster a whole row at a time, which matters where products take long.
  const bool whole_rows = !tiles_->matrices && Sums::n_stride() == 1;
  taps_together_ = !cut_.parts && sums_bytes() > kLargeSums && fit >= tallest && !whole_rows;
  const int64_t of_flops = std::max<int64_t>(int64_t((tiles_->matrices ? kMatrixUnitFlops : kUnitFlops) / of_row), 1);
  const int64_t most = taps_together_ ? fit / tallest * tallest : round_up(of_flops, tallest);
  const int64_t others = g.groups * panels_ * (taps_together_ ? 1 : taps()), least = parts_of(m_, most);
  const auto slice_of = [&](int64_t slices) { return std::min(m_, round_up(parts_of(m_, slices), tallest)); };
  unit_rows_ = slice_of(least);
  // Six products of a matrix instruction take as long as a multiply-add.
  const double slowness = tiles_->matrices ? split_of(p_).products() / 6. : 1;
  const double flops = of_row * double(terms_ * m_ * g.groups * panels_ * taps());
  for (int64_t slices = least; slices <= 2 * least; ++slices)
    if (shared_evenly(others * parts_of(m_, slice_of(slices)), flops * slowness)) {
      unit_rows_ = slice_of(slices);
      break;
    }
}

template <class Real>
void OuterSums<Real>::choose_cut() {
  const Geometry& g = p_.geometry;
  cut_.swapped = swapped_, cut_.pitch = pitch_;
  const int64_t positions = g.batch * g.x_positions();
  const bool planes = p_.x.channel != 1 || p_.y.channel != 1, many = !tiles_->matrices && planes && sums_bytes() > kManySums;
  const int64_t tensors = (g.x_size() + g.y_size()) * bytes_of(p_.type);
  const bool large = !tiles_->matrices && tensors > std::max(kLargeTensors, kTensorsOfSums * sums_bytes());
  const int64_t least = kPositionsOfParts / (large ? 4 : many ? 2 : 1);
  cut_.parts = positions < least ? 0 : p_.geometry.flops() < kManyThreadsFlops ? kParts : kManyParts;
  // Threads share parts where these are fewer.
  const int64_t shared = parts_of(cut_.parts, panels_of_taps()), bytes = std::max<int64_t>(sums_bytes(), 1);
  const int64_t in_cache = std::max({shared, kMinParts, tiles_->matrices ? 0 : kPartsBytes / bytes});
  const int64_t room = std::min(positions / kPositionsOfPart, kMostPartsBytes / bytes);
  cut_.parts = std::min({cut_.parts, in_cache, room});
  choose_chunks();
  cut_.parts = std::min(cut_.parts, chunk_count());
  if (tiles_->matrices) {
    const int64_t most = std::min(2 * cut_.parts, chunk_count());
    while (cut_.parts < most && !even(chunk_count(), cut_.parts)) ++cut_.parts;
    return;
  }
  // Fewer parts, or else more, until some slices of them are shared evenly.
  const int64_t most = std::min({2 * cut_.parts, chunk_count(), room});
  while (cut_.parts > kMinParts && !even_slices(cut_.parts, kAnyThreads)) --cut_.parts;
  while (cut_.parts < most && !even_slices(cut_.parts, kAnyThreads)) ++cut_.parts;
  if (cut_.parts < kMinParts) cut_.parts = 0;
}

template <class Real>
void OuterSums<Real>::choose_chunks() {
  const Geometry& g = p_.geometry;
  int64_t y_per_x = 1;
  for (const Axis& axis : g.axis) y_per_x *= std::min(axis.stride, std::max<int64_t>(axis.y, 1));
  const int64_t bytes = (g.x_channels / terms_ + y_per_x * g.y_channels) * int64_t(sizeof(Real));
  int64_t most = terms_ * std::clamp<int64_t>(kChunkBytes / bytes, kMinPositions, kMaxPositions);
  if (tiles_->matrices) {
    const int64_t values = g.x_channels + y_per_x * g.y_channels;
    most = std::clamp<int64_t>(kMatrixChunkBytes / (values * split_of(p_).parts * int64_t(sizeof(uint16_t))), kMaxPositions / 2,
                               kMatrixPositions);
  } else if (taps() * g.x_channels * g.y_channels * int64_t(sizeof(Real)) <= kSmallSumsBytes) {
    most = std::clamp<int64_t>(2 * int64_t(std::sqrt(double(g.batch * g.x_positions()))), kMinShortPositions, most);
  }
  for (;; most = most * 7 / 8) {  // until there is one for each part
    cut_.chunk_samples = std::min(cut_axes([&](int a) { return g.axis[a].x; }, most, cut_.chunk_extent, terms_), g.batch);
    if (cut_.parts < (tiles_->matrices ? 1 : kMinParts) || chunk_count() >= cut_.parts || most <= kLeastChunk) return;
  }
}

template <class Real>
int64_t OuterSums<Real>::chunk_count() const {
  return parts_of(p_.geometry.batch, cut_.chunk_samples) *
         piece_count([&](int a) { return p_.geometry.axis[a].x; }, cut_.chunk_extent);
}

template <class Real>
Chunk OuterSums<Real>::chunk(int64_t index) const {
  Chunk c;
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t extent = p_.geometry.axis[a].x, parts = parts_of(extent, cut_.chunk_extent[a]);
    c.x.begin[a] = index % parts * cut_.chunk_extent[a];
    c.x.end[a] = std::min(c.x.begin[a] + cut_.chunk_extent[a], extent);
    index /= parts;
  }
  c.sample_begin = index * cut_.chunk_samples;
  c.sample_end = std::min(c.sample_begin + cut_.chunk_samples, p_.geometry.batch);
  return c;
}

template <class Real>
Region OuterSums<Real>::reach(const Region& x, bool pairs) const {
  Region y;
  for (int a = 0; a < kAxes; ++a) {
    const Axis& axis = p_.geometry.axis[a];
    const bool whole = pairs && a == kAxes - 1;
    const int64_t last = whole ? x.begin[a] + (x.end[a] - 1 - x.begin[a]) / 2 * 2 : x.end[a] - 1;
    y.begin[a] = axis.reach(x.begin[a], 0);
    y.end[a] = axis.reach(last, axis.w - 1) + 1;
    if (!whole) y.begin[a] = std::max<int64_t>(y.begin[a], 0), y.end[a] = std::min(y.end[a], axis.y);
  }
  return y;
}

template <class Real>
void OuterSums<Real>::longest_reach(bool pairs, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a) {
    lengths[a] = 0;
    Region x = whole_x(p_);
    for (int64_t i = 0, extent = x.end[a]; i < extent; i += cut_.chunk_extent[a]) {
      x.begin[a] = i, x.end[a] = std::min(i + cut_.chunk_extent[a], extent);
      const Region y = reach(x, pairs);
      lengths[a] = std::max(lengths[a], y.end[a] - y.begin[a]);
    }
  }
}

template <class Real>
std::string OuterSums<Real>::describe_cut() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "tile " + text(tiles_->max_rows[vectors_]) + "x" + text(width()) + (cut_.swapped ? " (y by x)" : " (x by y)") +
         ", chunk " + text(cut_.chunk_samples) + "x" + text(cut_.chunk_extent[0]) + "x" + text(cut_.chunk_extent[1]) + "x" +
         text(cut_.chunk_extent[2]) + ", " + (cut_.parts ? text(cut_.parts) + " parts" : text(unit_rows_) + " rows a unit");
}

template <class Real>
void OuterSums<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t groups = p_.geometry.groups;
  Real* sums = layout_.at<Real>(workspace, sums_part_);
  if (cut_.parts) {
    parallel.for_each(cut_.parts * groups * slices_, [&](int64_t index, int thread) {
      const ForTiles<Real> ready(*tiles_);
      const int64_t part = index / slices_, slice = index % slices_, panels = panels_of_taps();
      sum_part(buffers, part / groups, part % groups, even_range(slice, slices_, panels), layout_.thread(workspace, thread),
               sums + part * group_sums());
    });
  } else if (!sum_units(buffers, parallel)) {
    return exact_->run(buffers, parallel);
  }
  if (!taps_together_ && !in_place_) Sums::store(buffers, parallel, sums, cut_.parts);
}

template <class Real>
void OuterSums<Real>::for_each_unit(const Buffers& buffers, const Parallel& parallel, bool taps_follow,
                                    const SumUnit& sum) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t slices = parts_of(m_, unit_rows_), units = p_.geometry.groups * panels_ * slices;
  const auto unit_of = [&](int64_t index, int64_t tap) {
    const int64_t slice = index % slices, panel = index / slices;
    const Range m{slice * unit_rows_, std::min((slice + 1) * unit_rows_, m_)};
    return SumsUnit<Real>{panel / panels_, tap, panel % panels_, m, nullptr, 0};
  };
  if (taps_together_)
    return parallel.for_each(units, [&](int64_t index, int thread) {
      const ForTiles<Real> ready(*tiles_);
      std::byte* scratch = layout_.thread(workspace, thread);
      Real* const sums = layout_.at<Real>(scratch, unit_part_);
      SumsUnit<Real> unit = unit_of(index, 0);
      unit.pitch = width();
      for (; unit.tap < taps(); ++unit.tap) {
        unit.sums = sums + unit.tap * unit_tap();
        sum(unit, scratch);
      }
      const int64_t first = unit.panel * width();
      Sums::store_rows(buffers, unit.group, {0, taps()}, unit.m, {first, first + Sums::columns(unit.panel)}, sums, unit_tap(),
                       width());
    });
  parallel.for_each(units * taps(), [&](int64_t index, int thread) {
    const ForTiles<Real> ready(*tiles_);
    SumsUnit<Real> unit = taps_follow ? unit_of(index / taps(), index % taps()) : unit_of(index % units, index / units);
    const auto of_tap =
        Sums::of_tap(buffers, in_place_ ? nullptr : layout_.at<Real>(workspace, sums_part_), unit.group, unit.tap);
    unit.pitch = of_tap.pitch;
    unit.sums = of_tap.first + unit.m.begin * unit.pitch + unit.panel * width();
    sum(unit, layout_.thread(workspace, thread));
  });
}

// One part of the positions, some panels of the weights of a group.
template <class Real>
void OuterSums<Real>::sum_part(const Buffers& buffers, int64_t part, int64_t group, Range panels, std::byte* scratch,
                               Real* sums) const {
  const Range of = even_range(part, cut_.parts, chunk_count());
  for (int64_t index = of.begin; index < of.end; ++index) {
    const Chunk c = chunk(index);
    const bool add = index > of.begin;
    const Chunk after = chunk(std::min(index + 1, of.end - 1));
    if (sum_chunk(buffers, c, group, panels, scratch, sums, add, index + 1 < of.end ? &after : nullptr)) continue;
    if constexpr (std::is_same_v<Real, float>)
      exact_->sum_chunk(buffers, c, group, panels, layout_.at<std::byte>(scratch, exact_part_), sums, add, nullptr);
  }
}

template <class Real>
bool OuterSums<Real>::connected(const Region& x, const int64_t* tap, Range* inside) const {
  for (int a = 0; a < kAxes; ++a) {  // 0 <= i*stride + shift < y
    const Axis& axis = p_.geometry.axis[a];
    const int64_t shift = tap[a] * axis.dilation - axis.offset;
    inside[a] = {std::max(x.begin[a], first_reaching(0, shift, axis.stride)),
                 std::min(x.end[a], first_reaching(axis.y, shift, axis.stride))};
    if (inside[a].size() <= 0) return false;
  }
  return true;
}

template <class Real>
void OuterSums<Real>::clear(const SumsUnit<Real>& unit) const {
  const int64_t columns = Sums::columns(unit.panel);
  for (int64_t row = 0; row < unit.m.size(); ++row) std::fill_n(unit.sums + row * unit.pitch, columns, Real(0));
}

template class OuterSums<float>;
template class OuterSums<double>;

}  // namespace torch_ext::cpu
