// SPDX-License-Identifier: Apache-2.0
// Under autocast all operands are cast to its type, as torch casts those of its convolutions: float64 is left alone.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "csrc/ops/private.h"

namespace torch_ext::ops {
namespace {

template <c10::DispatchKey key, c10::DeviceType device>
Tensor cast(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  const at::ScalarType type = at::autocast::get_autocast_dtype(device);
  return call(operation, at::autocast::cached_cast(type, first, device), at::autocast::cached_cast(type, second, device),
              at::autocast::cached_cast(type, bias, device), form);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, AutocastCPU, library) { TORCH_EXT_IMPL(library, (cast<c10::DispatchKey::AutocastCPU, c10::kCPU>)); }
TORCH_LIBRARY_IMPL(torch_ext, AutocastCUDA, library) {
  TORCH_EXT_IMPL(library, (cast<c10::DispatchKey::AutocastCUDA, c10::kCUDA>));
}

}  // namespace torch_ext::ops
