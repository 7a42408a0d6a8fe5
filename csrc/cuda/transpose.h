// SPDX-License-Identifier: Apache-2.0
// A tensor with contiguous channels, for kernels that read rows of them in vectors of 16 bytes.
#pragma once
#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

// The copy has `room` channels in each position, `group_room` of each group, with zeros beyond `group_channels`.
struct TransposeArguments {
  Strides from;
  int64_t batch, extent[kAxes], group_channels, group_room, room;
  const void* source;
  void* result;
};

const char* launch_transpose(const TransposeArguments& arguments, Type type, const Launch& shape, Stream stream);

// Rows of the channels of x or y: where they lie, or, where that is not in whole vectors, in a copy.
struct Rows {
  Type type;
  void* Buffers::*tensor;
  bool in_place;
  int64_t group_room;       // channels of a group in memory
  Strides strides;          // of the rows that are read
  int64_t copy_bytes = 0;   // of the workspace
  TransposeArguments copy;  // but for its pointers

  Rows(const Problem& problem, void* Buffers::*tensor, bool aligned);
  // Where the rows are, with the copy at `offset` of the workspace, and the step that makes it.
  const void* of(const Buffers& buffers, int64_t offset) const;
  Step step(int64_t offset) const;
};

// Whether rows of a tensor's channels are whole vectors, each aligned.
bool whole_vectors(Type type, const Strides& tensor, int64_t channels, bool aligned);

// The shape of a launch of kernels that walk over what is left.
Launch walk(int64_t work, int threads, const Device& device);

}  // namespace torch_ext::cuda
