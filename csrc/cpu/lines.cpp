// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data of depthwise layers of planes, plane by plane: nothing is transposed, and results go from
// registers to the tensor.
#include "csrc/cpu/lines.h"

#include <vector>

#include "csrc/cpu/depthwise_gate.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItems = 64;  // to aim for, so that any number of threads up to that has work
// Results of a call of a tile, of whole lines or of a part of one (bigvgan's 8000: 0.93 of the time of whole calls where they
// come from memory): multiples of what the largest blocks compute, for any number of phases. Between calls the next plane is
// asked for.
constexpr int64_t kCall = 1536, kPartOfLine = 768;
constexpr int64_t kPacked = 64;  // groups whose weights are packed at a time
constexpr int64_t kPlanes = 16;  // of an item, at most

template <class Real>
class Lines final : public Plan {
 public:
  Lines(const Problem& p, Isa isa, int threads)
      : p_(p),
        tiles_(&tiles<Real>(isa)),
        exact_(make_exact_depthwise(p, isa, threads)),
        in_(forward() ? p.x : p.y),
        out_(forward() ? p.y : p.x),
        box_(*tiles_, p, p.operation) {
    for (size_t r0 = 0; r0 < axis(0).phases.size(); ++r0)
      for (size_t r1 = 0; r1 < axis(1).phases.size(); ++r1) {
        phases_.push_back(phase(r0, r1));
        weights_ += int64_t(phases_.back().weight_offsets.size());
      }
    size_ = bytes_of(p.type);
    const int64_t planes = p.geometry.batch * p.geometry.groups;
    planes_ = std::clamp<int64_t>(planes * box_.blocks() / kItems, 1, std::min(planes, kPlanes));
    box_part_ = layout_.per_thread(box_.bytes());
    weights_part_ = layout_.shared(p.geometry.groups * weights_ * int64_t(sizeof(Real)));
    bias_part_ = layout_.shared(p.geometry.groups * int64_t(sizeof(Real)));
    layout_.finish(threads);
  }

  std::string describe() const override { return box_.describe() + ", " + std::to_string(planes_) + " planes an item"; }
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  // A phase of the two outer axes: the terms of its lines, as LinesTile has them.
  struct Phase {
    int64_t r0, r1, shared;
    int64_t own[kLineSteps];
    int64_t weights;  // where they begin among those of all phases
    std::vector<int64_t> offsets, weight_offsets;
  };
  Phase phase(size_t r0, size_t r1) const;
  bool forward() const { return p_.operation == Operation::conv_transpose; }
  const GatherAxis& axis(int a) const { return box_.axis(a); }
  // Of a call.
  int64_t lines_of_call(int64_t line) const { return std::max<int64_t>(kCall / (line * axis(1).out_step), 1); }
  int64_t cells_of_call() const { return kPartOfLine / axis(2).out_step; }
  void run_item(const Buffers& buffers, int64_t item, const Real* weights, const Real* bias, Real* box) const;
  void pack_weights(const void* weights, Range groups, Real* to) const;
  void compute(const Range* cell, const Range* to, const Real* box, const Real* weights, Real bias, void* out,
               Upcoming& next) const;

  Problem p_;
  const Tiles<Real>* tiles_;
  std::shared_ptr<const Plan> exact_;
  Strides in_, out_;
  LineBox<Real> box_;
  std::vector<Phase> phases_;
  int64_t weights_ = 0, planes_, size_;  // of all phases; of an item; bytes of an element
  Layout layout_;
  Layout::Part box_part_, weights_part_, bias_part_;
};

template <class Real>
typename Lines<Real>::Phase Lines<Real>::phase(size_t r0, size_t r1) const {
  const std::vector<std::vector<Tap>>& of_line = axis(2).phases;
  // The tap of a phase of the innermost axis that reads as far away as another one's.
  const auto alike = [&](size_t r, const Tap& tap) {
    return std::find_if(of_line[r].begin(), of_line[r].end(), [&](const Tap& t) { return t.delta == tap.delta; });
  };
  const auto is_shared = [&](const Tap& tap) {
    for (size_t r = 0; r < of_line.size(); ++r)
      if (alike(r, tap) == of_line[r].end()) return false;
    return true;
  };
  Phase phase{int64_t(r0), int64_t(r1), 0, {}, weights_, {}, {}};
  const auto for_each_line = [&](auto f) {
    for (const Tap& t0 : axis(0).phases[r0])
      for (const Tap& t1 : axis(1).phases[r1]) f(t0, t1);
  };
  for_each_line([&](const Tap& t0, const Tap& t1) {
    for (const Tap& t2 : of_line[0]) {
      if (!is_shared(t2)) continue;
      ++phase.shared;
      phase.offsets.push_back(box_.offset(t0, t1, t2));
      for (size_t r = 0; r < of_line.size(); ++r) phase.weight_offsets.push_back(weight_offset(p_, t0, t1, *alike(r, t2)));
    }
  });
  for (size_t r = 0; r < of_line.size(); ++r)
    for_each_line([&](const Tap& t0, const Tap& t1) {
      for (const Tap& t2 : of_line[r]) {
        if (is_shared(t2)) continue;
        ++phase.own[r];
        phase.offsets.push_back(box_.offset(t0, t1, t2));
        phase.weight_offsets.push_back(weight_offset(p_, t0, t1, t2));
      }
    });
  return phase;
}

template <class Real>
void Lines<Real>::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* const workspace = static_cast<std::byte*>(buffers.workspace);
  Real* const weights = layout_.template at<Real>(workspace, weights_part_);
  Real* const bias = layout_.template at<Real>(workspace, bias_part_);
  const int64_t groups = p_.geometry.groups;
  parallel.for_each(parts_of(groups, kPacked), [&](int64_t index, int) {
    const Range some = part(index, kPacked, groups);
    pack_weights(buffers.w, some, weights + some.begin * weights_);
  });
  // Times the zeros around a plane an infinity or NaN would spoil what does not read it.
  if (!tiles_->finite(weights, groups * weights_)) return exact_->run(buffers, parallel);
  load_bias(*tiles_, p_.type, buffers.bias, groups, bias);
  parallel.for_each(box_.blocks() * parts_of(p_.geometry.batch * groups, planes_), [&](int64_t item, int thread) {
    run_item(buffers, item, weights, bias, layout_.template at<Real>(layout_.thread(workspace, thread), box_part_));
  });
}

// A block of some planes.
template <class Real>
void Lines<Real>::run_item(const Buffers& buffers, int64_t item, const Real* weights, const Real* bias, Real* box) const {
  const int64_t groups = p_.geometry.groups, all = p_.geometry.batch * groups;
  const void* in = forward() ? buffers.x : buffers.y;
  void* out = forward() ? buffers.y : buffers.x;
  Range cell[kAxes], read[kAxes], written[kAxes];
  box_.take_block(item, cell);
  for (int a = 0; a < kAxes; ++a) read[a] = axis(a).read_by(cell[a]), written[a] = axis(a).written_by(cell[a]);
  const PlaneSpan of_in(in_, read), of_out(out_, written);
  const int64_t calls = cell[0].size() * int64_t(phases_.size()) * parts_of(cell[1].size(), lines_of_call(written[2].size())) *
                        parts_of(cell[2].size(), cells_of_call());
  const Range planes = part(item, planes_, all);
  box_.clear(box);
  for (int64_t plane = planes.begin; plane < planes.end; ++plane) {
    const int64_t n = plane / groups, c = plane % groups;
    box_.load(in, n * in_.outer + c * in_.channel, cell, box);
    // The next plane, most likely of this thread too, is asked for.
    Upcoming next(calls);
    if (const int64_t p = plane + 1; p < all) {
      next.reads(element(in, p_.type, p / groups * in_.outer + p % groups * in_.channel + of_in.start), of_in.size * size_);
      next.writes(element(out, p_.type, p / groups * out_.outer + p % groups * out_.channel + of_out.start), of_out.size * size_);
    }
    compute(cell, written, box, weights + c * weights_, bias[c],
            element(out, p_.type, n * out_.outer + c * out_.channel + of_out.start), next);
  }
}

// Of some groups: one after the other, in the order of the phases' terms.
template <class Real>
void Lines<Real>::pack_weights(const void* weights, Range groups, Real* to) const {
  visit(p_.type, [&](auto scalar) {
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const auto* from = static_cast<const decltype(scalar)*>(weights) + g * p_.w.outer;
      for (const Phase& phase : phases_)
        for (const int64_t offset : phase.weight_offsets) *to++ = Real(widen(from[offset]));
    }
  });
}

// `out` is where the block's first result goes.
template <class Real>
void Lines<Real>::compute(const Range* cell, const Range* to, const Real* box, const Real* weights, Real bias, void* out,
                          Upcoming& next) const {
  const int64_t step = axis(2).out_step, at_once = lines_of_call(to[2].size()), part = cells_of_call() * step;
  for (int64_t j0 = 0; j0 < cell[0].size(); ++j0)
    for (int64_t j1 = 0; j1 < cell[1].size(); j1 += at_once)
      for (const Phase& phase : phases_) {
        const int64_t o0 = j0 * axis(0).out_step + phase.r0, o1 = j1 * axis(1).out_step + phase.r1;
        const int64_t lines = std::min(at_once, parts_of(to[1].size() - o1, axis(1).out_step));
        for (int64_t o2 = 0; o2 < to[2].size() && o0 < to[0].size() && lines > 0; o2 += part) {
          void* const at = element(out, p_.type, o0 * out_.axis[0] + o1 * out_.axis[1] + o2);
          tiles_->lines_of[step]({box + j0 * box_.pitch(0) + j1 * box_.pitch(1) + o2 / step, box_.pitch(1), phase.offsets.data(),
                                  weights + phase.weights, phase.shared, phase.own, bias, lines,
                                  std::min(part, to[2].size() - o2), p_.type, at, axis(1).out_step * out_.axis[1]});
          next.step();
        }
      }
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!depthwise_chooses(DepthwiseKernel::lines, p, isa, request)) return nullptr;
  if (p.operation == Operation::backward_weights) return make_line_sums(p, isa, request.threads);
  if (p.type == Type::f64) return std::make_shared<Lines<double>>(p, isa, request.threads);
  return std::make_shared<Lines<float>>(p, isa, request.threads);
}

}  // namespace

#if defined(__x86_64__)
std::shared_ptr<Plan> make_lines_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_lines_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
#endif
std::shared_ptr<Plan> make_lines_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
