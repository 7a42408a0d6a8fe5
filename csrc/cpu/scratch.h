// SPDX-License-Identifier: Apache-2.0
// How a kernel divides its workspace: parts that all threads share, then one set of parts for each thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

class Layout {
 public:
  struct Part {
    int64_t offset;
  };
  Part shared(int64_t bytes) { return place(shared_, bytes); }
  // Offsets are from thread().
  Part per_thread(int64_t bytes) { return place(thread_, bytes); }
  void finish(int threads) { threads_ = threads; }

  int64_t bytes() const { return shared_ + threads_ * thread_; }
  int64_t thread_bytes() const { return thread_; }
  std::byte* thread(std::byte* workspace, int thread) const { return workspace + shared_ + thread * thread_; }
  template <class T>
  T* at(std::byte* base, Part part) const {
    return reinterpret_cast<T*>(base + part.offset);
  }

 private:
  // Parts start on cache lines.
  static Part place(int64_t& size, int64_t bytes) {
    const Part part{size};
    size += round_up(bytes, kCacheLine);
    return part;
  }
  int64_t shared_ = 0, thread_ = 0;
  int threads_ = 1;
};

}  // namespace torch_ext::cpu
