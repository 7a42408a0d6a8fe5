// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace torch_ext::cpu {

// How many parts of at most `part` make up `value`.
inline int64_t parts_of(int64_t value, int64_t part) { return (value + part - 1) / part; }
inline int64_t round_up(int64_t value, int64_t multiple) { return parts_of(value, multiple) * multiple; }

}  // namespace torch_ext::cpu
