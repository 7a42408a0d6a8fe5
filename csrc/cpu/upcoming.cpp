// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/upcoming.h"

#include <algorithm>
#include <iterator>

namespace torch_ext::cpu {

PatchLines::PatchLines(Type type, const void* tensor, const Strides& strides, const Patch& patch, int64_t steps) : rows_(1) {
  struct Extent {
    int64_t stride, size;
  } extents[kAxes + 2];
  int64_t offset = 0, count = 0;
  const auto add = [&](const Range& range, int64_t stride) {
    extents[count++] = {stride, std::max<int64_t>(range.size(), 0)};
    offset += range.begin * stride;
  };
  add(patch.sample, strides.outer), add(patch.channel, strides.channel);
  for (int a = 0; a < kAxes; ++a) add(patch.axis[a], strides.axis[a]);
  row_ = static_cast<const char*>(tensor) + offset * bytes_of(type);
  // From the smallest stride on, a row goes as far as each extent ends where the next one begins.
  // (GCC 12 warns of std::sort on so short an array.)
  std::partial_sort(extents, extents + count, extents + count,
                    [](const Extent& a, const Extent& b) { return a.stride < b.stride; });
  int64_t length = 1;
  size_t loops = 0;
  for (const Extent& e : extents) {
    if (rows_ == 1 && e.stride == length) {
      length *= e.size;
    } else if (e.size != 1) {
      rows_ *= e.size;
      if (loops < std::size(loops_)) loops_[loops] = {e.size, e.stride * bytes_of(type)};
      ++loops;
    }
  }
  lines_ = parts_of(length * bytes_of(type), kCacheLine);
  lines_per_step_ = parts_of(rows_ * lines_, std::max<int64_t>(steps, 1));
  if (lines_ == 0 || loops > std::size(loops_)) rows_ = 0;  // nothing, or no two elements side by side
}

}  // namespace torch_ext::cpu
