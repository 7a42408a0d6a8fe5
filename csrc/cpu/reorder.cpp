// SPDX-License-Identifier: Apache-2.0
// Tensors whose channels do not lie side by side, brought in that order first, and results back: for layers that another kernel
// computes so much faster then that moving weights alone pays, or all of x, y and weights. That is `fold`, for whose phases and
// channels to be rows of tiles together they must be evenly spaced.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/native_gate.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tiles.h"
#include "csrc/cpu/wide_times.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kSliceBytes = 64 << 10;  // of a tensor that a thread moves at a time

// A tensor of the problem, and the same with its channels side by side.
struct Tensor {
  Strides lies, ordered;
  int64_t outer, channels, extent[kAxes];

  int64_t size() const { return outer * channels * extent[0] * extent[1] * extent[2]; }
  bool is_ordered() const { return channels <= 1 || lies.channel == 1; }
};

Tensor tensor(const Strides& lies, int64_t outer, int64_t channels, const Geometry& g, int64_t Axis::*extent) {
  Tensor t{lies, lies, outer, channels, {}};
  int64_t step = channels;
  for (int a = kAxes - 1; a >= 0; --a) t.extent[a] = g.axis[a].*extent, t.ordered.axis[a] = step, step *= t.extent[a];
  t.ordered.outer = step, t.ordered.channel = 1;
  if (t.is_ordered()) t.ordered = lies;
  return t;
}

struct Tensors {
  Tensor x, w, y;
  explicit Tensors(const Problem& p)
      : x(tensor(p.x, p.geometry.batch, p.geometry.groups * p.geometry.x_channels, p.geometry, &Axis::x)),
        w(tensor(p.w, p.geometry.groups * p.geometry.x_channels, p.geometry.y_channels, p.geometry, &Axis::w)),
        y(tensor(p.y, p.geometry.batch, p.geometry.groups * p.geometry.y_channels, p.geometry, &Axis::y)) {}
  bool are_ordered() const { return x.is_ordered() && w.is_ordered() && y.is_ordered(); }
};

// The problem that is left.
Problem ordered(Problem p, const Tensors& tensors) {
  p.x = tensors.x.ordered, p.w = tensors.w.ordered, p.y = tensors.y.ordered;
  return p;
}

class Reorder final : public Plan {
 public:
  Reorder(const Problem& p, const Tensors& tensors, const Request& request)
      : p_(p),
        isa_(request.isa),
        x_(tensors.x),
        w_(tensors.w),
        y_(tensors.y),
        inner_(make_plan(ordered(p, tensors), request.isa, request.threads)) {
    inner_part_ = layout_.shared(inner_->workspace_bytes());
    for (const auto& [t, part] : {std::pair{&x_, &x_part_}, {&w_, &w_part_}, {&y_, &y_part_}})
      *part = layout_.shared(t->is_ordered() ? 0 : t->size() * bytes_of(p.type));
  }
  std::string describe() const override { return std::string(inner_->kernel) + " " + inner_->describe(); }
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  std::string packing() const override { return packing_of(*inner_); }
  int64_t packed_bytes() const override { return inner_->packed_bytes(); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override {
    std::vector<std::byte> w(size_t(w_.is_ordered() ? 0 : w_.size() * bytes_of(p_.type)));
    Buffers inner = buffers;
    inner.w = bring(w_, buffers.w, w.data(), parallel);
    inner_->pack(inner, parallel, packed);
  }

  void run(const Buffers& buffers, const Parallel& parallel) const override {
    std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
    Buffers inner = buffers;
    inner.workspace = layout_.at<void>(workspace, inner_part_);
    const auto side = [&](const Tensor& t, void* lies, Layout::Part part, Operation result) {
      void* const to = t.is_ordered() ? lies : layout_.at<void>(workspace, part);
      return p_.operation == result ? to : bring(t, lies, to, parallel);
    };
    inner.x = side(x_, buffers.x, x_part_, Operation::backward_data);
    if (!buffers.packed) inner.w = side(w_, buffers.w, w_part_, Operation::backward_weights);
    inner.y = side(y_, buffers.y, y_part_, Operation::conv_transpose);
    inner_->run(inner, parallel);
    switch (p_.operation) {
      case Operation::conv_transpose:
        return take(y_, inner.y, buffers.y, parallel);
      case Operation::backward_data:
        return take(x_, inner.x, buffers.x, parallel);
      case Operation::backward_weights:
        return take(w_, inner.w, buffers.w, parallel);
    }
  }

 private:
  // f(where some lines of it lie, or a part of a long one, and are in order, in elements; the box of them)
  template <class F>
  void for_each_slice(const Tensor& t, const Parallel& parallel, F f) const {
    if (t.size() == 0) return;
    const auto extent = [&](int a) { return t.extent[a]; };
    int64_t slice[kAxes];
    cut_axes(extent, std::max<int64_t>(kSliceBytes / (t.channels * bytes_of(p_.type)), 1), slice);
    parallel.for_each(t.outer * piece_count(extent, slice), [&](int64_t index, int) {
      Range some[kAxes];
      take_piece(index, extent, slice, some);
      const auto at = [&](const Strides& s) {
        return index * s.outer + some[0].begin * s.axis[0] + some[1].begin * s.axis[1] + some[2].begin * s.axis[2];
      };
      f(at(t.lies), at(t.ordered),
        Box{{some[0].size(), some[1].size(), some[2].size()},
            {t.lies.axis[0], t.lies.axis[1], t.lies.axis[2]},
            t.channels,
            t.lies.channel});
    });
  }
  void* bring(const Tensor& t, const void* from, void* to, const Parallel& parallel) const {
    if (t.is_ordered()) return const_cast<void*>(from);
    for_each_slice(t, parallel, [&](int64_t lies, int64_t ordered, const Box& box) {
      copy_box(isa_, p_.type, element(from, p_.type, lies), box, element(to, p_.type, ordered), t.channels);
    });
    return to;
  }
  void take(const Tensor& t, const void* from, void* to, const Parallel& parallel) const {
    if (t.is_ordered()) return;
    const auto move = [&](const auto& tiles) {
      for_each_slice(t, parallel, [&](int64_t lies, int64_t ordered, const Box& box) {
        move_box(tiles, p_.type, element(from, p_.type, ordered), t.channels, element(to, p_.type, lies), box);
      });
    };
    p_.type == Type::f64 ? move(tiles<double>(isa_)) : move(tiles<float>(isa_));
  }

  Problem p_;
  Isa isa_;
  Tensor x_, w_, y_;
  std::shared_ptr<const Plan> inner_;
  Layout layout_;
  Layout::Part inner_part_, x_part_, w_part_, y_part_;
};

// Positions of x from which on `fold` forward is faster than weights that are multiplied as they lie, and weights are few beside
// what they multiply.
constexpr int64_t kManyPositions = 128;

// Whether weights are better multiplied as they lie: forward that is said beside kernels that do not fold.
bool stays_native(const Problem& p, const Request& request) {
  const bool many = p.operation == Operation::conv_transpose && p.geometry.batch * p.geometry.x_positions() >= kManyPositions;
  return !many && native_takes(p) && (native_pays(p, request) || native_of_pairs_pays(p, request));
}

// Weights alone, of x and y whose channels lie side by side. Gradients with few channels of y and many of x are one product of
// weights as they lie in `unfold`, and two channels of two phases fill no vector. (21 to 21 channels, 32x32, k16 s8: 0.65 of the
// time forward, 0.86 and 0.74 backward; 20 to 8, volumes of 24, k2 s2: 0.61, 0.95 and 0.74; pairs 0.5 to 0.6, 0.6 and 0.65. 160
// to 48, 10x10, k8 s4: 1.1; 64 to 2, 256x256, k2 s2: gradients 1.3; 320 to 4, 14x14, k6 s2: of pairs 1.3.)
bool weights_alone_pay(const Problem& p, const Request& request) {
  constexpr int64_t kMostOfProduct = 8, kManyInputs = 128, kLeastChannels = 5;
  const Geometry& g = p.geometry;
  const int64_t positions = g.batch * g.x_positions();
  if (positions < kManyPositions) return false;
  // Matrix registers multiply so fast that moving weights shows, and are full of so many channels (96 to 20, k4 s2, 14x14: 1.3).
  const bool full = g.y_channels >= 2 * kMaxLanes, moved_for_little = positions < 2 * kManyPositions;
  if (matrices_multiply_pairs(p.type, request.isa) && (full || moved_for_little)) return false;
  if (p.operation == Operation::conv_transpose) return true;
  const bool one_product = g.y_channels <= kMostOfProduct && g.x_channels >= kManyInputs;
  const bool few = g.axis[kAxes - 1].stride < kLeastChannels / double(g.y_channels);
  return !one_product && !few && !stays_native(p, request);
}

// Gradients of weights of few planes that are mostly gathered by phases elsewhere, so that moving them is little (2 to 8
// channels, k16 s8, 48x48: 0.3 of the time; 6 to 5, k32 s16: 0.35; 12 to 4, 64x64, k16 s16: 0.4; 8 to 2, 256x256, k8 s8: 0.75;
// but 16 to 12, 64x64, k8 s8: 1.4, and two channels of 16 bits, which move one by one, 1.5 to 2).
bool of_many_phases(const Problem& p) {
  constexpr int64_t kLongStride = 8, kMostPairs = 64;
  const Geometry& g = p.geometry;
  return p.operation == Operation::backward_weights && g.x_channels * g.y_channels <= kMostPairs &&
         (bytes_of(p.type) >= 4 || g.y_channels > 2) && g.axis[kAxes - 1].stride >= kLongStride && !y_is_line(g);
}

// Results of few planes forward that others scatter by so many phases, of which the model of times knows too little, while both
// tensors stay near (24 to 4 channels, 32x32, k48 s16: 0.6 of the time; 4 to 16, volumes of 8, k4 s4: 0.5; 2 to 8, 48x48, k16 s8:
// 0.6; but 6 to 6, 32x32, k16 s16, 13 MB: 2.9; 21 to 21, 32x32, k16 s8, 6 MB: 1.2; and with 8 lanes 0.7 to 1.8).
bool scattered_by_phases(const Problem& p, Isa isa) {
  constexpr double kManyPhases = 64;
  constexpr int64_t kNearBytes = 5 << 20, kLeastResults = 4;
  const Geometry& g = p.geometry;
  if (isa < Isa::avx512 || matrices_multiply_pairs(p.type, isa)) return false;
  return p.operation == Operation::conv_transpose && strides_of(g) >= kManyPhases && !y_is_line(g) &&
         g.y_channels >= kLeastResults && (g.x_size() + g.y_size()) * bytes_of(p.type) <= kNearBytes;
}

// All three, where channels on one side are so few that they leave tiles empty which phases fill, the more the longer the stride.
// (24 to 8 channels, 14x14, k16 s8: 0.4 of the time forward, 0.7 and 0.5 backward; 128 to 4, k8 s4: 0.55, 0.65 and 0.6; 16 to 10,
// 40x40, k6 s3: 0.65 forward; but 32 to 3, 14x14, k8 s4: 1.1, 0.6 and 0.4, 12 to 16, 28x28, k4 s4: 0.85, 1.15.)
bool few_planes_pay(const Problem& p, Isa isa) {
  constexpr int64_t kLongStride = 4, kLeastResults = 16, kLeastOfShort = 8, kMostSummed = 8, kLeastInputs = 12, kFew = 6;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  const int64_t fewest = std::min(g.x_channels, g.y_channels);
  if (fewest < (of_many_phases(p) ? 2 : 3) || matrices_multiply_pairs(p.type, isa)) return false;
  switch (p.operation) {
    case Operation::conv_transpose:
      return g.y_channels > 3 && (g.y_channels >= kFew || g.x_channels > kLeastInputs) &&
             double(line.stride) >= kLeastResults / double(g.y_channels) &&
             line.stride >= (g.y_channels < kLeastOfShort ? kLongStride : kLongStride - 1);
    case Operation::backward_data:
      return line.stride >= kLongStride && line.w / 2 >= line.stride && g.y_channels <= kMostSummed &&
             g.x_channels >= kLeastInputs;
    default:
      return line.stride >= kLongStride && (!vectors_multiply_pairs(p.type, isa) || g.y_channels > 4);
  }
}

// Of x and y that leave the caches, what is multiplied beside each byte that moves is then too little, and along one axis other
// kernels fill their tiles as well (128 to 16 channels, 40000, k8 s4: 1.4 of the time forward, 1.5 of gradients of weights; 64 to
// 48, 12000, k16 s8: 1.3 and 1.2; 256 to 16, 96x96, k2 s2: 1.6 of gradients of data; 4 to 20, 128x128, k4 s4: 2.9 forward. Less:
// 0.9 to 1.)
bool moving_shows(const Problem& p, Isa isa) {
  constexpr int64_t kLargeBytes = 4 << 20, kVeryLargeBytes = 8 << 20;
  constexpr double kFlopsOfByte = 28;
  const Geometry& g = p.geometry;
  const int64_t bytes = (g.x_size() + g.y_size()) * bytes_of(p.type);
  const bool forward = p.operation == Operation::conv_transpose, matrices = matrices_multiply_pairs(p.type, isa);
  if (matrices && forward) return false;  // not tried
  const bool line = !matrices && x_is_line(g);
  return bytes > (matrices || forward ? kVeryLargeBytes : kLargeBytes) &&
         (line || double(g.flops()) < kFlopsOfByte * double(bytes));
}

// All three, by measurement, of vectors: for few channels other kernels are better, and the longer the stride, the more phases
// there are to fill tiles with. (21 to 21 channels, 32x32, k16 s8: 0.9 of the time forward, 0.95 and 0.6 backward; 16x16, k64
// s32: 0.2, 0.7 and 0.4; 20 to 20, 64x64, k8 s4: 0.85, 0.85 and 0.65; k4 s4: 1.1, 1.1 and 0.8. Pairs: 0.65, 0.7 and 0.7; 0.2,
// 0.45 and 0.5; 0.7, 0.9 and 0.7; 0.65, 0.95 and 0.65. 8 to 8 channels, k8 s8: 0.85, 1.5 and 0.9. Along one axis, 40 to 40, k16
// s8: 0.9, 1.15 and 0.85.)
bool planes_pay(const Problem& p, const Request& request) {
  constexpr int64_t kLeastChannels = 12, kLongStride = 8, kStrideOfTwoTaps = 4, kMostRatio = 8, kManyResults = 2048,
                    kLeastOfModel = 5;
  const Geometry& g = p.geometry;
  const Axis& line = g.axis[kAxes - 1];
  const bool few = std::min(g.x_channels, g.y_channels) < kLeastChannels;
  if (!of_many_phases(p) && moving_shows(p, request.isa)) return false;
  // Of many channels of x that become few, moving x takes longer.
  const bool moves_x = g.x_channels > kMostRatio * g.y_channels && g.batch * g.y_positions() < kManyResults;
  if (p.operation == Operation::backward_data && g.y_channels >= kLeastOfModel && !moves_x)
    if (const auto times = wide_times(p, request))
      return times->fold < std::min(times->gather, times->wide) && !stays_native(p, request);
  const bool scattered = scattered_by_phases(p, request.isa);
  if (fill_tiles(g.y_channels) || (few && !scattered && !few_planes_pay(p, request.isa))) return false;
  if (p.x.axis[kAxes - 1] != 1 || p.y.axis[kAxes - 1] != 1) return false;
  if (p.operation == Operation::backward_data && x_is_line(g)) return false;
  if (p.operation != Operation::backward_weights && moves_x) return false;
  if (stays_native(p, request)) return false;
  if (scattered) return true;
  if (const auto times = wide_times(p, request); times && times->beats(times->fold)) return false;
  return few || vectors_multiply_pairs(p.type, request.isa) || line.stride >= kLongStride ||
         (line.stride >= kStrideOfTwoTaps && line.w / 2 >= line.stride);
}

}  // namespace

std::shared_ptr<Plan> make_reorder(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  const Tensors tensors(p);
  if (tensors.are_ordered()) return nullptr;
  if (!request.by_name) {
    const bool weights_alone = tensors.x.is_ordered() && tensors.y.is_ordered();
    if (!(weights_alone ? weights_alone_pay(p, request) : planes_pay(p, request))) return nullptr;
    if (!make_fold(ordered(p, tensors), request)) return nullptr;
  }
  return std::make_shared<Reorder>(p, tensors, request);
}

}  // namespace torch_ext::cpu
