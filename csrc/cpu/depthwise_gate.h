// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a depthwise layer: one channel of x and one of y in a group.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

enum class DepthwiseKernel { patches, interleaved, lines, depthwise, others };  // others: those of any channels

// The fastest of those that take a problem, by measurement.
DepthwiseKernel depthwise_kernel(const Problem& problem, Isa isa);

}  // namespace torch_ext::cpu
