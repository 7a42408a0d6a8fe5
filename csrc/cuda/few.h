// SPDX-License-Identifier: Apache-2.0
// Groups of few channels, depthwise ones first of all: too little for matrix products, so that memory is the limit. Neighbouring
// threads take neighbouring channels, or positions where those are neighbours in memory; each computes a few results with the
// weights of its channels, which a block keeps in shared memory, or, for weights, the taps of a pair of channels over a part of
// the positions.
#pragma once
#include "csrc/cuda/divide.h"
#include "csrc/cuda/gather.h"
#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

inline constexpr int kFewThreads = 128;
inline constexpr int kFewTaps = 16;  // of a thread, for weights

// Which channels of the result a thread has.
enum class FewChannels : int32_t {
  one,
  of_group,  // as many of one group as 16 bytes hold: they share what they read
  own,       // as many as 16 bytes hold, each of a group of its own: they are read and written as vectors
};

struct FewArguments {
  Gather gather[kAxes];
  int64_t batch, groups, depth, columns;  // channels of a group that are summed over, and of the result
  Strides from, to, weights;
  Divider by_count[kAxes];  // positions of the largest phase
  int64_t positions, part_positions;
  int64_t vectors;  // of channels, of all groups
  int64_t chunks;   // of vectors, `lanes` each
  int lanes;
  bool vector_stores;
  const void* source;
  const void* w;
  const void* bias;
  void* result;
};

struct FewWeightsArguments {
  Geometry geometry;
  Strides x_strides, y_strides;
  Divider by_extent[kAxes];
  int64_t positions, part_positions;
  int64_t pairs;  // of channels of x and y, of all groups
  int64_t chunks, tap_chunks;
  int lanes;
  const void* x;
  const void* y;
  float* sums;  // [part][group][tap][channel of x][channel of y]
};

const char* launch_few(const FewArguments& arguments, FewChannels channels, Type type, const Launch& shape, Stream stream);
const char* launch_few_weights(const FewWeightsArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
