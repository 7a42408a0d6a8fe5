// SPDX-License-Identifier: Apache-2.0
// conv_transpose to few channels, as one matrix product of (positions of x) x (channels of x) by (channels of x) x (taps and
// channels of y): what every position of x adds to y. The tile of a block is a patch of positions; what its products add to the
// results whose terms all lie in the patch is summed in shared memory. Patches overlap by what these terms reach back; x is read
// about once, whatever the number of phases and taps.
#pragma once
#include "csrc/cuda/divide.h"
#include "csrc/cuda/pack.h"

namespace torch_ext::cuda {

struct FoldArguments {
  Gather gather[kAxes];
  int64_t batch, groups;
  int64_t depth, depth_room;  // channels of a group of x, in memory and in packed weights
  int64_t channels;           // of a group of y
  Boxes boxes;
  // The patch: samples, and positions of each axis, of which the first `halo` repeat those of the patch before it. A result
  // belongs to the patch that has its last term, that of its first tap; `first` is the lowest such position.
  int samples, patch[kAxes], halo[kAxes], first[kAxes];
  int64_t sample_tiles, tiles[kAxes];
  Divider by_channels, by_phases[kAxes], by_tops[kAxes];
  Strides from, to;
  bool channels_fastest;
  const void* source;
  const void* packed;
  const void* bias;
  void* result;
};

const char* launch_fold(const FoldArguments& arguments, TileMath math, const Launch& shape, Stream stream);

}  // namespace torch_ext::cuda
