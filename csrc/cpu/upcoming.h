// SPDX-License-Identifier: Apache-2.0
// What the next block reads and writes is asked for while this one is computed, a few cache lines at a time: between the other
// layers of a network little of a tensor is in cache, and a processor follows memory by itself no further than to the end of a
// 4-KB page.
#pragma once
#include "csrc/core/geometry.h"
#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

// A part of x or y.
struct Patch {
  Range sample, channel, axis[kAxes];
};

class Upcoming {
 public:
  // Asks for everything in so many even steps.
  explicit Upcoming(int64_t steps = 1) : steps_(steps) {}
  void reads(Type type, const void* tensor, const Strides& strides, const Patch& patch) {
    rows_[0] = Rows(type, tensor, strides, patch, steps_);
  }
  void writes(Type type, const void* tensor, const Strides& strides, const Patch& patch) {
    rows_[1] = Rows(type, tensor, strides, patch, steps_);
  }
  void step() {
    rows_[0].step([](const char* line) { __builtin_prefetch(line, 0, 2); });
    rows_[1].step([](const char* line) { __builtin_prefetch(line, 1, 2); });
  }

 private:
  // What lies in one piece, again and again.
  class Rows {
   public:
    Rows() = default;
    Rows(Type type, const void* tensor, const Strides& strides, const Patch& patch, int64_t steps);

    template <class Ask>
    void step(Ask ask) {
      for (int64_t due = lines_per_step_; due > 0 && left_ > 0;) {
        const int64_t count = due < lines_ - at_ ? due : lines_ - at_;
        for (int64_t i = at_; i < at_ + count; ++i) ask(row_ + i * kLine);
        due -= count, at_ += count;
        if (at_ == lines_) next_row();
      }
    }

   private:
    static constexpr int64_t kLine = 64;
    struct Loop {
      int64_t extent = 1, stride = 0, at = 0;
    };
    void next_row();

    const char* row_ = nullptr;
    int64_t lines_ = 0, at_ = 0;  // of a row
    int64_t left_ = 0;            // rows
    Loop loops_[kAxes + 1];       // over the rows
    int64_t lines_per_step_ = 0;
  };

  int64_t steps_;
  Rows rows_[2];
};

}  // namespace torch_ext::cpu
