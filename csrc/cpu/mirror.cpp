// SPDX-License-Identifier: Apache-2.0
// Where every stride is 1 the formula is the same with x and y exchanged and the kernel mirrored,
//   o = i - offset + k*dilation   <=>   i = o - offset' + k'*dilation,   k' = K-1-k,  offset' = (K-1)*dilation - offset,
// so that gradients of data are a transposed convolution of y and gradients of weights those of the mirrored kernel: what other
// kernels do for few channels of y they do for few channels of x.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

// Whether the mirrored problem is one that a layer could have: with no negative pads.
bool can_mirror(const Problem& p) {
  for (const Axis& a : p.geometry.axis) {
    if (a.stride != 1 && a.x != 1) return false;
    const int64_t reach = (a.w - 1) * a.dilation;
    if (a.offset > reach || a.y + a.offset < a.x) return false;
  }
  return p.operation != Operation::conv_transpose;
}

// Its weights lie channel by channel of what were outputs, taps side by side.
Problem mirrored(Problem p) {
  Geometry& g = p.geometry;
  if (p.operation == Operation::backward_data) p.operation = Operation::conv_transpose;
  std::swap(p.x, p.y);
  std::swap(g.x_channels, g.y_channels);
  int64_t step = 1;
  for (int i = kAxes - 1; i >= 0; --i) {
    Axis& a = g.axis[i];
    std::swap(a.x, a.y);
    a.offset = (a.w - 1) * a.dilation - a.offset;
    a.stride = 1;
    p.w.axis[i] = step, step *= a.w;
  }
  p.w.channel = step, p.w.outer = g.y_channels * step;
  return p;
}

class Mirror final : public Plan {
 public:
  Mirror(const Problem& p, std::shared_ptr<const Plan> inner) : p_(p), inner_(std::move(inner)) {
    inner_part_ = layout_.shared(inner_->workspace_bytes());
    weights_part_ = layout_.shared(p.geometry.w_size() * bytes_of(p.type));
    const Axis* axis = p.geometry.axis;
    for (int64_t k0 = axis[0].w - 1; k0 >= 0; --k0)
      for (int64_t k1 = axis[1].w - 1; k1 >= 0; --k1)
        for (int64_t k2 = axis[2].w - 1; k2 >= 0; --k2) taps_.push_back(k0 * p.w.axis[0] + k1 * p.w.axis[1] + k2 * p.w.axis[2]);
  }
  std::string describe() const override { return std::string("x and y exchanged, ") + inner_->kernel + " " + inner_->describe(); }
  int64_t workspace_bytes() const override { return layout_.bytes(); }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Buffers inner = buffers;
    inner.workspace = layout_.at<void>(workspace, inner_part_);
    inner.w = layout_.at<void>(workspace, weights_part_);
    std::swap(inner.x, inner.y);
    const bool gradients = p_.operation == Operation::backward_weights;
    if (gradients) inner_->run(inner, parallel);
    visit(p_.type, [&](auto scalar) {
      using Element = decltype(scalar);
      Element *const lie = static_cast<Element*>(buffers.w), *const turned = static_cast<Element*>(inner.w);
      if (gradients) {
        for_each_weight(parallel, [&](int64_t from, int64_t to) { lie[from] = turned[to]; });
      } else {
        for_each_weight(parallel, [&](int64_t from, int64_t to) { turned[to] = lie[from]; });
      }
    });
    if (!gradients) inner_->run(inner, parallel);
  }

 private:
  // f(where a weight lies, and where it does in the mirrored problem)
  template <class F>
  void for_each_weight(const Parallel& parallel, F f) const {
    const Geometry& g = p_.geometry;
    parallel.for_each(g.groups * g.y_channels, [&](int64_t row, int) {
      int64_t to = row * g.x_channels * int64_t(taps_.size());
      for (int64_t c = 0; c < g.x_channels; ++c) {
        const int64_t from = (row / g.y_channels * g.x_channels + c) * p_.w.outer + row % g.y_channels * p_.w.channel;
        for (int64_t tap : taps_) f(from + tap, to++);
      }
    });
  }

  Problem p_;
  std::vector<int64_t> taps_;  // where they lie, in the order of the mirrored kernel
  std::shared_ptr<const Plan> inner_;
  Layout layout_;
  Layout::Part inner_part_, weights_part_;
};

// By measurement of 290 layers along one to three axes, of four types and with 8 lanes, where the mirrored problem is for a
// kernel of few channels: 0.75 of the time, of pairs 0.66 (1 to 32 channels, k3, volumes of 32, gradients of data: 0.3; 3 to 96,
// k3, 128x128: 0.3 of pairs; 3 to 192, k3, 128x128, gradients of weights of planes: 0.6; but 3 to 32, k5, volumes of 24: 1.5; 2
// groups of 3 to 6: 1.2; 2 to 3, 128x128: 1.3; 16 to 2, volumes of 32: 1.2).
bool may_pay(const Problem& p, Isa isa) {
  constexpr int64_t kFew = 32, kLeastPositions = 512, kLeastPositionsOfShortVectors = 400;
  const Geometry& g = p.geometry;
  if (g.groups > 1 || std::min(g.x_channels, g.y_channels) > kFew || matrices_multiply_pairs(p.type, isa)) return false;
  const int64_t least = isa < Isa::avx512 ? kLeastPositionsOfShortVectors : kLeastPositions;
  return p.operation == Operation::backward_data || (g.x_channels < g.y_channels && g.batch * g.x_positions() >= least);
}
bool pays(const Problem& p, Isa isa, std::string_view kernel) {
  constexpr int64_t kLeastPairs = 16, kMostUnrolled = 8, kLeastUnrolled = 100, kMostTaps = 64;
  const Geometry& g = p.geometry;
  const bool pairs = vectors_multiply_pairs(p.type, isa), floats = bytes_of(p.type) > 2;
  const bool short_vectors = isa < Isa::avx512;
  const auto is = [&](std::string_view family) { return kernel.starts_with(family); };
  // Vectors of 8 are faster on one or two channels whatever takes these (18 layers: 0.79 of the time of `outer` in planes, 21:
  // 0.87 of channels side by side; 2 to 256, k4 s1, 56x56: 0.73 and 0.6; 2 to 192, k5 s1, 16 of 14x14: 1.05 and 1.2).
  if (p.operation == Operation::backward_weights)
    return (is("dots") && g.w_positions() <= kMostTaps) || (is("unfold") && g.x_channels == 1) ||
           (short_vectors && g.x_channels <= 2);
  if (is("unroll")) {
    const bool many = !short_vectors || g.batch * g.x_positions() >= kLeastUnrolled;
    const bool suits = pairs || (kernel == "unroll" && floats && many);
    return suits && g.y_channels > (p.type == Type::f32 ? 2 : 1) && g.y_channels <= kMostUnrolled;
  }
  if (is("overlap")) {
    const bool line_of_planes = p.x.channel != 1 && x_is_line(g);
    const int64_t products = g.x_channels * g.y_channels;
    return products >= kLeastPairs && g.x_channels <= lanes_of(p.type, isa) && (pairs || !line_of_planes);
  }
  return is("channel_dots") && (!short_vectors || floats);
}

}  // namespace

std::shared_ptr<Plan> make_mirror(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0 || !can_mirror(p)) return nullptr;
  if (!request.by_name && !may_pay(p, request.isa)) return nullptr;
  auto inner = make_plan(mirrored(p), request.isa, request.threads);
  if (!request.by_name && !pays(p, request.isa, inner->kernel)) return nullptr;
  return std::make_shared<Mirror>(p, std::move(inner));
}

}  // namespace torch_ext::cpu
