// SPDX-License-Identifier: Apache-2.0
// The formula, one result a thread (or, for weights, a warp): any geometry, any strides, every type, every size.
#pragma once
#include "csrc/cuda/cuda.h"

namespace torch_ext::cuda {

struct DirectArguments {
  Problem problem;
  bool channels_fastest = false;  // neighbouring threads take neighbouring channels, else neighbouring positions
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;
  void* result = nullptr;
};

const char* launch_direct(const DirectArguments& arguments, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
