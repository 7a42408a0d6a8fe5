// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/phases.h"

#include <algorithm>

#include "csrc/cpu/rounding.h"

namespace torch_ext::cpu {

namespace {

// What a tile costs beside its rows, and a part's tap beside its tiles, in rows that are multiplied.
constexpr int64_t kTilePositions = 1, kPanelPositions = 3;

}  // namespace

template <class Real>
int64_t BlockRows<Real>::pointers(const GatherAxis* axis, int64_t positions, bool narrow) {
  // Every position of a phase has a pointer for each of its taps and one or two to its result; each tap of a part of a phase, of
  // at least one position, has its index and its place.
  int64_t phases = 1, tap_lists = 1;
  for (int a = 0; a < kAxes; ++a) {
    tap_lists *= axis[a].tap_count();
    phases *= axis[a].out_step;
  }
  return positions * (3 * tap_lists + (narrow ? 2 : 1) * phases);
}

template <class Real>
template <class Run>
void BlockRows<Real>::for_each_phase(const CellBlock& block, Run run) const {
  for (int64_t r0 = 0; r0 < axis[0].out_step; ++r0)
    for (int64_t r1 = 0; r1 < axis[1].out_step; ++r1)
      for (int64_t r2 = 0; r2 < axis[2].out_step; ++r2) {
        const int64_t r[kAxes] = {r0, r1, r2};
        CellBlock cells = block;
        for (int a = 0; a < kAxes; ++a) {
          const int64_t end = parts_of(axis[a].out_extent - r[a], axis[a].out_step);
          cells.cell[a].end = std::max(std::min(block.cell[a].end, end), block.cell[a].begin);
        }
        if (cells.cells() > 0) run(r, cells);
      }
}

template <class Real>
typename BlockRows<Real>::Part BlockRows<Real>::part_of(const GatherAxis& axis, int64_t r, Range cells) const {
  int64_t taps = 0;
  for (const Tap& tap : axis.phases[size_t(r)]) taps += axis.cells_reading(tap, cells, {0, axis.in_extent}).size() > 0;
  return {cells, taps};
}

template <class Real>
void BlockRows<Real>::cut(const GatherAxis& axis, int64_t r, Range cells, Parts& pieces) const {
  thread_local std::vector<int64_t> ends;
  ends.assign({cells.begin, cells.end});
  for (const Tap& tap : axis.phases[size_t(r)]) {
    const Range inside = axis.cells_reading(tap, cells, {0, axis.in_extent});
    ends.insert(ends.end(), {inside.begin, inside.end});
  }
  std::sort(ends.begin(), ends.end());
  pieces.clear();
  for (size_t i = 1; i < ends.size(); ++i)
    if (ends[i] > ends[i - 1]) pieces.push_back(part_of(axis, r, {ends[i - 1], ends[i]}));
}

template <class Real>
int64_t BlockRows<Real>::cost(const Parts* const* parts, int64_t samples) const {
  int64_t sum = 0;
  for (const Part& p0 : *parts[0])
    for (const Part& p1 : *parts[1])
      for (const Part& p2 : *parts[2]) {
        const int64_t rows = samples * p0.cells.size() * p1.cells.size() * p2.cells.size();
        sum += p0.taps * p1.taps * p2.taps * (rows + kTilePositions * parts_of(rows, tallest) + kPanelPositions);
      }
  return sum;
}

template <class Real>
void BlockRows<Real>::cut_cheapest(const int64_t* r, const CellBlock& cells, Parts* parts) const {
  thread_local Parts pieces[kAxes];
  int can_be_cut = 0;  // a bit for each axis
  for (int a = 0; a < kAxes; ++a) {
    parts[a].assign(1, part_of(axis[a], r[a], cells.cell[a]));
    if (!cut_lines && a + 1 == kAxes) continue;
    cut(axis[a], r[a], cells.cell[a], pieces[a]);
    if (pieces[a].size() > 1) can_be_cut |= 1 << a;
  }
  int best = 0;
  const auto cost_of = [&](int axes) {
    const Parts* of[kAxes];
    for (int a = 0; a < kAxes; ++a) of[a] = axes >> a & 1 ? &pieces[a] : &parts[a];
    return cost(of, cells.sample.size());
  };
  int64_t least = can_be_cut ? cost_of(0) : 0;
  for (int axes = 1; axes <= can_be_cut; ++axes) {
    if (axes & ~can_be_cut) continue;
    const int64_t cost = cost_of(axes);
    if (cost < least) least = cost, best = axes;
  }
  for (int a = 0; a < kAxes; ++a)
    if (best >> a & 1) parts[a].swap(pieces[a]);
}

template <class Real>
void BlockRows<Real>::point(const CellBlock& block, std::byte* memory, std::vector<Phase<Real>>& phases) const {
  const Real** next = reinterpret_cast<const Real**>(memory);
  phases.clear();
  thread_local Parts parts[kAxes];
  int64_t first_sum = 0;
  for_each_phase(block, [&](const int64_t* r, const CellBlock& cells) {
    cut_cheapest(r, cells, parts);
    for (const Part& p0 : parts[0])
      for (const Part& p1 : parts[1])
        for (const Part& p2 : parts[2]) {
          phases.push_back(point_phase(r, {cells.sample, {p0.cells, p1.cells, p2.cells}}, first_sum, next));
          if (keep_sums) first_sum += phases.back().positions;
        }
  });
}

template <class Real>
template <class T, class Byte>
void BlockRows<Real>::list_line(T** list, int64_t size, Range there, Byte* at, int64_t step, int64_t pitch, T* nothing) {
  int64_t j = 0;
  for (; j < there.begin; ++j) list[j * pitch] = nothing;
  for (; j < there.end; ++j, at += step) list[j * pitch] = reinterpret_cast<T*>(at);
  for (; j < size; ++j) list[j * pitch] = nothing;
}

template <class Real>
template <class T>
void BlockRows<Real>::list_samples(T** list, int64_t samples, int64_t positions, int64_t sample, const void* nothing) const {
  const auto next = [&](T* row) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(row);
    return reinterpret_cast<T*>(address + (row == nothing ? 0 : uintptr_t(sample)));
  };
  if (by_sample) {
    for (int64_t j = 0; j < positions; ++j, list += samples)
      for (int64_t n = 1; n < samples; ++n) list[n] = next(list[n - 1]);
  } else {
    for (int64_t i = positions; i < samples * positions; ++i) list[i] = next(list[i - positions]);
  }
}

// Of cells of which each line has so many positions.
template <class Real>
template <class T, class Byte>
void BlockRows<Real>::list(T** list, const CellBlock& cells, int64_t line, const RowsAt<Byte>& of_cells) const {
  const Range* c = cells.cell;
  const int64_t pitch = by_sample ? cells.sample.size() : 1;
  T* const nothing = reinterpret_cast<T*>(nowhere);
  T** to = list;
  for (int64_t j0 = c[0].begin; j0 < c[0].end; ++j0)
    for (int64_t j1 = c[1].begin; j1 < c[1].end; ++j1, to += line * pitch)
      list_line(to, line, {0, c[2].size()}, of_cells.at(cells.sample.begin, j0, j1, c[2].begin), of_cells.axis[2], pitch,
                nothing);
  list_samples(list, cells.sample.size(), c[0].size() * c[1].size() * line, of_cells.sample, nothing);
}

template <class Real>
Phase<Real> BlockRows<Real>::point_phase(const int64_t* r, const CellBlock& cells, int64_t first_sum, const Real**& next) const {
  const Range c0 = cells.cell[0], c1 = cells.cell[1], c2 = cells.cell[2];
  const int64_t length = listed ? listed : c2.size(), positions = c0.size() * c1.size() * length;  // of a line, of a sample
  Phase<Real> phase{cells.sample.size() * positions, 0, nullptr, nullptr, nullptr, nullptr, nullptr, true, true};
  const int64_t out_step[kAxes] = {axis[0].out_step, axis[1].out_step, axis[2].out_step};
  void** results = reinterpret_cast<void**>(const_cast<Real**>(next));
  list(results, cells, length, out.of_cells(out_step, r));
  next += phase.positions;
  phase.out = reinterpret_cast<Real**>(results);
  if (sums) {
    phase.narrow = results;
    phase.out = const_cast<Real**>(next);
    for (int64_t i = 0; i < phase.positions; ++i) *next++ = sums + (first_sum + i) * sums_pitch;
  }
  const auto &taps0 = axis[0].phases[size_t(r[0])], &taps1 = axis[1].phases[size_t(r[1])], &taps2 = axis[2].phases[size_t(r[2])];
  const size_t taps = taps0.size() * taps1.size() * taps2.size();
  phase.tap_index = reinterpret_cast<int64_t*>(next);
  phase.tap_order = phase.tap_index + taps;
  next += 2 * taps;
  phase.rows = next;
  const int64_t pitch = by_sample ? cells.sample.size() : 1;
  int64_t order = 0;
  for (const Tap& t0 : taps0)
    for (const Tap& t1 : taps1)
      for (const Tap& t2 : taps2) {
        const int64_t place = order++;
        bool used = false;
        // The cells of a line for which `in` has a row, and those of which it is the input's.
        const Range there = axis[2].cells_reading(t2, c2, beyond), real = axis[2].cells_reading(t2, c2, {0, axis[2].in_extent});
        const Real** line = next;
        for (int64_t j0 = c0.begin; j0 < c0.end; ++j0)
          for (int64_t j1 = c1.begin; j1 < c1.end; ++j1, line += length * pitch) {
            const int64_t i0 = j0 * axis[0].in_step + t0.delta, i1 = j1 * axis[1].in_step + t1.delta;
            const bool inside = i0 >= 0 && i0 < axis[0].in_extent && i1 >= 0 && i1 < axis[1].in_extent;
            used = used || (inside && real.size() > 0);
            // What follows the cells is as evenly spaced as they are, or nothing.
            const int64_t end = there.end == c2.end ? length : there.end - c2.begin;
            const Range rows = inside ? Range{there.begin - c2.begin, end} : Range{0, 0};
            list_line(line, length, rows, in.at(cells.sample.begin, i0, i1, there.begin * axis[2].in_step + t2.delta),
                      axis[2].in_step * in.axis[2], pitch, zeros);
          }
        list_samples(next, cells.sample.size(), positions, in.sample, zeros);
        if (!used) continue;  // the next tap takes this one's place
        phase.tap_order[phase.taps] = place;
        phase.tap_index[phase.taps++] = (t0.k * kernel[1].w + t1.k) * kernel[2].w + t2.k;
        next += phase.positions;
      }
  return phase;
}

template <class Real>
void BlockRows<Real>::point_by_tap(const CellBlock& block, std::byte* memory,
                                   const std::function<void(const Phase<Real>&)>& run) const {
  int64_t first_sum = 0;
  for_each_phase(block, [&](const int64_t* r, const CellBlock& all) {
    const int64_t out_step[kAxes] = {axis[0].out_step, axis[1].out_step, axis[2].out_step};
    const int64_t in_step[kAxes] = {axis[0].in_step, axis[1].in_step, axis[2].in_step};
    const RowsAt<std::byte> results = out.of_cells(out_step, r);
    RowsAt<std::byte> added = results;  // to which products are added
    if (sums) {
      const int64_t row = sums_pitch * int64_t(sizeof(Real)), line = all.cell[2].size() * row;
      added = {
          reinterpret_cast<std::byte*>(sums + first_sum * sums_pitch), all.cells() * row, {all.cell[1].size() * line, line, row}};
      added.origin = added.at(-all.sample.begin, -all.cell[0].begin, -all.cell[1].begin, -all.cell[2].begin);
    }
    auto** first = reinterpret_cast<Real**>(memory);
    const auto no_taps = [&](bool fresh, bool done) {
      const int64_t positions = all.sample.size() * all.cells();
      auto** narrow = reinterpret_cast<void**>(first + positions);
      list(first, all, all.cell[2].size(), added);
      if (sums) list(narrow, all, all.cell[2].size(), results);
      run({positions, 0, nullptr, nullptr, nullptr, first, sums ? narrow : nullptr, fresh, done});
    };
    const auto one_tap = [&](const Tap& t0, const Tap& t1, const Tap& t2, bool fresh) {
      CellBlock cells = all;
      const Tap* taps[kAxes] = {&t0, &t1, &t2};
      for (int a = 0; a < kAxes; ++a) cells.cell[a] = axis[a].cells_reading(*taps[a], all.cell[a], {0, axis[a].in_extent});
      const int64_t positions = cells.sample.size() * cells.cells(), delta[kAxes] = {t0.delta, t1.delta, t2.delta};
      if (positions == 0) return;
      auto** rows = const_cast<const Real**>(first + positions);
      list(first, cells, cells.cell[2].size(), added);
      list(rows, cells, cells.cell[2].size(), in.of_cells(in_step, delta));
      int64_t index = (t0.k * kernel[1].w + t1.k) * kernel[2].w + t2.k;
      run({positions, 1, rows, &index, nullptr, first, nullptr, fresh, false});
    };
    // The tap that the bias comes with.
    const Tap *f0 = axis[0].reaching_all(r[0]), *f1 = axis[1].reaching_all(r[1]), *f2 = axis[2].reaching_all(r[2]);
    const bool with_bias = f0 && f1 && f2;
    with_bias ? one_tap(*f0, *f1, *f2, true) : no_taps(true, false);
    for (const Tap& t0 : axis[0].phases[size_t(r[0])])
      for (const Tap& t1 : axis[1].phases[size_t(r[1])])
        for (const Tap& t2 : axis[2].phases[size_t(r[2])])
          if (!with_bias || &t0 != f0 || &t1 != f1 || &t2 != f2) one_tap(t0, t1, t2, false);
    if (sums) no_taps(false, true);
    if (keep_sums) first_sum += all.sample.size() * all.cells();
  });
}

template struct BlockRows<float>;
template struct BlockRows<double>;

}  // namespace torch_ext::cpu
