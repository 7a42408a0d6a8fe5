// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data as one thing: a convolution that gathers, out[j*out_step + phase] = sum over the taps of the
// phase of in[j*in_step + delta] * w[k]. This file holds the index arithmetic, without any arithmetic on data.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "csrc/core/geometry.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {

// Kernel position k reads input position j*in_step + delta for cell j.
struct Tap {
  int64_t k, delta;
};

// One axis. A cell j is what repeats: output positions j*out_step + phase, one for each phase, that share their input's
// neighbourhood.
//   conv_transpose: phase r of the stride s has the taps with k*d = r + offset (mod s) and reads i = j + (r + offset - k*d)/s, so
//   that
//     nothing is ever multiplied by an inserted zero, for any kernel, stride and dilation; a phase may have no taps at all.
//   backward_data: one phase with every tap, o = j*s + k*d - offset.
struct GatherAxis {
  int64_t in_extent, out_extent, in_step, out_step, cells;
  std::vector<std::vector<Tap>> phases;

  GatherAxis(const Axis& axis, Operation operation) {
    if (operation == Operation::conv_transpose) {
      in_extent = axis.x, out_extent = axis.y, in_step = 1;
      // Phases beyond the last output position do not exist; a huge stride must not make a huge list of them.
      out_step = axis.stride < out_extent ? axis.stride : (out_extent > 0 ? out_extent : 1);
      phases.resize(out_step);
      for (int64_t k = 0; k < axis.w; ++k) {
        const int64_t shift = k * axis.dilation - axis.offset;
        const int64_t r = (shift % axis.stride + axis.stride) % axis.stride;
        if (r < out_step) phases[r].push_back({k, (r - shift) / axis.stride});
      }
    } else {
      in_extent = axis.y, out_extent = axis.x, out_step = 1;
      // One cell takes no step, however long.
      in_step = out_extent > 1 ? axis.stride : std::min(axis.stride, std::max<int64_t>(in_extent, 1));
      phases.resize(1);
      for (int64_t k = 0; k < axis.w; ++k) phases[0].push_back({k, k * axis.dilation - axis.offset});
    }
    cells = (out_extent + out_step - 1) / out_step;
    drop_unreachable_taps();
  }

  // Those of some cells for which a tap reads positions of a range.
  Range cells_reading(const Tap& tap, Range of, Range positions) const {
    const auto first = [&](int64_t position) {
      return std::clamp(first_reaching(position, tap.delta, in_step), of.begin, of.end);
    };
    return {first(positions.begin), first(positions.end)};
  }

  // The first tap of a phase that all its cells read the input with, null where there is none.
  const Tap* reaching_all(int64_t r) const {
    const Range all{0, parts_of(out_extent - r, out_step)};
    for (const Tap& tap : phases[size_t(r)])
      if (cells_reading(tap, all, {0, in_extent}).size() == all.size()) return &tap;
    return nullptr;
  }

  // Of all phases.
  int64_t tap_count() const {
    int64_t count = 0;
    for (const auto& taps : phases) count += int64_t(taps.size());
    return count;
  }

  // Which share of all products of cells and taps is with positions inside the input.
  double share_inside() const {
    int64_t inside = 0, all = 0;
    for (const auto& taps : phases)
      for (const Tap& tap : taps) inside += cells_reading(tap, {0, cells}, {0, in_extent}).size(), all += cells;
    return all > 0 ? double(inside) / double(all) : 1;
  }

  // The input positions that cells [begin, end) read, clipped to the input; empty when last < first.
  void reach(int64_t begin, int64_t end, int64_t& first, int64_t& last) const {
    first = in_extent, last = -1;
    for (const auto& taps : phases)
      for (const Tap& tap : taps) {
        const int64_t low = begin * in_step + tap.delta, high = (end - 1) * in_step + tap.delta;
        if (high < 0 || low >= in_extent) continue;
        first = low < 0 ? 0 : low < first ? low : first;
        last = high >= in_extent ? in_extent - 1 : high > last ? high : last;
      }
  }

  // What those cells read, empty where it ends before it begins, and write.
  Range read_by(const Range& of) const {
    Range read;
    reach(of.begin, of.end, read.begin, read.end);
    ++read.end;
    return read;
  }
  Range written_by(const Range& of) const { return {of.begin * out_step, std::min(of.end * out_step, out_extent)}; }

  // The same as reach with positions outside the input; of no meaning where it is empty.
  void reach_beyond(int64_t begin, int64_t end, int64_t& first, int64_t& last) const {
    first = INT64_MAX, last = INT64_MIN;
    for (const auto& taps : phases)
      for (const Tap& tap : taps) {
        first = std::min(first, begin * in_step + tap.delta);
        last = std::max(last, (end - 1) * in_step + tap.delta);
      }
  }

  // How many input positions so many cells in a row read at most.
  int64_t reached(int64_t count) const {
    int64_t first, last;
    reach_beyond(0, count, first, last);
    return first > last ? 0 : std::min(last - first + 1, in_extent);
  }

 private:
  // Large pads and small planes leave taps that no cell can use.
  void drop_unreachable_taps() {
    for (auto& taps : phases)
      std::erase_if(taps, [&](const Tap& tap) { return tap.delta >= in_extent || (cells - 1) * in_step + tap.delta < 0; });
  }
};

// The cells of conv_transpose, each as many positions as the stride, that a line of y lies in.
inline Range cells_of_line(const Axis& line) { return {line.offset / line.stride, (line.y - 1 + line.offset) / line.stride + 1}; }

// Phases side by side that have as many taps.
struct AlikePhases {
  Range r;
  int64_t taps;
};
// Those of conv_transpose without dilation, no more than `most` together.
inline std::vector<AlikePhases> alike_phases(const Axis& line, int64_t most) {
  std::vector<AlikePhases> phases;
  for (int64_t r = 0, end; r < line.stride; r = end) {
    const int64_t taps = r < line.w ? parts_of(line.w - r, line.stride) : 0;
    end = std::min({r + most, line.stride, taps ? line.w - (taps - 1) * line.stride : line.stride});
    phases.push_back({{r, end}, taps});
  }
  return phases;
}

// Positions [begin, end) of a line that all of some taps connect with positions that are there.
struct Interior {
  int64_t begin, end;
  // From position i a tap leads to i*step + shift.
  void meet(int64_t step, int64_t shift, int64_t extent) {
    begin = std::max(begin, first_reaching(0, shift, step));
    end = std::min(end, first_reaching(extent, shift, step));
  }
};

// f(begin, count) for the positions before the interior one by one, for the interior, and for those after it.
template <class F>
void for_each_run(Interior in, int64_t begin, int64_t end, F f) {
  if (in.begin >= in.end) in.begin = in.end = end;
  for (int64_t j = begin; j < in.begin; ++j) f(j, int64_t(1));
  if (in.begin < in.end) f(in.begin, in.end - in.begin);
  for (int64_t j = in.end; j < end; ++j) f(j, int64_t(1));
}

// At most, of the input of a block, and cells of it: beyond these a panel's trip into L1 is amortised.
inline constexpr int64_t kGatherBoxBytes = 768 << 10, kGatherCells = 512;

// Whether `gather` can compute a problem.
bool gather_accepts(const Problem& problem);
// Whether gather__amx takes a problem that names no kernel, and gather__avx512_bf16.
bool gather_takes_matrices(const Problem& problem, const Request& request);
bool gather_takes_pairs(const Problem& problem);

// The kernel with tiles whose reals are pairs of bf16; null where it is not for the problem. bf16 are multiplied as they are;
// float16, as two parts, and float32, as three or as few as the problem's precision allows, take tiles of matrix registers.
std::shared_ptr<Plan> make_gather_of_pairs(const Problem& problem, const Tiles<float>& tiles, const Request& request);

}  // namespace torch_ext::cpu
