// SPDX-License-Identifier: Apache-2.0
// How one problem is computed on a GPU: Problem -> Plan (host code that needs no GPU) -> workspace_bytes -> run on a stream.
// Nothing here knows a tensor or an allocator, nothing waits for the device, and every sum has one fixed order.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/geometry.h"

namespace torch_ext::cuda {

// What a plan needs to know of a GPU.
struct Device {
  int capability = 80;  // 10 * major + minor
  int multiprocessors = 108;
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int64_t kMaxSharedBytes = 48 * 1024;  // of a block, on every GPU

// What a plan depends on besides the problem.
struct Setting {
  Device device;
  bool tf32 = false;     // float32 operands may be rounded to tf32
  bool aligned = false;  // all operands begin at a multiple of 16 bytes
  friend bool operator==(const Setting&, const Setting&) = default;
};

// Device memory. The operand that the operation computes is written, the others are read. `workspace` is aligned to 256 bytes.
struct Buffers {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;
  void* workspace = nullptr;
};

using Stream = void*;  // a cudaStream_t

// The shape of one launch.
struct Launch {
  int64_t blocks = 1;
  int threads = 1;
  int64_t shared_bytes = 0;
};

// Launches one kernel; null, or what went wrong.
struct Step {
  const char* name;
  Launch launch;
  std::function<const char*(const Buffers&, const Launch&, Stream)> run;
};

// What was decided for a problem. Immutable, shared between threads.
struct Plan {
  const char* kernel = "";  // its name in the list of kernels.inc
  std::string description;  // one line: tiles, splits
  int64_t workspace_bytes = 0;
  std::vector<Step> steps;  // in the order of the stream

  // Null, or what went wrong.
  const char* run(const Buffers& buffers, Stream stream) const;
};

// The first kernel of the list that accepts the problem. `kernel`, when given, names the one kernel to use; the result is null
// where that one does not accept the problem. Every legal problem is accepted by some kernel.
std::shared_ptr<const Plan> make_plan(const Problem& problem, const Setting& setting, const char* kernel = nullptr);

// make_plan for the kernel that the environment variable TORCH_EXT_KERNEL names, remembered for each problem. Where that kernel
// does not accept the problem the list decides as usual. TORCH_EXT_VERBOSE=1 prints one line a call.
std::shared_ptr<const Plan> cached_plan(const Problem& problem, const Setting& setting);

// The list, for tests and benchmarks, fastest first.
int kernel_count();
const char* kernel_name(int index);

// Makes the GPU `index` current for this thread and says what it is; throws std::runtime_error where that fails.
Device use_device(int index);

}  // namespace torch_ext::cuda
