// SPDX-License-Identifier: Apache-2.0
// Phases of the innermost axis that lie side by side become channels. Where f divides stride, offset, kernel and y, input
// position i reaches output o = i*stride + k - offset through a tap k of the same residue r modulo f, so that with o = j*f + r
// and k = q*f + r the problem is one of f times the output channels, over the same memory with other strides:
//   y'[j][(r, c)] = y[j*f + r][c],  w'[q][(r, c)] = w[q*f + r][c],  stride' = stride/f,  offset' = offset/f.
// So one output channel and a long stride (the inverse STFT, vocoder heads) fill vectors, few channels (21 classes of a
// segmentation, upsampled 8 times) the tiles of other kernels, and patches become one matrix product.
#include <cstring>
#include <numeric>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/overlap_gate.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

// Channels pay that leave tiles of other kernels empty. A single one takes so many phases, and results as many as a vector holds:
// kernels for few of them are better than lanes that remain empty. Along one axis alone, what is left has stride 1, which suits
// all kernels (80 to 80 channels, k1024 s256, 64 positions: 0.35, 0.7 and 0.85 of the time of the three operations; 256, k64 s16:
// 1.0, 0.65 and 0.75; k4 s2: 0.9 to 1).
constexpr int64_t kManyPhases = 8;

// How many phases become channels: as many as divide what they are to divide.
int64_t phases_of(const Problem& p) {
  const Axis& a = p.geometry.axis[kAxes - 1];
  if (p.geometry.groups > 1 || a.dilation > 1) return 1;
  // The channels of a phase and those of the next must be evenly spaced.
  const int64_t channels = p.geometry.y_channels;
  for (const Strides* strides : {&p.w, &p.y})
    if (channels > 1 && strides->axis[kAxes - 1] != channels * strides->channel) return 1;
  return std::gcd(std::gcd(a.stride, a.offset), std::gcd(a.w, a.y));
}

bool pays(const Problem& p, int64_t phases) {
  const int64_t channels = p.geometry.y_channels;
  if (channels == 1) return phases >= kManyPhases;
  if (p.operation == Operation::conv_transpose && phases * channels < kMaxLanes) return false;
  const Axis* axis = p.geometry.axis;
  return (axis[0].w == 1 && axis[1].w == 1) || !fill_tiles(channels);
}

Problem folded(Problem p, int64_t phases) {
  Axis& a = p.geometry.axis[kAxes - 1];
  for (Strides* strides : {&p.w, &p.y}) {
    if (p.geometry.y_channels == 1) strides->channel = strides->axis[kAxes - 1];
    strides->axis[kAxes - 1] *= phases;
  }
  p.geometry.y_channels *= phases;
  a.w /= phases, a.y /= phases, a.offset /= phases, a.stride /= phases;
  return p;
}

class Fold final : public Plan {
 public:
  Fold(const Problem& problem, int64_t phases, std::shared_ptr<const Plan> inner)
      : phases_(phases), bias_bytes_(problem.geometry.y_channels * bytes_of(problem.type)), inner_(std::move(inner)) {
    inner_part_ = layout_.shared(inner_->workspace_bytes());
    bias_part_ = layout_.shared(problem.bias ? phases_ * bias_bytes_ : 0);
  }
  std::string describe() const override {
    return std::to_string(phases_) + " phases as channels of " + inner_->kernel + " " + inner_->describe();
  }
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  // The same memory with other strides.
  std::string packing() const override { return packing_of(*inner_); }
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override {
    inner_->pack(buffers, parallel, packed);
  }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Buffers inner = buffers;
    inner.workspace = layout_.at<void>(workspace, inner_part_);
    if (buffers.bias) {  // the same for each phase
      std::byte* bias = layout_.at<std::byte>(workspace, bias_part_);
      for (int64_t r = 0; r < phases_; ++r) std::memcpy(bias + r * bias_bytes_, buffers.bias, size_t(bias_bytes_));
      inner.bias = bias;
    }
    inner_->run(inner, parallel);
  }

 private:
  int64_t phases_, bias_bytes_;
  std::shared_ptr<const Plan> inner_;
  Layout layout_;
  Layout::Part inner_part_, bias_part_;
};

}  // namespace

std::shared_ptr<Plan> make_fold(const Problem& p, const Request& request) {
  const int64_t phases = phases_of(p);
  if (phases <= 1) return nullptr;
  if (!request.by_name && (!pays(p, phases) || positions_suit(p, request.isa) || lines_suit(p, request.isa))) return nullptr;
  return std::make_shared<Fold>(p, phases, make_plan(folded(p, phases), request.isa, request.threads));
}

}  // namespace torch_ext::cpu
