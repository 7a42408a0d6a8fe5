// SPDX-License-Identifier: Apache-2.0
#include "csrc/cuda/transpose.h"

#include "csrc/cuda/device.h"
#include "csrc/cuda/take.h"

namespace torch_ext::cuda {
namespace {

// Tiles of 32 positions by 32 channels through shared memory, so that both sides are read and written along their lines.
template <class T>
TORCH_EXT_KERNEL(256, 4)
transpose(const TransposeArguments a) {
  constexpr int kSide = 32, kPitch = kSide + 1;
  T* tile = reinterpret_cast<T*>(shared_memory());
  const int64_t positions = a.extent[0] * a.extent[1] * a.extent[2];
  const int64_t position_tiles = (positions + kSide - 1) / kSide, channel_tiles = (a.room + kSide - 1) / kSide;
  const int64_t channels_of_group = a.group_channels, room_of_group = a.group_room;
  const int x = thread_index() % kSide, y = thread_index() / kSide, step = block_threads() / kSide;
  for (int64_t block = block_index(); block < a.batch * position_tiles * channel_tiles; block += block_count()) {
    int64_t rest = block;
    const int64_t position = take(rest, position_tiles) * kSide, channel = take(rest, channel_tiles) * kSide;
    int64_t p = position + x, offset = rest * a.from.outer;
    const bool inside = p < positions;
    for (int k = kAxes - 1; k >= 0; --k) offset += take(p, a.extent[k]) * a.from.axis[k];
    for (int c = y; c < kSide; c += step) {
      int64_t group = channel + c;
      const int64_t of_group = take(group, room_of_group);
      T value{};
      if (inside && channel + c < a.room && of_group < channels_of_group)
        value = static_cast<const T*>(a.source)[offset + (group * channels_of_group + of_group) * a.from.channel];
      tile[c * kPitch + x] = value;
    }
    sync_block();
    for (int r = y; r < kSide; r += step)
      if (position + r < positions && channel + x < a.room)
        static_cast<T*>(a.result)[(rest * positions + position + r) * a.room + channel + x] = tile[x * kPitch + r];
    sync_block();
  }
}

}  // namespace

const char* launch_transpose(const TransposeArguments& a, Type type, const Launch& shape, Stream stream) {
  return with_type(type, [&](auto value) { return launch(transpose<decltype(value)>, shape, stream, a); });
}

}  // namespace torch_ext::cuda
