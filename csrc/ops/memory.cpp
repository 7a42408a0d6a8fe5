// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace torch_ext::ops {
namespace {

int64_t environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoll(value) : otherwise;
}

class ResultAllocator final : public c10::Allocator {
 public:
  explicit ResultAllocator(size_t most) : most_(most) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto block = std::make_unique<Block>(take(bytes));
    if (!block->memory) {
      try {
        *block = {c10::GetCPUAllocator()->allocate(bytes), bytes};
      } catch (...) {
        // What is kept may be what is missing.
        if (!release(0)) throw;
        *block = {c10::GetCPUAllocator()->allocate(bytes), bytes};
      }
      advise_huge_pages(block->memory.get(), bytes);
    }
    void* data = block->memory.get();
    return {data, block.release(), &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t bytes = 0;
  };

  // The smallest block that is large enough, and not by much; else one without memory. Nobody waits for a lock: who does not get
  // it at once, as in a process that was forked while it was held, allocates and frees as ever.
  Block take(size_t bytes) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return {};
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->bytes >= bytes && it->bytes <= bytes + bytes / 8 && (best == kept_.end() || it->bytes < best->bytes)) best = it;
    if (best == kept_.end()) return {};
    kept_bytes_ -= best->bytes;
    Block block = std::move(*best);
    kept_.erase(best);
    return block;
  }

  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    static_cast<ResultAllocator*>(result_allocator())->keep(std::move(*block));
  }

  void keep(Block block) {
    if (block.bytes > most_) return;
    {
      std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock) return;
      kept_bytes_ += block.bytes;
      kept_.push_back(std::move(block));
    }
    release(most_);
  }

  // Lets go of what has been kept longest until no more than `most` is; returns whether there was any.
  bool release(size_t most) {
    std::list<Block> released;
    std::unique_lock lock(mutex_, std::try_to_lock);
    while (lock && kept_bytes_ > most) {
      kept_bytes_ -= kept_.front().bytes;
      released.splice(released.end(), kept_, kept_.begin());
    }
    return !released.empty();
  }

  size_t most_;
  std::mutex mutex_;
  std::list<Block> kept_;  // the oldest first
  size_t kept_bytes_ = 0;
};

}  // namespace

// Fresh memory is mapped page by page as it is written, which for large results costs as much as computing them; with huge pages
// it costs a third (113 MB: 49 ms with 4-KB pages, 21 ms with huge ones). Where memory is not fresh there is nothing left to
// gain.
void advise_huge_pages(void* data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kHugePage = 2 << 20;
  static const bool enabled = environment("TORCH_EXT_HUGE_PAGES", 1) != 0;
  if (!enabled) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  unsigned char touched = 1;
  if (end > begin && mincore(reinterpret_cast<void*>(begin), size_t(sysconf(_SC_PAGESIZE)), &touched) == 0 && !(touched & 1))
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

c10::Allocator* result_allocator() {
  // Never destroyed: tensors may outlive everything else.
  static auto* const allocator = new ResultAllocator(size_t(std::max<int64_t>(environment("TORCH_EXT_KEPT_MB", 256), 0)) << 20);
  return allocator;
}

}  // namespace torch_ext::ops
