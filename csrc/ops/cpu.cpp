// SPDX-License-Identifier: Apache-2.0
// Runs a problem on the CPU: torch's allocator for the result and the workspace, torch's threads.
#include "csrc/cpu/cpu.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <utility>

#include "csrc/ops/memory.h"
#include "csrc/ops/private.h"
#include "csrc/ops/task.h"
#include "csrc/ops/threads.h"

namespace torch_ext::ops {
namespace {

// Memory of a call. The calling thread keeps it for its next call, up to a limit: fresh pages cost more than packing into them
// does.
class Workspace {
 public:
  // A DataPtr that was moved from still points where it did.
  explicit Workspace(size_t bytes) : memory_(std::exchange(kept, {})) {
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
  Task task = make_task(operation, first, second, bias, form, result_allocator());
  if (task.result.numel() == 0) return task.result;
  const cpu::Parallel parallel = torch_threads();
  if (task.problem.type == Type::f32) task.problem.precision = float32_precision();
  task.problem.prepacked = packed && packed->numel() > 0;
  auto plan = cpu::cached_plan(task.problem, parallel.threads);
  const void* packed_weights = task.problem.prepacked ? PackedTensor::for_plan(*packed, *plan) : nullptr;
  if (task.problem.prepacked && !packed_weights) {
    task.problem.prepacked = false;
    plan = cpu::cached_plan(task.problem, parallel.threads);
  }
  Workspace workspace(size_t(plan->workspace_bytes()));
  plan->run({task.x, task.w, task.y, task.bias, workspace.data(), packed_weights}, parallel);
  return task.result;
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
  Task task = make_task(Operation::conv_transpose, src, weights, std::nullopt,
                        Form{size, strides, offset, dilations, groups, data_format, weights_format});
  const cpu::Parallel parallel = torch_threads();
  if (task.problem.type == Type::f32) task.problem.precision = float32_precision();
  task.problem.prepacked = true;
  const auto plan = cpu::cached_plan(task.problem, parallel.threads);
  if (task.result.numel() == 0 || !plan->fingerprint) return at::empty({0}, src.options().dtype(at::kByte));
  Tensor packed = at::zeros({int64_t(sizeof(PackedTensor)) + plan->packed_bytes()}, src.options().dtype(at::kByte));
  auto* header = static_cast<PackedTensor*>(packed.mutable_data_ptr());
  header->fingerprint = plan->fingerprint;
  cpu::Buffers buffers;
  buffers.w = task.w;
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
