// SPDX-License-Identifier: Apache-2.0
// backward_weights of depthwise layers and the like, where a group has too few channels on either side to fill a vector: lanes go
// along positions, and each weight is a dot product of a plane of x with a shifted plane of y. A thread takes some groups and
// walks through the positions in blocks, so no sum is ever shared between threads.
#include <algorithm>
#include <atomic>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kBoxBytes = 96 << 10;  // of the planes of x, and of y, of a block: together well inside L2
constexpr int64_t kMaxPairs = 4;         // channel pairs of a group; above it the outer kernel's lanes are full enough
constexpr int64_t kMinGroups = 8;        // fewer do not occupy the threads, which matters from this much work on:
constexpr double kMinFlops = 4e6;

template <class Real>
class Dots final : public Plan {
 public:
  Dots(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  bool sum_block(const Buffers& buffers, int64_t index, int64_t group, int64_t groups, std::byte* scratch, Real* sums) const;
  void store(const Buffers& buffers, int64_t group, const Real* sums) const;

  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t pairs() const { return p_.geometry.x_channels * p_.geometry.y_channels; }

  Problem p_;
  const Tiles<Real>* tiles_;
  // y is gathered as backward_data gathers it: its cells are the positions of x.
  GatherAxis axis_[kAxes];
  PlaneAxis plane_axis_[kAxes];
  int64_t groups_;        // that a thread takes at a time
  int64_t cells_[kAxes];  // of a block
  int64_t blocks_;
  Planes<Real> y_planes_;
  std::vector<int64_t> offsets_;    // of the taps into a plane of y
  std::vector<int64_t> tap_index_;  // of those taps, in [0, taps()): taps that reach nothing are left out
  Layout layout_;
  Layout::Part sums_part_, x_part_, y_part_;
};

template <class Real>
Dots<Real>::Dots(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<Real>(isa)),
      axis_{{p_.geometry.axis[0], Operation::backward_data},
            {p_.geometry.axis[1], Operation::backward_data},
            {p_.geometry.axis[2], Operation::backward_data}},
      plane_axis_{PlaneAxis(axis_[0]), PlaneAxis(axis_[1]), PlaneAxis(axis_[2])} {
  const Geometry& g = p_.geometry;
  const bool interleaved = p_.x.channel == 1 || p_.y.channel == 1;  // channels that lie side by side are read together
  groups_ = std::min(g.groups, interleaved ? std::max<int64_t>(1, tiles_->lanes / std::max(g.x_channels, g.y_channels)) : 1);
  int64_t y_per_cell = g.y_channels;
  for (const PlaneAxis& axis : plane_axis_) y_per_cell *= int64_t(axis.residues.size());
  int64_t room = std::max<int64_t>(1, kBoxBytes / (groups_ * std::max(g.x_channels, y_per_cell) * int64_t(sizeof(Real))));
  blocks_ = g.batch;
  for (int a = kAxes - 1; a >= 0; --a) {
    cells_[a] = parts_of(axis_[a].cells, parts_of(axis_[a].cells, room));
    room = std::max<int64_t>(1, room / cells_[a]);
    blocks_ *= parts_of(axis_[a].cells, cells_[a]);
  }
  y_planes_ = Planes<Real>(*tiles_, p_.type, axis_, plane_axis_, p_.y, cells_);
  for (const PlaneTap& t0 : plane_axis_[0].phases[0])
    for (const PlaneTap& t1 : plane_axis_[1].phases[0])
      for (const PlaneTap& t2 : plane_axis_[2].phases[0]) {
        offsets_.push_back(y_planes_.offset(t0, t1, t2));
        tap_index_.push_back((t0.k * g.axis[1].w + t1.k) * g.axis[2].w + t2.k);
      }
  const int64_t real = sizeof(Real);
  sums_part_ = layout_.per_thread(groups_ * pairs() * taps() * real);
  x_part_ = layout_.per_thread(groups_ * g.x_channels * cells_[0] * cells_[1] * cells_[2] * real);
  y_part_ = layout_.per_thread(groups_ * g.y_channels * y_planes_.size() * real);
  layout_.finish(threads);
}

template <class Real>
std::string Dots<Real>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "block " + text(cells_[0]) + "x" + text(cells_[1]) + "x" + text(cells_[2]) + " of " + text(groups_) + " groups";
}

template <class Real>
void Dots<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const int64_t all = p_.geometry.groups;
  std::atomic<bool> finite{true};
  parallel.for_each(parts_of(all, groups_), [&](int64_t index, int thread) {
    std::byte* scratch = layout_.thread(workspace, thread);
    Real* sums = layout_.at<Real>(scratch, sums_part_);
    const int64_t first = index * groups_, count = std::min(groups_, all - first);
    std::fill_n(sums, count * pairs() * taps(), Real(0));
    for (int64_t block = 0; block < blocks_; ++block)
      if (!sum_block(buffers, block, first, count, scratch, sums)) finite = false;
    for (int64_t i = 0; i < count; ++i) store(buffers, first + i, sums + i * pairs() * taps());
  });
  // An infinity or NaN in x times the zeros around y would spoil taps that do not connect the two.
  if (!finite) make_direct(p_, {})->run(buffers, parallel);
}

// Adds one block of positions of one sample to sums[group][ic][oc][tap]; returns whether x is finite in it.
template <class Real>
bool Dots<Real>::sum_block(const Buffers& buffers, int64_t index, int64_t group, int64_t groups, std::byte* scratch,
                           Real* sums) const {
  const Geometry& g = p_.geometry;
  int64_t begin[kAxes], extent[kAxes];
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t parts = parts_of(axis_[a].cells, cells_[a]);
    begin[a] = index % parts * cells_[a];
    extent[a] = std::min(cells_[a], axis_[a].cells - begin[a]);
    index /= parts;
  }
  Real* x = layout_.at<Real>(scratch, x_part_);
  Real* y = layout_.at<Real>(scratch, y_part_);
  const int64_t x_channels = groups * g.x_channels, x_plane = extent[0] * extent[1] * extent[2];
  const int64_t x_start = index * p_.x.outer + group * g.x_channels * p_.x.channel + begin[2] * p_.x.axis[2];
  for (int64_t i0 = 0; i0 < extent[0]; ++i0)
    for (int64_t i1 = 0; i1 < extent[1]; ++i1)
      load_planes(*tiles_, p_.type,
                  element(buffers.x, p_.type, x_start + (begin[0] + i0) * p_.x.axis[0] + (begin[1] + i1) * p_.x.axis[1]),
                  p_.x.axis[2], extent[2], p_.x.channel, x_channels, x + (i0 * extent[1] + i1) * extent[2], x_plane);
  y_planes_.load(element(buffers.y, p_.type, index * p_.y.outer + group * g.y_channels * p_.y.channel), begin,
                 groups * g.y_channels, y);

  std::vector<Real> partial(offsets_.size());
  for (int64_t i = 0; i < groups; ++i)
    for (int64_t ic = 0; ic < g.x_channels; ++ic)
      for (int64_t oc = 0; oc < g.y_channels; ++oc) {
        Real* to = sums + ((i * g.x_channels + ic) * g.y_channels + oc) * taps();
        std::fill(partial.begin(), partial.end(), Real(0));
        for (int64_t i0 = 0; i0 < extent[0]; ++i0) {
          const Real* a = x + (i * g.x_channels + ic) * x_plane + i0 * extent[1] * extent[2];
          const Real* b = y + (i * g.y_channels + oc) * y_planes_.size() + i0 * y_planes_.pitch(0);
          for (size_t t = 0; t < offsets_.size(); t += kDotTaps)
            tiles_->dot[std::min<size_t>(kDotTaps, offsets_.size() - t)](
                {a, b, extent[1], extent[2], extent[2], y_planes_.pitch(1), offsets_.data() + t, partial.data() + t});
        }
        for (size_t t = 0; t < offsets_.size(); ++t) to[tap_index_[t]] += partial[t];
      }
  return tiles_->finite(x, x_channels * x_plane);
}

template <class Real>
void Dots<Real>::store(const Buffers& buffers, int64_t group, const Real* sums) const {
  const Geometry& g = p_.geometry;
  for (int64_t ic = 0; ic < g.x_channels; ++ic)
    for (int64_t oc = 0; oc < g.y_channels; ++oc)
      for (int64_t t = 0; t < taps(); ++t, ++sums) {
        const int64_t k2 = t % g.axis[2].w, k1 = t / g.axis[2].w % g.axis[1].w, k0 = t / g.axis[2].w / g.axis[1].w;
        const int64_t to = (group * g.x_channels + ic) * p_.w.outer + oc * p_.w.channel + k0 * p_.w.axis[0] + k1 * p_.w.axis[1] +
                           k2 * p_.w.axis[2];
        tiles_->narrow(p_.type, sums, element(buffers.w, p_.type, to), 1);
      }
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  if (g.x_channels * g.y_channels > kMaxPairs) return nullptr;
  if (g.groups < kMinGroups && flops > kMinFlops && !request.by_name) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Dots<double>>(p, isa, request.threads);
  return std::make_shared<Dots<float>>(p, isa, request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_dots_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_dots_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_dots_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
