// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "csrc/cuda/device.h"

namespace torch_ext::cuda {

// The remainder, and leaves the quotient.
TORCH_EXT_DEVICE int64_t take(int64_t& index, int64_t extent) {
  const int64_t quotient = index / extent, remainder = index - quotient * extent;
  index = quotient;
  return remainder;
}

}  // namespace torch_ext::cuda
