// SPDX-License-Identifier: Apache-2.0
// backward_weights with kernel = 2 * stride (k4 s2, k8 s4, k16 s8): the transposed form of what winograd.cpp computes, with as
// many products fewer. There a phase of conv_transpose is y = A'[(G g) (B'd)] for three results y, four inputs d and two weights
// g along each axis. So the gradient of the weights is the sum over tiles of
//   G'[(A y) (B'd)]
// with the gradient of the results for y. The sum can be taken before G', and is, for each point of a tile and each phase, a
// matrix product over tiles: of transformed x, which all phases share, and of transformed y.
//
// A thread takes a unit, some phases and channels, and goes through all tiles, a block at a time, which it transforms into its
// cache. The sums of a unit stay there too. Blocks are cut by the shape alone, so that the bits of a sum depend on nothing else.
#include <algorithm>
#include <atomic>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/weight_sums.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kSumsBytes = 1 << 20, kTransformedBytes = 768 << 10;  // of a unit; of its blocks
constexpr int64_t kMinTiles = 24, kMaxTiles = 128;                        // of a block
// What pays along one, two and three axes.
struct Least {
  int64_t channels, pairs, tiles;
};
constexpr Least kLeast[] = {{32, 2048, 128}, {16, 512, 64}, {16, 256, 64}};

class WinogradSums final : public Plan, private WeightSums<float> {
 public:
  WinogradSums(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  bool pays() const;

 private:
  // Some phases, panels and rows of the sums of points, sums[phase][point][panel][m][n].
  struct Unit {
    int64_t group;
    Range phase, panel, m;
  };
  // One operand: x, or y.
  struct Side {
    Strides strides;
    int64_t channels;  // of a group
    bool in_place;
    int64_t pitch = 0;  // of rows of a box and of transformed ones
    Layout::Part box{}, transformed{};
  };

  int64_t phases() const { return int64_t(tiling_.phases.size()); }
  void choose_units(int threads);
  int64_t units() const;
  int64_t unit_sums() const { return unit_phases_ * tiling_.points * unit_panels_ * unit_rows_ * width(); }
  Unit unit(int64_t index) const;
  // The channels of a side that a unit takes.
  Range channels(const Side& side, const Unit& unit) const {
    const Range columns{unit.panel.begin * width(), std::min(unit.panel.end * width(), n_)};
    return (&side == &y_) == swapped_ ? unit.m : columns;
  }
  TileRows load(const Side& side, const void* tensor, const TileBlock& block, const Unit& unit, std::byte* scratch) const;
  bool transform(const Buffers& buffers, const TileBlock& block, const Unit& unit, std::byte* scratch) const;
  void add_products(const TileBlock& block, const Unit& unit, bool add, std::byte* scratch) const;
  bool sum_unit(const Buffers& buffers, const Unit& unit, float* sums, std::byte* scratch) const;

  WinogradTiles tiling_;
  Side x_, y_;
  TileBlock block_;                                // the first one
  int64_t unit_phases_, unit_panels_, unit_rows_;  // at most
  std::shared_ptr<const Plan> exact_;              // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part sums_part_, zeros_part_, products_part_;
};

WinogradSums::WinogradSums(const Problem& problem, Isa isa, int threads)
    : WeightSums(problem, tiles<float>(isa), swapped_suits(problem, tiles<float>(isa))),
      tiling_(p_.geometry, Operation::conv_transpose),
      x_{p_.x, p_.geometry.x_channels, p_.x.channel == 1 || p_.geometry.x_channels == 1},
      y_{p_.y, p_.geometry.y_channels, p_.y.channel == 1 || p_.geometry.y_channels == 1},
      exact_(make_exact_plan(p_, isa, threads)) {
  choose_units(threads);
  const int64_t real = sizeof(float);
  // An odd number of cache lines spreads the rows of a panel over all sets of the L1 cache.
  const auto pitch_of = [&](int64_t channels) { return round_up(round_up(channels, 16) + 16, 32) - 16; };
  const int64_t of_n = pitch_of(unit_panels_ * width()), of_m = pitch_of(unit_rows_);
  x_.pitch = swapped_ ? of_n : of_m, y_.pitch = swapped_ ? of_m : of_n;
  sums_part_ = layout_.shared(sums_bytes());
  zeros_part_ = layout_.shared(std::max(x_.pitch, y_.pitch) * real);
  int64_t x_box = block_.sample.size(), y_box = x_box;
  for (int a = 0; a < kAxes; ++a) {
    const WinogradAxis& axis = tiling_.axis[a];
    x_box *= block_.tile[a].size() * axis.results + (axis.transformed ? 1 : 0);
    y_box *= block_.tile[a].size() * axis.results * axis.stride;
  }
  x_.box = layout_.per_thread(x_.in_place ? 0 : x_box * x_.pitch * real);
  y_.box = layout_.per_thread(y_.in_place ? 0 : y_box * y_.pitch * real);
  x_.transformed = layout_.per_thread(tiling_.points * block_.tiles() * x_.pitch * real);
  y_.transformed = layout_.per_thread(unit_phases_ * tiling_.points * block_.tiles() * y_.pitch * real);
  products_part_ = layout_.per_thread(unit_sums() * real);
  layout_.finish(threads);
}

// As large as their sums may be, so that what they share is transformed once; smaller where there are more threads. First phases
// are shared out, each of which has y of its own.
void WinogradSums::choose_units(int threads) {
  const Geometry& g = p_.geometry;
  const int64_t tallest = tiles_->max_rows[vectors_], real = sizeof(float);
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  const auto choose = [&](auto suits) {
    unit_panels_ = panels_, unit_rows_ = m_;
    for (unit_phases_ = phases(); unit_phases_ > 1; --unit_phases_)
      if (suits()) return;
    for (; unit_panels_ > 1; --unit_panels_)
      if (suits()) return;
    for (int64_t slices = 1; unit_rows_ > tallest; ++slices) {
      unit_rows_ = std::min(round_up(parts_of(m_, slices), tallest), m_);
      if (suits()) return;
    }
  };
  const auto fits = [&] { return unit_sums() * real <= kSumsBytes; };
  choose(fits);
  const int64_t channels = unit_rows_ + unit_phases_ * unit_panels_ * width();
  block_ = tiling_.cut(g.batch, std::clamp(kTransformedBytes / (tiling_.points * channels * real), kMinTiles, kMaxTiles));
  choose([&] {
    const bool even = 7 * round_up(phases(), unit_phases_) <= 8 * phases() && 7 * round_up(panels_, unit_panels_) <= 8 * panels_;
    return fits() && even && shared_evenly(units(), flops, threads);
  });
}

int64_t WinogradSums::units() const {
  return p_.geometry.groups * parts_of(phases(), unit_phases_) * parts_of(panels_, unit_panels_) * parts_of(m_, unit_rows_);
}

WinogradSums::Unit WinogradSums::unit(int64_t index) const {
  const auto take = [&](int64_t extent, int64_t part) {
    const int64_t begin = index % parts_of(extent, part) * part;
    index /= parts_of(extent, part);
    return Range{begin, std::min(begin + part, extent)};
  };
  Unit u;
  u.m = take(m_, unit_rows_), u.panel = take(panels_, unit_panels_), u.phase = take(phases(), unit_phases_);
  u.group = index;
  return u;
}

bool WinogradSums::pays() const {
  const Least& least = kLeast[tiling_.axes - 1];
  return std::min(m_, n_) >= least.channels && m_ * n_ >= least.pairs && tiling_.saved() >= 1.25 &&
         tiling_.count(p_.geometry.batch) >= least.tiles;
}

std::string WinogradSums::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(tiling_.points) + " products for " + text(tiling_.results) + " of y, tile " + text(tiles_->max_rows[vectors_]) +
         "x" + text(width()) + (swapped_ ? " (y by x)" : " (x by y)") + ", block " + text(block_.sample.size()) + "x" +
         text(block_.tile[0].size()) + "x" + text(block_.tile[1].size()) + "x" + text(block_.tile[2].size()) + " tiles, " +
         text(units()) + " units";
}

void WinogradSums::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  float* sums = layout_.at<float>(workspace, sums_part_);
  std::fill_n(layout_.at<float>(workspace, zeros_part_), std::max(x_.pitch, y_.pitch), 0.f);
  std::atomic<bool> finite{true};
  parallel.for_each(units(), [&](int64_t index, int thread) {
    if (finite && !sum_unit(buffers, unit(index), sums, layout_.thread(workspace, thread))) finite = false;
  });
  if (finite) return store(buffers, parallel, sums, 1);
  exact_->run(buffers, parallel);
}

// The rows of a block, with the channels that a unit takes: in the tensor, or brought to a box.
TileRows WinogradSums::load(const Side& side, const void* tensor, const TileBlock& b, const Unit& u, std::byte* scratch) const {
  const Range c = channels(side, u);
  const float* origin = static_cast<const float*>(tensor) + (u.group * side.channels + c.begin) * side.strides.channel;
  if (side.in_place) return {origin, side.strides.outer, {side.strides.axis[0], side.strides.axis[1], side.strides.axis[2]}};
  Range positions[kAxes];
  &side == &x_ ? tiling_.positions_read(b, positions) : tiling_.positions_written(b, positions);
  return load_tile_rows(*tiles_, origin, side.strides, c.size(), b.sample, positions, layout_.at<float>(scratch, side.box),
                        side.pitch);
}

// x[point][tile][c] and y[phase][point][tile][c] of a block; returns whether all is finite.
bool WinogradSums::transform(const Buffers& buffers, const TileBlock& b, const Unit& u, std::byte* scratch) const {
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  const TileRows x = load(x_, buffers.x, b, u, scratch), y = load(y_, buffers.y, b, u, scratch);
  float* to = layout_.at<float>(scratch, x_.transformed);
  alignas(64) float check[kMaxLanes] = {};
  const float* rows[kMostPoints];
  b.for_each([&](int64_t n, const Coordinates& tile) {
    tiling_.list_points(tile, {}, x.axis, x.origin + n * x.sample, zeros, rows);
    tiles_->winograd_input[tiling_.axes](rows, to, b.tiles() * x_.pitch, channels(x_, u).size(), check);
    to += x_.pitch;
  });
  float* of_phase = layout_.at<float>(scratch, y_.transformed);
  for (int64_t phase = u.phase.begin; phase < u.phase.end; ++phase, of_phase += tiling_.points * b.tiles() * y_.pitch) {
    to = of_phase;
    b.for_each([&](int64_t n, const Coordinates& tile) {
      tiling_.list_results(tile, tiling_.phases[size_t(phase)], y.axis, y.origin + n * y.sample, zeros, rows);
      tiles_->winograd_output_gradient[tiling_.axes](rows, to, b.tiles() * y_.pitch, channels(y_, u).size(), check);
      to += y_.pitch;
    });
  }
  return std::all_of(check, check + lanes(), [](float v) { return v == 0; });
}

void WinogradSums::add_products(const TileBlock& b, const Unit& u, bool add, std::byte* scratch) const {
  const float* x = layout_.at<float>(scratch, x_.transformed);
  const float* y = layout_.at<float>(scratch, y_.transformed);
  float* products = layout_.at<float>(scratch, products_part_);
  for (int64_t point = 0; point < tiling_.points; ++point)
    for (int64_t phase = 0; phase < u.phase.size(); ++phase) {
      const int64_t at = phase * tiling_.points + point;
      OuterRun<float> run{x + point * b.tiles() * x_.pitch, y + at * b.tiles() * y_.pitch, b.tiles()};
      OuterTile<float> tile{&run, 1, 0, 0, x_.pitch, y_.pitch, nullptr, 0, 0};
      if (swapped_) std::swap(run.a, run.b), std::swap(tile.a_pitch, tile.b_pitch);
      tile.add = add;
      for (int64_t panel = 0; panel < u.panel.size(); ++panel, tile.b_offset += width())
        sum_panel({0, u.m.size()}, u.panel.begin + panel, products + (at * u.panel.size() + panel) * u.m.size() * width(),
                  width(), tile);
    }
}

// Returns whether all is finite.
bool WinogradSums::sum_unit(const Buffers& buffers, const Unit& u, float* sums, std::byte* scratch) const {
  const int64_t batch = p_.geometry.batch, blocks = tiling_.block_count(batch, block_);
  for (int64_t block = 0; block < blocks; ++block) {
    int64_t index = block;
    const TileBlock b = tiling_.take_block(index, batch, block_);
    if (!transform(buffers, b, u, scratch)) return false;
    add_products(b, u, block > 0, scratch);
  }
  const float* products = layout_.at<float>(scratch, products_part_);
  sums += u.group * group_sums() + u.m.begin * pitch_;
  const int64_t of_panel = u.m.size() * width(), point = u.panel.size() * of_panel;
  for (int64_t phase = u.phase.begin; phase < u.phase.end; ++phase, products += tiling_.points * point)
    for (int64_t panel = u.panel.begin; panel < u.panel.end; ++panel)
      for (int64_t m = 0; m < u.m.size(); ++m) {
        float* rows[kMostPoints];
        const std::vector<int64_t>& taps = tiling_.taps[size_t(phase)];
        for (size_t t = 0; t < taps.size(); ++t) rows[t] = sums + taps[t] * tap_sums() + m * pitch_ + panel * width();
        tiles_->winograd_weights_gradient[tiling_.axes](products + (panel - u.panel.begin) * of_panel + m * width(), point, rows,
                                                        columns(panel));
      }
  return true;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (p.operation != Operation::backward_weights || p.type != Type::f32 || !WinogradTiles::exist(p.geometry)) return nullptr;
  auto plan = std::make_shared<WinogradSums>(p, isa, request.threads);
  return request.by_name || (winograd_allowed(p) && plan->pays()) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_sums_avx512(const Problem& p, const Request& request) {
  return make(p, Isa::avx512, request);
}
std::shared_ptr<Plan> make_winograd_sums_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }

}  // namespace torch_ext::cpu
