// SPDX-License-Identifier: Apache-2.0
// backward_weights of depthwise layers of planes: of a plane, a tap's gradient is the sum of the products of two lines after the
// other, in as many sums as a vector has lanes, which are added in the end. Parts of the positions, whose number depends on the
// shape alone, have sums of their own.
#include <atomic>
#include <vector>

#include "csrc/cpu/lines.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItems = 64;  // to aim for, so that any number of threads up to that has work

template <class Real>
class LineSumsPlan final : public Plan {
 public:
  LineSumsPlan(const Problem& p, Isa isa, int threads)
      : p_(p),
        tiles_(&tiles<Real>(isa)),
        exact_(make_exact_depthwise(p, isa, threads)),
        box_(*tiles_, p, Operation::backward_data),
        x_pitch_(round_up(box_.cells(2), tiles_->lanes)) {
    for (const Tap& t0 : box_.axis(0).phases[0])
      for (const Tap& t1 : box_.axis(1).phases[0])
        for (const Tap& t2 : box_.axis(2).phases[0]) {
          offsets_.push_back(box_.offset(t0, t1, t2));
          weight_offsets_.push_back(weight_offset(p, t0, t1, t2));
        }
    parts_ = std::min(parts_of(kItems, p.geometry.groups), p.geometry.batch * box_.blocks());
    sums_part_ = layout_.shared(parts_ * p.geometry.groups * taps() * int64_t(sizeof(Real)));
    lanes_part_ = layout_.per_thread(taps() * tiles_->lanes * int64_t(sizeof(Real)));
    x_part_ = layout_.per_thread(box_.cells(0) * box_.cells(1) * x_pitch_ * int64_t(sizeof(Real)));
    y_part_ = layout_.per_thread(box_.bytes());
    layout_.finish(threads);
  }

  std::string describe() const override { return box_.describe() + ", " + std::to_string(parts_) + " parts"; }
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* const workspace = static_cast<std::byte*>(buffers.workspace);
    Real* const sums = layout_.template at<Real>(workspace, sums_part_);
    const int64_t groups = p_.geometry.groups;
    std::atomic<bool> finite{true};
    parallel.for_each(parts_ * groups, [&](int64_t item, int thread) {
      if (finite && !sum_part(buffers, item % groups, item / groups, layout_.thread(workspace, thread), sums + item * taps()))
        finite = false;
    });
    if (!finite) return exact_->run(buffers, parallel);
    store(buffers.w, sums);
  }

 private:
  int64_t taps() const { return int64_t(offsets_.size()); }

  // False where an operand is not finite, which times the zeros around a plane of y would spoil a sum that it is not in.
  bool sum_part(const Buffers& buffers, int64_t channel, int64_t part, std::byte* scratch, Real* sums) const {
    Real* const lanes = layout_.template at<Real>(scratch, lanes_part_);
    Real* const x = layout_.template at<Real>(scratch, x_part_);
    Real* const y = layout_.template at<Real>(scratch, y_part_);
    std::fill_n(lanes, taps() * tiles_->lanes, Real(0));
    const int64_t batch = p_.geometry.batch;
    const Range of = even_range(part, parts_, batch * box_.blocks());
    for (int64_t index = of.begin; index < of.end; ++index) {
      const int64_t n = index % batch;
      int64_t block = index / batch;
      Range cell[kAxes];
      box_.take_block(block, cell);
      if (n == 0 || index == of.begin) box_.clear(y);
      const Range read[kAxes] = {box_.axis(0).read_by(cell[0]), box_.axis(1).read_by(cell[1]), box_.axis(2).read_by(cell[2])};
      const PlaneSpan of_y(p_.y, read);
      const bool finite = load_x(buffers.x, n * p_.x.outer + channel * p_.x.channel, cell, x);
      if (!box_.load(buffers.y, n * p_.y.outer + channel * p_.y.channel, cell, y) || !finite) return false;
      // The next plane is asked for.
      Upcoming next(cell[0].size() * parts_of(taps(), kLineTerms));
      const int64_t m = (n + 1) % batch, c = std::min(channel + (m == 0), p_.geometry.groups - 1);
      next.reads(element(buffers.y, p_.type, m * p_.y.outer + c * p_.y.channel + of_y.start), of_y.size * bytes_of(p_.type));
      sum_block(cell, x, y, lanes, next);
    }
    std::fill_n(sums, taps(), Real(0));
    for (int l = 0; l < tiles_->lanes; ++l)
      for (int64_t t = 0; t < taps(); ++t) sums[t] += lanes[t * tiles_->lanes + l];
    return true;
  }

  bool load_x(const void* tensor, int64_t start, const Range* cell, Real* x) const {
    for (int a = 0; a < kAxes; ++a) start += cell[a].begin * p_.x.axis[a];
    bool finite = true;
    for (int64_t i = 0; i < cell[0].size(); ++i)
      finite &= tiles_->load_lines[1]({p_.type, element(tensor, p_.type, start + i * p_.x.axis[0]), p_.x.axis[1], cell[1].size(),
                                       cell[2].size(), x + i * box_.cells(1) * x_pitch_, x_pitch_, 0});
    return finite;
  }

  // No more lines at once than sums may have terms.
  void sum_block(const Range* cell, const Real* x, const Real* y, Real* lanes, Upcoming& next) const {
    const int64_t most = std::max<int64_t>(1, kMaxTerms / parts_of(cell[2].size(), tiles_->lanes));
    for (int64_t i0 = 0; i0 < cell[0].size(); ++i0)
      for (int64_t i1 = 0; i1 < cell[1].size(); i1 += most)
        for (int64_t t = 0, count; t < taps(); t += count) {
          count = even_part(taps() - t, kLineTerms);
          tiles_->line_sums[count]({x + (i0 * box_.cells(1) + i1) * x_pitch_, x_pitch_,
                                    y + i0 * box_.pitch(0) + i1 * box_.pitch(1), box_.pitch(1), offsets_.data() + t,
                                    std::min(most, cell[1].size() - i1), cell[2].size(), lanes + t * tiles_->lanes});
          next.step();
        }
  }

  // Adds the parts. Taps that reach nothing have no sums.
  void store(void* w, Real* sums) const {
    const int64_t groups = p_.geometry.groups, of_part = groups * taps();
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < of_part; ++i) sums[i] += sums[part * of_part + i];
    visit(p_.type, [&](auto scalar) {
      auto* to = static_cast<decltype(scalar)*>(w);
      for (int64_t c = 0; c < groups; ++c, to += p_.w.outer, sums += taps()) {
        if (taps() < p_.geometry.w_positions()) clear(to);
        for (int64_t t = 0; t < taps(); ++t) narrow(decltype(widen(scalar))(sums[t]), to[weight_offsets_[size_t(t)]]);
      }
    });
  }
  template <class Scalar>
  void clear(Scalar* plane) const {
    const Axis* axis = p_.geometry.axis;
    for (int64_t k0 = 0; k0 < axis[0].w; ++k0)
      for (int64_t k1 = 0; k1 < axis[1].w; ++k1)
        for (int64_t k2 = 0; k2 < axis[2].w; ++k2) plane[weight_offset(p_, {k0, 0}, {k1, 0}, {k2, 0})] = Scalar{};
  }

  Problem p_;
  const Tiles<Real>* tiles_;
  std::shared_ptr<const Plan> exact_;
  LineBox<Real> box_;
  int64_t x_pitch_;
  std::vector<int64_t> offsets_, weight_offsets_;  // of taps
  int64_t parts_;
  Layout layout_;
  Layout::Part sums_part_, lanes_part_, x_part_, y_part_;
};

}  // namespace

std::shared_ptr<Plan> make_line_sums(const Problem& p, Isa isa, int threads) {
  if (p.type == Type::f64) return std::make_shared<LineSumsPlan<double>>(p, isa, threads);
  return std::make_shared<LineSumsPlan<float>>(p, isa, threads);
}

}  // namespace torch_ext::cpu
