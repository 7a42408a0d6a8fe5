// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/winograd_tiles.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace torch_ext::cpu {
namespace {

// The coordinates of all indices of a box.
std::vector<Coordinates> coordinates_of(const Coordinates& extent) {
  std::vector<Coordinates> all;
  for (int64_t i = 0; i < extent[0]; ++i)
    for (int64_t j = 0; j < extent[1]; ++j)
      for (int64_t k = 0; k < extent[2]; ++k) all.push_back({i, j, k});
  return all;
}

}  // namespace

bool WinogradTiles::exist(const Geometry& g) {
  bool any = false;
  for (const Axis& a : g.axis) {
    const bool two_taps = a.w == 2 * a.stride && a.dilation == 1;
    if (!two_taps && !(a.w == 1 && a.stride == 1)) return false;
    any = any || two_taps;
  }
  return any && g.x_size() > 0 && g.y_size() > 0;
}

WinogradTiles::WinogradTiles(const Geometry& g, Operation operation) {
  Coordinates strides, pairs;
  for (size_t a = 0; a < kAxes; ++a) {
    axis[a] = WinogradAxis(g.axis[a], operation);
    axes += axis[a].transformed;
    points *= point_extent[a] = axis[a].points;
    results *= result_extent[a] = axis[a].results;
    strides[a] = axis[a].stride;
    pairs[a] = axis[a].transformed ? 2 : 1;
  }
  phases = coordinates_of(strides);
  for (const Coordinates& r : phases) {
    std::vector<int64_t>& of_phase = taps.emplace_back();
    for (const Coordinates& t : coordinates_of(pairs)) {
      int64_t k = 0;
      for (size_t a = 0; a < kAxes; ++a) {
        k *= g.axis[a].w;
        if (axis[a].transformed) k += r[a] + ((t[a] == 0) == axis[a].forward ? axis[a].stride : 0);
      }
      of_phase.push_back(k);
    }
  }
}

double WinogradTiles::saved() const {
  double waste = 1;  // results that tiles compute beyond the last one
  for (const WinogradAxis& a : axis) waste *= double(a.tiles * a.results) / (double(a.out_extent) / double(a.out_step()));
  return double(1 << axes) * double(results) / double(points) / waste;
}

TileBlock WinogradTiles::cut(int64_t batch, int64_t tiles) const {
  int64_t lengths[kAxes];
  TileBlock shape{};
  shape.sample.end = even_part(batch, cut_axes([&](int a) { return axis[a].tiles; }, tiles, lengths));
  for (int a = 0; a < kAxes; ++a) shape.tile[a].end = lengths[a];
  return shape;
}

int64_t WinogradTiles::block_count(int64_t batch, const TileBlock& shape) const {
  int64_t count = parts_of(batch, shape.sample.size());
  for (int a = 0; a < kAxes; ++a) count *= parts_of(axis[a].tiles, shape.tile[a].size());
  return count;
}

TileBlock WinogradTiles::take_block(int64_t& index, int64_t batch, const TileBlock& shape) const {
  const int64_t lengths[kAxes] = {shape.tile[0].size(), shape.tile[1].size(), shape.tile[2].size()};
  TileBlock block;
  take_piece(
      index, [&](int a) { return axis[a].tiles; }, lengths, block.tile);
  const int64_t samples = parts_of(batch, shape.sample.size()), first = index % samples * shape.sample.size();
  block.sample = {first, std::min(first + shape.sample.size(), batch)};
  index /= samples;
  return block;
}

Region WinogradTiles::positions_read(const TileBlock& b) const {
  Region region;
  for (int a = 0; a < kAxes; ++a) {
    const int64_t last = axis[a].read(b.tile[a].end - 1, axis[a].points - 1, axis[a].forward ? 0 : axis[a].stride - 1);
    region.begin[a] = std::max<int64_t>(axis[a].read(b.tile[a].begin, 0, 0), 0);
    region.end[a] = std::min(last + 1, axis[a].in_extent);
  }
  return region;
}

Region WinogradTiles::positions_written(const TileBlock& b) const {
  Region region;
  for (int a = 0; a < kAxes; ++a) {
    const int64_t first = axis[a].write(b.tile[a].begin, 0, 0);
    region.begin[a] = std::max<int64_t>(first, 0);
    region.end[a] = std::min(first + b.tile[a].size() * axis[a].results * axis[a].out_step(), axis[a].out_extent);
  }
  return region;
}

void WinogradTiles::most_read(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a)
    lengths[a] = (largest.tile[a].size() * axis[a].results + (axis[a].transformed ? 1 : 0)) * axis[a].in_step();
}

void WinogradTiles::most_written(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a) lengths[a] = largest.tile[a].size() * axis[a].results * axis[a].out_step();
}

Region WinogradTiles::whole_input() const { return {{}, {axis[0].in_extent, axis[1].in_extent, axis[2].in_extent}}; }

Region WinogradTiles::whole_output() const { return {{}, {axis[0].out_extent, axis[1].out_extent, axis[2].out_extent}}; }

bool winograd_allowed(const Problem& p) {
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_EXT_WINOGRAD");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return enabled && p.transforms_allowed;
}

}  // namespace torch_ext::cpu
