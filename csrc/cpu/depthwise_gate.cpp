// SPDX-License-Identifier: Apache-2.0
// Fitted to the times of 300 layers drawn at random, in both layouts: what is chosen takes 6 % longer than the fastest kernel
// where channels are planes, 4 % where they lie side by side. (Before, with a gate in each kernel, it took 18 % and 6 % longer.)
#include "csrc/cpu/depthwise_gate.h"

#include <algorithm>
#include <optional>

#include "csrc/cpu/interleaved.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kFew = 16, kVeryFew = 7;                             // groups, of which vectors along them are partly empty
constexpr int64_t kPage = 4096;                                        // bytes
constexpr int64_t kLeastLine = 8;                                      // of `lines`, whose vectors lie along it
constexpr int64_t kLongestStep = 3, kSomeGroups = 44, kLongLine = 40;  // of `lines`
constexpr int64_t kPatchedStep = 12;                                   // of `patches`, but for gradients of data

bool lie_as_planes(const Problem& p) {
  const Axis& line = p.geometry.axis[kAxes - 1];
  return (line.x == 1 || p.x.axis[kAxes - 1] == 1) && (line.y == 1 || p.y.axis[kAxes - 1] == 1);
}

bool takes(DepthwiseKernel kernel, const Problem& p) {
  const Axis& line = p.geometry.axis[kAxes - 1];
  switch (kernel) {
    case DepthwiseKernel::patches:
    case DepthwiseKernel::interleaved:
      return (line.dilation == 1 || line.w == 1) && line.stride <= line.y;  // whole cells
    case DepthwiseKernel::lines:
      return line.stride <= kLineSteps && p.geometry.w_positions() <= kMaxTerms && lie_as_planes(p);
    default:
      return true;
  }
}

struct Layer {
  Layer(const Problem& p, Isa isa);

  int64_t groups, taps, positions, results;  // the last two of a plane
  int64_t line, kernel, stride;              // along the innermost axis
  int64_t lanes;
  bool narrow;  // 16 bits
  bool many_registers;
  bool one_line;
  bool aligned;       // planes of y lie a multiple of a page apart
  bool uneven;        // phases of one tap and of two
  bool cells, lines;  // whether `interleaved` and `patches` take it, and whether `lines` does, but for short volumes
  bool dense_plane;   // of whole floats and stride 1, with vectors of 8
  bool all_inside;    // no tap leaves y
  bool short_volume;  // a volume of some channels of whole floats, with vectors of 8, which lines fill that much sooner

  bool few() const { return groups <= kFew; }
  // Uneven phases slow `lines` down where they are summed over.
  bool lines_of_sums() const { return lines && (!uneven || few() || line >= kLongLine); }
};

Layer::Layer(const Problem& p, Isa isa) {
  const Geometry& g = p.geometry;
  const Axis& last = g.axis[kAxes - 1];
  groups = g.groups, taps = g.w_positions(), positions = g.x_positions(), results = g.y_positions();
  line = last.x, kernel = last.w, stride = last.stride;
  lanes = lanes_of(p.type, isa), many_registers = isa >= Isa::avx512;
  narrow = bytes_of(p.type) < 4;
  one_line = positions == line, aligned = results * bytes_of(p.type) % kPage == 0;
  uneven = stride > 1 && kernel < 2 * stride && kernel != stride;
  cells = takes(DepthwiseKernel::interleaved, p);
  dense_plane = !many_registers && !narrow && !one_line && longest_stride(g) == 1;
  all_inside = inside(g) == 1;
  short_volume = !many_registers && !narrow && groups >= kFew && g.axis[0].x > 1 && g.axis[1].x > 1;
  lines = takes(DepthwiseKernel::lines, p) && line >= kLeastLine && !short_volume;
}

// Whether `lines` is for a volume of vectors of 8 (50 layers, those that change: 0.80 of the time forward, 0.70 of gradients of
// data, 0.65 of those of weights; 64 channels, k5 s1, 16x16x16: 0.33; 256, k4 s2, 8x8x8: 0.6; 16, k2 s2, 12x12x12: the others
// 0.5).
bool lines_of_short_volume(const Problem& p, const Layer& a) {
  constexpr int64_t kLeastLineOfVolume = 6, kManyTaps = 125, kVolume = 300;
  if (!a.short_volume || !takes(DepthwiseKernel::lines, p) || a.line < kLeastLineOfVolume || a.stride > kLongestStep)
    return false;
  if (a.stride == 1) return a.taps >= kManyTaps || a.positions > kVolume;
  if (p.operation == Operation::conv_transpose) return a.kernel > a.stride || a.positions > kVolume;
  const bool data = p.operation == Operation::backward_data;
  if (a.kernel < 2 * a.stride) return a.aligned && data;
  return a.aligned || (a.taps >= kManyTaps && data);
}

// Planes are transposed for lanes along channels, but for `lines`, which small ones leave partly empty.
DepthwiseKernel forward_of_planes(const Layer& a) {
  constexpr int64_t kSmallPlane = 144, kPlane = 220, kDensePlane = 500, kPatchedKernel = 16, kManyPlanes = 64;
  const int64_t small = a.groups <= kSomeGroups ? kSmallPlane : a.stride == 1 ? kDensePlane : kPlane;
  if (a.lines && a.stride <= kLongestStep && (a.narrow || a.positions > small)) return DepthwiseKernel::lines;
  const bool wide = a.stride >= kPatchedStep && a.kernel >= kPatchedKernel;
  if (a.cells && wide && a.groups < kManyPlanes) return DepthwiseKernel::patches;
  return a.groups <= kVeryFew ? DepthwiseKernel::others : DepthwiseKernel::interleaved;
}

DepthwiseKernel data_of_planes(const Layer& a) {
  constexpr int64_t kLongKernel = 12, kLongStep = 7, kFewTaps = 31, kNarrowLine = 14, kPlane = 648, kLargePlane = 3568,
                    kLargePlaneOfFewRegisters = 784, kAligned = 2048, kLongRow = 400, kManyGroups = 128;
  if (a.lines_of_sums() && a.kernel <= kLongKernel) {
    const bool dense = a.stride == 1 && (a.groups <= kSomeGroups || a.positions > kPlane);
    const bool large = a.positions > (a.many_registers ? kLargePlane : kLargePlaneOfFewRegisters) ||
                       (a.aligned && a.results >= kAligned) ||
                       (a.one_line && a.stride == 2 && a.line >= kLongRow && a.groups > kManyGroups);
    if (dense || large || (a.narrow && a.line >= kNarrowLine) || (a.few() && a.stride <= kLongestStep))
      return DepthwiseKernel::lines;
  }
  if (a.cells && a.stride >= kLongStep) return DepthwiseKernel::patches;
  return a.stride > 1 && a.taps <= kFewTaps ? DepthwiseKernel::depthwise : DepthwiseKernel::interleaved;
}

// With long strides, `patches` has lanes along the taps of a line.
DepthwiseKernel weights_of_planes(const Layer& a) {
  constexpr int64_t kDottedLine = 400, kPatchedLine = 100, kLongKernel = 9, kLeastTaps = 4, kFewTaps = 6, kNarrowLine = 16,
                    kLineOfTwo = 28, kLineOfOne = 16;
  const bool sparse = a.kernel < 2 * a.stride;
  if (a.one_line && a.stride > 2)
    return a.cells && (a.few() || a.line >= kPatchedLine) ? DepthwiseKernel::patches : DepthwiseKernel::interleaved;
  if (a.one_line && a.line >= kDottedLine) return DepthwiseKernel::others;
  if (a.one_line && !(a.few() && a.lines)) return sparse ? DepthwiseKernel::depthwise : DepthwiseKernel::interleaved;
  if (a.lines_of_sums()) {
    const bool two = a.taps > kLeastTaps && a.stride <= 2 && a.line >= kLineOfTwo;
    const bool one = a.taps > kLeastTaps && a.stride == 1 && a.line >= kLineOfOne && a.groups <= kSomeGroups;
    const bool narrow = a.narrow && a.line >= kNarrowLine && a.kernel <= kLongKernel;
    if (one || two || narrow || (a.few() && a.stride <= kLongestStep)) return DepthwiseKernel::lines;
  }
  const bool wide = a.stride >= kPatchedStep || (a.groups <= kVeryFew && a.stride > kLongestStep);
  if (a.cells && wide) return DepthwiseKernel::patches;
  return sparse || a.taps <= kFewTaps ? DepthwiseKernel::depthwise : DepthwiseKernel::interleaved;
}

// With many taps and a stride of one, cells of y at borders, which all meet different taps, are many where the kernel leaves x
// and never y; and of some groups lanes along positions are faster. (50 layers, gradients of weights: 0.53 of the time, of data
// 0.7, forward 0.6; 96 groups, k9, 20x20 to 28x28: 0.41 of weights, 0.62 of data; 40, k11, 32x32 to 32x32: 0.4, 0.63, 0.59.)
std::optional<DepthwiseKernel> of_dense_plane(const Layer& a, Operation operation) {
  constexpr int64_t kSomeTaps = 25, kManyTaps = 49, kVeryManyTaps = 81, kFewGroups = 40, kFewGroupsOfSums = 96,
                    kMostTapsOfData = 121, kManyReals = 150000;
  if (operation == Operation::conv_transpose)
    return a.taps >= kVeryManyTaps && a.groups <= kFewGroups ? std::optional(DepthwiseKernel::others) : std::nullopt;
  const bool sums = operation == Operation::backward_weights;
  if (a.all_inside && a.taps >= kSomeTaps && a.groups >= kFew && (sums || a.taps <= kMostTapsOfData))
    return DepthwiseKernel::depthwise;
  if (a.taps >= kManyTaps && a.groups <= (sums ? kFewGroupsOfSums : kFewGroups)) return DepthwiseKernel::others;
  if (sums && a.taps >= kSomeTaps && a.groups * a.positions >= kManyReals) return DepthwiseKernel::depthwise;
  return std::nullopt;
}

// Channels that lie side by side fill vectors as they do, or in runs of neighbours, which `interleaved` has: the narrower ones
// too, where phases have different numbers of taps; a stride of one makes none. Rows of x that it repeats for runs cost what so
// many reals of y do.
DepthwiseKernel side_by_side(const Layer& a, Operation operation) {
  constexpr int64_t kLeastRun = 24, kManyTaps = 56, kManyTapsOfRuns = 32, kManyResults = 2900000, kNarrowGroups = 44,
                    kShortKernel = 7, kLeastTaps = 9, kCopies = 2, kCopiesOfWeights = 4;
  if (a.dense_plane)
    if (const auto kernel = of_dense_plane(a, operation)) return *kernel;
  const int64_t rest = a.kernel % a.stride;
  const bool forward = operation == Operation::conv_transpose, whole = a.groups % a.lanes == 0, partial = a.groups < kFew;
  const bool runs = a.stride > 1 && a.groups * (rest ? std::min(rest, a.stride - rest) : a.stride) >= kLeastRun;
  if (operation == Operation::backward_data) {
    if (partial && runs && a.taps >= kManyTapsOfRuns) return DepthwiseKernel::interleaved;
    if (partial) return a.groups > kVeryFew && a.stride > 1 ? DepthwiseKernel::depthwise : DepthwiseKernel::others;
    const bool once = a.taps > kManyTaps || a.groups * a.results > kManyResults || (a.narrow && a.groups <= kNarrowGroups);
    return once ? DepthwiseKernel::interleaved : DepthwiseKernel::depthwise;
  }
  const bool copies =
      (forward ? kCopies : kCopiesOfWeights) * RepeatedRow(a.groups, a.lanes).size * a.positions <= a.groups * a.results;
  if (whole || (runs && copies && (forward || a.taps >= kLeastTaps))) return DepthwiseKernel::interleaved;
  if (!forward && !partial && (a.kernel > kShortKernel || a.taps > kManyTaps || a.narrow)) return DepthwiseKernel::interleaved;
  return partial && a.kernel != a.stride ? DepthwiseKernel::others : DepthwiseKernel::depthwise;
}

DepthwiseKernel fastest(const Problem& p, Isa isa) {
  const Layer layer(p, isa);
  const bool neighbours = p.y.channel == 1 && p.y.axis[kAxes - 1] == p.geometry.groups;
  DepthwiseKernel kernel = DepthwiseKernel::depthwise;
  if (lie_as_planes(p)) {
    if (lines_of_short_volume(p, layer)) return DepthwiseKernel::lines;
    kernel = p.operation == Operation::conv_transpose  ? forward_of_planes(layer)
             : p.operation == Operation::backward_data ? data_of_planes(layer)
                                                       : weights_of_planes(layer);
    // Lanes along so few channels are nearly all empty.
    if (kernel == DepthwiseKernel::interleaved && layer.groups <= kVeryFew)
      kernel = layer.stride > 2 && layer.cells ? DepthwiseKernel::patches : DepthwiseKernel::others;
  } else if (neighbours) {
    kernel = side_by_side(layer, p.operation);
  }
  if (kernel == DepthwiseKernel::interleaved && !layer.cells) kernel = DepthwiseKernel::depthwise;
  return kernel == DepthwiseKernel::depthwise && layer.groups <= kVeryFew ? DepthwiseKernel::others : kernel;
}

}  // namespace

bool depthwise_chooses(DepthwiseKernel kernel, const Problem& p, Isa isa, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.x_channels != 1 || g.y_channels != 1 || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return false;
  return takes(kernel, p) && (request.by_name || fastest(p, isa) == kernel);
}

}  // namespace torch_ext::cpu
