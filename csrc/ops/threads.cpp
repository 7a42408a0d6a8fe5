// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace torch_ext::ops {

// They take indices one after the other, so that one that is held up holds up nobody else.
cpu::Parallel torch_threads() {
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  return {threads, [threads](int64_t count, const std::function<void(int64_t, int)>& task) {
            if (threads == 1 || count <= 1) {
              for (int64_t i = 0; i < count; ++i) task(i, 0);
              return;
            }
            std::atomic<int64_t> next{0};
            at::parallel_for(0, std::min<int64_t>(threads, count), 1, [&](int64_t begin, int64_t end) {
              for (int64_t thread = begin; thread < end; ++thread)
                for (int64_t i = next++; i < count; i = next++) task(i, int(thread));
            });
          }};
}

}  // namespace torch_ext::ops
