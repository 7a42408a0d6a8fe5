// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/winograd_tiles.h"

#include <algorithm>

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

WinogradTiles::WinogradTiles(const Geometry& g, Operation operation, const bool* of_most) {
  Coordinates first, phase_extent, segment_extent, tap_extent;
  for (size_t a = 0; a < kAxes; ++a) {
    phase_extent[a] = WinogradAxis::phases_of(g.axis[a], of_most[a]);
    first[a] = of_most[a] ? 0 : WinogradAxis::phases_of(g.axis[a], true);
    axis[a] = WinogradAxis(g.axis[a], operation, of_most[a]);
    if (axis[a].transformed()) ++axes, shape = winograd_shape(shape, int(axis[a].taps));
    points *= point_extent[a] = axis[a].points;
    results *= result_extent[a] = axis[a].results;
    segments *= segment_extent[a] = axis[a].segments;
    tap_extent[a] = axis[a].taps;
  }
  for (const Coordinates& phase : coordinates_of(phase_extent))
    for (const Coordinates& segment : coordinates_of(segment_extent)) {
      Coordinates& k = first_taps.emplace_back();
      for (size_t a = 0; a < kAxes; ++a) k[a] = first[a] + phase[a] + segment[a] * axis[a].taps * axis[a].stride;
      std::vector<int64_t>& positions = tap_positions.emplace_back();
      for (const Coordinates& t : coordinates_of(tap_extent)) {
        int64_t position = 0;
        for (size_t a = 0; a < kAxes; ++a) {
          position *= g.axis[a].w;
          position += k[a] + (axis[a].forward ? axis[a].taps - 1 - t[a] : t[a]) * axis[a].stride;
        }
        positions.push_back(position);
      }
    }
}

std::vector<WinogradTiles> WinogradTiles::of_all_phases(const Geometry& g, Operation operation) {
  constexpr int64_t kMostSegments = 4;  // of more, few tiles have room in cache
  bool any = false;                     // is transformed
  for (const Axis& axis : g.axis) {
    const int64_t spacing = WinogradAxis::spacing_of(axis), most = WinogradAxis::taps_of(axis, true);
    const bool reached = parts_of(axis.offset, spacing) <= (axis.y - 1 + axis.offset) / spacing;  // any y
    const bool cut =
        WinogradAxis::segment_of(most) && (WinogradAxis::phases_of(axis, false) == 0 || WinogradAxis::segment_of(most - 1));
    if (!cut || (axis.w > 1 && axis.dilation > spacing) || !reached) return {};
    any = any || most > 1;
  }
  if (!any || g.x_size() == 0 || g.y_size() == 0) return {};
  std::vector<WinogradTiles> all;
  for (int others = 0; others < 1 << kAxes; ++others) {
    bool of_most[kAxes], exist = true;
    for (int a = 0; a < kAxes; ++a) {
      of_most[a] = !(others >> a & 1);
      exist = exist && WinogradAxis::phases_of(g.axis[a], of_most[a]) > 0;
    }
    if (!exist) continue;
    all.emplace_back(g, operation, of_most);
    if (all.back().segments > kMostSegments) return {};
  }
  return all;
}

WinogradGrid WinogradTiles::grid_of(const std::vector<WinogradTiles>& classes) {
  WinogradGrid grid = classes[0];
  grid.results = 1;
  for (int a = 0; a < kAxes; ++a) {
    int64_t results = 1, all = 1;
    for (const WinogradTiles& c : classes)
      results = std::lcm(results, c.axis[a].results), all = std::max(all, c.axis[a].tiles * c.axis[a].results);
    if (results > grid.axis[a].results) grid.axis[a].widen(all < 2 * results ? all : results);
    grid.results *= grid.axis[a].results;
  }
  return grid;
}

double WinogradTiles::saved(const Geometry& g, Operation operation) {
  double saved = 1;
  for (const Axis& a : g.axis) {
    double products = 0;
    for (const bool of_most : {true, false}) {
      if (WinogradAxis::phases_of(a, of_most) == 0) continue;
      const WinogradAxis of(a, operation, of_most);
      // Segments take four products instead of six.
      const double of_result = double(of.taps * of.segments) * (of.transformed() ? 2. / 3 : 1.);
      products += double(WinogradAxis::phases_of(a, of_most) * of.tiles * of.results) * of_result;
    }
    saved *= double(products_of(a)) / products;
  }
  return saved;
}

TileBlock WinogradTiles::cover(const TileBlock& block, const WinogradGrid& grid) const {
  TileBlock covered = block;
  for (int a = 0; a < kAxes; ++a) {
    const int64_t begin = block.tile[a].begin * grid.axis[a].results, end = block.tile[a].end * grid.axis[a].results;
    covered.tile[a] = {begin / axis[a].results, std::min(parts_of(end, axis[a].results), axis[a].tiles)};
  }
  return covered;
}

TileBlock WinogradGrid::cut(int64_t batch, int64_t cells) const {
  const int64_t tiles = std::max<int64_t>(cells / results, 1);
  int64_t lengths[kAxes];
  TileBlock shape{};
  shape.sample.end = even_part(batch, cut_axes([&](int a) { return axis[a].tiles; }, tiles, lengths));
  for (int a = 0; a < kAxes; ++a) shape.tile[a].end = lengths[a];
  return shape;
}

int64_t WinogradGrid::block_count(int64_t batch, const TileBlock& shape) const {
  const int64_t lengths[kAxes] = {shape.tile[0].size(), shape.tile[1].size(), shape.tile[2].size()};
  return parts_of(batch, shape.sample.size()) * piece_count([&](int a) { return axis[a].tiles; }, lengths);
}

TileBlock WinogradGrid::take_block(int64_t& index, int64_t batch, const TileBlock& shape) const {
  const int64_t lengths[kAxes] = {shape.tile[0].size(), shape.tile[1].size(), shape.tile[2].size()};
  TileBlock block;
  take_piece(
      index, [&](int a) { return axis[a].tiles; }, lengths, block.tile);
  const int64_t samples = parts_of(batch, shape.sample.size());
  block.sample = even_range(index % samples, samples, batch);
  index /= samples;
  return block;
}

Region WinogradGrid::positions_read(const TileBlock& b) const {
  Region region;
  for (int a = 0; a < kAxes; ++a) {
    // From the first point on to the last: of the last segment and the first in conv_transpose, the other way round else.
    const WinogradAxis& of = axis[a];
    const int64_t last_segment = (of.segments - 1) * of.taps * of.stride, last_phase = of.stride - 1;
    const int64_t last = of.read(b.tile[a].end - 1, of.points - 1, of.forward ? 0 : last_segment + last_phase);
    region.begin[a] = std::max<int64_t>(of.read(b.tile[a].begin, 0, of.forward ? last_segment : 0), 0);
    region.end[a] = std::min(last + 1, of.in_extent);
  }
  return region;
}

Region WinogradGrid::positions_written(const TileBlock& b) const {
  Region region;
  for (int a = 0; a < kAxes; ++a) {
    // With those between, and before the first one, that are not reached.
    const int64_t first = axis[a].write(b.tile[a].begin, 0, 0);
    region.begin[a] = b.tile[a].begin == 0 ? 0 : first;
    region.end[a] = std::min(first + b.tile[a].size() * axis[a].results * axis[a].out_step(), axis[a].out_extent);
  }
  return region;
}

Patch WinogradGrid::patch(const TileBlock& b, Range channels, const Region& at) {
  return {b.sample, channels, {{at.begin[0], at.end[0]}, {at.begin[1], at.end[1]}, {at.begin[2], at.end[2]}}};
}

void WinogradGrid::most_read(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a) lengths[a] = (largest.tile[a].size() * axis[a].results + axis[a].reach()) * axis[a].in_step();
}

void WinogradGrid::most_written(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a)
    lengths[a] = largest.tile[a].size() * axis[a].results * axis[a].out_step() + axis[a].spacing - 1;
}

Region WinogradGrid::whole_input() const { return {{}, {axis[0].in_extent, axis[1].in_extent, axis[2].in_extent}}; }

Region WinogradGrid::whole_output() const { return {{}, {axis[0].out_extent, axis[1].out_extent, axis[2].out_extent}}; }

}  // namespace torch_ext::cpu
