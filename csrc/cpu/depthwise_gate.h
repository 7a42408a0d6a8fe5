// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a depthwise layer: one channel of x and one of y in a group.
#pragma once
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {

enum class DepthwiseKernel { patches, interleaved, lines, depthwise, others };  // others: those of any channels

// Whether a kernel of that instruction set takes a problem, and is the fastest of them by measurement, or asked for by name.
bool depthwise_chooses(DepthwiseKernel kernel, const Problem& problem, Isa isa, const Request& request);

}  // namespace torch_ext::cpu
