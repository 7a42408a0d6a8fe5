// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "csrc/cpu/cpu.h"

namespace torch_ext::ops {

// The threads of torch's pool, as kernels borrow them.
cpu::Parallel torch_threads();

}  // namespace torch_ext::ops
