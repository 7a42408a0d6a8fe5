// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/planes.h"

#include <cstring>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/split.h"

namespace torch_ext::cpu {
namespace {

// Of 16 bits, which are widened on the way, gradients of weights with very few terms for each element of x that moves. (64 to 1
// channel, 128x128, k2 s2: 0.3 of the time in bf16, 0.4 in f16; 32 to 1, 1-D k4 s2: 0.4; 64 to 3, k4 s2: 1.5 in bf16.)
bool dots_of_halves_suit(const Problem& p) {
  constexpr int64_t kMostTermsOfHalves = 4, kMostChannelsOfHalves = 64, kLeastLineOfHalves = 32;
  const Geometry& g = p.geometry;
  return p.operation == Operation::backward_weights && g.y_channels * g.w_positions() <= kMostTermsOfHalves &&
         g.x_channels <= kMostChannelsOfHalves && g.axis[kAxes - 1].x >= kLeastLineOfHalves;
}

// Of pairs of bf16, which need no conversion either. (64 to 2 channels, 256x256, k2 s2: 0.4 of the time; 512 to 1, 1-D k16 s8:
// 0.4; 64 to 4, 3x3: 0.3 to 0.7; of many terms tiles of outer products are better filled: 256 to 4, 64x64, k5 s2: 1.2.)
bool dots_of_pairs_suit(const Problem& p) {
  constexpr int64_t kMostChannels = 8, kMostTerms = 48, kManyPositions = 512;
  constexpr int64_t kMostTermsOfLargePlane = 128, kLargePlane = 1024, kFewInputs = 64;
  const Geometry& g = p.geometry;
  const int64_t terms = g.y_channels * g.w_positions(), positions = g.x_positions();
  if (g.y_channels > kMostChannels || g.batch * positions < kManyPositions) return false;
  return terms <= kMostTerms || (terms <= kMostTermsOfLargePlane && positions >= kLargePlane && g.x_channels <= kFewInputs);
}

// Gradients of data with vectors of 8: along lines that are long enough, `wide` sums many taps as fast as few. (Of lines from 16
// on, 147 layers: 0.85 of the time; of 6 and 12, up to 1.9; 512 to 1 channels, 1-D k16 s8: 1.06. Of 16 bits, lines from 48 on,
// 124 layers: 0.78; shorter ones up to 1.7.)
bool lines_of_short_vectors_suit(const Problem& p) {
  constexpr int64_t kMostInputs = 256, kLeastLine = 16, kLeastLineOfHalves = 48;
  const Geometry& g = p.geometry;
  return p.operation == Operation::backward_data && p.y.axis[kAxes - 1] == 1 && g.x_channels <= kMostInputs &&
         g.axis[kAxes - 1].x >= (bytes_of(p.type) < 4 ? kLeastLineOfHalves : kLeastLine);
}

template <class Real>
void join(const Tiles<Real>& tiles, const Real* from, int64_t pitch, int64_t lines, int64_t length, Real* to) {
  tiles.join_lines(from, pitch, lines, length, to);
}
void join(const Tiles<float>&, const bf16* from, int64_t pitch, int64_t lines, int64_t length, bf16* to) {
  for (int64_t l = 0; l < lines; ++l, from += pitch, to += length)
    for (int64_t i = 0; i < length; i += kMaxLanes)
      std::memcpy(to + i, from + i, kMaxLanes * sizeof(bf16));  // of a known size: a few moves
}

}  // namespace

// By measurement against the products of unfold.cpp, whose operands and results are transposed on the way. That takes as long as
// some terms of a sum, as do empty lanes at the end of a plane; gradients of weights add the lanes of their sums in the end, for
// which the positions of a part must be many.
bool positions_suit(const Problem& p, Isa isa) {
  constexpr int64_t kMostChannels = 4, kLeastChannels = 16, kSmallPlane = 128, kManyPositions = 3072;
  constexpr int64_t kMostTerms = 128, kMostSums = 64, kTermsOfResult = 2, kMostOfFewRegisters = 12;
  constexpr double kPartFlops = 32e6;
  const Geometry& g = p.geometry;
  if (p.operation == Operation::conv_transpose || g.groups > 1 || !positions_follow(p)) return false;
  if (isa >= Isa::amx && matrices_take(p)) return false;
  if (p.operation == Operation::backward_weights && vectors_multiply_pairs(p.type, isa)) return dots_of_pairs_suit(p);
  if (g.y_channels > kMostChannels || g.x_channels < kLeastChannels || g.x_positions() < kSmallPlane) return false;
  const int64_t terms = g.y_channels * g.w_positions(), positions = g.x_positions();
  if (terms * (round_up(positions, lanes_of(p.type, isa)) - positions) > kTermsOfResult * positions) return false;
  const bool long_lines = isa < Isa::avx512 && lines_of_short_vectors_suit(p);
  if (!long_lines && bytes_of(p.type) < 4 && !dots_of_halves_suit(p)) return false;
  if (!long_lines && isa < Isa::avx512 && terms > kMostOfFewRegisters) return false;
  if (p.operation == Operation::backward_data) return terms <= kMostTerms;
  const double flops = 2.0 * double(terms) * double(g.x_size());
  return terms <= kMostSums && (flops <= kPartFlops || g.batch * positions >= kManyPositions);
}

template <class Element>
Planes<Element>::Planes(const Tiles<Real>& tiles, Type type, const GatherAxis* axis, const PlaneAxis* plane_axis,
                        const Strides& in, const int64_t* cells)
    : tiles_(&tiles), type_(type), axis_(axis), plane_axis_(plane_axis), in_(in), size_(1) {
  for (int a = 0; a < kAxes; ++a) {
    extent_[a] = plane_axis[a].reached(cells[a]);
    size_ *= extent_[a] * int64_t(plane_axis[a].residues.size());
  }
}

template <class Element>
int64_t Planes<Element>::offset(const PlaneTap& t0, const PlaneTap& t1, const PlaneTap& t2) const {
  const PlaneTap* taps[kAxes] = {&t0, &t1, &t2};
  int64_t slot = 0, position = 0;
  for (int a = 0; a < kAxes; ++a) {
    slot = slot * int64_t(plane_axis_[a].residues.size()) + taps[a]->slot;
    position = position * extent_[a] + taps[a]->q - plane_axis_[a].q_min;
  }
  return slot * slot_size() + position;
}

template <class Element>
void Planes<Element>::load(const void* in, const Range* cell, int64_t channels, Element* planes) const {
  std::vector<Range> there;  // by slot of the innermost axis, once for all lines
  const Range whole = inside_line(cell[2].begin, there);
  const int64_t origin = (cell[2].begin + plane_axis_[2].q_min) * axis_[2].in_step;
  Element* line = planes;
  for (int64_t residue0 : plane_axis_[0].residues)
    for (int64_t residue1 : plane_axis_[1].residues) {
      for (int64_t q0 = 0; q0 < extent_[0]; ++q0)
        for (int64_t q1 = 0; q1 < extent_[1]; ++q1, line += extent_[2]) {
          const int64_t i0 = (cell[0].begin + plane_axis_[0].q_min + q0) * axis_[0].in_step + residue0;
          const int64_t i1 = (cell[1].begin + plane_axis_[1].q_min + q1) * axis_[1].in_step + residue1;
          if (i0 >= 0 && i0 < axis_[0].in_extent && i1 >= 0 && i1 < axis_[1].in_extent) {
            load_line(element(in, type_, i0 * in_.axis[0] + i1 * in_.axis[1] + origin * in_.axis[2]), whole, there, channels,
                      line);
          } else {
            for (int64_t slot = 0; slot < int64_t(there.size()); ++slot)
              for (int64_t c = 0; c < channels; ++c) std::fill_n(line + slot * slot_size() + c * size_, extent_[2], Element{});
          }
        }
      line += (int64_t(plane_axis_[2].residues.size()) - 1) * slot_size();
    }
}

// Which cells of a line that begins with the cell `begin` read the input, by slot of the innermost axis; returns those that read
// it with all residues, where these are brought all at once.
template <class Element>
Range Planes<Element>::inside_line(int64_t begin, std::vector<Range>& there) const {
  const auto& residues = plane_axis_[2].residues;
  const int64_t step = axis_[2].in_step, origin = (begin + plane_axis_[2].q_min) * step, extent = extent_[2];
  for (const int64_t residue : residues) {
    const int64_t first = std::min(first_reaching(0, origin + residue, step), extent);
    there.push_back({first, std::clamp(first_reaching(axis_[2].in_extent, origin + residue, step), first, extent)});
  }
  if (step == 1 || step > kMaxResidues || int64_t(residues.size()) < step || in_.axis[2] != 1) return {0, 0};
  const int64_t first = std::min(first_reaching(0, origin, step), extent);
  return {first, std::clamp((axis_[2].in_extent - origin) / step, first, extent)};
}

// A line of all residues of the innermost axis; `in` is where the first cell's input of residue 0 lies.
template <class Element>
void Planes<Element>::load_line(const void* in, Range whole, const std::vector<Range>& there, int64_t channels,
                                Element* line) const {
  const int64_t step = axis_[2].in_step;
  for (size_t slot = 0; slot < there.size(); ++slot) {
    const Range inside = there[slot];
    Element* to = line + int64_t(slot) * slot_size();
    for (int64_t c = 0; c < channels; ++c) {
      std::fill(to + c * size_, to + c * size_ + inside.begin, Element{});
      std::fill(to + c * size_ + inside.end, to + c * size_ + extent_[2], Element{});
    }
    const auto load = [&](Range part) {
      if (part.size() <= 0) return;
      load_planes(*tiles_, type_, element(in, type_, (plane_axis_[2].residues[slot] + part.begin * step) * in_.axis[2]),
                  step * in_.axis[2], part.size(), in_.channel, channels, to + part.begin, size_);
    };
    load({inside.begin, whole.size() > 0 ? whole.begin : inside.end});
    if (whole.size() > 0) load({whole.end, inside.end});
  }
  for (int64_t c = 0; whole.size() > 0 && c < channels; ++c)
    load_residues(*tiles_, type_, element(in, type_, whole.begin * step + c * in_.channel), step, line + c * size_ + whole.begin,
                  slot_size(), whole.size());
}

template <class Element>
void Planes<Element>::unfold(const Element* planes, const Range* cell, const std::vector<int64_t>& offsets, Element* rows,
                             int64_t pitch) const {
  const int64_t height = cell[1].size(), width = cell[2].size();
  for (const int64_t offset : offsets) {
    for (int64_t j0 = 0; j0 < cell[0].size(); ++j0)
      join(*tiles_, planes + offset + j0 * this->pitch(0), this->pitch(1), height, width, rows + j0 * height * width);
    rows += pitch;
  }
}

template <class Element>
void Planes<Element>::reach(const Range* cell, Range* axis) const {
  for (int a = 0; a < kAxes; ++a) {
    const int64_t first = cell[a].begin + plane_axis_[a].q_min, step = axis_[a].in_step;
    axis[a] = {std::max<int64_t>(first * step, 0), std::min((first + extent_[a]) * step, axis_[a].in_extent)};
  }
}

template class Planes<float>;
template class Planes<double>;
template class Planes<bf16>;

}  // namespace torch_ext::cpu
