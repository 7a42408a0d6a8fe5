// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data as implicit matrix products: for each phase of the result (csrc/cuda/gather.h) one of
// (positions) x (taps and channels of the source) by (taps and channels of the source) x (channels of the result). The rows of
// the left one are read straight from the source, and where they are outside of it they are zeros. These may have met an infinity
// or a NaN among the weights where a result is not finite: such a one is computed again without them. Where there are too few
// tiles to fill a GPU, each is cut into parts, whose sums are added in their order.
#pragma once
#include "csrc/cuda/pack.h"

namespace torch_ext::cuda {

struct GemmArguments {
  Gather gather[kAxes];
  int64_t batch, groups, depth, columns;  // channels of a group that are summed over, and of the result
  int64_t weights_depth;                  // `depth` of the weights, where the source has been given zeros beyond it
  int64_t depth_room, columns_room;       // the same as packed weights have them, with zeros
  int64_t tiles, column_tiles;            // of the largest phase; of a group
  int64_t parts, part_tiles;              // of a tile; of all phases and groups
  Strides from, to;
  bool vectors;  // the results of a row are aligned to 16 bytes
  const void* source;
  const void* packed;
  const void* bias;
  float* sums;  // [part][tile][row][column], where there are parts
  void* result;
};

// The sums of a part, or, where there is but one, the results.
const char* launch_gemm(const GemmArguments& arguments, TileMath math, const Launch& shape, Stream stream);
// The results from the sums of the parts.
const char* launch_gemm_sum(const GemmArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
