// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data as implicit matrix products: for each phase of the result (csrc/cuda/gather.h) one of
// (positions) x (taps and channels of the source) by (taps and channels of the source) x (channels of the result). The rows of
// the left one are read straight from the source, and where they are outside of it they are zeros. These must not meet an
// infinity or a NaN: the packing of the weights looks for them, and where there are any, results are computed without the zeros,
// one by one.
#pragma once
#include "csrc/cuda/cuda.h"
#include "csrc/cuda/gather.h"

namespace torch_ext::cuda {

// The tile of one block, and the bytes of the depth that a step adds.
inline constexpr int kGemmRows = 128, kGemmColumns = 64, kGemmStepBytes = 64, kGemmStages = 3, kGemmThreads = 128;
inline constexpr int kGemmPhases = 8;  // of an axis, at most

enum class GemmMath : int32_t { bf16, f16, tf32, fma };

struct GemmArguments {
  GatherAxis axis[kAxes][kGemmPhases];
  int64_t phases[kAxes], source_extent[kAxes];
  int64_t batch, groups, depth, columns;  // channels of a group that are summed over, and of the result
  int64_t weights_depth;                  // `depth` of the weights, where the source has been given zeros beyond it
  int64_t depth_room, columns_room;       // the same as packed weights have them, with zeros
  int64_t tiles, column_tiles;            // of the largest phase; of a group
  int64_t kernel[kAxes];
  Strides from, to, weights;
  bool forward, vectors;  // vectors: the results of a row are aligned to 16 bytes
  const void* source;
  const void* w;
  const void* packed;
  int32_t* not_finite;  // of the weights, as each of kGemmThreads blocks has found
  const void* bias;
  void* result;
};

const char* launch_gemm(const GemmArguments& arguments, GemmMath math, const Launch& shape, Stream stream);
const char* launch_gemm_weights(const GemmArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
