// SPDX-License-Identifier: Apache-2.0
// Which problems `gather` can compute, and for which of them its tiles of pairs and of matrices are faster than others, by
// measurement.
#include <algorithm>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/split.h"
#include "csrc/cpu/tiles.h"

namespace torch_ext::cpu {
namespace {

// Where a pair takes as long as two floats: rows of bf16 need not be widened, which takes longer than few products of each. (NXC,
// gradients of data of 16 groups of 16 to 2 channels, k4 s4, 4 lines of 1000: 0.4 of the time; 16 to 8, volumes of 16, k1 s2:
// 0.23; 18 to 4, k5 s5, 110x110: 0.55; but of 16 to 24, k4 s2, lines of 150: 1.3; 13 to 9, k14 s12, 40x40, where rows of y begin
// in the middle of a pair: 1.64. conv_transpose of 8 to 512, k1 s2, 14x14: 0.25; of 8 to 64, k2 s2, 64x64: 0.87; 32 to 64: 1.4.)
bool slow_pairs_pay(const Problem& p) {
  constexpr int64_t kFewMet = 2, kFewChannels = 8, kFewSummed = 12;
  constexpr double kFewProducts = 2048, kFewOfRow = 512, kFewOfOne = 13;
  const Geometry& g = p.geometry;
  if (p.x.channel != 1 || p.y.channel != 1) return false;
  const double y_channels = double(g.y_channels), of_channel = double(g.x_channels * g.w_positions());  // of a position of x
  if (p.operation == Operation::backward_data) {
    const double of_y = of_channel / strides_of(g);
    return g.y_channels % 2 == 0 && (of_y < kFewOfOne || (g.y_channels <= kFewSummed && of_y * y_channels < kFewOfRow));
  }
  return taps_met(g) <= kFewMet && (g.x_channels <= kFewChannels || of_channel * y_channels < kFewProducts);
}

}  // namespace

bool gather_accepts(const Problem& p) {
  const Geometry& g = p.geometry;
  return p.operation != Operation::backward_weights && g.batch > 0 && g.x_channels > 0 && g.y_channels > 0 &&
         g.x_positions() > 0 && g.y_positions() > 0;
}

bool gather_takes_matrices(const Problem& p, const Request& request) {
  if (request.isa < Isa::amx || !gather_accepts(p)) return false;
  // Tiles of 32 channels by 16. Of bf16 fewer are enough on one side where there are many on the other (gradient of data of 2
  // channels to 128, k4 s2, 64x64: 0.12 to 0.25 of the time of `wide`; 512 to 8, k5 s2, 16x16: 0.23 of that of `overlap`, 96 to
  // 3, k8 s4: 1.45; 8 to 160, k5 s1, along one axis: 0.6 to 0.75 of that of vectors). What is split must pay for that too, by
  // many positions for four products (16 planes of 4x4 with 512 and 256 channels in float16: 17.9 ms, 14 unsplit; a line of 600
  // with 256 and 128: 2.6 and 3.8) and for six (a plane of 37x37 with 192: 2.9, 2.6 unsplit; of 64x64 with 256 and 64: 2.9 and
  // 3.5).
  const WeightsMatrix m = weights_matrix(p);
  const int64_t channels = std::min(m.depth, m.columns), products = split_of(p).products();
  if (p.type == Type::bf16) {
    const bool forward = p.operation == Operation::conv_transpose;
    return channels >= 12 || (m.depth >= 8 && m.columns >= 32) || (forward ? m.depth >= 64 && m.columns >= 4 : m.depth >= 32);
  }
  const int64_t positions = p.geometry.batch * std::min(p.geometry.x_positions(), p.geometry.y_positions());
  const int64_t least = products >= 6 ? 2048 : products >= 4 ? 512 : 64;
  return channels >= 32 && positions >= least && matrices_take(p);
}

bool gather_takes_pairs(const Problem& p) { return pairs_are_fast() || (p.type == Type::bf16 && slow_pairs_pay(p)); }

}  // namespace torch_ext::cpu
