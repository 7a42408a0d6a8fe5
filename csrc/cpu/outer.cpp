// SPDX-License-Identifier: Apache-2.0
// The dense kernel of backward_weights, for any geometry: each kernel position is a matrix product over the positions of the
// images,
//   w[k][m][n] = sum over samples and i of a[i][m] * b[o(i, k)][n],
// a sum of outer products of rows of channels, where (a, b) are x and y or, where that suits the result's layout or the lanes
// better, y and x. Positions are cut into chunks that fit the cache. Where the positions outnumber the weights each thread sums
// its own part of the positions, and the parts, whose number depends on the shape alone, are added in a fixed order; otherwise
// threads share out the weights.
//
// Where products of pairs of bf16 are fast, a row holds pairs of positions, i and i+1 along the innermost axis of x, and what
// they meet in y: o and o+stride, for every o. Halves of pairs that lie outside are zero, so that tensors that hold an infinity
// or a NaN are left to the other form.
#include "csrc/cpu/outer.h"

#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/split.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kSliceBytes = 64 << 10;  // of x and y that a thread brings at a time

// What an outer-product tile sums over, with the pitches that all its runs share.
template <class Real>
struct Runs {
  std::vector<OuterRun<Real>> list;
  int64_t a_pitch, b_pitch;
};

// Which positions of y the first halves of pairs meet, by their remainders modulo the distance of pairs.
std::vector<bool> met_by_pairs(const Axis& axis) {
  const int64_t period = 2 * axis.stride;
  std::vector<bool> met(size_t(period), false);
  for (int64_t k = 0; k < axis.w; ++k) met[size_t((axis.reach(0, k) % period + period) % period)] = true;
  return met;
}

template <class In>
class Outer final : public OuterSums<typename Operand<In>::Real> {
 public:
  using Real = typename Operand<In>::Real;               // in which is summed
  static constexpr int64_t kTerms = Operand<In>::terms;  // positions of a row of x

  // `exact` are the tiles for what pairs cannot hold; `cut` is given where this is about that.
  Outer(const Problem& problem, const Tiles<Real>& tiles, int threads, const Tiles<float>* exact = nullptr,
        const Cut* cut = nullptr);
  std::string describe() const override;
  bool sum_chunk(const Buffers& buffers, const Chunk& chunk, int64_t group, Range panels, std::byte* scratch, Real* sums,
                 bool add, const Chunk* after) const override;

 private:
  using Base = OuterSums<Real>;
  using Base::p_, Base::tiles_, Base::cut_, Base::layout_, Base::m_, Base::panels_;

  Region reach(const Region& x) const { return Base::reach(x, kTerms > 1); }
  std::array<Upcoming, 2> upcoming(const Buffers& buffers, const Chunk& chunk, int64_t group, int64_t panels) const;
  void runs_of(const Chunk& chunk, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y, Runs<Real>& runs) const;
  void sum(const Runs<Real>& runs, Range m, int64_t panel, Real* sums, int64_t pitch, bool add,
           std::span<Upcoming> next = {}) const;
  bool sum_units(const Buffers& buffers, const Parallel& parallel) const override;
  void sum_unit(const RowView<Real>& x, const RowView<Real>& y, const SumsUnit<Real>& unit) const;

  Rows<In> x_, y_;
  Layout::Part x_part_{}, y_part_{};
};

template <class In>
Outer<In>::Outer(const Problem& problem, const Tiles<Real>& tiles, int threads, const Tiles<float>* exact, const Cut* cut)
    : Base(problem, tiles, kTerms, cut),
      x_(tiles, p_.type, p_.x, p_.geometry.axis[2].x, p_.geometry.x_channels, whole_x(p_), 1, kTerms, kTerms - 1),
      y_(tiles, p_.type, p_.y, p_.geometry.axis[2].y, p_.geometry.y_channels, reach(whole_x(p_)), p_.geometry.axis[2].stride, 1,
         (kTerms - 1) * p_.geometry.axis[2].stride, kTerms > 1 ? met_by_pairs(p_.geometry.axis[2]) : std::vector{true}) {
  const Geometry& g = p_.geometry;
  if (exact) Base::set_exact(std::make_shared<Outer<float>>(p_, *exact, threads, nullptr, &cut_));
  for (Rows<In>* side : {&x_, &y_}) {
    const int64_t channels = side == &x_ ? g.x_channels : g.y_channels;
    side->set_room(cut_.parts ? channels : g.groups * channels);
    if (side->in_place()) continue;
    Layout::Part& part = side == &x_ ? x_part_ : y_part_;
    if (cut_.parts) {
      int64_t lengths[kAxes] = {cut_.chunk_extent[0], cut_.chunk_extent[1], cut_.chunk_extent[2]};
      if (side == &y_) Base::longest_reach(kTerms > 1, lengths);
      part = layout_.per_thread(side->box_bytes(cut_.chunk_samples, lengths));
    } else {
      part = layout_.shared(side->box_bytes(g.batch));
    }
  }
  Base::finish_layout(threads);
}

template <class In>
std::string Outer<In>::describe() const {
  return Base::describe_cut() + (kTerms > 1 ? ", pairs" : "") + (x_.in_place() ? "" : ", x boxed") +
         (y_.in_place() ? "" : ", y boxed");
}

template <class In>
bool Outer<In>::sum_units(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t groups = p_.geometry.groups;
  std::atomic<bool> finite{true};
  const int64_t batch = p_.geometry.batch;
  const RowView<Real> x =
      x_.load_all(buffers.x, batch, groups, kSliceBytes, layout_.template at<Real>(workspace, x_part_), parallel, finite);
  const RowView<Real> y =
      y_.load_all(buffers.y, batch, groups, kSliceBytes, layout_.template at<Real>(workspace, y_part_), parallel, finite);
  if (!finite) return false;
  Base::for_each_unit(buffers, parallel, false, [&](const SumsUnit<Real>& unit, std::byte*) {
    RowView<Real> x_of_group = x, y_of_group = y;
    x_of_group.origin += unit.group * p_.geometry.x_channels * x.channel;
    y_of_group.origin += unit.group * p_.geometry.y_channels * y.channel;
    sum_unit(x_of_group, y_of_group, unit);
  });
  return true;
}

template <class In>
bool Outer<In>::sum_chunk(const Buffers& buffers, const Chunk& c, int64_t group, Range panels, std::byte* scratch, Real* sums,
                          bool add, const Chunk* after) const {
  std::atomic<bool> finite{true};
  const auto rows = [&](const Rows<In>& side, int64_t channels, const void* tensor, const Region& region, Layout::Part box) {
    return side.in_place() ? side.view(tensor, group)
                           : side.load(tensor, group * channels, channels, c.sample_begin, c.sample_end, region,
                                       layout_.template at<Real>(scratch, box), finite);
  };
  const RowView<Real> x = rows(x_, p_.geometry.x_channels, buffers.x, c.x, x_part_);
  const RowView<Real> y = rows(y_, p_.geometry.y_channels, buffers.y, reach(c.x), y_part_);
  if (!finite) return false;
  std::array<Upcoming, 2> next;
  if (after) next = upcoming(buffers, *after, group, panels.size());
  thread_local Runs<Real> runs;
  Base::for_each_panel(
      group, panels, sums, add,
      [&](const int64_t* tap) {
        runs_of(c, tap, x, y, runs);
        return !runs.list.empty();
      },
      [&](const SumsUnit<Real>& unit) { sum(runs, unit.m, unit.panel, unit.sums, unit.pitch, add, next); });
  return true;
}

// What another chunk reads, in a step for each tile of this one; rows of planes are asked for as they are brought to boxes.
template <class In>
std::array<Upcoming, 2> Outer<In>::upcoming(const Buffers& buffers, const Chunk& c, int64_t group, int64_t panels) const {
  const int64_t steps = panels * parts_of(m_, tiles_->max_rows[parts_of(Base::width(), Base::lanes())]);
  std::array<Upcoming, 2> next{Upcoming(steps), Upcoming(steps)};
  const auto patch = [&](const Region& region, int64_t channels) {
    Patch of{{c.sample_begin, c.sample_end}, {group * channels, (group + 1) * channels}, {}};
    for (int a = 0; a < kAxes; ++a) of.axis[a] = {region.begin[a], region.end[a]};
    return of;
  };
  if (p_.x.channel == 1) next[0].reads(p_.type, buffers.x, p_.x, patch(c.x, p_.geometry.x_channels));
  if (p_.y.channel == 1) next[1].reads(p_.type, buffers.y, p_.y, patch(reach(c.x), p_.geometry.y_channels));
  return next;
}

// All positions, some rows of one panel of one kernel position.
template <class In>
void Outer<In>::sum_unit(const RowView<Real>& x, const RowView<Real>& y, const SumsUnit<Real>& unit) const {
  thread_local Runs<Real> runs;
  int64_t tap[kAxes];
  Base::tap_of(unit.tap, tap);
  bool add = false;
  for (int64_t index = 0; index < Base::chunk_count(); ++index) {
    runs_of(Base::chunk(index), tap, x, y, runs);
    if (runs.list.empty()) continue;
    sum(runs, unit.m, unit.panel, unit.sums, unit.pitch, add);
    add = true;
  }
  if (!add) Base::clear(unit);
}

// The rows of x in the chunk that the tap connects with a row of y, as runs along the innermost axis.
template <class In>
void Outer<In>::runs_of(const Chunk& c, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y,
                        Runs<Real>& runs) const {
  const Axis* axis = p_.geometry.axis;
  runs.list.clear();
  runs.a_pitch = x.axis[2];
  runs.b_pitch = y.axis[2] * axis[2].stride * kTerms;
  if (cut_.swapped) std::swap(runs.a_pitch, runs.b_pitch);
  Range inside[kAxes];
  if (!Base::connected(c.x, tap, inside)) return;
  const int64_t first = inside[2].begin / kTerms, count = parts_of(inside[2].end, kTerms) - first;  // rows of x
  for (int64_t n = c.sample_begin; n < c.sample_end; ++n)
    for (int64_t i0 = inside[0].begin; i0 < inside[0].end; ++i0)
      for (int64_t i1 = inside[1].begin; i1 < inside[1].end; ++i1) {
        const Real* of_x = x.origin + n * x.sample + i0 * x.axis[0] + i1 * x.axis[1] + first * x.axis[2];
        const Real* of_y = y.origin + n * y.sample + axis[0].reach(i0, tap[0]) * y.axis[0] +
                           axis[1].reach(i1, tap[1]) * y.axis[1] + axis[2].reach(first * kTerms, tap[2]) * y.axis[2];
        runs.list.push_back({cut_.swapped ? of_y : of_x, cut_.swapped ? of_x : of_y, count});
      }
}

template <class In>
void Outer<In>::sum(const Runs<Real>& runs, Range m, int64_t panel, Real* sums, int64_t pitch, bool add,
                    std::span<Upcoming> next) const {
  OuterTile<Real> tile{};
  tile.runs = runs.list.data(), tile.run_count = int64_t(runs.list.size());
  tile.b_offset = panel * Base::width(), tile.a_pitch = runs.a_pitch, tile.b_pitch = runs.b_pitch, tile.add = add;
  Base::sum_panel(m, panel, sums, pitch, tile, false, next);
}

bool accepts(const Problem& p) {
  const Geometry& g = p.geometry;
  return p.operation == Operation::backward_weights && g.batch > 0 && g.w_size() > 0 && g.x_positions() > 0 &&
         g.y_positions() > 0;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!accepts(p)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Outer<double>>(p, tiles<double>(isa), request.threads);
  return std::make_shared<Outer<float>>(p, tiles<float>(isa), request.threads);
}

// Where lines are short, or much of what they reach is not there, too many products would be with zeros.
bool pairs_pay(const Axis& axis) {
  const int64_t reached = axis.reach(axis.x - 1, axis.w - 1) - axis.reach(0, 0) + 1;
  return axis.x > 1 && reached <= 2 * axis.y + 16;
}

}  // namespace

std::shared_ptr<Plan> make_outer_of_pairs(const Problem& p, const Tiles<float>& tiles, const Request& request) {
  if (!accepts(p) || p.type == Type::f64) return nullptr;
  const Tiles<float>& exact = cpu::tiles<float>(std::min(request.isa, Isa::avx512));
  if (tiles.matrices) return make_outer_of_matrices(p, tiles, request.threads, exact);
  if (p.type != Type::bf16 || !pairs_pay(p.geometry.axis[kAxes - 1])) return nullptr;  // vectors multiply float32 as fast
  return std::make_shared<Outer<bf16>>(p, tiles, request.threads, &exact);
}

std::shared_ptr<const OuterSums<float>> make_exact_outer(const Problem& p, const Tiles<float>& tiles, int threads,
                                                         const Cut& cut) {
  return std::make_shared<Outer<float>>(p, tiles, threads, nullptr, &cut);
}

#if defined(__x86_64__)
std::shared_ptr<Plan> make_outer_amx(const Problem& p, const Request& request) {
  // Registers of 16 channels and 32 positions are faster than vectors even where they are mostly empty, but for long rows of taps
  // that few channels meet (8 to 512 channels, k2 s2, 8x8: 0.5 of the time; 2 groups of 32 to 8, k4 s2, 32x32: 0.5; 4 to 320, k7
  // s1: 1.5). What is split must pay for that too; its lines are short where weights outnumber the positions, and there it loses
  // (24 ms against 15 for planes of 4x4 with 512 and 256 channels), as it does on a line of 100 positions, where its registers
  // take 128 (8.7 against 6.2).
  constexpr int64_t kLongRow = 600, kMostPairs = 960, kLine = 32;
  const Geometry& g = p.geometry;
  const int64_t positions = g.batch * g.x_positions(), row = g.y_channels * g.w_positions();
  const bool long_row = row >= kLongRow * g.x_channels && g.x_channels * g.y_channels < kMostPairs;
  const bool split = p.type != Type::bf16, few_channels = std::min(g.x_channels, g.y_channels) < kLine;
  const bool few =
      split ? few_channels || positions < 4 * kLine || g.axis[kAxes - 1].x < kLine / 4 : long_row || positions < kLine;
  if (!request.by_name && (few || !matrices_take(p))) return nullptr;
  return make_outer_of_pairs(p, amx_tiles(), request);
}
std::shared_ptr<Plan> make_outer_avx512_bf16(const Problem& p, const Request& request) {
  return request.by_name || pairs_are_fast() ? make_outer_of_pairs(p, pair_tiles(), request) : nullptr;
}
#endif
std::shared_ptr<Plan> make_outer_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_outer_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_outer_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
