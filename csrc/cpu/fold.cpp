// SPDX-License-Identifier: Apache-2.0
// One output channel and a long stride (the inverse STFT, vocoder heads): the phases of the innermost axis become channels. With
// o + offset = j*s + r and k = q*s + r, an output position of phase r uses exactly the taps of phase r, so the problem is one of
// stride 1 with s output channels, over the same memory with other strides:
//   y'[j][r] = y[j*s + r],  w'[q][r] = w[q*s + r],  offset' = offset/s.
#include <cstring>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

// Fewer phases than this leave most lanes empty; the wide kernel is better then.
constexpr int64_t kMinPhases = 8;

bool foldable(const Problem& p) {
  const Geometry& g = p.geometry;
  const Axis& a = g.axis[kAxes - 1];
  return g.groups == 1 && g.y_channels == 1 && a.stride >= kMinPhases && a.dilation == 1 && a.w % a.stride == 0 &&
         a.y % a.stride == 0 && a.offset % a.stride == 0;
}

Problem folded(Problem p) {
  Axis& a = p.geometry.axis[kAxes - 1];
  const int64_t s = a.stride;
  p.geometry.y_channels = s;
  a.w /= s, a.y /= s, a.offset /= s, a.stride = 1;
  for (Strides* strides : {&p.w, &p.y}) {
    strides->channel = strides->axis[kAxes - 1];
    strides->axis[kAxes - 1] *= s;
  }
  return p;
}

class Fold final : public Plan {
 public:
  Fold(const Problem& problem, std::shared_ptr<const Plan> inner)
      : type_(problem.type), phases_(problem.geometry.axis[kAxes - 1].stride), inner_(std::move(inner)) {
    inner_part_ = layout_.shared(inner_->workspace_bytes());
    bias_part_ = layout_.shared(problem.bias ? phases_ * bytes_of(type_) : 0);
  }
  std::string describe() const override {
    return std::to_string(phases_) + " phases as channels of " + inner_->kernel + " " + inner_->describe();
  }
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  // The same memory with other strides.
  std::string packing() const override {
    return inner_->packing().empty() ? "" : std::string(inner_->kernel) + ' ' + inner_->packing();
  }
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override {
    inner_->pack(buffers, parallel, packed);
  }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Buffers inner = buffers;
    inner.workspace = layout_.at<void>(workspace, inner_part_);
    if (buffers.bias) {  // the one value for each phase
      std::byte* bias = layout_.at<std::byte>(workspace, bias_part_);
      for (int64_t r = 0; r < phases_; ++r) std::memcpy(bias + r * bytes_of(type_), buffers.bias, size_t(bytes_of(type_)));
      inner.bias = bias;
    }
    inner_->run(inner, parallel);
  }

 private:
  Type type_;
  int64_t phases_;
  std::shared_ptr<const Plan> inner_;
  Layout layout_;
  Layout::Part inner_part_, bias_part_;
};

}  // namespace

std::shared_ptr<Plan> make_fold(const Problem& p, const Request& request) {
  return foldable(p) ? std::make_shared<Fold>(p, make_plan(folded(p), request.isa, request.threads)) : nullptr;
}

}  // namespace torch_ext::cpu
