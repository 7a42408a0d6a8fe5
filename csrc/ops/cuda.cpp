// SPDX-License-Identifier: Apache-2.0
// Runs a problem on a GPU: torch's caching allocator for the result and the workspace, torch's current stream. Nothing here waits
// for the GPU, so that a call can be captured in a CUDA graph. torch's CUDA libraries are reached through the virtual interfaces
// of its core library alone: this library loads in a torch without CUDA too.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "csrc/ops/private.h"
#include "csrc/ops/task.h"

#if defined(TORCH_EXT_WITH_CUDA)
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "csrc/cuda/cuda.h"
#endif

namespace torch_ext::ops {
namespace {

#if defined(TORCH_EXT_WITH_CUDA)

bool aligned(const Task& task) {
  return (reinterpret_cast<uintptr_t>(task.x) | reinterpret_cast<uintptr_t>(task.w) | reinterpret_cast<uintptr_t>(task.y)) % 16 ==
         0;
}

Tensor run(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>& bias, const Form& form) {
  const OperandNames names = operand_names(operation);
  TORCH_CHECK(first.is_cuda() || second.is_cuda(), names.op, ": ", names.first, " is on ", first.device(), ", not on a GPU");
  const c10::DeviceGuard guard(first.is_cuda() ? first.device() : second.device());
  const Task task = make_task(operation, first, second, bias, form);
  if (task.result.numel() == 0) return task.result;
  // The rule of torch's own convolutions, from flags that may change between calls.
  const bool tf32 = task.problem.type == Type::f32 && at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
  const auto plan = cuda::cached_plan(task.problem, {cuda::use_device(first.device().index()), tf32, aligned(task)});
  const Tensor workspace =
      plan->workspace_bytes ? at::empty({plan->workspace_bytes}, first.options().dtype(at::kByte)) : Tensor();
  void* const memory = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(first.device());
  const char* const error = plan->run({task.x, task.w, task.y, task.bias, memory}, stream.native_handle());
  TORCH_CHECK(!error, names.op, ": the CUDA kernel ", plan->kernel, " could not be launched: ", error);
  return task.result;
}

#else

Tensor run(Operation operation, const Tensor& first, const Tensor& second, const std::optional<Tensor>&, const Form&) {
  const OperandNames names = operand_names(operation);
  TORCH_CHECK_NOT_IMPLEMENTED(false, names.op, ": ", first.is_cuda() || !second.is_cuda() ? names.first : names.second,
                              " is on a GPU, but this torch_ext was built without CUDA kernels: install the CUDA toolkit (nvcc) "
                              "and build torch_ext again with TORCH_EXT_CUDA=1");
}

#endif

}  // namespace

TORCH_LIBRARY_IMPL(torch_ext, CUDA, library) { TORCH_EXT_IMPL(library, run); }

}  // namespace torch_ext::ops
