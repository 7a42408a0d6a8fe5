// SPDX-License-Identifier: Apache-2.0
// Gradients of weights that were summed in parts: the parts are added in their order, and rounded once.
#pragma once
#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

struct PartsArguments {
  Geometry geometry;
  Strides weights;
  // Of the sums: parts, and the distances from one part, group, tap, channel of x and channel of y to the next.
  int64_t parts, part, group, tap, x, y;
  const float* sums;
  void* w;
};

// Adds the sums that lie at `offset` of the workspace.
Step parts_step(const PartsArguments& arguments, Type type, int64_t offset, const Device& device);
const char* launch_parts(const PartsArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
