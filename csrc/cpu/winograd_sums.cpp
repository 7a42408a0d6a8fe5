// SPDX-License-Identifier: Apache-2.0
// backward_weights with the kernels that winograd.cpp takes: the transposed form of what winograd.cpp computes, with as many
// products fewer. There the results of a phase and segment are y = A'[(G g) (B'd)], for results y, four inputs d and weights g
// along each axis. So the gradient of the weights is the sum over tiles of
//   G'[(A y) (B'd)]
// with the gradient of the results for y. The sum can be taken before G', and is, for each point of a tile, phase and segment, a
// matrix product over tiles: of x, transformed for all phases with segments along the same axes, and of transformed y.
//
// A thread takes a unit, some phases and channels, and goes through all tiles, a block at a time, which it transforms into its
// cache. The sums of a unit stay there too. Blocks are cut by the shape alone, so that the bits of a sum depend on nothing else.
#include <algorithm>
#include <atomic>
#include <span>
#include <utility>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/weight_sums.h"
#include "csrc/cpu/winograd_gate.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {
namespace {

// Of the sums of a unit, and what its blocks have transformed. Caches that hold neither, which come with shorter vectors, do as
// well with more, of which less is transformed again for another unit: 0.97 of the time of 106 layers drawn at random along two
// axes and three (0.79 to 1.10; half as many sums 1.3).
constexpr int64_t kSumsBytes = 1 << 20, kTransformedBytes = 768 << 10;
constexpr int64_t kSumsBytesOf8Lanes = 2 << 20, kTransformedBytesOf8Lanes = 1 << 20;
constexpr int64_t kSliceBytes = 64 << 10;  // of x and y that a thread brings at a time
constexpr int64_t kItems = 16, kTilesOfPart = 100;
constexpr int64_t kMinTiles = 24, kMaxTiles = 128;  // of a block
constexpr int64_t kLeastChannels = 6;
// With 8 lanes, beside how many (28 layers drawn at random: 0.85 of the time; of 4 to 12 beside 16 to 32 channels 0.9 to 2.2).
constexpr int64_t kLeastChannelsOf8Lanes = 16, kLeastBesideMany = 4, kMany = 40;
// Taps of fewer terms err by more than in the sums of the formula: positions where these have several segments, tiles along three
// axes.
constexpr int64_t kLeastPositionsOfSegments = 200, kLeastTilesOfVolume = 27;
constexpr int64_t kMostBoxedAtOnce = 64 << 20;  // bytes

class WinogradSums final : public Plan, private WeightSums<float> {
 public:
  WinogradSums(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  // Whether it takes less than such a share of the time of `outer`, by measurement.
  bool pays(double share) const;

 private:
  // A phase of a class, and how many points the segments of taps of those before it have.
  struct Phase {
    size_t of_class;
    int64_t index, first_point;
  };
  // Some phases, panels and rows of the sums of points, sums[phase][segment][point][panel][m][n], and the blocks that they are
  // taken over.
  struct Unit {
    int64_t part, group;
    Range phase, panel, m, block;
  };
  // One operand: x, or y.
  struct Side {
    Rows<float> rows;
    int64_t channels;    // of a group
    bool in_place;       // rows are those of the tensor,
    bool boxed_at_once;  // of a box of all of it, in shared workspace, or of one of a block
    int64_t pitch = 0;   // of transformed rows
    Layout::Part box{}, transformed{};
  };

  const WinogradTiles& most() const { return classes_[0]; }  // of the phases with most taps
  int64_t phases() const { return int64_t(phases_.size()); }
  int64_t points_before(int64_t phase) const { return phase < phases() ? phases_[size_t(phase)].first_point : points_; }
  void choose_units(int threads);
  int64_t block_count() const { return grid_.block_count(p_.geometry.batch, block_); }
  int64_t units() const;
  int64_t unit_sums() const;
  Unit unit(int64_t index) const;
  // The channels of a side that a unit takes.
  Range channels(const Side& side, const Unit& unit) const {
    const Range columns{unit.panel.begin * width(), std::min(unit.panel.end * width(), n_)};
    return (&side == &y_) == swapped_ ? unit.m : columns;
  }
  RowView<float> load(const Side& side, const Buffers& buffers, const TileBlock& block, const Unit& unit,
                      std::byte* scratch) const;
  // Of phases of one class.
  bool transform(const Buffers& buffers, const RowView<float>& x, const RowView<float>& y, const TileBlock& block,
                 const Unit& unit, Range phases, std::byte* scratch) const;
  void add_products(const TileBlock& block, const Unit& unit, Range phases, bool add, std::byte* scratch,
                    std::span<Upcoming> next) const;
  Upcoming upcoming(const Side& side, const Buffers& buffers, int64_t block, const Unit& unit) const;
  bool sum_unit(const Buffers& buffers, const Unit& unit, float* sums, std::byte* scratch) const;
  bool in_place() const { return parts_ == 1 && fit_result(); }  // the sums are the result

  std::vector<WinogradTiles> classes_;
  WinogradGrid grid_;
  std::vector<Phase> phases_;
  int64_t points_ = 0;  // of all phases
  Side x_, y_;
  TileBlock block_;                                // the first one
  int64_t parts_ = 1;                              // of the blocks, with sums of their own
  int64_t unit_phases_, unit_panels_, unit_rows_;  // at most
  std::shared_ptr<const Plan> exact_;              // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part sums_part_, zeros_part_, products_part_;
};

WinogradSums::WinogradSums(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads)
    : WeightSums(problem, tiles<float>(isa), swapped_suits(problem, tiles<float>(isa))),
      classes_(std::move(classes)),
      grid_(WinogradTiles::grid_of(classes_)),
      x_{{*tiles_, p_.type, p_.x, p_.geometry.axis[2].x, p_.geometry.x_channels, grid_.whole_input(), 1, 1, 0},
         p_.geometry.x_channels,
         channels_follow<float>(p_.type, p_.x, p_.geometry.x_channels),
         false},
      y_{{*tiles_, p_.type, p_.y, p_.geometry.axis[2].y, p_.geometry.y_channels, grid_.whole_output(), 1, 1, 0},
         p_.geometry.y_channels,
         channels_follow<float>(p_.type, p_.y, p_.geometry.y_channels),
         false},
      exact_(make_exact_plan(p_, isa, threads)) {
  const Geometry& g = p_.geometry;
  // Those of many points and of few alternate, so that units of as many are about as heavy.
  for (size_t i = 0; i < classes_.size(); ++i) {
    const size_t c = i % 2 ? classes_.size() - 1 - i / 2 : i / 2;
    for (int64_t phase = 0; phase < classes_[c].phases(); ++phase, points_ += classes_[c].segments * classes_[c].points)
      phases_.push_back({c, phase, points_});
  }
  choose_units(threads);
  const int64_t real = sizeof(float);
  // An odd number of cache lines spreads the rows of a panel over all sets of the L1 cache.
  const auto pitch_of = [&](int64_t channels) { return round_up(round_up(channels, 16) + 16, 32) - 16; };
  const int64_t of_n = pitch_of(unit_panels_ * width()), of_m = pitch_of(unit_rows_);
  x_.pitch = swapped_ ? of_n : of_m, y_.pitch = swapped_ ? of_m : of_n;
  sums_part_ = layout_.shared(in_place() ? 0 : parts_ * sums_bytes());
  zeros_part_ = layout_.shared(std::max(x_.pitch, y_.pitch) * real);
  // What several units read is boxed once.
  const int64_t of_phases = parts_of(phases(), unit_phases_), of_panels = parts_of(panels_, unit_panels_),
                of_rows = parts_of(m_, unit_rows_);
  x_.boxed_at_once = of_phases * (swapped_ ? of_rows : of_panels) > 1,
  y_.boxed_at_once = of_phases * (swapped_ ? of_panels : of_rows) > 1;
  for (Side* side : {&x_, &y_}) {
    int64_t lengths[kAxes];
    side == &x_ ? grid_.most_read(block_, lengths) : grid_.most_written(block_, lengths);
    if (side->in_place) continue;
    side->rows.set_room(side->boxed_at_once ? g.groups * side->channels : side->channels);
    side->box = side->boxed_at_once ? layout_.shared(side->rows.box_bytes(g.batch))
                                    : layout_.per_thread(side->rows.box_bytes(block_.sample.size(), lengths));
  }
  int64_t x_rows = 0, y_rows = 0;
  for (const WinogradTiles& c : classes_) {
    const int64_t rows = c.points * rows_of_point(c.cover(block_, grid_));
    x_rows = std::max(x_rows, c.segments * rows), y_rows = std::max(y_rows, std::min(unit_phases_, c.phases()) * rows);
  }
  x_.transformed = layout_.per_thread(x_rows * x_.pitch * real);
  y_.transformed = layout_.per_thread(y_rows * y_.pitch * real);
  products_part_ = layout_.per_thread(unit_sums() * real);
  layout_.finish(threads);
}

// As large as their sums may be, so that what they share is transformed once; smaller where there are more threads. First phases
// are shared out, each of which has y of its own.
void WinogradSums::choose_units(int threads) {
  const Geometry& g = p_.geometry;
  const int64_t tallest = tiles_->max_rows[vectors_], real = sizeof(float);
  const auto choose = [&](auto suits) {
    unit_panels_ = panels_, unit_rows_ = m_;
    for (unit_phases_ = phases(); unit_phases_ > 1; --unit_phases_)
      if (suits()) return;
    for (; unit_panels_ > 1; --unit_panels_)
      if (suits()) return;
    for (int64_t slices = 1; slices <= parts_of(m_, tallest); ++slices)
      for (const int64_t multiple : {tallest, int64_t(1)}) {
        unit_rows_ = std::min(round_up(parts_of(m_, slices), multiple), m_);
        if (suits()) return;
      }
  };
  const auto fits = [&] { return unit_sums() * real <= (lanes() < kMaxLanes ? kSumsBytesOf8Lanes : kSumsBytes); };
  choose(fits);
  int64_t floats = 0;  // of a tile, transformed
  for (const WinogradTiles& c : classes_) {
    const int64_t channels = c.segments * unit_rows_ + std::min(unit_phases_, c.phases()) * unit_panels_ * width();
    floats = std::max(floats, c.points * channels * most().results / c.results);
  }
  const int64_t transformed = lanes() < kMaxLanes ? kTransformedBytesOf8Lanes : kTransformedBytes;
  const int64_t room = std::clamp(transformed / (floats * real), kMinTiles, kMaxTiles);
  // Where sums are few, threads may share out blocks instead, each of which then is boxed once.
  const int64_t parts = parts_of(kItems, g.groups);
  if (units() == g.groups && !(x_.in_place && y_.in_place) && most().count(g.batch) >= parts * kTilesOfPart)
    for (int64_t tiles = room; tiles >= kMinTiles; tiles = tiles * 15 / 16) {
      block_ = grid_.cut(g.batch, tiles * most().results);
      parts_ = parts;
      if (block_count() >= parts && 7 * round_up(block_count(), parts) <= 8 * block_count()) return;
    }
  parts_ = 1;
  block_ = grid_.cut(g.batch, room * most().results);
  choose([&] {
    const bool evenly = even(phases(), parts_of(phases(), unit_phases_)) && even(panels_, parts_of(panels_, unit_panels_));
    return fits() && evenly && shared_evenly(units(), g.flops(), threads);
  });
}

int64_t WinogradSums::unit_sums() const {
  int64_t points = 0;
  for_each_piece(phases(), unit_phases_, [&](const Range& of_unit) {
    points = std::max(points, points_before(of_unit.end) - points_before(of_unit.begin));
  });
  return points * unit_panels_ * unit_rows_ * width();
}

int64_t WinogradSums::units() const {
  return parts_ * p_.geometry.groups * parts_of(phases(), unit_phases_) * parts_of(panels_, unit_panels_) *
         parts_of(m_, unit_rows_);
}

WinogradSums::Unit WinogradSums::unit(int64_t index) const {
  const int64_t slices = parts_of(m_, unit_rows_);
  Unit u;
  u.m = part(index % slices, unit_rows_, m_);
  index /= slices;
  const auto take = [&](int64_t extent, int64_t most) {
    const int64_t parts = parts_of(extent, most), i = index % parts;
    index /= parts;
    return even_range(i, parts, extent);
  };
  u.panel = take(panels_, unit_panels_), u.phase = take(phases(), unit_phases_);
  u.group = index % p_.geometry.groups, u.part = index / p_.geometry.groups;
  u.block = even_range(u.part, parts_, block_count());
  return u;
}

bool WinogradSums::pays(double share) const {
  const bool boxed = !(x_.in_place && y_.in_place);
  const double boxes = double(p_.geometry.x_size() + p_.geometry.y_size()) * sizeof(float);
  if (boxed && parts_ == 1 && boxes > kMostBoxedAtOnce) return false;
  const auto [few, many] = std::minmax(p_.geometry.x_channels, p_.geometry.y_channels);
  const int64_t least = lanes() == kMaxLanes ? kLeastChannels : many < kMany ? kLeastChannelsOf8Lanes : kLeastBesideMany;
  if (few < least) return false;
  if (most().axes == kAxes && most().count(p_.geometry.batch) < kLeastTilesOfVolume) return false;
  return winograd_share(p_, classes_, *tiles_, most().count(p_.geometry.batch)) < share;
}

std::string WinogradSums::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(int64_t(classes_.size())) + " classes of phases, tile " + text(tiles_->max_chain_rows[vectors_]) + "x" +
         text(width()) + (swapped_ ? " (y by x)" : " (x by y)") + ", block " + text(block_.sample.size()) + "x" +
         text(block_.tile[0].size()) + "x" + text(block_.tile[1].size()) + "x" + text(block_.tile[2].size()) + " tiles, " +
         text(parts_) + " parts, " + text(units()) + " units";
}

void WinogradSums::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  float* sums = in_place() ? nullptr : layout_.at<float>(workspace, sums_part_);
  std::fill_n(layout_.at<float>(workspace, zeros_part_), std::max(x_.pitch, y_.pitch), 0.f);
  std::atomic<bool> finite{true};
  for (const Side* side : {&x_, &y_})
    if (!side->in_place && side->boxed_at_once)
      side->rows.load_all(side == &x_ ? buffers.x : buffers.y, p_.geometry.batch, p_.geometry.groups, kSliceBytes,
                          layout_.at<float>(workspace, side->box), parallel, finite);
  parallel.for_each(units(), [&](int64_t index, int thread) {
    if (finite && !sum_unit(buffers, unit(index), sums, layout_.thread(workspace, thread))) finite = false;
  });
  if (!finite) return exact_->run(buffers, parallel);
  if (sums) store(buffers, parallel, sums, parts_);
}

// The rows of a block, from the first channel on that a unit takes.
RowView<float> WinogradSums::load(const Side& side, const Buffers& buffers, const TileBlock& b, const Unit& u,
                                  std::byte* scratch) const {
  const void* tensor = &side == &x_ ? buffers.x : buffers.y;
  const Range c = channels(side, u);
  const int64_t first = u.group * side.channels + c.begin;
  std::atomic<bool> ignored{true};
  if (!side.in_place && !side.boxed_at_once)
    return side.rows.load(tensor, first, c.size(), b.sample.begin, b.sample.end,
                          &side == &x_ ? grid_.positions_read(b) : grid_.positions_written(b),
                          layout_.at<float>(scratch, side.box), ignored);
  RowView<float> view = side.in_place
                            ? side.rows.view(tensor, 0)
                            : side.rows.view_all(layout_.at<float>(static_cast<std::byte*>(buffers.workspace), side.box));
  view.origin += first * view.channel;
  return view;
}

// x[segment][point][tile][c] and y[phase][point][tile][c], points rows_of_point apart, of some phases of a class in a block;
// returns whether all is finite.
bool WinogradSums::transform(const Buffers& buffers, const RowView<float>& x, const RowView<float>& y, const TileBlock& b,
                             const Unit& u, Range phases, std::byte* scratch) const {
  const WinogradTiles& c = classes_[phases_[size_t(phases.begin)].of_class];
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  alignas(64) float check[kMaxLanes] = {};
  float* of_segment = layout_.at<float>(scratch, x_.transformed);
  for (int64_t segment = 0; segment < c.segments; ++segment, of_segment += c.points * rows_of_point(b) * x_.pitch) {
    float* to = of_segment;
    c.each_points(b, c.first_taps[size_t(segment)], x.origin, x.sample, x.axis, zeros, [&](const float* const* rows) {
      tiles_->winograd_input[c.axes](rows, to, rows_of_point(b) * x_.pitch, channels(x_, u).size(), check);
      to += x_.pitch;
    });
  }
  float* of_phase = layout_.at<float>(scratch, y_.transformed);
  for (int64_t phase = phases.begin; phase < phases.end; ++phase, of_phase += c.points * rows_of_point(b) * y_.pitch) {
    float* to = of_phase;
    const Coordinates& k = c.first_taps[size_t(phases_[size_t(phase)].index * c.segments)];
    c.each_results(b, k, y.origin, y.sample, y.axis, zeros, [&](const float* const* rows) {
      tiles_->winograd[c.shape].output_gradient(rows, to, rows_of_point(b) * y_.pitch, channels(y_, u).size(), check);
      to += y_.pitch;
    });
  }
  return std::all_of(check, check + lanes(), [](float v) { return v == 0; });
}

// What the next block of a unit reads of a side, asked for while the products of one are computed (64 to 32 channels, channels
// side by side, 64x64, k4 s2: 0.83 of the time, 200x200: 0.76; in planes 0.98 and 0.89). A box of all of a tensor is in cache.
Upcoming WinogradSums::upcoming(const Side& side, const Buffers& buffers, int64_t index, const Unit& u) const {
  const bool of_x = &side == &x_, few_phases = 2 * u.phase.size() < phases();  // which read little of y
  if (index == u.block.end || (!side.in_place && side.boxed_at_once) || (!of_x && few_phases)) return Upcoming();
  const TileBlock b = grid_.take_block(index, p_.geometry.batch, block_);
  const Region at = of_x ? grid_.positions_read(b) : grid_.positions_written(b);
  const Range c = channels(side, u);
  const int64_t group = u.group * side.channels;
  Upcoming next((points_before(u.phase.end) - points_before(u.phase.begin)) * u.panel.size());
  next.reads(p_.type, of_x ? buffers.x : buffers.y, of_x ? p_.x : p_.y, grid_.patch(b, {group + c.begin, group + c.end}, at));
  return next;
}

void WinogradSums::add_products(const TileBlock& b, const Unit& u, Range phases, bool add, std::byte* scratch,
                                std::span<Upcoming> next) const {
  const WinogradTiles& c = classes_[phases_[size_t(phases.begin)].of_class];
  const int64_t of_panel = u.m.size() * width();
  const float* x = layout_.at<float>(scratch, x_.transformed);
  const float* y = layout_.at<float>(scratch, y_.transformed);
  float* products = layout_.at<float>(scratch, products_part_) +
                    (points_before(phases.begin) - points_before(u.phase.begin)) * u.panel.size() * of_panel;
  // Of a segment and point of x and a phase of y.
  const auto add_product = [&](int64_t segment, int64_t point, int64_t phase) {
    const int64_t of_x = segment * c.points + point, of_y = phase * c.points + point;
    float* to = products + ((phase * c.segments + segment) * c.points + point) * u.panel.size() * of_panel;
    for (int64_t first = 0; first < b.tiles(); first += kMaxTerms) {
      OuterRun<float> run{x + (of_x * rows_of_point(b) + first) * x_.pitch, y + (of_y * rows_of_point(b) + first) * y_.pitch,
                          std::min(b.tiles() - first, kMaxTerms)};
      OuterTile<float> tile{&run, 1, 0, 0, x_.pitch, y_.pitch, nullptr, 0, 0};
      if (swapped_) std::swap(run.a, run.b), std::swap(tile.a_pitch, tile.b_pitch);
      tile.add = add || first > 0, tile.terms = even_part(run.count, terms_of_chain(c.axes));
      for (int64_t panel = 0; panel < u.panel.size(); ++panel, tile.b_offset += width()) {
        for (Upcoming& side : next) side.step();
        sum_panel({0, u.m.size()}, u.panel.begin + panel, to + panel * of_panel, width(), tile, true);
      }
    }
  };
  for (int64_t point = 0; point < c.points; ++point)
    for (int64_t phase = 0; phase < phases.size(); ++phase)
      for (int64_t segment = 0; segment < c.segments; ++segment) add_product(segment, point, phase);
}

// Returns whether all is finite.
bool WinogradSums::sum_unit(const Buffers& buffers, const Unit& u, float* sums, std::byte* scratch) const {
  const auto class_of = [&](int64_t phase) { return phases_[size_t(phase)].of_class; };
  for (int64_t block = u.block.begin; block < u.block.end; ++block) {
    int64_t index = block;
    const TileBlock b = grid_.take_block(index, p_.geometry.batch, block_);
    const RowView<float> x = load(x_, buffers, b, u, scratch), y = load(y_, buffers, b, u, scratch);
    Upcoming next[] = {upcoming(x_, buffers, block + 1, u), upcoming(y_, buffers, block + 1, u)};
    for (Range some{u.phase.begin, 0}; some.begin < u.phase.end; some.begin = some.end) {
      for (some.end = some.begin; some.end < u.phase.end && class_of(some.end) == class_of(some.begin);) ++some.end;
      const TileBlock covered = classes_[class_of(some.begin)].cover(b, grid_);
      if (!transform(buffers, x, y, covered, u, some, scratch)) return false;
      add_products(covered, u, some, block > u.block.begin, scratch, next);
    }
  }
  const float* products = layout_.at<float>(scratch, products_part_);
  const int64_t of_panel = u.m.size() * width(), point = u.panel.size() * of_panel;
  for (int64_t phase = u.phase.begin; phase < u.phase.end; ++phase) {
    const WinogradTiles& c = classes_[class_of(phase)];
    for (int64_t segment = 0; segment < c.segments; ++segment, products += c.points * point) {
      const std::vector<int64_t>& taps = c.tap_positions[size_t(phases_[size_t(phase)].index * c.segments + segment)];
      TapSums of_taps[kMostPoints];
      for (size_t t = 0; t < taps.size(); ++t) of_taps[t] = of_tap(buffers, sums, u.part * p_.geometry.groups + u.group, taps[t]);
      for (int64_t panel = u.panel.begin; panel < u.panel.end; ++panel)
        for (int64_t m = 0; m < u.m.size(); ++m) {
          float* rows[kMostPoints];
          for (size_t t = 0; t < taps.size(); ++t)
            rows[t] = of_taps[t].first + (u.m.begin + m) * of_taps[t].pitch + panel * width();
          tiles_->winograd[c.shape].weights_gradient(products + (panel - u.panel.begin) * of_panel + m * width(), point, rows,
                                                     columns(panel), false);
        }
    }
  }
  return true;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (p.operation != Operation::backward_weights || p.type == Type::f64) return nullptr;
  if (!winograd_allowed(p, isa, request)) return nullptr;
  std::vector<WinogradTiles> classes = WinogradTiles::of_all_phases(p.geometry, Operation::conv_transpose);
  if (classes.empty()) return nullptr;
  if (classes[0].segments > 1 && p.geometry.batch * p.geometry.x_positions() < kLeastPositionsOfSegments) return nullptr;
  // Along several axes the products of a single tile may err by more than the two or three terms of the formula.
  if (classes[0].axes > 1 && classes[0].count(p.geometry.batch) < 2) return nullptr;
  auto plan = std::make_shared<WinogradSums>(p, std::move(classes), isa, request.threads);
  // Registers of matrices take so many channels.
  constexpr int64_t kLeastOfMatrices = 32;
  const bool matrices = request.isa >= Isa::amx && std::min(p.geometry.x_channels, p.geometry.y_channels) >= kLeastOfMatrices;
  return request.by_name || plan->pays(winograd_pays_below(p, request, matrices)) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_sums_avx512(const Problem& p, const Request& request) {
  return make(p, Isa::avx512, request);
}
std::shared_ptr<Plan> make_winograd_sums_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }

}  // namespace torch_ext::cpu
