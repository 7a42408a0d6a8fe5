// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <new>
#include <vector>

#include "cuda_emulator.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace torch_ext::cuda::emulator {
namespace {

constexpr int kWarp = 32;
constexpr int64_t kMaxThreads = 1024, kMaxBlocks = (int64_t(1) << 31) - 1, kStack = 128 * 1024;

// ---- Stacks ----------------------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// Saves the registers that a call must keep on this stack, stores its pointer, and goes on with another stack.
extern "C" void torch_ext_switch_stack(void** save, void* load);
asm(R"(
.text
.globl torch_ext_switch_stack
.hidden torch_ext_switch_stack
.type torch_ext_switch_stack, @function
torch_ext_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size torch_ext_switch_stack, .-torch_ext_switch_stack
)");

struct Context {
  void* stack = nullptr;
  void prepare(char* begin, int64_t bytes, void (*entry)()) {
    // As if `entry` had been called: below it the six registers, above it a return address that is never used.
    auto** top = reinterpret_cast<void**>(begin + bytes) - 1;
    *top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int k = 0; k < 6; ++k) *--top = nullptr;
    stack = top;
  }
  void switch_to(Context& other) { torch_ext_switch_stack(&stack, other.stack); }
};
#else
struct Context {
  ucontext_t context;
  void prepare(char* begin, int64_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = begin, context.uc_stack.ss_size = size_t(bytes), context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

// ---- A block ---------------------------------------------------------------------------------------------------------------

struct Copy {
  void* to;
  const void* from;
  bool inside;
  void arrive() const { inside ? std::memcpy(to, from, 16) : std::memset(to, 0, 16); }
};

enum class State { ready, at_barrier, in_warp, done };

struct Thread {
  Context context;
  State state = State::ready;
  std::vector<Copy> issued;
  std::deque<std::vector<Copy>> groups;
  int64_t barriers = 0;
  void* argument = nullptr;
};

struct Warp {
  int arrived = 0;
  const char* what = nullptr;
};

// Shared memory whose end is the end of what can be touched.
class Shared {
 public:
  void prepare(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), needed = (bytes + page - 1) / page * page;
    if (needed > capacity_) {
      void* region = mmap(nullptr, size_t(needed + page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (region == MAP_FAILED) throw std::bad_alloc();
      region_ = static_cast<char*>(region), capacity_ = needed;
      mprotect(region_, size_t(capacity_), PROT_READ | PROT_WRITE);
    }
    bytes_ = bytes;
    begin_ = region_ + capacity_ - (bytes + 15) / 16 * 16;
  }
  void poison() { std::memset(begin_, options().poison, size_t(bytes_)); }
  char* begin() const { return begin_; }
  int64_t bytes() const { return bytes_; }

 private:
  char *region_ = nullptr, *begin_ = nullptr;
  int64_t capacity_ = 0, bytes_ = 0;
};

struct Machine {
  Context scheduler;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<char[]>> stacks;
  Shared shared;
  Launch shape;
  const std::function<void()>* body = nullptr;
  int64_t block = 0;
  int current = 0, count = 0, at_barrier = 0;
  std::string error;

  Thread& self() { return threads[current]; }
  // The ready thread that follows this one in the order of execution; -1 where none does.
  int ready_after(int thread) const {
    const int step = options().descending ? -1 : 1;
    for (thread += step; thread >= 0 && thread < count; thread += step)
      if (threads[thread].state == State::ready) return thread;
    return -1;
  }
  // The thread that runs gives way to the one that follows, or to the scheduler where none does.
  void leave() {
    Context& from = self().context;
    const int next = ready_after(current);
    if (next < 0) return from.switch_to(scheduler);
    current = next;
    from.switch_to(self().context);
  }
};

Machine& machine() {
  static Machine& machine = *new Machine;
  return machine;
}

void thread_main() {
  Machine& m = machine();
  (*m.body)();
  if (!m.self().issued.empty()) fail("asynchronous copies that were never committed");
  m.self().state = State::done;
  m.leave();
  std::abort();
}

void release_barrier(Machine& m) {
  m.at_barrier = 0;
  for (int t = 0; t < m.count; ++t)
    if (m.threads[t].state == State::at_barrier) m.threads[t].state = State::ready;
}

// Why nothing moves: threads wait for threads that will not come.
std::string stuck(const Machine& m) {
  std::string text = "deadlock in block " + std::to_string(m.block) + ":";
  const char* const names[] = {"ready", "at a barrier", "in a warp's operation", "done"};
  for (int state = 0; state < 4; ++state) {
    const auto count =
        std::count_if(m.threads.begin(), m.threads.begin() + m.count, [&](const Thread& t) { return t.state == State(state); });
    if (count) text.append(" ").append(std::to_string(count)).append(" threads ").append(names[state]);
  }
  return text;
}

void run_block(Machine& m) {
  m.shared.poison();
  m.at_barrier = 0;
  for (Warp& warp : m.warps) warp = {};
  for (int t = 0; t < m.count; ++t) {
    Thread& thread = m.threads[t];
    thread.state = State::ready;
    thread.issued.clear(), thread.groups.clear();
    thread.barriers = 0;
    thread.context.prepare(m.stacks[t].get(), kStack, thread_main);
  }
  while (m.error.empty()) {
    m.current = m.ready_after(options().descending ? m.count : -1);
    if (m.current < 0) break;
    m.scheduler.switch_to(m.self().context);
  }
  const auto done = [](const Thread& t) { return t.state == State::done; };
  if (m.error.empty() && !std::all_of(m.threads.begin(), m.threads.begin() + m.count, done)) m.error = stuck(m);
}

}  // namespace

// ---- What kernels call -----------------------------------------------------------------------------------------------------

Options& options() {
  static Options options;
  return options;
}

int thread() { return machine().current; }
int threads() { return machine().count; }
int64_t block() { return machine().block; }
int64_t blocks() { return machine().shape.blocks; }
char* shared() { return machine().shared.begin(); }
int64_t shared_bytes() { return machine().shared.bytes(); }

void fail(const std::string& error) {
  Machine& m = machine();
  m.error = error + " (block " + std::to_string(m.block) + ", thread " + std::to_string(m.current) + ")";
  m.self().context.switch_to(m.scheduler);  // for good
  std::abort();
}

void barrier() {
  Machine& m = machine();
  Thread& self = m.self();
  const int64_t number = self.barriers++;
  if (number == options().drop_barrier) return;
  if (++m.at_barrier == m.count) return release_barrier(m);
  self.state = State::at_barrier;
  m.leave();
}

void copy(void* to, const void* from, bool inside) {
  const Copy copy{to, from, inside};
  if (options().eager_copies) return copy.arrive();
  machine().self().issued.push_back(copy);
}

void commit() {
  Thread& self = machine().self();
  self.groups.push_back(std::move(self.issued));
  self.issued.clear();
}

void wait(int newest) {
  if (options().drop_waits) return;
  auto& groups = machine().self().groups;
  for (; int(groups.size()) > newest + options().wait_extra; groups.pop_front())
    for (const Copy& copy : groups.front()) copy.arrive();
}

void meet(const char* what, void* argument, void (*all)(void* const (&)[32])) {
  Machine& m = machine();
  const int first = m.current / kWarp * kWarp;
  Warp& warp = m.warps[m.current / kWarp];
  if (first + kWarp > m.count) fail(std::string(what) + ": the warp is not full");
  if (warp.arrived && warp.what != what) fail(std::string(what) + ": another lane of the warp is in " + warp.what);
  warp.what = what;
  m.self().argument = argument;
  if (++warp.arrived < kWarp) {
    m.self().state = State::in_warp;
    return m.leave();
  }
  warp.arrived = 0;
  void* arguments[kWarp];
  for (int l = 0; l < kWarp; ++l) arguments[l] = m.threads[first + l].argument;
  all(arguments);
  for (int l = 0; l < kWarp; ++l)
    if (first + l != m.current) m.threads[first + l].state = State::ready;
}

const char* run(const Launch& shape, const std::function<void()>& body) {
  Machine& m = machine();
  m.error.clear();
  if (shape.blocks < 1 || shape.blocks > kMaxBlocks) return "the number of blocks is out of range";
  if (shape.threads < 1 || shape.threads > kMaxThreads) return "the number of threads is out of range";
  if (shape.shared_bytes > kMaxSharedBytes) return "more shared memory than a GPU gives without being asked";
  m.shape = shape, m.count = shape.threads, m.body = &body;
  if (int(m.threads.size()) < m.count) m.threads.resize(size_t(m.count));
  m.warps.resize(size_t(m.count + kWarp - 1) / kWarp);
  while (int(m.stacks.size()) < m.count) m.stacks.push_back(std::make_unique_for_overwrite<char[]>(kStack));
  m.shared.prepare(shape.shared_bytes);
  for (m.block = 0; m.block < shape.blocks && m.error.empty(); ++m.block) run_block(m);
  return m.error.empty() ? nullptr : m.error.c_str();
}

}  // namespace torch_ext::cuda::emulator
