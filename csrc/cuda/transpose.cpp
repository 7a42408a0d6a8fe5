// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/transpose.h"

#include <algorithm>

namespace torch_ext::cuda {

bool whole_vectors(Type type, const Strides& tensor, int64_t channels, bool aligned) {
  const int64_t vector = 16 / bytes_of(type);
  const auto whole = [vector](int64_t elements) { return elements % vector == 0; };
  return aligned && tensor.channel == 1 && whole(channels) && whole(tensor.outer) &&
         std::all_of(tensor.axis, tensor.axis + kAxes, whole);
}

Launch walk(int64_t work, int threads, const Device& device) {
  constexpr int64_t kBlocksOfMultiprocessor = 32;
  return {std::clamp<int64_t>(divide_up(work, threads), 1, device.multiprocessors * kBlocksOfMultiprocessor), threads, 0};
}

Rows::Rows(Type type, const Strides& tensor, int64_t batch, const int64_t* extent, int64_t groups, int64_t channels, bool aligned)
    : in_place(whole_vectors(type, tensor, channels, aligned)), group_room(channels), strides(tensor), copy{} {
  if (in_place) return;
  group_room = round_up(channels, 16 / bytes_of(type));
  copy.from = tensor, copy.batch = batch;
  copy.group_channels = channels, copy.group_room = group_room, copy.room = groups * group_room;
  std::copy_n(extent, kAxes, copy.extent);
  const int64_t line = extent[2] * copy.room, plane = extent[1] * line;
  strides = {extent[0] * plane, 1, {plane, line, copy.room}};
  copy_bytes = round_up(batch * strides.outer * bytes_of(type), 256);
}

// Blocks of 32 positions by 32 channels.
Launch Rows::launch() const {
  constexpr int64_t kSide = 32;
  const int64_t positions = copy.extent[0] * copy.extent[1] * copy.extent[2];
  const int64_t blocks = copy.batch * divide_up(positions, kSide) * divide_up(copy.room, kSide);
  return {std::clamp<int64_t>(blocks, 1, kMaxBlocks), 256, kSide * (kSide + 1) * 4};
}

}  // namespace torch_ext::cuda
