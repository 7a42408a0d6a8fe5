// SPDX-License-Identifier: Apache-2.0
// Layers with few output channels (image heads, the last layer of a vocoder), whose products would be too thin for one tap at a
// time. The taps become channels: with y'[i][(c, k)] = y[c][i*stride - offset + k*dilation], zero where there is no such
// position,
//   dx[i][ic] = sum over (c, k) of y'[i][(c, k)] * w[ic][(c, k)],  dw[ic][(c, k)] = sum over i of x[i][ic] * y'[i][(c, k)]
// are matrix products, over x and w as they lie in memory; and where the kernel is as long as the stride (patches), so that y' is
// no more than y in another order, so is y'[i][(c, k)] = bias[c] + sum over ic of x[i][ic] * w[ic][(c, k)].
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/core/scalar.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/planes.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kBlockBytes = 64 << 10;       // unfolded at a time
constexpr int64_t kChunk = 16;                  // bytes that are copied at a time, some of them beyond the end of a run
constexpr int64_t kMostChannels = 4;            // of y: above it a tap is a product of its own,
constexpr int64_t kMostChannelsOfMatrices = 8;  // but in matrix registers
constexpr int64_t kSmallPlane = 128;            // positions, of which borders make y' several times what is read of y
constexpr int64_t kLeastChannels = 16;          // of x: below it most lanes would be empty
constexpr int64_t kManyChannels = 128;          // of x
constexpr int64_t kMostOfPairs = 3, kLeastOfPairs = 17, kManyInputsOfPairs = 640;  // channels of y, of x, of both
constexpr int64_t kLeastRow = 32;  // of (c, k), where other kernels have no more work with y
// Patches forward, of channels side by side, with vectors of 8 (128 to 6 channels, k2 s2, 20x20: 0.43 of the time; 96 to 6,
// volumes of 4: 0.5; 256 to 4, 128x128: 0.76; 256 to 3, 14x14: 1.4).
constexpr int64_t kMostChannelsOfShortVectors = 6, kLeastRowOfShortVectors = 16;

// Elements of a row of y', which are as many as those of a row of w.
int64_t row_of(const Geometry& g) { return g.y_channels * g.w_positions(); }

// How (c, k) follow each other in w, so many elements apart: channels of a tap, or taps of a channel; else neither.
enum class Order { channels, taps, neither };
struct Row {
  Order order;
  int64_t step;
};
Row row_in_weights(const Problem& p) {
  const Axis* axis = p.geometry.axis;
  const auto taps_follow = [&](int64_t step) {
    for (int a = kAxes - 1; a >= 0; step *= axis[a--].w)
      if (axis[a].w > 1 && p.w.axis[a] != step) return false;
    return true;
  };
  int64_t between_taps = 1;
  for (int a = 0; a < kAxes; ++a)
    if (axis[a].w > 1) between_taps = p.w.axis[a];  // of the innermost
  if (p.geometry.y_channels == 1) return {taps_follow(between_taps) ? Order::channels : Order::neither, between_taps};
  if (taps_follow(p.w.channel * p.geometry.y_channels)) return {Order::channels, p.w.channel};
  const bool of_channel = p.w.channel == between_taps * p.geometry.w_positions() && taps_follow(between_taps);
  return {of_channel ? Order::taps : Order::neither, between_taps};
}

// The matrix product.
Problem unfolded(Problem p) {
  Geometry& g = p.geometry;
  const int64_t row = row_of(g);
  p.w.channel = row_in_weights(p).step;
  for (Axis& a : g.axis) a = {a.x, 1, a.x};
  g.y_channels = row;
  p.y.channel = 1;
  p.y.axis[2] = row, p.y.axis[1] = g.axis[2].x * row, p.y.axis[0] = g.axis[1].x * p.y.axis[1];
  p.y.outer = g.axis[0].x * p.y.axis[0];
  return p;
}

class Unfold final : public Plan {
 public:
  Unfold(const Problem& problem, const Request& request);
  std::string describe() const override {
    return std::to_string(row_) + " taps of all channels as channels of " + inner_->kernel + " " + inner_->describe();
  }
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;

 private:
  template <class T>
  void unfold(const T* y, T* to, int64_t index, T* box) const;
  template <class T>
  void fold(const T* from, T* y, int64_t index) const;
  template <class T>
  void repeat(const T* bias, T* to) const;
  template <class T>
  void load(const T* y, const Range* x, T* box) const;
  bool finite(const void* w) const;

  Problem p_;
  Order order_;
  int64_t row_;
  std::shared_ptr<const Plan> inner_, exact_;
  int64_t block_[kAxes];  // positions of x
  // The part of y that a block reaches, with zeros around y; channels first or last, as in a row.
  int64_t box_extent_[kAxes], box_stride_[kAxes], box_channel_, box_size_;
  std::vector<int64_t> runs_;  // where in the box lies what follows each other in a row, of position 0
  int64_t run_;                // elements of one
  Layout layout_;
  Layout::Part unfolded_part_, bias_part_, inner_part_, box_part_;
};

Unfold::Unfold(const Problem& problem, const Request& request)
    : p_(problem), order_(row_in_weights(problem).order), row_(row_of(problem.geometry)) {
  const Geometry& g = p_.geometry;
  const int64_t bytes = bytes_of(p_.type);
  inner_ = make_plan(unfolded(p_), request.isa, request.threads);
  const bool forward = p_.operation == Operation::conv_transpose;
  if (!forward) exact_ = make_exact_plan(p_, request.isa, request.threads);
  cut_axes([&](int a) { return g.axis[a].x; }, std::max<int64_t>(1, kBlockBytes / (row_ * bytes)), block_);
  int64_t step = order_ == Order::channels ? g.y_channels : 1;
  box_channel_ = 1;
  for (int a = kAxes - 1; a >= 0; --a) {
    box_extent_[a] = (block_[a] - 1) * g.axis[a].stride + (g.axis[a].w - 1) * g.axis[a].dilation + 1;
    box_stride_[a] = step;
    step *= box_extent_[a];
  }
  if (order_ == Order::taps) box_channel_ = step;
  box_size_ = order_ == Order::taps ? step * g.y_channels : step;
  const bool dense = g.axis[2].dilation == 1;
  run_ = (dense ? g.axis[2].w : 1) * (order_ == Order::channels ? g.y_channels : 1);
  for (int64_t c = 0; c < (order_ == Order::taps ? g.y_channels : 1); ++c)
    for (int64_t k0 = 0; k0 < g.axis[0].w; ++k0)
      for (int64_t k1 = 0; k1 < g.axis[1].w; ++k1)
        for (int64_t k2 = 0; k2 < (dense ? 1 : g.axis[2].w); ++k2)
          runs_.push_back(c * box_channel_ + k0 * g.axis[0].dilation * box_stride_[0] + k1 * g.axis[1].dilation * box_stride_[1] +
                          k2 * g.axis[2].dilation * box_stride_[2]);
  unfolded_part_ = layout_.shared(g.batch * g.x_positions() * row_ * bytes);
  bias_part_ = layout_.shared(forward ? row_ * bytes : 0);
  inner_part_ = layout_.shared(inner_->workspace_bytes());
  box_part_ = layout_.per_thread(forward ? 0 : box_size_ * bytes + kChunk);
  layout_.finish(request.threads);
}

void Unfold::run(const Buffers& buffers, const Parallel& parallel) const {
  // An infinity or NaN would meet the zeros around y.
  if (p_.operation == Operation::backward_data && !finite(buffers.w)) return exact_->run(buffers, parallel);
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  Buffers inner = buffers;
  inner.y = layout_.at<void>(workspace, unfolded_part_);
  inner.workspace = layout_.at<void>(workspace, inner_part_);
  const int64_t blocks = p_.geometry.batch * piece_count([&](int a) { return p_.geometry.axis[a].x; }, block_);
  visit(p_.type, [&](auto scalar) {
    using T = decltype(scalar);
    if (p_.operation == Operation::conv_transpose) {
      if (buffers.bias) {
        repeat(static_cast<const T*>(buffers.bias), layout_.at<T>(workspace, bias_part_));
        inner.bias = layout_.at<void>(workspace, bias_part_);
      }
      inner_->run(inner, parallel);
      return parallel.for_each(
          blocks, [&](int64_t index, int) { fold(static_cast<const T*>(inner.y), static_cast<T*>(buffers.y), index); });
    }
    parallel.for_each(blocks, [&](int64_t index, int thread) {
      unfold(static_cast<const T*>(buffers.y), static_cast<T*>(inner.y), index,
             layout_.at<T>(layout_.thread(workspace, thread), box_part_));
    });
    inner_->run(inner, parallel);
  });
  if (p_.operation == Operation::backward_weights && !finite(buffers.w)) exact_->run(buffers, parallel);
}

// That of each (c, k).
template <class T>
void Unfold::repeat(const T* bias, T* to) const {
  const int64_t channels = p_.geometry.y_channels, taps = p_.geometry.w_positions();
  for (int64_t i = 0; i < row_; ++i) to[i] = bias[order_ == Order::channels ? i % channels : i / taps];
}

// Rows of y' of one block.
template <class T>
void Unfold::unfold(const T* y, T* to, int64_t index, T* box) const {
  const Axis* axis = p_.geometry.axis;
  Range x[kAxes];
  take_piece(
      index, [&](int a) { return axis[a].x; }, block_, x);
  load(y + index * p_.y.outer, x, box);
  constexpr int64_t kStep = kChunk / int64_t(sizeof(T));
  // Here, and not in the object, as the compiler cannot know that the copies leave it alone.
  const int64_t *const runs = runs_.data(), count = int64_t(runs_.size()), length = run_;
  // The last positions of a line: so many that none before them reaches into the next line, which may be another thread's.
  const int64_t exact = std::min(parts_of(kStep - 1, row_), x[2].size());
  for (int64_t i0 = 0; i0 < x[0].size(); ++i0)
    for (int64_t i1 = 0; i1 < x[1].size(); ++i1) {
      T* row = to + (((index * axis[0].x + x[0].begin + i0) * axis[1].x + x[1].begin + i1) * axis[2].x + x[2].begin) * row_;
      const T* from = box + i0 * axis[0].stride * box_stride_[0] + i1 * axis[1].stride * box_stride_[1];
      const int64_t step = axis[2].stride * box_stride_[2];
      for (int64_t i2 = 0; i2 < x[2].size() - exact; ++i2, from += step)
        for (int64_t r = 0; r < count; ++r, row += length) {
          // What is copied too far is overwritten by the next runs.
          std::memcpy(row, from + runs[r], kChunk);
          for (int64_t e = kStep; e < length; e += kStep) std::memcpy(row + e, from + runs[r] + e, kChunk);
        }
      for (int64_t i2 = 0; i2 < exact; ++i2, from += step)
        for (int64_t r = 0; r < count; ++r) row = std::copy_n(from + runs[r], length, row);
    }
}

template <class T>
void Unfold::load(const T* y, const Range* x, T* box) const {
  const Axis* axis = p_.geometry.axis;
  std::memset(static_cast<void*>(box), 0, size_t(box_size_) * sizeof(T) + kChunk);
  Range inside[kAxes];  // of the box
  int64_t low[kAxes];   // position of y where the box begins
  for (int a = 0; a < kAxes; ++a) {
    low[a] = axis[a].reach(x[a].begin, 0);
    const int64_t reached = (x[a].size() - 1) * axis[a].stride + (axis[a].w - 1) * axis[a].dilation + 1;
    inside[a] = {std::max<int64_t>(-low[a], 0), std::min(reached, axis[a].y - low[a])};
    if (inside[a].size() <= 0) return;
  }
  const int64_t count = inside[2].size(), channels = p_.geometry.y_channels;
  for (int64_t b0 = inside[0].begin; b0 < inside[0].end; ++b0)
    for (int64_t b1 = inside[1].begin; b1 < inside[1].end; ++b1) {
      const T* line = y + (low[0] + b0) * p_.y.axis[0] + (low[1] + b1) * p_.y.axis[1] + (low[2] + inside[2].begin) * p_.y.axis[2];
      T* to = box + b0 * box_stride_[0] + b1 * box_stride_[1] + inside[2].begin * box_stride_[2];
      if (order_ == Order::channels && p_.y.channel == 1 && p_.y.axis[2] == channels) {
        std::copy_n(line, count * channels, to);
        continue;
      }
      for (int64_t c = 0; c < channels; ++c, line += p_.y.channel, to += box_channel_) {
        if (p_.y.axis[2] == 1 && box_stride_[2] == 1) {
          std::copy_n(line, count, to);
        } else {
          for (int64_t p = 0; p < count; ++p) to[p * box_stride_[2]] = line[p * p_.y.axis[2]];
        }
      }
    }
}

// Rows of y' of one block to where they belong.
template <class T>
void Unfold::fold(const T* from, T* y, int64_t index) const {
  const Axis* axis = p_.geometry.axis;
  Range x[kAxes];
  take_piece(
      index, [&](int a) { return axis[a].x; }, block_, x);
  // A line of y is copied channel by channel, or with all channels where they lie side by side on both sides.
  const bool taps = order_ == Order::taps, whole = !taps && p_.y.channel == 1 && p_.y.axis[2] == p_.geometry.y_channels;
  const int64_t channels = whole ? 1 : p_.geometry.y_channels, together = p_.geometry.y_channels / channels;
  const int64_t channel_step = taps ? p_.geometry.w_positions() : 1, tap_step = taps ? 1 : p_.geometry.y_channels;
  const auto line = [&](const T* row, T* to) {
    for (int64_t i = x[2].begin; i < x[2].end; ++i, row += row_) {
      const int64_t first = axis[2].reach(i, 0), begin = std::max<int64_t>(first, 0),
                    end = std::min(first + axis[2].w, axis[2].y);
      const T* source = row + (begin - first) * tap_step;
      if (tap_step == together && p_.y.axis[2] == together) {
        if (begin < end) std::copy_n(source, (end - begin) * together, to + begin * together);
      } else {
        for (int64_t o = begin; o < end; ++o) to[o * p_.y.axis[2]] = source[(o - begin) * tap_step];
      }
    }
  };
  for (int64_t i0 = x[0].begin; i0 < x[0].end; ++i0)
    for (int64_t i1 = x[1].begin; i1 < x[1].end; ++i1) {
      const T* rows = from + (((index * axis[0].x + i0) * axis[1].x + i1) * axis[2].x + x[2].begin) * row_;
      for (int64_t k = 0; k < axis[0].w * axis[1].w; ++k) {
        const int64_t o0 = axis[0].reach(i0, k / axis[1].w), o1 = axis[1].reach(i1, k % axis[1].w);
        if (o0 < 0 || o0 >= axis[0].y || o1 < 0 || o1 >= axis[1].y) continue;
        T* to = y + index * p_.y.outer + o0 * p_.y.axis[0] + o1 * p_.y.axis[1];
        for (int64_t c = 0; c < channels; ++c) line(rows + c * channel_step + k * axis[2].w * tap_step, to + c * p_.y.channel);
      }
    }
}

bool Unfold::finite(const void* w) const {
  int64_t extent[] = {p_.geometry.x_channels, row_}, stride[] = {p_.w.outer, row_in_weights(p_).step};
  if (stride[1] > stride[0]) std::swap(extent[0], extent[1]), std::swap(stride[0], stride[1]);  // as they lie in memory
  return visit(p_.type, [&](auto scalar) {
    const auto* from = static_cast<const decltype(scalar)*>(w);
    bool all = true;
    for (int64_t i = 0; i < extent[0] && all; ++i)
      for (int64_t j = 0; j < extent[1]; ++j) all &= std::isfinite(widen(from[i * stride[0] + j * stride[1]]));
    return all;
  });
}

// Whether a gradient is one product in matrix registers, which takes so little there that longer rows and more channels of y pay
// (512 to 8 channels, k5 s2, 16x16: 0.35 to 0.5 of the time; 256 to 8, volumes of 6, k6 s3: 0.4; 512 to 6, k6 s2, 10x10: 0.5).
bool product_for_matrices(const Problem& p, Isa isa) {
  constexpr int64_t kLeastPlane = 32, kMostRowOfChannel = 8;
  const Geometry& g = p.geometry;
  return matrices_multiply_pairs(p.type, isa) && p.operation != Operation::conv_transpose && g.x_positions() >= kLeastPlane &&
         g.x_channels >= kManyChannels && row_of(g) <= kMostRowOfChannel * g.x_channels;
}

// Whether patches of planes pay forward, whose short rows leave tiles empty, and whose results leave the caches where they are
// many (48 to 4 channels, k8 s8, 128x128: 1.8 of the time; 64 to 4, k16 s16, 48x48: 1.8; 48 to 4, k3 s3, 16x16: 1.6 to 2; 48 to
// 3, volumes of 24, k4 s4: 1.6; but 512 to 3, k16 s16, 14x14: 0.8; 128 to 3, k4 s4, 7x7: 0.8; 32 to 3, volumes of 4, k4 s4: 0.5).
bool planes_of_patches_pay(const Problem& p, Isa isa) {
  constexpr int64_t kLeastRowOfPlanes = 128, kLeastRowOfSmall = 48, kMostBytes = 4 << 20;
  const Geometry& g = p.geometry;
  if (matrices_multiply_pairs(p.type, isa)) return true;
  const int64_t least = g.x_positions() > kSmallPlane ? kLeastRowOfPlanes : kLeastRowOfSmall;
  return row_of(g) >= least && row_of(g) * g.x_positions() * bytes_of(p.type) <= kMostBytes;
}

// Gradients of weights with vectors of 8, by measurement of 631 layers of few channels, most of these left to `outer`: one
// product of all taps pays in planes of few channels of y and many weights (25 layers: 0.71 of the time; 12 to 2 channels, k16
// s8, 20x20: 0.47; 128 to 4, k5 s3 d2, 8x8: 1.54; but 56 to 1, k9 s3, 120x120: 1.24), and of more beside many of x, where
// positions are few and each y meets some taps (in planes 35 layers: 0.83, else 24: 0.79; 320 to 6, k3 s2, 16 volumes of 2: 0.68
// and 0.54; 512 to 8, k5 s3, 28x28: 1.26). Volumes of one or two channels of y, and 16 and more of x: 7 layers 0.69, channels
// last 0.55 (32 to 2, k5 s2, 4x4x4: 0.3; of one and long lines 1.05 to 1.6).
bool product_for_short_vectors(const Problem& p, Isa isa) {
  constexpr int64_t kFewestOfY = 2, kLongLine = 16, kFewOfY = 4, kLeastOfX = 12, kLeastWeights = 4000, kMostMet = 12;
  constexpr int64_t kTimesY = 8, kManyOfX = 48, kLeastMet = 2, kLeastPositions = 16, kMostPositions = 1024,
                    kMostPositionsOfFew = 4096;
  constexpr double kLeastInside = 0.77, kLeastInsideOfMany = 0.9;
  const Geometry& g = p.geometry;
  if (p.operation != Operation::backward_weights || p.type != Type::f32 || isa >= Isa::avx512) return false;
  const int64_t positions = g.batch * g.x_positions(), met = taps_met(g);
  const bool planes = p.x.channel != 1 && p.y.channel != 1;
  const bool few = planes && g.y_channels <= kFewOfY && g.x_channels >= kLeastOfX && g.w_size() >= kLeastWeights &&
                   positions <= kMostPositionsOfFew && met <= kMostMet && inside(g) >= kLeastInside;
  const bool beside_many = g.x_channels >= std::max(kTimesY * g.y_channels, kManyOfX) && met >= kLeastMet &&
                           positions >= kLeastPositions && positions <= kMostPositions && inside(g) >= kLeastInsideOfMany;
  const bool lines_are_short =
      g.y_channels == kFewestOfY || g.axis[kAxes - 1].x < kLongLine;  // else `dots` fills vectors with them
  const bool volumes =
      g.axis[0].x > 1 && g.axis[1].x > 1 && g.y_channels <= kFewestOfY && g.x_channels >= kLeastChannels && lines_are_short;
  return few || beside_many || volumes;
}

}  // namespace

std::shared_ptr<Plan> make_unfold(const Problem& p, const Request& request) {
  const Geometry& g = p.geometry;
  if (g.groups > 1 || g.x_size() == 0 || g.y_size() == 0 || g.w_size() == 0) return nullptr;
  // Whether y is cut into patches, one for each position of x, and whether they leave nothing of it out.
  bool patches = true, all = true;
  for (const Axis& a : g.axis) {
    patches = patches && a.w == a.stride && a.dilation == 1;
    all = all && a.offset >= 0 && a.y + a.offset <= a.x * a.stride;
  }
  if (row_in_weights(p).order == Order::neither || (p.operation == Operation::conv_transpose && !(patches && all)))
    return nullptr;
  if (patches && row_of(g) == g.y_channels) return nullptr;  // the matrix product itself
  // Rows of y' are written and read again: of 16 bits, up to as many bytes as a row of x has in float32.
  const bool short_rows = row_of(g) * bytes_of(p.type) <= g.x_channels * std::max<int64_t>(bytes_of(p.type), 4);
  // (512 to 3 channels, k11 s1, 4x4: gradient of data 0.66 of the time in `gather`, of weights 0.63 in `outer`; in bf16 0.1 and
  // 0.56.)
  const bool of_taps = row_in_weights(p).order == Order::taps, weights = p.operation == Operation::backward_weights;
  const bool matrices = product_for_matrices(p, request.isa);
  const bool fill_short_vectors =
      p.operation == Operation::conv_transpose && p.x.channel == 1 && request.isa < Isa::avx512;  // rows of patches
  const int64_t most = matrices                                   ? kMostChannelsOfMatrices
                       : fill_short_vectors                       ? kMostChannelsOfShortVectors
                       : patches || g.x_positions() > kSmallPlane ? kMostChannels
                       : of_taps                                  ? 2
                       : weights                                  ? 3
                                                                  : kMostChannels;
  const bool few = g.y_channels <= most && g.x_channels >= kLeastChannels;
  // Channels of y that lie side by side, but not in weights, are copied one by one (16 to 4, k2 s2, 128x128: gradient of data 0.4
  // of the time in `gather`, of weights 0.4 in `outer`; 64 to 2, 28x28: 0.7 and 0.8; of 16 bits 1.4). Gradients of weights of
  // many channels of x gain as much by the one product (512 to 3, k16 s16: 1.3).
  const bool one_by_one =
      of_taps && p.y.channel == 1 && g.y_channels > 1 && bytes_of(p.type) >= 4 && !(weights && g.x_channels >= kManyChannels);
  // Half of a pair that is one channel is empty (32 to 1 channels, k10 s5, 16x16: 0.2 of the time; 24 to 2, k7 s1, 32x32: 0.5;
  // 192 to 3, 10x10, k6 s3: 0.7; 20 to 1, k4 s4, 128x128: 0.16; 512 to 3, k4 s2: 1.2).
  const bool of_pairs = vectors_multiply_pairs(p.type, request.isa) && p.operation == Operation::backward_data &&
                        g.y_channels <= kMostOfPairs && g.x_channels >= kLeastOfPairs &&
                        g.x_channels * g.y_channels < kManyInputsOfPairs && g.axis[kAxes - 1].dilation == 1;
  const int64_t least_row = fill_short_vectors ? kLeastRowOfShortVectors : kLeastRow;
  const bool of_patches = p.operation == Operation::conv_transpose
                              ? row_of(g) >= least_row && (p.x.channel == 1 || planes_of_patches_pay(p, request.isa))
                              : !one_by_one && (row_of(g) >= kLeastRow || p.x.channel == 1);
  const bool worth_it = of_pairs || (patches ? of_patches : short_rows || matrices);
  const bool suits = (few && worth_it && !positions_suit(p, request.isa)) || product_for_short_vectors(p, request.isa);
  return suits || request.by_name ? std::make_shared<Unfold>(p, request) : nullptr;
}

}  // namespace torch_ext::cpu
