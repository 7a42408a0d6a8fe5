// SPDX-License-Identifier: Apache-2.0
// The dense kernel of backward_weights, for any geometry: each kernel position is a matrix product over the positions of the
// images,
//   w[k][m][n] = sum over samples and i of a[i][m] * b[o(i, k)][n],
// a sum of outer products of rows of channels, where (a, b) are x and y or, where that suits the result's layout or the lanes
// better, y and x. Positions are cut into chunks that fit the cache. Where the positions outnumber the weights each thread sums
// its own part of the positions, and the parts, whose number depends on the shape alone, are added in a fixed order; otherwise
// threads share out the weights.
#include <algorithm>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kChunkBytes = 256 << 10;  // of rows of a and b: a quarter of the L2 cache
constexpr int64_t kChunkPositions = 256;    // beyond this the trip of a tile's sums to L2 and back is amortised
constexpr int64_t kMaxParts = 64;           // parts that the positions are summed in
constexpr int64_t kMinParts = 8;            // fewer than this do not occupy the threads
constexpr int64_t kPositionsOfPart = 256;   // adding a part costs as much as summing one position
constexpr int64_t kPartsBytes = 64 << 20;
constexpr double kUnitFlops = 4e6;  // of weights that one thread sums at a time: 20 to 50 microseconds
constexpr int64_t kStoreBytes = 128 << 10;

// x or y as rows of contiguous channels: in place, or brought to a box.
struct Side {
  Strides strides;
  int64_t extent[kAxes], channels;  // channels of a group
  bool in_place;
  int64_t pitch;  // of a box
};

// Rows of one group: where sample 0, position 0 would lie, and the strides from there.
template <class Real>
struct RowView {
  const Real* origin;
  int64_t sample, axis[kAxes];
};

// What an outer-product tile sums over, with the pitches that all its runs share.
template <class Real>
struct Runs {
  std::vector<OuterRun<Real>> list;
  int64_t a_pitch, b_pitch;
};

// Samples, and positions of x.
struct Chunk {
  int64_t sample_begin, sample_end, begin[kAxes], end[kAxes];
};

template <class Real>
class Outer final : public Plan {
 public:
  Outer(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  void choose_chunks();
  int64_t chunk_count() const;
  Chunk chunk(int64_t index) const;
  void reach(int axis, int64_t begin, int64_t end, int64_t& first, int64_t& last) const;
  int64_t longest_reach(int axis) const;
  RowView<Real> view(const Side& side, const void* tensor, int64_t group) const;
  RowView<Real> load(const Side& side, const void* tensor, int64_t first_channel, int64_t channels, int64_t sample_begin,
                     int64_t sample_end, const int64_t* first, const int64_t* last, Real* box) const;
  RowView<Real> load_all(const Side& side, const void* tensor, Real* box, const Parallel& parallel) const;
  void runs_of(const Chunk& chunk, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y, Runs<Real>& runs) const;
  void sum(const Runs<Real>& runs, int64_t m_begin, int64_t m_end, int64_t panel, Real* sums) const;
  void sum_part(const Buffers& buffers, int64_t part, int64_t group, std::byte* scratch, Real* sums) const;
  void sum_unit(const RowView<Real>& x, const RowView<Real>& y, int64_t tap, int64_t m_begin, int64_t m_end, int64_t panel,
                Real* sums) const;
  void store(const Buffers& buffers, const Parallel& parallel, Real* sums) const;
  void tap_of(int64_t index, int64_t* tap) const;

  int64_t lanes() const { return tiles_->lanes; }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t group_sums() const { return taps() * m_ * pitch_; }

  Problem p_;
  const Tiles<Real>* tiles_;
  bool swapped_;              // a is y, b is x
  int64_t m_, n_, pitch_;     // channels of a and b in a group; pitch of a row of sums
  int64_t vectors_, panels_;  // of a row of sums
  Side x_, y_;
  int64_t chunk_samples_, chunk_extent_[kAxes];
  int64_t parts_;      // of the positions; 0: threads share out the weights instead
  int64_t unit_rows_;  // rows m of the weights that a thread takes at a time
  Layout layout_;
  Layout::Part sums_part_{}, x_part_{}, y_part_{};
};

template <class Real>
Outer<Real>::Outer(const Problem& problem, Isa isa, int threads) : p_(problem), tiles_(&tiles<Real>(isa)) {
  const Geometry& g = p_.geometry;
  // Lanes go along the wider side; where both fill a vector, along the one that is contiguous in the result.
  const bool x_narrow = g.x_channels < lanes(), y_narrow = g.y_channels < lanes();
  swapped_ = x_narrow == y_narrow ? p_.w.outer == 1 && g.x_channels > 1 : y_narrow;
  m_ = swapped_ ? g.y_channels : g.x_channels;
  n_ = swapped_ ? g.x_channels : g.y_channels;
  const int64_t total = parts_of(n_, lanes());
  panels_ = parts_of(total, tiles_->max_vectors);
  vectors_ = parts_of(total, panels_);
  panels_ = parts_of(total, vectors_);
  pitch_ = round_up(n_, lanes());

  const bool same_type = bytes_of(p_.type) == int64_t(sizeof(Real));
  const auto side = [&](const Strides& strides, int64_t channels, int64_t Axis::*extent) {
    Side s{strides, {}, channels, same_type && (strides.channel == 1 || channels == 1), 0};
    for (int a = 0; a < kAxes; ++a) s.extent[a] = g.axis[a].*extent;
    return s;
  };
  x_ = side(p_.x, g.x_channels, &Axis::x);
  y_ = side(p_.y, g.y_channels, &Axis::y);
  choose_chunks();

  const int64_t sums_bytes = g.groups * group_sums() * int64_t(sizeof(Real));
  const int64_t positions = g.batch * g.x_positions();
  parts_ = std::min({kMaxParts, positions / kPositionsOfPart, kPartsBytes / std::max<int64_t>(sums_bytes, 1), chunk_count()});
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  while (parts_ > kMinParts && !shared_evenly(parts_ * g.groups, flops)) --parts_;
  if (parts_ < kMinParts) parts_ = 0;

  // A pitch that is a multiple of 2 KB would put neighbouring rows into a few sets of the L1 cache.
  for (Side* side : {&x_, &y_}) {
    side->pitch = round_up(parts_ ? side->channels : g.groups * side->channels, lanes());
    if (side->pitch * int64_t(sizeof(Real)) % 2048 == 0) side->pitch += 64 / int64_t(sizeof(Real));
  }
  const double flops_of_row = 2.0 * double(positions) * double(vectors_ * lanes());
  unit_rows_ = std::clamp<int64_t>(int64_t(kUnitFlops / flops_of_row), 1, m_);
  unit_rows_ = std::min(m_, round_up(unit_rows_, tiles_->max_rows[vectors_]));

  sums_part_ = layout_.shared(std::max<int64_t>(parts_, 1) * sums_bytes);
  for (Side* side : {&x_, &y_}) {
    if (side->in_place) continue;
    Layout::Part& part = side == &x_ ? x_part_ : y_part_;
    const int64_t row_bytes = side->pitch * int64_t(sizeof(Real));
    if (parts_) {
      int64_t rows = chunk_samples_;
      for (int a = 0; a < kAxes; ++a) rows *= side == &x_ ? chunk_extent_[a] : longest_reach(a);
      part = layout_.per_thread(rows * row_bytes);
    } else {
      part = layout_.shared(g.batch * side->extent[0] * side->extent[1] * side->extent[2] * row_bytes);
    }
  }
  layout_.finish(threads);
}

template <class Real>
void Outer<Real>::choose_chunks() {
  const Geometry& g = p_.geometry;
  int64_t y_per_x = 1;
  for (const Axis& axis : g.axis) y_per_x *= std::min(axis.stride, std::max<int64_t>(axis.y, 1));
  const int64_t bytes = (g.x_channels + y_per_x * g.y_channels) * int64_t(sizeof(Real));
  int64_t room = std::clamp<int64_t>(kChunkBytes / bytes, 1, kChunkPositions);
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t extent = std::max<int64_t>(x_.extent[a], 1);
    chunk_extent_[a] = parts_of(extent, parts_of(extent, room));
    room = std::max<int64_t>(1, room / chunk_extent_[a]);
  }
  chunk_samples_ = std::clamp<int64_t>(room, 1, g.batch);
}

template <class Real>
int64_t Outer<Real>::chunk_count() const {
  int64_t count = parts_of(p_.geometry.batch, chunk_samples_);
  for (int a = 0; a < kAxes; ++a) count *= parts_of(x_.extent[a], chunk_extent_[a]);
  return count;
}

template <class Real>
Chunk Outer<Real>::chunk(int64_t index) const {
  Chunk c;
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t parts = parts_of(x_.extent[a], chunk_extent_[a]);
    c.begin[a] = index % parts * chunk_extent_[a];
    c.end[a] = std::min(c.begin[a] + chunk_extent_[a], x_.extent[a]);
    index /= parts;
  }
  c.sample_begin = index * chunk_samples_;
  c.sample_end = std::min(c.sample_begin + chunk_samples_, p_.geometry.batch);
  return c;
}

// The positions of y that the positions [begin, end) of x reach along one axis, clipped to y.
template <class Real>
void Outer<Real>::reach(int axis, int64_t begin, int64_t end, int64_t& first, int64_t& last) const {
  const Axis& a = p_.geometry.axis[axis];
  first = std::max<int64_t>(0, a.reach(begin, 0));
  last = std::min(a.y - 1, a.reach(end - 1, a.w - 1));
}

template <class Real>
int64_t Outer<Real>::longest_reach(int axis) const {
  int64_t longest = 0;
  for (int64_t i = 0; i < x_.extent[axis]; i += chunk_extent_[axis]) {
    int64_t first, last;
    reach(axis, i, std::min(i + chunk_extent_[axis], x_.extent[axis]), first, last);
    longest = std::max(longest, last - first + 1);
  }
  return longest;
}

template <class Real>
std::string Outer<Real>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "tile " + text(tiles_->max_rows[vectors_]) + "x" + text(vectors_ * lanes()) + (swapped_ ? " (y by x)" : " (x by y)") +
         ", chunk " + text(chunk_samples_) + "x" + text(chunk_extent_[0]) + "x" + text(chunk_extent_[1]) + "x" +
         text(chunk_extent_[2]) + ", " + (parts_ ? text(parts_) + " parts" : text(unit_rows_) + " rows a unit") +
         (x_.in_place ? "" : ", x boxed") + (y_.in_place ? "" : ", y boxed");
}

template <class Real>
void Outer<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t groups = p_.geometry.groups;
  Real* sums = layout_.at<Real>(workspace, sums_part_);
  if (parts_) {
    parallel.for_each(parts_ * groups, [&](int64_t index, int thread) {
      sum_part(buffers, index / groups, index % groups, layout_.thread(workspace, thread), sums + index * group_sums());
    });
  } else {
    const RowView<Real> x = load_all(x_, buffers.x, layout_.at<Real>(workspace, x_part_), parallel);
    const RowView<Real> y = load_all(y_, buffers.y, layout_.at<Real>(workspace, y_part_), parallel);
    const int64_t x_group = x_.channels * (x_.in_place ? x_.strides.channel : 1);
    const int64_t y_group = y_.channels * (y_.in_place ? y_.strides.channel : 1);
    const int64_t slices = parts_of(m_, unit_rows_);
    parallel.for_each(groups * taps() * panels_ * slices, [&](int64_t index, int) {
      const int64_t slice = index % slices, panel = index / slices % panels_, tap = index / slices / panels_ % taps();
      const int64_t group = index / slices / panels_ / taps();
      RowView<Real> x_of_group = x, y_of_group = y;
      x_of_group.origin += group * x_group;
      y_of_group.origin += group * y_group;
      sum_unit(x_of_group, y_of_group, tap, slice * unit_rows_, std::min((slice + 1) * unit_rows_, m_), panel,
               sums + group * group_sums());
    });
  }
  store(buffers, parallel, sums);
}

// The rows of a group in the tensor itself.
template <class Real>
RowView<Real> Outer<Real>::view(const Side& side, const void* tensor, int64_t group) const {
  const Strides& s = side.strides;
  return {static_cast<const Real*>(tensor) + group * side.channels * s.channel, s.outer, {s.axis[0], s.axis[1], s.axis[2]}};
}

// Brings the positions [first, last] of some samples and channels to the box.
template <class Real>
RowView<Real> Outer<Real>::load(const Side& side, const void* tensor, int64_t first_channel, int64_t channels,
                                int64_t sample_begin, int64_t sample_end, const int64_t* first, const int64_t* last,
                                Real* box) const {
  const Strides& s = side.strides;
  Box shape{{}, {s.axis[0], s.axis[1], s.axis[2]}, channels, s.channel};
  int64_t offset = first_channel * s.channel;
  for (int a = 0; a < kAxes; ++a) {
    if (last[a] < first[a]) return {};
    shape.extent[a] = last[a] - first[a] + 1;
    offset += first[a] * s.axis[a];
  }
  const int64_t pitch = side.pitch;
  RowView<Real> rows{box, shape.positions() * pitch, {shape.extent[1] * shape.extent[2] * pitch, shape.extent[2] * pitch, pitch}};
  for (int64_t n = sample_begin; n < sample_end; ++n)
    load_box(*tiles_, p_.type, element(tensor, p_.type, n * s.outer + offset), shape, box + (n - sample_begin) * rows.sample,
             pitch);
  rows.origin -= sample_begin * rows.sample;
  for (int a = 0; a < kAxes; ++a) rows.origin -= first[a] * rows.axis[a];
  return rows;
}

// All samples, positions and channels; threads take a sample and a slice of its first long axis at a time.
template <class Real>
RowView<Real> Outer<Real>::load_all(const Side& side, const void* tensor, Real* box, const Parallel& parallel) const {
  if (side.in_place) return view(side, tensor, 0);
  const int64_t channels = p_.geometry.groups * side.channels, *extent = side.extent;
  int axis = 0;
  while (axis < kAxes - 1 && extent[axis] == 1) ++axis;
  const int64_t positions = extent[0] * extent[1] * extent[2], slice_positions = positions / extent[axis];
  const int64_t slice =
      std::clamp<int64_t>(kChunkBytes / (slice_positions * side.pitch * int64_t(sizeof(Real))), 1, extent[axis]);
  const int64_t slices = parts_of(extent[axis], slice);
  const int64_t sample = positions * side.pitch;
  parallel.for_each(p_.geometry.batch * slices, [&](int64_t index, int) {
    const int64_t n = index / slices;
    int64_t first[kAxes] = {0, 0, 0}, last[kAxes] = {extent[0] - 1, extent[1] - 1, extent[2] - 1};
    first[axis] = index % slices * slice;
    last[axis] = std::min(first[axis] + slice, extent[axis]) - 1;
    load(side, tensor, 0, channels, n, n + 1, first, last, box + n * sample + first[axis] * slice_positions * side.pitch);
  });
  return {box, sample, {extent[1] * extent[2] * side.pitch, extent[2] * side.pitch, side.pitch}};
}

// One part of the positions, all the weights of a group.
template <class Real>
void Outer<Real>::sum_part(const Buffers& buffers, int64_t part, int64_t group, std::byte* scratch, Real* sums) const {
  std::fill(sums, sums + group_sums(), Real(0));
  thread_local Runs<Real> runs;
  const int64_t chunks = chunk_count();
  for (int64_t index = part * chunks / parts_; index < (part + 1) * chunks / parts_; ++index) {
    const Chunk c = chunk(index);
    const auto rows = [&](const Side& side, const void* tensor, const int64_t* first, const int64_t* last, Layout::Part box) {
      return side.in_place ? view(side, tensor, group)
                           : load(side, tensor, group * side.channels, side.channels, c.sample_begin, c.sample_end, first, last,
                                  layout_.at<Real>(scratch, box));
    };
    int64_t x_last[kAxes], y_first[kAxes], y_last[kAxes];
    for (int a = 0; a < kAxes; ++a) {
      x_last[a] = c.end[a] - 1;
      reach(a, c.begin[a], c.end[a], y_first[a], y_last[a]);
    }
    const RowView<Real> x = rows(x_, buffers.x, c.begin, x_last, x_part_);
    const RowView<Real> y = rows(y_, buffers.y, y_first, y_last, y_part_);
    for (int64_t t = 0; t < taps(); ++t) {
      int64_t tap[kAxes];
      tap_of(t, tap);
      runs_of(c, tap, x, y, runs);
      for (int64_t panel = 0; panel < panels_; ++panel) sum(runs, 0, m_, panel, sums + t * m_ * pitch_);
    }
  }
}

// All positions, some rows of one panel of one kernel position.
template <class Real>
void Outer<Real>::sum_unit(const RowView<Real>& x, const RowView<Real>& y, int64_t t, int64_t m_begin, int64_t m_end,
                           int64_t panel, Real* sums) const {
  thread_local Runs<Real> runs;
  Real* of_tap = sums + t * m_ * pitch_;
  const int64_t first = panel * vectors_ * lanes(), columns = std::min(vectors_ * lanes(), n_ - first);
  for (int64_t m = m_begin; m < m_end; ++m) std::fill_n(of_tap + m * pitch_ + first, columns, Real(0));
  int64_t tap[kAxes];
  tap_of(t, tap);
  for (int64_t index = 0; index < chunk_count(); ++index) {
    runs_of(chunk(index), tap, x, y, runs);
    sum(runs, m_begin, m_end, panel, of_tap);
  }
}

template <class Real>
void Outer<Real>::tap_of(int64_t index, int64_t* tap) const {
  for (int a = kAxes - 1; a >= 0; --a) {
    tap[a] = index % p_.geometry.axis[a].w;
    index /= p_.geometry.axis[a].w;
  }
}

// The rows of x in the chunk that the tap connects with a row of y, as runs along the innermost axis.
template <class Real>
void Outer<Real>::runs_of(const Chunk& c, const int64_t* tap, const RowView<Real>& x, const RowView<Real>& y,
                          Runs<Real>& runs) const {
  const Axis* axis = p_.geometry.axis;
  runs.list.clear();
  runs.a_pitch = x.axis[2];
  runs.b_pitch = y.axis[2] * axis[2].stride;
  if (swapped_) std::swap(runs.a_pitch, runs.b_pitch);
  int64_t begin[kAxes], end[kAxes];
  for (int a = 0; a < kAxes; ++a) {  // 0 <= i*stride + shift < y
    const int64_t shift = tap[a] * axis[a].dilation - axis[a].offset;
    begin[a] = std::max(c.begin[a], shift >= 0 ? 0 : parts_of(-shift, axis[a].stride));
    end[a] = std::min(c.end[a], axis[a].y > shift ? parts_of(axis[a].y - shift, axis[a].stride) : 0);
    if (begin[a] >= end[a]) return;
  }
  for (int64_t n = c.sample_begin; n < c.sample_end; ++n)
    for (int64_t i0 = begin[0]; i0 < end[0]; ++i0)
      for (int64_t i1 = begin[1]; i1 < end[1]; ++i1) {
        const Real* from_x = x.origin + n * x.sample + i0 * x.axis[0] + i1 * x.axis[1] + begin[2] * x.axis[2];
        const Real* from_y = y.origin + n * y.sample + axis[0].reach(i0, tap[0]) * y.axis[0] +
                             axis[1].reach(i1, tap[1]) * y.axis[1] + axis[2].reach(begin[2], tap[2]) * y.axis[2];
        runs.list.push_back({swapped_ ? from_y : from_x, swapped_ ? from_x : from_y, end[2] - begin[2]});
      }
}

template <class Real>
void Outer<Real>::sum(const Runs<Real>& runs, int64_t m_begin, int64_t m_end, int64_t panel, Real* sums) const {
  if (runs.list.empty()) return;
  const int64_t first = panel * vectors_ * lanes(), columns = std::min(vectors_ * lanes(), n_ - first);
  const int64_t vectors = parts_of(columns, lanes()), tallest = tiles_->max_rows[vectors];
  const int64_t count = parts_of(m_end - m_begin, tallest);
  for (int64_t i = 0, m = m_begin; i < count; ++i) {
    const int64_t rows = (m_end - m) / (count - i);  // tiles of even height
    tiles_->outer[vectors][rows]({runs.list.data(), int64_t(runs.list.size()), m, first, runs.a_pitch, runs.b_pitch,
                                  sums + m * pitch_ + first, pitch_, columns});
    m += rows;
  }
}

// Adds the parts in their order and brings the sums into the result's layout, some rows at a time.
template <class Real>
void Outer<Real>::store(const Buffers& buffers, const Parallel& parallel, Real* sums) const {
  const Geometry& g = p_.geometry;
  const int64_t rows = std::clamp<int64_t>(kStoreBytes / (taps() * pitch_ * int64_t(sizeof(Real))), 1, m_);
  const int64_t slices = parts_of(m_, rows), part_stride = g.groups * group_sums();
  const int64_t m_stride = swapped_ ? p_.w.channel : p_.w.outer, n_stride = swapped_ ? p_.w.outer : p_.w.channel;
  const Box box{{g.axis[0].w, g.axis[1].w, g.axis[2].w}, {p_.w.axis[0], p_.w.axis[1], p_.w.axis[2]}, n_, n_stride};
  parallel.for_each(g.groups * slices, [&](int64_t index, int) {
    const int64_t group = index / slices, begin = index % slices * rows, end = std::min(begin + rows, m_);
    Real* of_group = sums + group * group_sums();
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t t = 0; t < taps(); ++t) {
        Real* to = of_group + (t * m_ + begin) * pitch_;
        const Real* from = to + part * part_stride;
        for (int64_t i = 0; i < (end - begin) * pitch_; ++i) to[i] += from[i];
      }
    for (int64_t m = begin; m < end; ++m)
      store_box(*tiles_, p_.type, of_group + m * pitch_, m_ * pitch_,
                element(buffers.w, p_.type, group * g.x_channels * p_.w.outer + m * m_stride), box);
  });
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || g.batch == 0 || g.w_size() == 0 || g.x_positions() == 0 ||
      g.y_positions() == 0)
    return nullptr;
  if (p.type == Type::f64) return std::make_shared<Outer<double>>(p, isa, request.threads);
  return std::make_shared<Outer<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_outer_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_outer_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_outer_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
