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

// How many phases of an axis have segments of more than one tap: the first ones.
int64_t phases_with_more(const Axis& a) { return std::min(a.w - WinogradAxis::strides_of(a), WinogradAxis::strides_of(a)); }

}  // namespace

WinogradTiles::WinogradTiles(const Geometry& g, Operation operation, const bool* of_more) {
  Coordinates first, phase_extent, segment_extent, tap_extent;
  for (size_t a = 0; a < kAxes; ++a) {
    const int64_t with_more = phases_with_more(g.axis[a]);
    first[a] = of_more[a] ? 0 : with_more,
    phase_extent[a] = of_more[a] ? with_more : WinogradAxis::strides_of(g.axis[a]) - with_more;
    axis[a] = WinogradAxis(g.axis[a], operation, of_more[a]);
    axes += axis[a].transformed;
    taps = std::max(taps, axis[a].taps);
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
  bool some_with_more[kAxes], some_with_one[kAxes], any = false;
  int64_t segments = 1, taps = 1;
  for (int a = 0; a < kAxes; ++a) {
    const Axis& axis = g.axis[a];
    const int64_t of_axis = WinogradAxis::taps_of(axis);
    const int64_t spacing = WinogradAxis::spacing_of(axis);
    const bool reached = parts_of(axis.offset, spacing) <= (axis.y - 1 + axis.offset) / spacing;  // any y
    if (of_axis == 0 || (axis.w > 1 && axis.dilation > spacing) || !reached) return {};
    if (of_axis > 1 && taps > 1 && of_axis != taps) return {};
    taps = std::max(taps, of_axis);
    some_with_more[a] = of_axis > 1, some_with_one[a] = axis.w < 2 * WinogradAxis::strides_of(axis);
    any = any || some_with_more[a];
    segments *= WinogradAxis::segments_of(axis);
  }
  if (!any || segments > kMostSegments || g.x_size() == 0 || g.y_size() == 0) return {};
  std::vector<WinogradTiles> all;
  for (int with_one = 0; with_one < 1 << kAxes; ++with_one) {
    bool of_more[kAxes], exist = true;
    for (int a = 0; a < kAxes; ++a) {
      of_more[a] = some_with_more[a] && !(with_one >> a & 1);
      exist = exist && (some_with_more[a] ? of_more[a] || some_with_one[a] : !(with_one >> a & 1));
    }
    if (exist) all.emplace_back(g, operation, of_more);
  }
  return all;
}

double WinogradTiles::saved(const Geometry& g) const {
  double saved = 1;
  for (int a = 0; a < kAxes; ++a) {
    // Of a result's taps in all phases, those in segments take four products instead of six.
    const int64_t in_segments = axis[a].transformed ? axis[a].taps * phases_with_more(g.axis[a]) * axis[a].segments : 0;
    const double of_result = double(g.axis[a].w) - double(in_segments) / 3;
    saved *= double(products_of(g.axis[a])) / (of_result * double(axis[a].tiles * axis[a].results));
  }
  return saved;
}

TileBlock WinogradTiles::cover(const TileBlock& block, const WinogradTiles& grid) const {
  TileBlock covered = block;
  for (int a = 0; a < kAxes; ++a) {
    const int64_t each = grid.axis[a].results / axis[a].results;
    covered.tile[a] = {block.tile[a].begin * each, std::min(block.tile[a].end * each, axis[a].tiles)};
  }
  return covered;
}

TileBlock WinogradTiles::cut(int64_t batch, int64_t tiles) const {
  int64_t lengths[kAxes];
  TileBlock shape{};
  shape.sample.end = even_part(batch, cut_axes([&](int a) { return axis[a].tiles; }, tiles, lengths));
  for (int a = 0; a < kAxes; ++a) shape.tile[a].end = lengths[a];
  return shape;
}

int64_t WinogradTiles::block_count(int64_t batch, const TileBlock& shape) const {
  const int64_t lengths[kAxes] = {shape.tile[0].size(), shape.tile[1].size(), shape.tile[2].size()};
  return parts_of(batch, shape.sample.size()) * piece_count([&](int a) { return axis[a].tiles; }, lengths);
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
    // From the first point on to the last: of the last segment and the first in conv_transpose, the other way round else.
    const WinogradAxis& of = axis[a];
    const int64_t last_segment = (of.segments - 1) * of.taps * of.stride, last_phase = of.stride - 1;
    const int64_t last = of.read(b.tile[a].end - 1, of.points - 1, of.forward ? 0 : last_segment + last_phase);
    region.begin[a] = std::max<int64_t>(of.read(b.tile[a].begin, 0, of.forward ? last_segment : 0), 0);
    region.end[a] = std::min(last + 1, of.in_extent);
  }
  return region;
}

Region WinogradTiles::positions_written(const TileBlock& b) const {
  Region region;
  for (int a = 0; a < kAxes; ++a) {
    // With those between, and before the first one, that are not reached.
    const int64_t first = axis[a].write(b.tile[a].begin, 0, 0);
    region.begin[a] = b.tile[a].begin == 0 ? 0 : first;
    region.end[a] = std::min(first + b.tile[a].size() * axis[a].results * axis[a].out_step(), axis[a].out_extent);
  }
  return region;
}

void WinogradTiles::most_read(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a) lengths[a] = (largest.tile[a].size() * axis[a].results + axis[a].reach()) * axis[a].in_step();
}

void WinogradTiles::most_written(const TileBlock& largest, int64_t* lengths) const {
  for (int a = 0; a < kAxes; ++a)
    lengths[a] = largest.tile[a].size() * axis[a].results * axis[a].out_step() + axis[a].spacing - 1;
}

Region WinogradTiles::whole_input() const { return {{}, {axis[0].in_extent, axis[1].in_extent, axis[2].in_extent}}; }

Region WinogradTiles::whole_output() const { return {{}, {axis[0].out_extent, axis[1].out_extent, axis[2].out_extent}}; }

bool fewer_products(const Problem& p, const Request& request) {
  return !request.by_name && p.precision != Precision::full && request.isa >= Isa::amx;
}

bool winograd_allowed(const Problem& p) {
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_EXT_WINOGRAD");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return enabled && p.transforms_allowed;
}

}  // namespace torch_ext::cpu
