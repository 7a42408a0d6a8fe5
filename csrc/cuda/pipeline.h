// SPDX-License-Identifier: Apache-2.0
// The loop of the kernels that multiply matrices: while a block computes with one stage of shared memory, copies fill the others.
#pragma once
#include "csrc/cuda/device.h"

namespace torch_ext::cuda {

// load(stage) issues the copies of the next step, add(stage) computes with those of the oldest one. All threads of the block
// come; they leave together only after another barrier.
template <int stages, class Load, class Add>
TORCH_EXT_DEVICE void run_pipeline(int64_t steps, const Load& load, const Add& add) {
  TORCH_EXT_UNROLL for (int s = 0; s < stages - 1; ++s) {
    if (s < steps) load(s);
    async_commit();
  }
  int reading = 0, writing = stages - 1;
  for (int64_t s = 0; s < steps; ++s) {
    async_wait<stages - 2>();
    sync_block();  // all have this step, and are done with the one that is overwritten
    if (s + stages - 1 < steps) load(writing);
    async_commit();
    add(reading);
    reading = reading + 1 == stages ? 0 : reading + 1;
    writing = writing + 1 == stages ? 0 : writing + 1;
  }
  async_wait<0>();
}

}  // namespace torch_ext::cuda
