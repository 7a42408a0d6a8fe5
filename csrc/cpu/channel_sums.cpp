// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/channel_sums.h"

#include <algorithm>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kItemElements = 64 << 10;  // of a thread at a time
constexpr int64_t kMostTerms = 64;           // that a lane sums in a Real: as few as torch

template <class Real>
double sum_of_plane(const Tiles<Real>& tiles, Type type, const void* from, int64_t count) {
  const int64_t most = kMostTerms * kSumVectors * tiles.lanes;
  double sum = 0;
  for (int64_t i = 0; i < count; i += most) sum += double(tiles.sum(type, element(from, type, i), std::min(most, count - i)));
  return sum;
}

// Adds positions, whose channels lie side by side, to the sums of these. Positions that follow each other are taken together, so
// many that they fill whole vectors, and enough of them to add to in turn: one row.
template <class Real>
void add_positions(const Tiles<Real>& tiles, const ChannelSums& of, const void* from, int64_t count, double* sums) {
  constexpr int64_t kColumns = 128;
  int64_t together = 1;
  if (of.position == of.channels) {
    while (together < tiles.lanes && together * of.channels % tiles.lanes != 0) together *= 2;
    while (together * of.channels < kColumns) together *= 2;
  }
  const int64_t width = together * of.channels, pitch = together * of.position, rest = count % together;
  std::vector<Real> columns(static_cast<size_t>(width));
  for (int64_t rows = count / together, r = 0; r * together < count; r += kMostTerms) {
    const void* first = element(from, of.type, r * pitch);
    const int64_t some = std::min(kMostTerms, rows - r);
    std::fill(columns.begin(), columns.end(), Real(0));
    tiles.add_rows(of.type, first, pitch, some, width, columns.data());
    if (rest > 0 && some < kMostTerms)  // a shorter row is the last
      tiles.add_rows(of.type, element(first, of.type, some * pitch), pitch, 1, rest * of.channels, columns.data());
    for (int64_t left = together / 2 * of.channels; left > 0 && left % of.channels == 0; left /= 2)
      for (int64_t c = 0; c < left; ++c) columns[size_t(c)] += columns[size_t(left + c)];
    for (int64_t c = 0; c < of.channels; ++c) sums[c] += double(columns[size_t(c)]);
  }
}

template <class Real>
void sum_all(const ChannelSums& of, const void* from, void* sums, const Tiles<Real>& tiles, const Parallel& parallel) {
  // Pieces are parts of a plane, or of the positions of a sample; each sums `width` channels.
  const int64_t width = of.planes() ? 1 : of.channels, planes = of.planes() ? of.channels : 1;
  const int64_t piece = std::max<int64_t>(1, std::min(of.positions, kItemElements / width));
  const int64_t pieces = parts_of(of.positions, piece), all = of.batch * planes * pieces;
  const int64_t at_once = std::max<int64_t>(1, kItemElements / (piece * width));
  std::vector<double> partial(size_t(all * width), 0);
  parallel.for_each(parts_of(all, at_once), [&](int64_t item, int) {
    const Range these = part(item, at_once, all);
    for (int64_t i = these.begin; i < these.end; ++i) {
      const int64_t n = i / pieces / planes, c = i / pieces % planes;
      const Range positions = part(i % pieces, piece, of.positions);
      const void* first = element(from, of.type, n * of.outer + c * of.channel + positions.begin * of.position);
      double* to = partial.data() + i * width;
      if (of.planes()) {
        *to = sum_of_plane(tiles, of.type, first, positions.size());
      } else {
        add_positions(tiles, of, first, positions.size(), to);
      }
    }
  });
  visit(of.type, [&](auto scalar) {
    using Stored = decltype(scalar);
    using Wide = decltype(widen(scalar));
    for (int64_t c = 0; c < of.channels; ++c) {
      double sum = 0;
      for (int64_t n = 0; n < of.batch; ++n)
        for (int64_t k = 0; k < pieces; ++k)
          sum += of.planes() ? partial[size_t((n * planes + c) * pieces + k)] : partial[size_t((n * pieces + k) * width + c)];
      narrow(Wide(sum), static_cast<Stored*>(sums)[c]);
    }
  });
}

}  // namespace

void sum_channels(const ChannelSums& of, const void* from, void* sums, Isa isa, const Parallel& parallel) {
  of.type == Type::f64 ? sum_all(of, from, sums, tiles<double>(isa), parallel)
                       : sum_all(of, from, sums, tiles<float>(isa), parallel);
}

}  // namespace torch_ext::cpu
