// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/split.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {

Split split_of(const Problem& p) {
  if (p.type == Type::bf16) return {1, 1};
  if (p.type == Type::f16) return {2, 3};
  return p.precision == Precision::full ? Split{3, 3} : p.precision == Precision::high ? Split{2, 2} : Split{1, 1};
}

int Split::products() const {
  int count = 0;
  for (int i = 0; i < parts; ++i) count += std::min(parts, orders - i);
  return count;
}

bool matrices_take(const Problem& p) {
  if (p.type != Type::f32) return p.type != Type::f64;
  static const char* const wanted = std::getenv("TORCH_EXT_AMX_F32");
  if (wanted && *wanted) return std::atoi(wanted) != 0;
  // What goes with the products, of splitting, packing and storing, costs as much as half of them at the peak.
  return matrix_speed() > 1.5 * split_of(p).products();
}

bool split_box(const Tiles<float>& tiles, Type type, const void* from, const Box& box, int parts, uint16_t* to, int64_t pitch,
               int64_t plane) {
  thread_local std::vector<float> line;
  const int64_t line_pitch = round_up(box.channels, kMaxLanes);
  line.resize(size_t(box.extent[2] * line_pitch));
  const Box of_line{{1, 1, box.extent[2]}, {0, 0, box.stride[2]}, box.channels, box.channel_stride};
  const bool in_place = type == Type::f32 && (box.channel_stride == 1 || box.channels == 1);
  const RowsAhead ahead(type, in_place ? box.channels : 0, box.stride[2]);  // else load_box asks for them
  bool splits = true;
  for (int64_t p0 = 0; p0 < box.extent[0]; ++p0)
    for (int64_t p1 = 0; p1 < box.extent[1]; ++p1) {
      const void* source = element(from, type, p0 * box.stride[0] + p1 * box.stride[1]);
      if (!in_place) load_box(tiles, type, source, of_line, line.data(), line_pitch);
      const float* rows = in_place ? static_cast<const float*>(source) : line.data();
      for (int64_t p2 = 0; p2 < box.extent[2]; ++p2, to += pitch) {
        const float* row = rows + p2 * (in_place ? box.stride[2] : line_pitch);
        ahead.ask(row);
        splits = tiles.split(row, box.channels, parts, to, plane) && splits;
        for (int i = 0; i < parts; ++i) std::fill(to + i * plane + box.channels, to + (i + 1) * plane, uint16_t(0));
      }
    }
  return splits;
}

bool split_pairs(const Tiles<float>& tiles, const float* even, const float* odd, int64_t count, int parts, float* to,
                 int64_t plane) {
  constexpr int64_t kAtOnce = 64;
  uint16_t halves[2][kMaxParts * kAtOnce];
  bool splits = true;
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const int64_t part = std::min(kAtOnce, count - first);
    splits = tiles.split(even + first, part, parts, halves[0], kAtOnce) && splits;
    splits = tiles.split(odd + first, part, parts, halves[1], kAtOnce) && splits;
    for (int i = 0; i < parts; ++i)
      tiles.pair(halves[0] + i * kAtOnce, halves[1] + i * kAtOnce, to + (parts - 1 - i) * plane + first, part);
  }
  return splits;
}

}  // namespace torch_ext::cpu
