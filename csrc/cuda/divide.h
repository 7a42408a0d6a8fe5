// SPDX-License-Identifier: Apache-2.0
// Division of numbers below 2^31 by one that is known before the launch: one multiplication (T. Granlund and P. L. Montgomery,
// Division by invariant integers using multiplication, 1994).
#pragma once
#include <cstdint>

#include "csrc/core/geometry.h"

namespace torch_ext::cuda {

struct Divider {
  uint32_t divisor = 1, multiplier = uint32_t(1) << 31;
  int shift = 31;

  Divider() = default;
  explicit Divider(int64_t by) : divisor(uint32_t(by)) {
    // The least 2^l that is not below the divisor makes the multiplier a number of 32 bits, and its error too small to matter.
    int l = 0;
    while ((int64_t(1) << l) < by) ++l;
    shift = 31 + l;
    multiplier = uint32_t(((uint64_t(1) << shift) + uint64_t(by) - 1) / uint64_t(by));
  }
  // The remainder, and leaves the quotient.
  TORCH_EXT_HD int take(int& index) const {
    const uint32_t n = uint32_t(index), quotient = uint32_t(uint64_t(n) * multiplier >> shift);
    index = int(quotient);
    return int(n - quotient * divisor);
  }
};

}  // namespace torch_ext::cuda
