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

// Memory of a call. The calling thread keeps it for its next call, up to a limit: fresh pages cost more than packing into them
// does.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : memory_(std::move(kept)) {
    if (memory_.bytes >= bytes) return;
    memory_ = {};  // before the larger one is asked for
    memory_ = {c10::GetCPUAllocator()->allocate(bytes), bytes};
    advise_huge_pages(memory_.data.get(), bytes);
  }
  ~Workspace() {
    if (memory_.bytes <= kMostKept) kept = std::move(memory_);
  }
  Workspace(const Workspace&) = delete;
  void* data() const { return memory_.data.get(); }

 private:
  struct Memory {
    at::DataPtr data;
    size_t bytes = 0;
  };
  static constexpr size_t kMostKept = 32 << 20;
  static thread_local Memory kept;
  Memory memory_;
};
thread_local Workspace::Memory Workspace::kept;

c10::DimVector result_sizes(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                            const Form& form) {
  c10::DimVector sizes;
  for (const SymInt& size : checked_result_sizes(operation, first, second, bias, form)) sizes.push_back(size.expect_int());
  return sizes;
}

Problem cpu_problem(Operation operation, const Tensor& src, const Tensor& weights, const Tensor& dst, bool bias,
                    const Form& form) {
  Problem problem = problem_of(operation, src, weights, dst, bias, form);
  problem.transforms_allowed = !at::globalContext().deterministicAlgorithms();
  return problem;
}

void* data_of(const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); }

// Weights packed ahead are bytes: this, then what a plan with the same fingerprint has packed.
struct alignas(64) PackedTensor {
  uint64_t fingerprint;
  static const void* for_plan(const Tensor& packed, const cpu::Plan& plan) {
    const void* data = packed.scalar_type() == at::kByte && packed.is_contiguous() ? packed.const_data_ptr() : nullptr;
    const bool serves = data && plan.fingerprint && reinterpret_cast<uintptr_t>(data) % alignof(PackedTensor) == 0 &&
                        packed.numel() == int64_t(sizeof(PackedTensor)) + plan.packed_bytes() &&
                        static_cast<const PackedTensor*>(data)->fingerprint == plan.fingerprint;
    return serves ? static_cast<const PackedTensor*>(data) + 1 : nullptr;
  }
};

Tensor run_packed(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias,
                  const Form& form, const Tensor* packed) {
  Tensor result = at::empty(result_sizes(operation, first, second, bias, form), first.options(),
                            result_memory_format(operation, first, second, form));
  if (result.numel() == 0) return result;
  advise_huge_pages(result.mutable_data_ptr(), result.nbytes());

  const Tensor& src = operation == Operation::backward_data ? result : first;
  const Tensor& weights = operation == Operation::backward_weights ? result : second;
  const Tensor& dst = operation == Operation::conv_transpose ? result : operation == Operation::backward_data ? first : second;
  const Tensor dense_bias = bias ? bias->contiguous() : Tensor();
  const cpu::Parallel parallel = torch_threads();
  Problem problem = cpu_problem(operation, src, weights, dst, bias.has_value(), form);
  problem.prepacked = packed && packed->numel() > 0;
  auto plan = cpu::cached_plan(problem, parallel.threads);
  const void* packed_weights = problem.prepacked ? PackedTensor::for_plan(*packed, *plan) : nullptr;
  if (problem.prepacked && !packed_weights) {
    problem.prepacked = false;
    plan = cpu::cached_plan(problem, parallel.threads);
  }
  Workspace workspace(size_t(plan->workspace_bytes()));
  plan->run({data_of(src), data_of(weights), data_of(dst), bias ? dense_bias.const_data_ptr() : nullptr, workspace.data(),
             packed_weights},
            parallel);
  return result;
}

Tensor run(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  return run_packed(operation, first, second, bias, form, nullptr);
}

Tensor run_prepacked(const Tensor& src, const Tensor& weights, const Tensor& packed, const std::optional<Tensor>& bias,
                     TORCH_EXT_FORM) {
  return run_packed(Operation::conv_transpose, src, weights, bias,
                    Form{size, strides, offset, dilations, groups, data_format, weights_format}, &packed);
}

Tensor prepack(const Tensor& src, const Tensor& weights, TORCH_EXT_FORM) {
  const Form form{size, strides, offset, dilations, groups, data_format, weights_format};
  const Tensor dst = at::empty(result_sizes(Operation::conv_transpose, src, weights, std::nullopt, form), src.options(),
                               result_memory_format(Operation::conv_transpose, src, weights, form));
  const cpu::Parallel parallel = torch_threads();
  Problem problem = cpu_problem(Operation::conv_transpose, src, weights, dst, false, form);
  problem.prepacked = true;
  const auto plan = cpu::cached_plan(problem, parallel.threads);
  if (dst.numel() == 0 || !plan->fingerprint) return at::empty({0}, src.options().dtype(at::kByte));
  Tensor packed = at::zeros({int64_t(sizeof(PackedTensor)) + plan->packed_bytes()}, src.options().dtype(at::kByte));
  auto* header = static_cast<PackedTensor*>(packed.mutable_data_ptr());
  header->fingerprint = plan->fingerprint;
  cpu::Buffers buffers;
  buffers.w = data_of(weights);
  plan->pack(buffers, parallel, header + 1);
  return packed;
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, CPU, library) {
  TORCH_EXT_IMPL(library, run);
  library.impl("_conv_transpose_prepack", TORCH_FN(prepack));
  library.impl("_conv_transpose_prepacked", TORCH_FN(run_prepacked));
}

}  // namespace torch_ext::ops
