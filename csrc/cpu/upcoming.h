// SPDX-License-Identifier: Apache-2.0
// What the next block reads and writes is asked for while this one is computed, a few cache lines at a time: between the other
// layers of a network little of a tensor is in cache, and a processor follows memory by itself no further than to the end of a
// 4-KB page.
#pragma once
#include "csrc/core/geometry.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

inline void ask_for(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// The same for what is read in a moment, into the L1 cache.
inline void ask_near(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// Rows of a few channels of many, a stride apart: processors read too little ahead of them. Asked for on the way through them,
// copies of groups of 32 channels of 128 take two thirds of the time.
class RowsAhead {
 public:
  RowsAhead(Type type, int64_t channels, int64_t stride, int64_t rows = 16)
      : bytes_(channels * bytes_of(type)), distance_(rows * stride * bytes_of(type)) {
    if (stride == channels || bytes_ > kShort) bytes_ = 0;
  }
  void ask(const void* row) const { ask_near(static_cast<const char*>(row) + distance_, bytes_); }

 private:
  static constexpr int64_t kShort = 256;
  int64_t bytes_, distance_;
};

// A part of x or y.
struct Patch {
  Range sample, channel, axis[kAxes];
};

// The cache lines of a patch, in even steps.
class PatchLines {
 public:
  PatchLines() = default;
  PatchLines(Type type, const void* tensor, const Strides& strides, const Patch& patch, int64_t steps);
  // What lies in one piece.
  PatchLines(const void* from, int64_t bytes, int64_t steps)
      : row_(static_cast<const char*>(from)),
        lines_(parts_of(bytes, kCacheLine)),
        rows_(1),
        lines_per_step_(parts_of(lines_, steps)) {}

  // Calls ask(line) for the next ones, the address of each. In line with the tiles that call it: a call would make room for its
  // registers at every step.
  template <class Ask>
  __attribute__((always_inline)) void step(Ask ask) {
    for (int64_t due = lines_per_step_; due > 0 && rows_ > 0;) {
      const int64_t count = due < lines_ - at_ ? due : lines_ - at_;
      for (int64_t i = at_; i < at_ + count; ++i) ask(row_ + i * kCacheLine);
      due -= count, at_ += count;
      if (at_ == lines_) next_row();
    }
  }

 private:
  struct Loop {
    int64_t extent = 1, stride = 0, at = 0;
  };
  __attribute__((always_inline)) void next_row() {
    at_ = 0;
    --rows_;
    for (Loop& loop : loops_) {
      row_ += loop.stride;
      if (++loop.at < loop.extent) return;
      row_ -= loop.extent * loop.stride;
      loop.at = 0;
    }
  }

  const char* row_ = nullptr;   // what lies in one piece
  int64_t lines_ = 0, at_ = 0;  // of a row
  int64_t rows_ = 0;            // that are left
  Loop loops_[kAxes + 1];       // over the rows
  int64_t lines_per_step_ = 0;
};

class Upcoming {
 public:
  // Asks for everything in so many steps.
  explicit Upcoming(int64_t steps = 1) : steps_(steps) {}
  void reads(Type type, const void* tensor, const Strides& strides, const Patch& patch) {
    read_ = {type, tensor, strides, patch, steps_};
  }
  void writes(Type type, const void* tensor, const Strides& strides, const Patch& patch) {
    written_ = {type, tensor, strides, patch, steps_};
  }
  void reads(const void* from, int64_t bytes) { read_ = {from, bytes, steps_}; }
  void writes(const void* to, int64_t bytes) { written_ = {to, bytes, steps_}; }
  __attribute__((always_inline)) void step() {
    read_.step([](const char* line) __attribute__((always_inline)) { __builtin_prefetch(line, 0, 2); });
    written_.step([](const char* line) __attribute__((always_inline)) { __builtin_prefetch(line, 1, 2); });
  }

 private:
  int64_t steps_;
  PatchLines read_, written_;
};

}  // namespace torch_ext::cpu
