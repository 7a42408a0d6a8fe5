// SPDX-License-Identifier: Apache-2.0
// The weights as gemm and fold multiply with them: rows of contiguous channels, one for each column of a tile.
#pragma once
#include "csrc/cuda/gather.h"
#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {

// The tile of one block of gemm and fold, and the bytes of the depth that a step adds.
inline constexpr int kTileRows = 128, kTileColumns = 64, kTileStepBytes = 64, kTileStages = 3, kTileThreads = 128;
inline constexpr int64_t kTileBytes = kTileStages * (kTileRows + kTileColumns) * int64_t(kTileStepBytes);

enum class TileMath : int32_t { bf16, f16, tf32, fma };
TileMath tile_math(Type type, bool tf32);

// Phases of the result by the boxful, of each its taps, of each the channels of the result: the columns of fold's tiles.
struct Boxes {
  int64_t phases[kAxes];  // of a box
  int64_t count[kAxes];   // of boxes
  int64_t taps[kAxes];    // of a phase, at most
};

struct PackArguments {
  Gather gather[kAxes];
  Strides weights;
  int64_t groups, depth, columns;    // channels of a group of the source and of the result
  int64_t depth_room, columns_room;  // with zeros: the channels of a row, and the rows of a tap
  int64_t rows;                      // of a group
  bool boxed;                        // rows are boxes of phases, else taps
  Boxes boxes;
  const void* w;
  void* packed;  // [group][row][depth_room]

  int64_t bytes(Type type) const { return round_up(groups * rows * depth_room * bytes_of(type), 256); }
};

// The rows of gemm: for each tap the columns, padded to whole tiles.
PackArguments pack_by_taps(const Problem& problem);
// Packs into the begin of the workspace.
Step pack_step(const PackArguments& arguments, Type type, const Device& device);
const char* launch_pack(const PackArguments& arguments, Type type, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
