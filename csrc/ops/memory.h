// SPDX-License-Identifier: Apache-2.0
// Memory of results and workspaces on the CPU: huge pages where it is fresh, and the memory of large results once more.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>

namespace torch_ext::ops {

// Asks for huge pages where the allocator has handed out untouched memory. TORCH_EXT_HUGE_PAGES=0 turns it off.
void advise_huge_pages(void* data, size_t bytes);

// Results from this size on come from result_allocator().
inline constexpr size_t kLargeResult = 1 << 20;

// Memory of torch's allocator that is kept when a tensor gives it back, up to a limit, for the next result of about that size.
// TORCH_EXT_KEPT_MB is the limit (256), 0 turns it off.
c10::Allocator* result_allocator();

}  // namespace torch_ext::ops
