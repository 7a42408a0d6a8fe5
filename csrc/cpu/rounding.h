// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace torch_ext::cpu {

// How many parts of at most `part` make up `value`.
inline int64_t parts_of(int64_t value, int64_t part) { return (value + part - 1) / part; }
inline int64_t round_up(int64_t value, int64_t multiple) { return parts_of(value, multiple) * multiple; }

// Whether equal items keep threads busy for at least 7/8 of the time, as many threads as the work is worth. Kernels cut their
// work by the shape alone, never by the number of threads, so that the bits of a result do not depend on it.
inline bool shared_evenly(int64_t items, double flops) {
  struct Share {
    int64_t threads;
    double flops;  // from which on: some fifty microseconds a thread, or more where finer items would cost more than they gain
  };
  for (const Share& share : {Share{2, 32e6}, Share{8, 128e6}, Share{16, 256e6}, Share{64, 4e9}})
    if (flops >= share.flops && 7 * round_up(items, share.threads) > 8 * items) return false;
  return true;
}

}  // namespace torch_ext::cpu
