// SPDX-License-Identifier: Apache-2.0
// Runs a problem on the CPU: torch's allocator for the result and the workspace, torch's threads.
#include "csrc/cpu/cpu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "csrc/ops/private.h"

namespace torch_ext::ops {
namespace {

// Threads of torch's pool take indices one after the other, so that one that is held up holds up nobody else.
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

// Fresh memory is mapped page by page as it is written, which for large results costs as much as computing them; with huge pages
// it costs a third (113 MB: 49 ms with 4-KB pages, 21 ms with huge ones). Asks for them where the allocator has handed out
// untouched memory: elsewhere there is nothing left to gain. TORCH_EXT_HUGE_PAGES=0 turns it off.
void advise_huge_pages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kHugePage = 2 << 20, kLeast = 8 << 20;
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_EXT_HUGE_PAGES");
    return !value || std::atoi(value) != 0 || !*value;
  }();
  if (!enabled || bytes < kLeast) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  unsigned char touched = 1;
  if (end > begin && mincore(reinterpret_cast<void*>(begin), size_t(sysconf(_SC_PAGESIZE)), &touched) == 0 && !(touched & 1))
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

Tensor run(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  const SymSizes symbolic = checked_result_sizes(operation, first, second, bias, form);
  c10::DimVector sizes;
  for (const SymInt& size : symbolic) sizes.push_back(size.expect_int());
  Tensor result = at::empty(sizes, first.options(), result_memory_format(operation, first, second, form));
  if (result.numel() == 0) return result;
  advise_huge_pages(result.mutable_data_ptr(), result.nbytes());

  const Tensor& src = operation == Operation::backward_data ? result : first;
  const Tensor& weights = operation == Operation::backward_weights ? result : second;
  const Tensor& dst = operation == Operation::conv_transpose ? result : operation == Operation::backward_data ? first : second;
  Problem problem = problem_of(operation, src, weights, dst, bias.has_value(), form);
  problem.transforms_allowed = !at::globalContext().deterministicAlgorithms();
  const Tensor dense_bias = bias ? bias->contiguous() : Tensor();
  const cpu::Parallel parallel = torch_threads();
  const auto plan = cpu::cached_plan(problem, parallel.threads);
  const int64_t bytes = plan->workspace_bytes();
  const at::DataPtr workspace = bytes ? c10::GetCPUAllocator()->allocate(size_t(bytes)) : at::DataPtr();
  const auto data = [](const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); };
  advise_huge_pages(workspace.get(), size_t(bytes));
  plan->run({data(src), data(weights), data(dst), bias ? dense_bias.const_data_ptr() : nullptr, workspace.get()}, parallel);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, CPU, library) { TORCH_EXT_IMPL(library, run); }

}  // namespace torch_ext::ops
