// SPDX-License-Identifier: Apache-2.0
// How one problem is computed on a CPU: Problem -> Plan (a pure function) -> workspace_bytes -> run.
// Nothing here knows a tensor, an allocator or a thread pool: the caller owns all memory and lends threads.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc/core/geometry.h"

namespace torch_ext::cpu {

// Instruction sets, each containing the ones before it.
enum class Isa : int32_t { portable, avx2, avx512, avx512_bf16, amx };
const char* name_of(Isa isa);
// The best that this processor has.
Isa detected_isa();
// detected_isa(), capped by the environment variable TORCH_EXT_ISA (portable, avx2, avx512, avx512_bf16, amx), read once.
Isa active_isa();
// Whether products of pairs of bf16 (Isa::avx512_bf16) are faster than float32 multiply-adds here: so on AMD, not on Intel. Tried
// out once, in some microseconds.
bool pairs_are_fast();
// Whether the operating system lends this process the tiles of AMX, and these multiply as they should. Tried out once.
bool amx_works();

// Threads lent by the caller: calls task(index, thread) for every index in [0, count), each index once, in any order, where
// thread < threads and no two calls with the same `thread` overlap. Mostly a thread takes one index and then the next. How
// kernels cut work, and which thread takes which index, never changes a bit of the result.
struct Parallel {
  int threads = 1;
  std::function<void(int64_t count, const std::function<void(int64_t index, int thread)>& task)> for_each;
};

// The operand that the operation computes is written, the others are read. `workspace` is aligned to 64 bytes.
struct Buffers {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;
  void* workspace = nullptr;
  const void* packed = nullptr;  // the weights, packed ahead by a plan of the same packing(); null: run packs them
};

// What was decided for a problem. Immutable, shared between threads.
class Plan {
 public:
  virtual ~Plan() = default;
  // Name of the kernel in the list of kernels.inc, set by make_plan.
  const char* kernel = "";
  // Of the kernel and its packing(), set by make_plan; 0 where it packs nothing ahead.
  uint64_t fingerprint = 0;
  // One line: tiles, blocks.
  virtual std::string describe() const = 0;
  virtual int64_t workspace_bytes() const = 0;
  virtual void run(const Buffers& buffers, const Parallel& parallel) const = 0;

  // Weights packed ahead, for layers whose weights do not change: all that the packed form depends on besides their values, or
  // nothing where the plan has no use for it; its size; and the packing, which reads no more than buffers.w.
  virtual std::string packing() const { return {}; }
  virtual int64_t packed_bytes() const { return 0; }
  virtual void pack(const Buffers&, const Parallel&, void*) const {}
};

// The first kernel of the list that accepts the problem under `isa`, at most detected_isa(). `threads` sizes the workspace.
// `kernel`, when given, names the one kernel to use; the result is null where that one does not accept the problem. Every legal
// problem is accepted by some kernel.
std::shared_ptr<const Plan> make_plan(const Problem& problem, Isa isa, int threads, const char* kernel = nullptr);

// make_plan for active_isa() and the kernel that the environment variable TORCH_EXT_KERNEL names, remembered for each problem.
// Where that kernel does not accept the problem the list decides as usual. TORCH_EXT_VERBOSE=1 prints one line a call.
std::shared_ptr<const Plan> cached_plan(const Problem& problem, int threads);

// The list, for tests and benchmarks: kernel_count() names, fastest first.
int kernel_count();
const char* kernel_name(int index);
bool kernel_supported(int index, Isa isa);

// One line that names the problem: operation, type, then the form of tests/cases.txt.
std::string describe(const Problem& problem);

}  // namespace torch_ext::cpu
