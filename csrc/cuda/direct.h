// SPDX-License-Identifier: Apache-2.0
// The formula, one result a thread (or, for weights, a warp): any geometry, any strides, every type, every size.
#pragma once
#include "csrc/cuda/gather.h"
#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

struct DirectArguments {
  Problem problem;
  Gather gather[kAxes];           // of the two operations that gather
  bool repair = false;            // leaves results that are finite as they are
  bool channels_fastest = false;  // neighbouring threads take neighbouring channels, else neighbouring positions
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;
  void* result = nullptr;
};

Step direct_step(const Problem& problem, const Device& device, bool repair = false);

const char* launch_direct(const DirectArguments& arguments, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
