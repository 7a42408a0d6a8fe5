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
  return slot * slot_size() + position;
}

template <class Real>
void Planes<Real>::load(const void* in, const Range* cell, int64_t channels, Real* planes) const {
  Real* line = planes;
  for (int64_t residue0 : plane_axis_[0].residues)
    for (int64_t residue1 : plane_axis_[1].residues) {
      for (int64_t q0 = 0; q0 < extent_[0]; ++q0)
        for (int64_t q1 = 0; q1 < extent_[1]; ++q1, line += extent_[2]) {
          const int64_t i0 = (cell[0].begin + plane_axis_[0].q_min + q0) * axis_[0].in_step + residue0;
          const int64_t i1 = (cell[1].begin + plane_axis_[1].q_min + q1) * axis_[1].in_step + residue1;
          const bool inside = i0 >= 0 && i0 < axis_[0].in_extent && i1 >= 0 && i1 < axis_[1].in_extent;
          load_line(inside ? element(in, type_, i0 * in_.axis[0] + i1 * in_.axis[1]) : in, cell[2].begin, channels, inside, line);
        }
      line += (int64_t(plane_axis_[2].residues.size()) - 1) * slot_size();
    }
}

// A line of all residues of the innermost axis, which begins with the cell `begin`; zeros where it is not `inside`.
template <class Real>
void Planes<Real>::load_line(const void* in, int64_t begin, int64_t channels, bool inside, Real* line) const {
  const auto& residues = plane_axis_[2].residues;
  const int64_t step = axis_[2].in_step, origin = (begin + plane_axis_[2].q_min) * step;
  // All residues at once, from the first position of which all are there up to the last one.
  Range whole{0, 0};
  if (inside && step > 1 && step <= kMaxResidues && int64_t(residues.size()) == step && in_.axis[2] == 1) {
    whole.begin = std::min(first_reaching(0, origin, step), extent_[2]);
    whole.end = std::clamp((axis_[2].in_extent - origin) / step, whole.begin, extent_[2]);
  }
  for (size_t slot = 0; slot < residues.size(); ++slot) {
    const int64_t i = origin + residues[slot];
    Range there{0, 0};
    if (inside) {
      there.begin = std::min(first_reaching(0, i, step), extent_[2]);
      there.end = std::clamp(first_reaching(axis_[2].in_extent, i, step), there.begin, extent_[2]);
    }
    Real* to = line + int64_t(slot) * slot_size();
    for (int64_t c = 0; c < channels; ++c) {
      std::fill(to + c * size_, to + c * size_ + there.begin, Real(0));
      std::fill(to + c * size_ + there.end, to + c * size_ + extent_[2], Real(0));
    }
    const auto load = [&](Range part) {
      if (part.size() <= 0) return;
      load_planes(*tiles_, type_, element(in, type_, (i + part.begin * step) * in_.axis[2]), step * in_.axis[2], part.size(),
                  in_.channel, channels, to + part.begin, size_);
    };
    load({there.begin, whole.size() > 0 ? whole.begin : there.end});
    if (whole.size() > 0) load({whole.end, there.end});
  }
  for (int64_t c = 0; whole.size() > 0 && c < channels; ++c)
    load_residues(*tiles_, type_, element(in, type_, origin + whole.begin * step + c * in_.channel), step,
                  line + c * size_ + whole.begin, slot_size(), whole.size());
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
