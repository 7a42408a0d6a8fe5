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
// or a NaN are left to the other form. Matrix registers take float32 and float16 as sums of bf16, as in gather.cpp.
#include "csrc/cpu/outer.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/rows.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;  // of rows of a and b: a quarter of the L2 cache
// Of a chunk: below the former the trip of a tile's sums to L2 and back costs more than rows that come from L3.
constexpr int64_t kMinPositions = 96, kMaxPositions = 256;
constexpr int64_t kParts = 16, kMaxParts = 64;  // that the positions are summed in; the latter for long sums
constexpr int64_t kMinParts = 8;                // fewer than this do not occupy the threads
constexpr int64_t kPositionsOfPart = 256;       // adding a part costs as much as summing one position
constexpr int64_t kPartsBytes = 64 << 20;
constexpr double kUnitFlops = 4e6;  // of weights that one thread sums at a time: 20 to 50 microseconds
constexpr int64_t kStoreBytes = 128 << 10;

// What an outer-product tile sums over, with the pitches that all its runs share.
template <class Real>
struct Runs {
  std::vector<OuterRun<Real>> list;
  int64_t a_pitch, b_pitch, a_step;
};

// Samples, and positions of x.
struct Chunk {
  int64_t sample_begin, sample_end;
  Region x;
};

Region whole_x(const Problem& p) {
  Region x{};
  for (int a = 0; a < kAxes; ++a) x.end[a] = p.geometry.axis[a].x;
  return x;
}

// Which positions of y the first halves of pairs meet, by their remainders modulo the distance of pairs.
std::vector<bool> met_by_pairs(const Axis& axis) {
  const int64_t period = 2 * axis.stride;
  std::vector<bool> met(size_t(period), false);
  for (int64_t k = 0; k < axis.w; ++k) met[size_t((axis.reach(0, k) % period + period) % period)] = true;
  return met;
}

// What kernels that add to the same sums agree on.
struct Cut {
  bool swapped;   // a is y, b is x
  int64_t pitch;  // of a row of sums
  int64_t chunk_samples, chunk_extent[kAxes];
  int64_t parts;  // of the positions; 0: threads share out the weights instead
};

template <class In>
class Outer final : public Plan {
 public:
  using Real = typename Operand<In>::Real;               // in which is summed
  static constexpr int64_t kTerms = Operand<In>::terms;  // positions of a row of x

  // `exact` are the tiles for what pairs cannot hold; `cut` is given where this is about that.
  Outer(const Problem& problem, const Tiles<Real>& tiles, int threads, Split split = {}, const Tiles<float>* exact = nullptr,
        const Cut* cut = nullptr);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  // Sums the products of a chunk, added to the sums of a group where `add`; returns whether pairs can hold its values, else
  // nothing is summed.
  bool sum_chunk(const Buffers& buffers, const Chunk& chunk, int64_t group, std::byte* scratch, Real* sums, bool add) const;
  int64_t scratch_bytes() const { return layout_.thread_bytes(); }

 private:
  void choose_cut();
  void choose_chunks();
  int64_t chunk_count() const;
  Chunk chunk(int64_t index) const;
  Region reach(const Region& x) const;
  int64_t longest_reach(int axis) const;
  void runs_of(const Chunk& chunk, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y, Runs<Real>& runs) const;
  void sum(const Runs<Real>& runs, int64_t m_begin, int64_t m_end, int64_t panel, Real* sums, bool add) const;
  void sum_part(const Buffers& buffers, int64_t part, int64_t group, std::byte* scratch, Real* sums) const;
  void sum_unit(const RowView<Real>& x, const RowView<Real>& y, int64_t tap, int64_t m_begin, int64_t m_end, int64_t panel,
                Real* sums) const;
  bool sum_all(const Buffers& buffers, const Parallel& parallel, Real* sums) const;
  void store(const Buffers& buffers, const Parallel& parallel, Real* sums) const;
  void tap_of(int64_t index, int64_t* tap) const;

  int64_t lanes() const { return tiles_->lanes; }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t group_sums() const { return taps() * m_ * cut_.pitch; }

  Problem p_;
  const Tiles<Real>* tiles_;
  Split split_;
  std::shared_ptr<const Outer<float>> exact_;  // for values that are not finite or cannot be split, where rows are pairs
  Cut cut_;
  int64_t m_, n_;             // channels of a and b in a group
  int64_t vectors_, panels_;  // of a row of sums
  Rows<In> x_, y_;
  int64_t unit_rows_;  // rows m of the weights that a thread takes at a time
  Layout layout_;
  Layout::Part sums_part_{}, x_part_{}, y_part_{}, exact_part_{};
};

template <class In>
Outer<In>::Outer(const Problem& problem, const Tiles<Real>& tiles, int threads, Split split, const Tiles<float>* exact,
                 const Cut* cut)
    : p_(problem),
      tiles_(&tiles),
      split_(split),
      x_(tiles, p_.type, p_.x, p_.geometry.axis[2].x, p_.geometry.x_channels, whole_x(p_), tiles.a_by_channel, kTerms, kTerms - 1,
         split.parts),
      y_(tiles, p_.type, p_.y, p_.geometry.axis[2].y, p_.geometry.y_channels, reach(whole_x(p_)), false, 1,
         (kTerms - 1) * p_.geometry.axis[2].stride, split.parts,
         kTerms > 1 ? met_by_pairs(p_.geometry.axis[2]) : std::vector{true}) {
  const Geometry& g = p_.geometry;
  if (cut) {
    cut_ = *cut;
  } else {
    choose_cut();
  }
  m_ = cut_.swapped ? g.y_channels : g.x_channels;
  n_ = cut_.swapped ? g.x_channels : g.y_channels;
  const int64_t total = parts_of(n_, lanes()), positions = g.batch * g.x_positions();
  vectors_ = even_part(total, tiles_->max_vectors);
  panels_ = parts_of(total, vectors_);
  if (exact) exact_ = std::make_shared<Outer<float>>(p_, *exact, threads, Split{}, nullptr, &cut_);

  const double flops_of_row = 2.0 * double(positions) * double(vectors_ * lanes()) / kTerms;
  unit_rows_ = std::clamp<int64_t>(int64_t(kUnitFlops / flops_of_row), 1, m_);
  unit_rows_ = std::min(m_, round_up(unit_rows_, tiles_->max_rows[vectors_]));

  sums_part_ = layout_.shared(std::max<int64_t>(cut_.parts, 1) * g.groups * group_sums() * int64_t(sizeof(Real)));
  for (Rows<In>* side : {&x_, &y_}) {
    const int64_t channels = side == &x_ ? g.x_channels : g.y_channels;
    side->set_room(cut_.parts ? channels : g.groups * channels);
    if (side->in_place()) continue;
    Layout::Part& part = side == &x_ ? x_part_ : y_part_;
    if (cut_.parts) {
      int64_t lengths[kAxes];
      for (int a = 0; a < kAxes; ++a) lengths[a] = side == &x_ ? cut_.chunk_extent[a] : longest_reach(a);
      part = layout_.per_thread(side->box_bytes(cut_.chunk_samples, lengths));
    } else {
      part = layout_.shared(side->box_bytes(g.batch));
    }
  }
  if (exact_ && cut_.parts) exact_part_ = layout_.per_thread(exact_->scratch_bytes());
  layout_.finish(threads);
}

template <class In>
void Outer<In>::choose_cut() {
  const Geometry& g = p_.geometry;
  // Lanes go along the side that fills a tile, or is twice the other one; where both or none does, along the one that is
  // contiguous in the result.
  const auto narrow = [&](int64_t side, int64_t other) { return side < std::min(tiles_->max_vectors * lanes(), 2 * other); };
  const bool x_narrow = narrow(g.x_channels, g.y_channels), y_narrow = narrow(g.y_channels, g.x_channels);
  cut_.swapped = !tiles_->a_by_channel && (x_narrow == y_narrow ? p_.w.outer == 1 && g.x_channels > 1 : y_narrow);
  cut_.pitch = round_up(cut_.swapped ? g.x_channels : g.y_channels, lanes());
  const int64_t sums_bytes =
      g.groups * taps() * (cut_.swapped ? g.y_channels : g.x_channels) * cut_.pitch * int64_t(sizeof(Real));
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  cut_.parts = std::min({flops < kManyThreadsFlops ? kParts : kMaxParts, g.batch * g.x_positions() / kPositionsOfPart,
                         kPartsBytes / std::max<int64_t>(sums_bytes, 1)});
  choose_chunks();
  cut_.parts = std::min(cut_.parts, chunk_count());
  while (cut_.parts > kMinParts && !shared_evenly(cut_.parts * g.groups, flops)) --cut_.parts;
  if (cut_.parts < kMinParts) cut_.parts = 0;
}

template <class In>
void Outer<In>::choose_chunks() {
  const Geometry& g = p_.geometry;
  int64_t y_per_x = 1;
  for (const Axis& axis : g.axis) y_per_x *= std::min(axis.stride, std::max<int64_t>(axis.y, 1));
  const int64_t bytes = split_.parts * (g.x_channels / kTerms + y_per_x * g.y_channels) * int64_t(sizeof(Real));
  int64_t most = kTerms * std::clamp<int64_t>(kChunkBytes / bytes, kMinPositions, kMaxPositions);
  for (;; most = most * 7 / 8) {  // until there is one for each part
    cut_.chunk_samples = std::min(cut_axes([&](int a) { return g.axis[a].x; }, most, cut_.chunk_extent, kTerms), g.batch);
    if (cut_.parts < kMinParts || chunk_count() >= cut_.parts || most <= kPositionsOfPart / 4) return;
  }
}

template <class In>
int64_t Outer<In>::chunk_count() const {
  return parts_of(p_.geometry.batch, cut_.chunk_samples) *
         piece_count([&](int a) { return p_.geometry.axis[a].x; }, cut_.chunk_extent);
}

template <class In>
Chunk Outer<In>::chunk(int64_t index) const {
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

// The positions of y that positions of x reach, clipped to y, but for those where rows of pairs begin.
template <class In>
Region Outer<In>::reach(const Region& x) const {
  Region y;
  for (int a = 0; a < kAxes; ++a) {
    const Axis& axis = p_.geometry.axis[a];
    const bool pairs = kTerms > 1 && a == kAxes - 1;
    const int64_t last = pairs ? x.begin[a] + (x.end[a] - 1 - x.begin[a]) / kTerms * kTerms : x.end[a] - 1;
    y.begin[a] = axis.reach(x.begin[a], 0);
    y.end[a] = axis.reach(last, axis.w - 1) + 1;
    if (!pairs) y.begin[a] = std::max<int64_t>(y.begin[a], 0), y.end[a] = std::min(y.end[a], axis.y);
  }
  return y;
}

template <class In>
int64_t Outer<In>::longest_reach(int axis) const {
  int64_t longest = 0;
  Region x = whole_x(p_);
  for (int64_t i = 0, extent = x.end[axis]; i < extent; i += cut_.chunk_extent[axis]) {
    x.begin[axis] = i, x.end[axis] = std::min(i + cut_.chunk_extent[axis], extent);
    const Region y = reach(x);
    longest = std::max(longest, y.end[axis] - y.begin[axis]);
  }
  return longest;
}

template <class In>
std::string Outer<In>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "tile " + text(tiles_->max_rows[vectors_]) + "x" + text(vectors_ * lanes()) +
         (cut_.swapped ? " (y by x)" : " (x by y)") + ", chunk " + text(cut_.chunk_samples) + "x" + text(cut_.chunk_extent[0]) +
         "x" + text(cut_.chunk_extent[1]) + "x" + text(cut_.chunk_extent[2]) + ", " +
         (cut_.parts ? text(cut_.parts) + " parts" : text(unit_rows_) + " rows a unit") + (kTerms > 1 ? ", pairs" : "") +
         (x_.in_place() ? "" : ", x boxed") + (y_.in_place() ? "" : ", y boxed");
}

template <class In>
void Outer<In>::run(const Buffers& buffers, const Parallel& parallel) const {
  Real* sums = layout_.at<Real>(static_cast<std::byte*>(buffers.workspace), sums_part_);
  if (sum_all(buffers, parallel, sums)) {
    store(buffers, parallel, sums);
  } else {
    exact_->run(buffers, parallel);
  }
}

// Returns whether the sums are right, as they are but for tensors that are not finite, where rows are pairs.
template <class In>
bool Outer<In>::sum_all(const Buffers& buffers, const Parallel& parallel, Real* sums) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t groups = p_.geometry.groups;
  std::atomic<bool> finite{true};
  if (cut_.parts) {
    parallel.for_each(cut_.parts * groups, [&](int64_t index, int thread) {
      const ForTiles<Real> ready(*tiles_);
      sum_part(buffers, index / groups, index % groups, layout_.thread(workspace, thread), sums + index * group_sums());
    });
    return true;
  }
  const int64_t batch = p_.geometry.batch;
  const RowView<Real> x =
      x_.load_all(buffers.x, batch, groups, kChunkBytes, layout_.at<Real>(workspace, x_part_), parallel, finite);
  const RowView<Real> y =
      y_.load_all(buffers.y, batch, groups, kChunkBytes, layout_.at<Real>(workspace, y_part_), parallel, finite);
  if (!finite) return false;
  const int64_t slices = parts_of(m_, unit_rows_);
  parallel.for_each(groups * taps() * panels_ * slices, [&](int64_t index, int) {
    const int64_t slice = index % slices, panel = index / slices % panels_, tap = index / slices / panels_ % taps();
    const int64_t group = index / slices / panels_ / taps();
    RowView<Real> x_of_group = x, y_of_group = y;
    x_of_group.origin += group * p_.geometry.x_channels * x.channel;
    y_of_group.origin += group * p_.geometry.y_channels * y.channel;
    const ForTiles<Real> ready(*tiles_);
    sum_unit(x_of_group, y_of_group, tap, slice * unit_rows_, std::min((slice + 1) * unit_rows_, m_), panel,
             sums + group * group_sums());
  });
  return true;
}

// One part of the positions, all the weights of a group.
template <class In>
void Outer<In>::sum_part(const Buffers& buffers, int64_t part, int64_t group, std::byte* scratch, Real* sums) const {
  const int64_t chunks = chunk_count(), begin = part * chunks / cut_.parts, end = (part + 1) * chunks / cut_.parts;
  for (int64_t index = begin; index < end; ++index) {
    const Chunk c = chunk(index);
    const bool add = index > begin;
    if (sum_chunk(buffers, c, group, scratch, sums, add)) continue;
    if constexpr (kTerms > 1) exact_->sum_chunk(buffers, c, group, layout_.at<std::byte>(scratch, exact_part_), sums, add);
  }
}

template <class In>
bool Outer<In>::sum_chunk(const Buffers& buffers, const Chunk& c, int64_t group, std::byte* scratch, Real* sums, bool add) const {
  std::atomic<bool> finite{true};
  const auto rows = [&](const Rows<In>& side, int64_t channels, const void* tensor, const Region& region, Layout::Part box) {
    return side.in_place() ? side.view(tensor, group)
                           : side.load(tensor, group * channels, channels, c.sample_begin, c.sample_end, region,
                                       layout_.at<Real>(scratch, box), finite);
  };
  const RowView<Real> x = rows(x_, p_.geometry.x_channels, buffers.x, c.x, x_part_);
  const RowView<Real> y = rows(y_, p_.geometry.y_channels, buffers.y, reach(c.x), y_part_);
  if (!finite) return false;
  thread_local Runs<Real> runs;
  for (int64_t t = 0; t < taps(); ++t) {
    int64_t tap[kAxes];
    tap_of(t, tap);
    runs_of(c, tap, x, y, runs);
    Real* of_tap = sums + t * m_ * cut_.pitch;
    if (runs.list.empty()) {
      if (!add) std::fill_n(of_tap, m_ * cut_.pitch, Real(0));
      continue;
    }
    for (int64_t panel = 0; panel < panels_; ++panel) sum(runs, 0, m_, panel, of_tap, add);
  }
  return true;
}

// All positions, some rows of one panel of one kernel position.
template <class In>
void Outer<In>::sum_unit(const RowView<Real>& x, const RowView<Real>& y, int64_t t, int64_t m_begin, int64_t m_end, int64_t panel,
                         Real* sums) const {
  thread_local Runs<Real> runs;
  Real* of_tap = sums + t * m_ * cut_.pitch;
  const int64_t first = panel * vectors_ * lanes(), columns = std::min(vectors_ * lanes(), n_ - first);
  int64_t tap[kAxes];
  tap_of(t, tap);
  bool add = false;
  for (int64_t index = 0; index < chunk_count(); ++index) {
    runs_of(chunk(index), tap, x, y, runs);
    if (runs.list.empty()) continue;
    sum(runs, m_begin, m_end, panel, of_tap, add);
    add = true;
  }
  for (int64_t m = m_begin; !add && m < m_end; ++m) std::fill_n(of_tap + m * cut_.pitch + first, columns, Real(0));
}

template <class In>
void Outer<In>::tap_of(int64_t index, int64_t* tap) const {
  for (int a = kAxes - 1; a >= 0; --a) {
    tap[a] = index % p_.geometry.axis[a].w;
    index /= p_.geometry.axis[a].w;
  }
}

// The rows of x in the chunk that the tap connects with a row of y, as runs along the innermost axis.
template <class In>
void Outer<In>::runs_of(const Chunk& c, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y,
                        Runs<Real>& runs) const {
  const Axis* axis = p_.geometry.axis;
  runs.list.clear();
  runs.a_pitch = x.axis[2];
  runs.b_pitch = y.axis[2] * axis[2].stride * kTerms;
  runs.a_step = tiles_->a_by_channel ? x.channel : 1;
  if (cut_.swapped) std::swap(runs.a_pitch, runs.b_pitch);
  int64_t begin[kAxes], end[kAxes];
  for (int a = 0; a < kAxes; ++a) {  // 0 <= i*stride + shift < y
    const int64_t shift = tap[a] * axis[a].dilation - axis[a].offset;
    begin[a] = std::max(c.x.begin[a], shift >= 0 ? 0 : parts_of(-shift, axis[a].stride));
    end[a] = std::min(c.x.end[a], axis[a].y > shift ? parts_of(axis[a].y - shift, axis[a].stride) : 0);
    if (begin[a] >= end[a]) return;
  }
  const int64_t first = begin[2] / kTerms, count = parts_of(end[2], kTerms) - first;  // rows of x
  // The smallest products of parts first, while the sums are small; those below the rounding of the largest are left out.
  for (int order = split_.orders - 1; order >= 0; --order)
    for (int64_t n = c.sample_begin; n < c.sample_end; ++n)
      for (int64_t i0 = begin[0]; i0 < end[0]; ++i0)
        for (int64_t i1 = begin[1]; i1 < end[1]; ++i1) {
          const Real* from_x = x.origin + n * x.sample + i0 * x.axis[0] + i1 * x.axis[1] + first * x.axis[2];
          const Real* from_y = y.origin + n * y.sample + axis[0].reach(i0, tap[0]) * y.axis[0] +
                               axis[1].reach(i1, tap[1]) * y.axis[1] + axis[2].reach(first * kTerms, tap[2]) * y.axis[2];
          for (int i = std::max(0, order - split_.parts + 1); i <= std::min(order, split_.parts - 1); ++i) {
            const Real *of_x = from_x + i * x.plane, *of_y = from_y + (order - i) * y.plane;
            runs.list.push_back({cut_.swapped ? of_y : of_x, cut_.swapped ? of_x : of_y, count});
          }
        }
}

template <class In>
void Outer<In>::sum(const Runs<Real>& runs, int64_t m_begin, int64_t m_end, int64_t panel, Real* sums, bool add) const {
  const int64_t first = panel * vectors_ * lanes(), columns = std::min(vectors_ * lanes(), n_ - first);
  const int64_t vectors = parts_of(columns, lanes()), tallest = tiles_->max_rows[vectors];
  const int64_t count = parts_of(m_end - m_begin, tallest);
  for (int64_t i = 0, m = m_begin; i < count; ++i) {
    // Tiles of even height.
    const int64_t rows = std::min(round_up((m_end - m) / (count - i), tiles_->row_step), m_end - m);
    tiles_->outer[vectors][rows]({runs.list.data(), int64_t(runs.list.size()), m * runs.a_step, first, runs.a_pitch, runs.b_pitch,
                                  sums + m * cut_.pitch + first, cut_.pitch, columns, add, int(rows), runs.a_step});
    m += rows;
  }
}

// Adds the parts in their order and brings the sums into the result's layout, some rows at a time.
template <class In>
void Outer<In>::store(const Buffers& buffers, const Parallel& parallel, Real* sums) const {
  const Geometry& g = p_.geometry;
  const int64_t rows = std::clamp<int64_t>(kStoreBytes / (taps() * cut_.pitch * int64_t(sizeof(Real))), 1, m_);
  const int64_t slices = parts_of(m_, rows), part_stride = g.groups * group_sums();
  const int64_t m_stride = cut_.swapped ? p_.w.channel : p_.w.outer, n_stride = cut_.swapped ? p_.w.outer : p_.w.channel;
  const Box box{{g.axis[0].w, g.axis[1].w, g.axis[2].w}, {p_.w.axis[0], p_.w.axis[1], p_.w.axis[2]}, n_, n_stride};
  parallel.for_each(g.groups * slices, [&](int64_t index, int) {
    const int64_t group = index / slices, begin = index % slices * rows, end = std::min(begin + rows, m_);
    Real* of_group = sums + group * group_sums();
    for (int64_t part = 1; part < cut_.parts; ++part)
      for (int64_t t = 0; t < taps(); ++t) {
        Real* to = of_group + (t * m_ + begin) * cut_.pitch;
        const Real* from = to + part * part_stride;
        for (int64_t i = 0; i < (end - begin) * cut_.pitch; ++i) to[i] += from[i];
      }
    for (int64_t m = begin; m < end; ++m)
      store_box(*tiles_, p_.type, of_group + m * cut_.pitch, m_ * cut_.pitch,
                element(buffers.w, p_.type, group * g.x_channels * p_.w.outer + m * m_stride), box);
  });
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
  if (!accepts(p) || p.type == Type::f64 || !pairs_pay(p.geometry.axis[kAxes - 1])) return nullptr;
  const Tiles<float>& exact = cpu::tiles<float>(std::min(request.isa, Isa::avx512));
  if (p.type == Type::bf16) return std::make_shared<Outer<bf16>>(p, tiles, request.threads, split_of(p), &exact);
  if (!tiles.a_by_channel) return nullptr;  // vectors multiply float32 as fast
  return std::make_shared<Outer<SplitBf16>>(p, tiles, request.threads, split_of(p), &exact);
}

#if defined(__x86_64__)
std::shared_ptr<Plan> make_outer_amx(const Problem& p, const Request& request) {
  // Tiles of 16 channels by 16 by 32 positions of a line: where less than a quarter would be used, others are faster.
  const Geometry& g = p.geometry;
  const int64_t least = p.type == Type::bf16 ? 12 : 32;  // what is split must pay for that too
  const bool few = std::min(g.x_channels, g.y_channels) < least || g.axis[kAxes - 1].x < 8;
  if (!request.by_name && (few || !matrices_take(p.type))) return nullptr;
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
