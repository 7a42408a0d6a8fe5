// SPDX-License-Identifier: Apache-2.0
// A gradient that is nothing but memory of the CPU is summed by our own kernel, at the speed of memory in either format: torch's
// sum takes up to five times as long where channels lie side by side, and for 16-bit types. What is differentiated again, traced
// or transformed, and what lies in no order of ours, is left to torch's sum, which all of those know (and which widens 16-bit
// types by itself).
#include "csrc/ops/bias_gradient.h"

#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>

#include <optional>

#include "csrc/cpu/channel_sums.h"
#include "csrc/ops/arguments.h"
#include "csrc/ops/threads.h"

namespace torch_ext::ops {
namespace {

// Null where positions are not evenly spaced, or neither they nor channels lie side by side.
std::optional<cpu::ChannelSums> channel_sums(const at::Tensor& t, int64_t channel) {
  cpu::ChannelSums of{type_of(t), t.size(0), t.size(channel), 1, t.stride(0), t.stride(channel), 1};
  // Whether an axis goes on where the positions so far end.
  const auto joins = [&](int64_t d) {
    if (of.positions == 1) of.position = t.stride(d);
    if (t.stride(d) != of.positions * of.position) return false;
    of.positions *= t.size(d);
    return true;
  };
  for (int64_t d = t.dim() - 1; d > 0; --d)
    if (d != channel && t.size(d) > 1 && !joins(d)) return std::nullopt;
  if (of.batch > 1 && joins(0)) of.batch = 1;
  if (!of.planes() && of.channel != 1 && of.channels != 1) return std::nullopt;
  return of;
}

bool is_plain(const at::Tensor& t) {
  const bool differentiable = at::GradMode::is_enabled() && t.requires_grad();
  return t.is_cpu() && t.layout() == at::kStrided && !at::isTensorSubclassLike(t) && !t.is_neg() && !differentiable &&
         !t._fw_grad(/*level=*/0).defined();
}

}  // namespace

at::Tensor bias_gradient(const at::Tensor& grad, int64_t channel) {
  if (is_plain(grad) && grad.numel() > 0) {
    if (const auto of = channel_sums(grad, channel)) {
      at::Tensor sums = at::empty({of->channels}, grad.options());
      cpu::sum_channels(*of, grad.const_data_ptr(), sums.mutable_data_ptr(), cpu::active_isa(), torch_threads());
      return sums;
    }
  }
  c10::DimVector others;
  for (int64_t d = 0; d < grad.dim(); ++d)
    if (d != channel) others.push_back(d);
  return grad.sum(others);
}

}  // namespace torch_ext::ops
