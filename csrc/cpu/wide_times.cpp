// SPDX-License-Identifier: Apache-2.0
// The model: what a call adds up, each kind at a price that was fitted (least squares of the relative error) to the times of 430
// layers drawn at random, of 3 to 512 channels and strides of 1 to 16 along one to three axes. It misses by 11 % (`wide`), 14
// (`overlap`), 19 (`gather`) and 27 (`fold`), with 8 lanes by 9, 12, 14 and 19: what it chooses takes 1.2 % longer than `wide`
// would where that is faster, and the others where not (with 8 lanes 0.5 %). Where channels lie side by side, of 444 layers of 4
// to 40 results, it misses by 17 % (`wide`), 19 (`overlap`) and 26 (`gather`), with 8 lanes by 19, 24 and 24. The prices of
// 16-bit types are of 454 layers: by 16 to 22 %, with 8 lanes 12 to 19. Lines and gaps were added for 1200 layers in planes, 480
// of them as `python -m benchmarks --random` draws them: an eighth less is lost on those by a wrong choice (with 8 lanes 7 %).
#include "csrc/cpu/wide_times.h"

#include <algorithm>
#include <iterator>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/wide_gate.h"
#include "csrc/cpu/wide_lines.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kLongStride = 8;
// What a weight costs is that it is packed.
struct Prices {
  struct {
    double product, x, weight, result, result_of_long;  // an element of y, of strides from kLongStride on
    double line = 0;                                    // of a plane that a block reads
  } wide;
  struct {
    double product, product_of_vector;  // where results fill one vector
    double x, weight, sum, line;        // of a tap and a position; of x and taps
    double result, position;            // an element of y for each of a stride; a position of y
    double gap = 0;                     // an element of y that no tap reaches
  } gather;
  struct {
    double product, weight, sum, result;
    double gap = 0;  // which a sum costs more than
  } overlap;
  struct {
    double product, x, weight, sum, result, result_of_stride;
  } fold;
};
// Of tensors in planes, and of those whose channels lie side by side, which nothing folds before it is asked here.
struct PricesOfType {
  Prices planes, planes_of_8_lanes, rows, rows_of_8_lanes;
};
constexpr PricesOfType kFloats = {
    {{0.0137, 0, 0.653, 0.293, 0.157, 4},
     {0.0123, 0.0123, 0.328, 0.395, 0.0358, 81, 0.0746, 0, 0.3},
     {0.0107, 1.57, 0.112, 0.475, -0.2},
     {0.0118, 0.49, 0.578, 0.101, 0.253, 0.0269}},
    {{0.0254, 0, 1.02, 0.18, 0.156, 4},
     {0.0236, 0.0236, 0.326, 0.504, 0.0549, 72.6, 0.0583, 0, 0.3},
     {0.0229, 1.48, 0.166, 0.728, -0.2},
     {0.0236, 0, 0.657, 0.0701, 0.35, 0.0214}},
    {{0.0138, 0.107, 0.361, 0.431, 0.522}, {0.0125, 0.0161, 0, 0.704, 0.0383, 28.7, 0, 3.94}, {0.0115, 0.98, 0.0561, 0.91}, {}},
    {{0.026, 0.0919, 0.495, 0.391, 0.604}, {0.0233, 0.03, 0, 1.12, 0.0697, 26.7, 0, 2.86}, {0.0259, 1.14, 0.101, 1.18}, {}}};
// bf16 and f16 that are widened to floats.
constexpr PricesOfType kHalves = {
    {{0.014, 0.113, 0.857, 0.362, 0.409, 2},
     {0.0125, 0.0125, 0.467, 0.574, 0.0703, 74.2, 0.0445, 0, 0.3},
     {0.0114, 0.982, 0.106, 0.686, -0.2},
     {0.013, 0.693, 0.741, 0.038, 0.284, 0}},
    {{0.0266, 0.131, 0.846, 0.366, 0.592},
     {0.0233, 0.0233, 0.884, 0.635, 0.114, 86.2, 0.134, 0},
     {0.0248, 1.35, 0.165, 1.02},
     {0.0235, 1.36, 1.51, 0.0668, 0.486, 0.0175}},
    {{0.0139, 0.27, 0.471, 0.499, 0.647},
     {0.0116, 0.0161, 0.0607, 0.745, 0.0522, 43.3, 0, 5.23},
     {0.0123, 0.882, 0.0594, 0.959},
     {}},
    {{0.0261, 0.292, 0.68, 0.532, 0.915}, {0.0228, 0.0286, 0.154, 1.4, 0.096, 36.8, 0, 8.19}, {0.0268, 0.975, 0.0622, 1.48}, {}}};
// What is said to be faster must be so by a little more than nothing: of what is chosen wrongly, the others lose more.
constexpr double kLeastGain = 0.95;

// Of a vector that passes by few rows there is more to load than to multiply.
double slowness_of(int64_t rows) {
  constexpr double kSlowness[] = {1, 1.75, 1.5, 1.2};
  return rows < int64_t(std::size(kSlowness)) ? kSlowness[rows] : 1;
}

// Of `wide`: multiply-adds of whole vectors, and lines of planes that are read.
struct WideWork {
  double products, lines;
};
WideWork work_of_wide(const Problem& p, const Tiles<float>& tiles) {
  const Geometry& g = p.geometry;
  const GatherAxis axis[kAxes] = {{g.axis[0], p.operation}, {g.axis[1], p.operation}, {g.axis[2], p.operation}};
  const PlaneAxis plane_axis[kAxes] = {PlaneAxis(axis[0]), PlaneAxis(axis[1]), PlaneAxis(axis[2])};
  const int64_t rows = even_part(g.y_channels, tiles.max_wide_rows);
  const WideLines lines(tiles, axis, plane_axis, g.x_channels, g.y_channels, rows);
  int64_t cells[kAxes];  // of a block
  cut_axes([&](int a) { return axis[a].cells; }, std::max<int64_t>(1, kWideBoxBytes / lines.bytes()), cells);
  if (axis[2].out_step > 1) cells[1] = lines.at_once(cells[1], cells[2]);
  const double blocks =
      double(g.batch * axis[0].cells) * double(parts_of(axis[1].cells, cells[1])) * double(parts_of(axis[2].cells, cells[2]));
  return {slowness_of(rows) * blocks * lines.products(cells[1], cells[2]) * double(tiles.lanes),
          blocks * lines.lines_read(cells[1])};
}

bool in_planes(const Problem& p) {
  return p.x.axis[kAxes - 1] == 1 && p.y.axis[kAxes - 1] == 1 && p.x.channel != 1 && p.y.channel != 1;
}

bool rows_of_channels(const Problem& p) {
  return p.x.axis[kAxes - 1] != 1 && p.y.axis[kAxes - 1] != 1 && p.x.channel == 1 && p.y.channel == 1;
}

const Prices& prices_of(const Problem& p, const Tiles<float>& tiles) {
  const PricesOfType& prices = p.type == Type::f32 ? kFloats : kHalves;
  if (rows_of_channels(p)) return tiles.lanes < kMaxLanes ? prices.rows_of_8_lanes : prices.rows;
  return tiles.lanes < kMaxLanes ? prices.planes_of_8_lanes : prices.planes;
}

// Whether gradients of data of such a kind were measured. Those of one tap along three axes read little of what they touch (12 to
// 64 channels, k1 s2, 12x12x12: 1.6 of the time of `gather`), and rules do better for them with 8 lanes and in 16 bits.
bool known_data(const Problem& p, Isa isa) {
  constexpr int64_t kLeastChannels = 3, kMostResults = 24;  // of groups, and of channels side by side
  constexpr double kMostPhasesOfTap = 4;
  const Geometry& g = p.geometry;
  const bool few = g.x_channels <= kMostResults, of_taps = g.w_positions() > 1;
  const bool tap_known = isa >= Isa::avx512 && p.type == Type::f32 && g.x_channels > kMaxLanes / 2;
  if (std::min(g.x_channels, g.y_channels) < kLeastChannels || (g.groups > 1 && !few)) return false;
  if (!of_taps && !(tap_known && strides_of(g) <= kMostPhasesOfTap)) return false;
  return in_planes(p) || (rows_of_channels(p) && few && of_taps && g.groups == 1);
}

// Whether layers of such a kind were measured. From longer strides on, what forward costs for each of a stride is far from that
// (80 to 80 channels, k1024 s256, bf16, 8 lanes: `wide` takes 8 times the time of `native`, and was said to be faster).
bool known(const Problem& p, const Request& request) {
  constexpr int64_t kLeastResultsOfRows = 4, kMostResultsOfRows = 40, kLongestStride = 32;
  const Geometry& g = p.geometry;
  const bool floats = p.type != Type::f64 && !multiplies_pairs(p.type, request.isa);
  if (p.operation == Operation::backward_weights || !floats || request.isa < Isa::avx2) return false;
  if (g.x_size() == 0 || g.w_size() == 0 || g.y_size() == 0) return false;
  if (weaves(p) || gather_takes_matrices(p, request)) return false;
  if (p.operation == Operation::backward_data) return known_data(p, request.isa);
  if (g.groups > 1) return false;
  const bool of_rows = rows_of_channels(p) && g.y_channels >= kLeastResultsOfRows && g.y_channels <= kMostResultsOfRows &&
                       double(g.w_positions()) > strides_of(g);
  return (in_planes(p) || of_rows) && g.axis[kAxes - 1].stride <= kLongestStride;
}

}  // namespace

std::optional<WideTimes> wide_times(const Problem& p, const Request& request) {
  // Layers of fewer multiply-adds are smaller than those that were measured: what each of them takes is the call.
  constexpr double kLeastProducts = 1 << 20;
  if (!known(p, request)) return std::nullopt;
  const Geometry& g = p.geometry;
  const double inside = products_of(g);
  if (inside * double(g.groups * g.x_channels * g.y_channels) < kLeastProducts) return std::nullopt;
  if (p.operation == Operation::backward_data) return wide_times_of_data(p, request.isa);
  const Tiles<float>& tiles = ::torch_ext::cpu::tiles<float>(request.isa);
  const double x = double(g.x_size()), y = double(g.y_size()), weights = double(g.w_size()), packed = p.prepacked ? 0 : weights;
  const double depth = double(g.x_channels), columns = double(g.y_channels), taps = double(g.w_positions());
  const double vectors = lanes_timed(p.type, request.isa, g.y_channels), stride = double(g.axis[2].stride);
  const double lines = double(g.batch * g.axis[0].x * g.axis[1].x),
               whole_lines = lines * double(round_up(g.axis[2].x, tiles.lanes));
  const auto& [wide, gather, overlap, fold] = prices_of(p, tiles);
  double reached = y;
  for (const Axis& a : g.axis) reached *= double(std::min(a.w, a.stride)) / double(a.stride);
  const WideWork work = work_of_wide(p, tiles);
  WideTimes times;
  times.wide = wide.product * work.products + wide.line * work.lines + wide.x * x + wide.weight * weights +
               (g.axis[2].stride < kLongStride ? wide.result : wide.result_of_long) * y;
  const double product = vectors > tiles.lanes ? gather.product : gather.product_of_vector;
  times.gather = inside * vectors * (product * depth + gather.sum) + gather.x * x + gather.weight * packed * vectors / columns +
                 gather.line * lines * double(g.axis[0].w * g.axis[1].w) * stride +
                 (gather.result * stride + gather.position / columns) * y + gather.gap * (y - reached);
  times.overlap = whole_lines * weights * overlap.product + overlap.weight * packed + overlap.sum * x / depth * taps * columns +
                  overlap.result * y + overlap.gap * (y - reached);
  times.fold = inside * columns * (fold.product * depth + fold.sum) + fold.x * x + fold.weight * packed +
               (fold.result + fold.result_of_stride * stride) * y;
  times.wide /= kLeastGain;
  return times;
}

}  // namespace torch_ext::cpu
