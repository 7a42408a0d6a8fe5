// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/parts.h"

#include "csrc/cuda/transpose.h"

namespace torch_ext::cuda {

Step parts_step(const PartsArguments& a, Type type, int64_t offset, const Device& device) {
  return {"sum of parts", walk(a.geometry.w_size(), 256, device),
          [a, type, offset](const Buffers& b, const Launch& shape, Stream stream) {
            PartsArguments bound = a;
            bound.sums = reinterpret_cast<const float*>(static_cast<const char*>(b.workspace) + offset), bound.w = b.w;
            return launch_parts(bound, type, shape, stream);
          }};
}

}  // namespace torch_ext::cuda
