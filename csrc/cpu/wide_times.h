// SPDX-License-Identifier: Apache-2.0
// Whether `wide` is the fastest kernel that packs weights for conv_transpose of planes, or gradients of data.
#pragma once
#include <optional>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// In nanoseconds, of which only the ratios matter.
struct WideTimes {
  double wide, gather, overlap, fold;  // overlap: of conv_transpose; fold: of planes, by `reorder`
  // Whether `wide` is faster than what would be chosen, and then chosen itself.
  bool beats(double other) const { return wide < other && wide < gather; }
};

// Of what is summed in float32, by a model of what was measured, which knows none of the rest: conv_transpose of groups, many
// results of channels side by side, products of pairs, what tiles weave, small layers, gradients of few channels, longer strides
// than any that was measured.
std::optional<WideTimes> wide_times(const Problem& problem, const Request& request);
// Those of a gradient of data, of what the model knows.
WideTimes wide_times_of_data(Problem problem, Isa isa);

}  // namespace torch_ext::cpu
