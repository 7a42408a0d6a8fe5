// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/phases.h"

#include <algorithm>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

namespace {

// Those of some cells for which a tap reads positions of a range.
Range cells_reading(const GatherAxis& axis, const Tap& tap, Range cells, Range positions) {
  const auto first = [&](int64_t position) {
    return std::clamp(first_reaching(position, tap.delta, axis.in_step), cells.begin, cells.end);
  };
  return {first(positions.begin), first(positions.end)};
}

// list[i] = at + i*step bytes for i < count.
template <class T, class Byte>
void fill(T** list, int64_t count, Byte* at, int64_t step) {
  for (int64_t i = 0; i < count; ++i) list[i] = reinterpret_cast<T*>(at + i * step);
}

}  // namespace

template <class Real>
int64_t BlockRows<Real>::pointers(const GatherAxis* axis, int64_t positions, bool narrow) {
  // Every position of a phase has a pointer for each of its taps and one or two to its result; each tap of a part of a phase, of
  // at least one position, has its index and its place.
  int64_t phases = 1, tap_lists = 1;
  for (int a = 0; a < kAxes; ++a) {
    int64_t taps_of_axis = 0;
    for (const auto& list : axis[a].phases) taps_of_axis += int64_t(list.size());
    tap_lists *= taps_of_axis;
    phases *= axis[a].out_step;
  }
  return positions * (3 * tap_lists + (narrow ? 2 : 1) * phases);
}

template <class Real>
void BlockRows<Real>::cut(const GatherAxis& axis, int64_t r, Range cells, int64_t positions, std::vector<Range>& parts) const {
  parts.clear();
  if (cells.size() <= 0) return;
  thread_local std::vector<int64_t> ends;
  ends.clear();
  for (const Tap& tap : axis.phases[size_t(r)])  // inside from the first of these cells up to the second
    for (const int64_t border : {int64_t(0), axis.in_extent}) ends.push_back(first_reaching(border, tap.delta, axis.in_step));
  std::sort(ends.begin(), ends.end());
  const int64_t least = parts_of(least_positions, std::max<int64_t>(positions, 1));  // cells
  for (const int64_t end : ends)
    if (end - cells.begin >= least && cells.end - end >= least) {
      parts.push_back({cells.begin, end});
      cells.begin = end;
    }
  parts.push_back(cells);
}

template <class Real>
void BlockRows<Real>::point(const CellBlock& block, std::byte* memory, std::vector<Phase<Real>>& phases) const {
  const Real** next = reinterpret_cast<const Real**>(memory);
  phases.clear();
  thread_local std::vector<Range> parts[kAxes];
  for (int64_t r0 = 0; r0 < axis[0].out_step; ++r0)
    for (int64_t r1 = 0; r1 < axis[1].out_step; ++r1)
      for (int64_t r2 = 0; r2 < axis[2].out_step; ++r2) {
        const int64_t r[kAxes] = {r0, r1, r2};
        Range cell[kAxes];
        int64_t positions = block.sample.size();
        for (int a = 0; a < kAxes; ++a) {
          const int64_t end = (axis[a].out_extent - r[a] + axis[a].out_step - 1) / axis[a].out_step;
          cell[a] = {block.cell[a].begin, std::min(block.cell[a].end, end)};
          positions *= std::max<int64_t>(cell[a].size(), 0);
        }
        for (int a = 0; a < kAxes; ++a) cut(axis[a], r[a], cell[a], positions / std::max<int64_t>(cell[a].size(), 1), parts[a]);
        for (const Range& p0 : parts[0])
          for (const Range& p1 : parts[1])
            for (const Range& p2 : parts[2]) phases.push_back(point_phase(r, block.sample, p0, p1, p2, next));
      }
}

template <class Real>
Phase<Real> BlockRows<Real>::point_phase(const int64_t* r, Range sample, Range c0, Range c1, Range c2, const Real**& next) const {
  Phase<Real> phase{sample.size() * c0.size() * c1.size() * c2.size(), 0, nullptr, nullptr, nullptr, nullptr, nullptr};
  const int64_t samples = sample.size(), cells = c0.size() * c1.size() * c2.size();
  // Some cells of a line, of all samples, in a list of all positions; `at` is where the first of them lies in the first sample.
  const auto fill_cells = [&](auto** list, int64_t first, int64_t count, auto* at, int64_t cell_step, int64_t sample_step) {
    if (by_sample) {
      for (int64_t j = 0; j < count; ++j) fill(list + (first + j) * samples, samples, at + j * cell_step, sample_step);
    } else {
      for (int64_t n = 0; n < samples; ++n) fill(list + n * cells + first, count, at + n * sample_step, cell_step);
    }
  };
  void** results = reinterpret_cast<void**>(const_cast<Real**>(next));
  int64_t line = 0;
  for (int64_t j0 = c0.begin; j0 < c0.end; ++j0)
    for (int64_t j1 = c1.begin; j1 < c1.end; ++j1, line += c2.size()) {
      const int64_t o0 = j0 * axis[0].out_step + r[0], o1 = j1 * axis[1].out_step + r[1], o2 = c2.begin * axis[2].out_step + r[2];
      fill_cells(results, line, c2.size(), out.at(sample.begin, o0, o1, o2), axis[2].out_step * out.axis[2], out.sample);
    }
  next += phase.positions;
  phase.out = reinterpret_cast<Real**>(results);
  if (sums) {
    phase.narrow = results;
    phase.out = const_cast<Real**>(next);
    fill(next, phase.positions, reinterpret_cast<std::byte*>(sums), sums_pitch * int64_t(sizeof(Real)));
    next += phase.positions;
  }
  const size_t taps =
      axis[0].phases[size_t(r[0])].size() * axis[1].phases[size_t(r[1])].size() * axis[2].phases[size_t(r[2])].size();
  phase.tap_index = reinterpret_cast<int64_t*>(next);
  phase.tap_order = phase.tap_index + taps;
  next += 2 * taps;
  phase.rows = next;
  int64_t order = 0;
  for (const Tap& t0 : axis[0].phases[size_t(r[0])])
    for (const Tap& t1 : axis[1].phases[size_t(r[1])])
      for (const Tap& t2 : axis[2].phases[size_t(r[2])]) {
        const int64_t place = order++;
        bool used = false;
        // The cells of a line for which `in` has a row, and those of which it is the input's.
        const Range there = cells_reading(axis[2], t2, c2, beyond), real = cells_reading(axis[2], t2, c2, {0, axis[2].in_extent});
        line = 0;
        for (int64_t j0 = c0.begin; j0 < c0.end; ++j0)
          for (int64_t j1 = c1.begin; j1 < c1.end; ++j1, line += c2.size()) {
            const int64_t i0 = j0 * axis[0].in_step + t0.delta, i1 = j1 * axis[1].in_step + t1.delta;
            const bool inside = i0 >= 0 && i0 < axis[0].in_extent && i1 >= 0 && i1 < axis[1].in_extent;
            used = used || (inside && real.size() > 0);
            const int64_t before = inside ? there.begin - c2.begin : c2.size(), count = inside ? there.size() : 0;
            const int64_t after = before + count, step = axis[2].in_step;
            const auto* nothing = reinterpret_cast<const std::byte*>(zeros);
            fill_cells(next, line, before, nothing, 0, 0);
            fill_cells(next, line + before, count, in.at(sample.begin, i0, i1, there.begin * step + t2.delta), step * in.axis[2],
                       in.sample);
            fill_cells(next, line + after, c2.size() - after, nothing, 0, 0);
          }
        if (!used) continue;  // the next tap takes this one's place
        phase.tap_order[phase.taps] = place;
        phase.tap_index[phase.taps++] = (t0.k * kernel[1].w + t1.k) * kernel[2].w + t2.k;
        next += phase.positions;
      }
  return phase;
}

template struct BlockRows<float>;
template struct BlockRows<double>;

}  // namespace torch_ext::cpu
