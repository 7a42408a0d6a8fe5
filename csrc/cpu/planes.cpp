// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/planes.h"

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {
template <class Real>
Planes<Real>::Planes(const Tiles<Real>& tiles, Type type, const GatherAxis* axis, const PlaneAxis* plane_axis, const Strides& in,
                     const int64_t* cells)
    : tiles_(&tiles), type_(type), axis_(axis), plane_axis_(plane_axis), in_(in), size_(1) {
  for (int a = 0; a < kAxes; ++a) {
    extent_[a] = cells[a] + plane_axis[a].q_max - plane_axis[a].q_min;
    size_ *= extent_[a] * int64_t(plane_axis[a].residues.size());
  }
}

template <class Real>
int64_t Planes<Real>::offset(const PlaneTap& t0, const PlaneTap& t1, const PlaneTap& t2) const {
  const PlaneTap* taps[kAxes] = {&t0, &t1, &t2};
  int64_t slot = 0, position = 0;
  for (int a = 0; a < kAxes; ++a) {
    slot = slot * int64_t(plane_axis_[a].residues.size()) + taps[a]->slot;
    position = position * extent_[a] + taps[a]->q - plane_axis_[a].q_min;
  }
  return slot * extent_[0] * extent_[1] * extent_[2] + position;
}

template <class Real>
void Planes<Real>::load(const void* in, const Range* cell, int64_t channels, Real* planes) const {
  // Input position of the first element of a plane along an axis.
  const auto origin = [&](int a, size_t slot) {
    return (cell[a].begin + plane_axis_[a].q_min) * axis_[a].in_step + plane_axis_[a].residues[slot];
  };
  const auto inside = [&](int a, int64_t i) { return i >= 0 && i < axis_[a].in_extent; };
  Real* line = planes;
  const int64_t step = axis_[2].in_step;
  for (size_t s0 = 0; s0 < plane_axis_[0].residues.size(); ++s0)
    for (size_t s1 = 0; s1 < plane_axis_[1].residues.size(); ++s1)
      for (size_t s2 = 0; s2 < plane_axis_[2].residues.size(); ++s2)
        for (int64_t q0 = 0; q0 < extent_[0]; ++q0)
          for (int64_t q1 = 0; q1 < extent_[1]; ++q1, line += extent_[2]) {
            const int64_t i0 = origin(0, s0) + q0 * axis_[0].in_step, i1 = origin(1, s1) + q1 * axis_[1].in_step;
            const int64_t i2 = origin(2, s2);
            int64_t first = first_reaching(0, i2, step), last = first_reaching(axis_[2].in_extent, i2, step);
            first = std::min(first, extent_[2]), last = std::clamp(last, first, extent_[2]);
            if (!inside(0, i0) || !inside(1, i1)) first = last = 0;
            for (int64_t c = 0; c < channels; ++c) {
              Real* const of_channel = line + c * size_;
              for (int64_t q = 0; q < first; ++q) of_channel[q] = 0;
              for (int64_t q = last; q < extent_[2]; ++q) of_channel[q] = 0;
            }
            if (first == last) continue;
            const int64_t offset = i0 * in_.axis[0] + i1 * in_.axis[1] + (i2 + first * step) * in_.axis[2];
            load_planes(*tiles_, type_, element(in, type_, offset), step * in_.axis[2], last - first, in_.channel, channels,
                        line + first, size_);
          }
}

template <class Real>
void Planes<Real>::reach(const Range* cell, Range* axis) const {
  for (int a = 0; a < kAxes; ++a) {
    const int64_t first = cell[a].begin + plane_axis_[a].q_min, step = axis_[a].in_step;
    axis[a] = {std::max<int64_t>(first * step, 0), std::min((first + extent_[a]) * step, axis_[a].in_extent)};
  }
}

template class Planes<float>;
template class Planes<double>;

}  // namespace torch_ext::cpu
