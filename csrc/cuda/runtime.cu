// SPDX-License-Identifier: Apache-2.0
// What is asked of the CUDA runtime besides launches.
#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <stdexcept>

#include "csrc/cuda/cuda.h"

namespace torch_ext::cuda {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

Device query(int index) {
  const auto attribute = [index](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, index));
    return value;
  };
  return {10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
          attribute(cudaDevAttrMultiProcessorCount)};
}

}  // namespace

Device use_device(int index) {
  struct Known {
    std::once_flag once;
    Device device;
  };
  static std::array<Known, 64> known;
  check(cudaSetDevice(index));
  if (index < 0 || index >= int(known.size())) return query(index);
  std::call_once(known[index].once, [index] { known[index].device = query(index); });
  return known[index].device;
}

}  // namespace torch_ext::cuda
