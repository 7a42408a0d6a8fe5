// SPDX-License-Identifier: Apache-2.0
// The gradient of the bias: each output channel's sum of the gradient over samples and positions.
#pragma once
#include "csrc/cpu/cpu.h"

namespace torch_ext::cpu {

// A tensor whose positions are evenly spaced, with either these or its channels side by side. Strides are in elements.
struct ChannelSums {
  Type type;
  int64_t batch, channels, positions;
  int64_t outer, channel, position;  // strides

  bool planes() const { return position == 1 && channel != 1; }
};

// sums[c] = sum over n < batch, p < positions of from[n*outer + c*channel + p*position] for c < channels, of the same type. Added
// up in parts that depend on the shape alone, in float32 or float64, and these in float64; rounded once.
void sum_channels(const ChannelSums& of, const void* from, void* sums, Isa isa, const Parallel& parallel);

}  // namespace torch_ext::cpu
