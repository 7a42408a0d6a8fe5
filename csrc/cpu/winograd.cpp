// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data with phases of two taps along an axis (all of them for k4 s2, k8 s4, k16 s8, some for k3 s2,
// k5 s3), of which Winograd's F(3, 2) computes three results with four products instead of six, or of three taps (k3 s1, k6 s2,
// some for k5 s2, k8 s3), of which F(2, 3) does two: 1.5 times fewer for each such axis. Phases of more taps (k4 s1, k8 s2, k9
// s1, the inverse STFT's 1024 s256) are cut into segments of two or of three, whose products are summed before they become
// results.
//
// With o + offset = s*q + r, result o of phase r of conv_transpose is x[q-1]*w[r+s] + x[q]*w[r]: all phases share the same two
// inputs. Result i of backward_data is the sum over the phases of z[i]*w[r] + z[i+1]*w[r+s], where z[q] = y[s*q + r - offset]:
// all phases share their result. For three results and d = x[q-1 .. q+2], g = (w[r+s], w[r]), or d = z[i .. i+3], g = (w[r],
// w[r+s]):
//   m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1)/2      m2 = (d2 - d1) (g0 - g1)/2      m3 = (d1 - d3) g1
//   y0 = m0 + m1 + m2      y1 = m1 - m2                    y2 = m1 + m2 - m3
// and likewise for two results of three taps, with (g0 + g1 + g2)/2, (g0 - g1 + g2)/2 and g2 for the last factors and
//   y0 = m0 + m1 + m2      y1 = m1 - m2 - m3
// (Winograd 1980, on the points 0, 1, -1 and infinity). Nested over the axes, the products are matrix products over channels. The
// phases that have most taps along the same axes, and one less along the others, are a class, with a transform of its own; the
// last class may have one tap along all of them, and then its products are of the input as it is.
//
// bf16 and f16 are computed likewise, as float32: their rows come to a box and go from one, and are rounded once.
//
// Where weights are few times the results, all of them are transformed before blocks are computed, each of which reads them.
// Where they are many (first layers of vocoders, the inverse STFT), one block has all tiles and takes some channels of the input
// and of the weights in turn: the transformed weights, two or four times as large, never leave the cache.
#include "csrc/cpu/winograd.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "csrc/cpu/gather.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/wide_times.h"
#include "csrc/cpu/winograd_gate.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kInputBytes = 768 << 10;  // transformed input of a block, to stay in L2
constexpr int64_t kMaxTiles = 96;           // of a block: beyond this the weights' trip into L1 is amortised
// With 8 lanes caches are smaller, and the input may as well come from the outer one, if the weights then come fewer times (1.5
// MB: 0.8 to 1.0 of the time; of all classes, one of which is multiplied at a time, 0.96 beside 768 KB).
constexpr int64_t kInputBytesOf8Lanes = 1536 << 10, kMaxTilesOf8Lanes = 192;
constexpr int64_t kBlockBytes = 1 << 20;          // of all that a block has transformed, where it transforms weights too
constexpr int64_t kFewTiles = 18, kMinTiles = 9;  // of a block of all panels, of one: some register tiles of products
// Work is shared out as if it were so many times as much: blocks are finer than those of other kernels (1-D, 64 to 64 channels,
// k3 s1, 400 positions, two threads: 0.8 of the time).
constexpr double kFiner = 4;
// Fewer results leave lanes of panels empty that other kernels fill (8 fill a vector of 8 lanes: 0.79 to 0.95 of the time of ten
// layers). Fewer channels make short sums. Along two axes and three, transforms err as much as sums of so many terms in torch;
// small volumes, whose borders save products too, are left to kernels that sum each of their 27 taps by itself, and so err less.
constexpr int64_t kLeastResults = 12, kLeastResultsOf8Lanes = 8;
constexpr int64_t kLeastChannels = 6, kLeastChannelsOfVolume = 10, kLeastTerms = 16;
constexpr int64_t kLeastTermsByName = 2;  // of a single one they may err by a seventh more than the formula's four products
constexpr double kLeastSavedOfVolumes = 2.7;
constexpr int64_t kPacked = 16;  // channels that a thread transforms at a time, which stay in its cache

}  // namespace

Winograd::Winograd(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads, bool in_turn)
    : p_(problem),
      tiles_(&tiles<float>(isa)),
      forward_(p_.operation == Operation::conv_transpose),
      in_(forward_ ? p_.x : p_.y),
      out_(forward_ ? p_.y : p_.x),
      depth_(forward_ ? p_.geometry.x_channels : p_.geometry.y_channels),
      columns_(forward_ ? p_.geometry.y_channels : p_.geometry.x_channels),
      classes_(std::move(classes)),
      grid_(WinogradTiles::grid_of(classes_)),
      rows_(*tiles_, p_.type, in_, grid_.axis[2].in_extent, depth_, grid_.whole_input(), 1, 1, 0),
      weights_(p_, classes_, *tiles_, kPacked, tiles_->max_vectors),
      width_(weights_.width()),
      panels_(weights_.count()) {
  const Geometry& g = p_.geometry;
  in_place_input_ = channels_follow<float>(p_.type, in_, depth_);
  in_place_output_ = channels_follow<float>(p_.type, out_, columns_);
  in_turn_ = in_turn && choose_panels(threads);
  if (in_turn_) {
    make_panels(slice_of(most()).channels, tiles_->max_vectors);
  } else if (!choose_blocks(threads)) {
    // Panels of half the width make twice as many items, each of which transforms its input: worth it where they are even.
    make_panels(kPacked, std::max(tiles_->max_vectors / 2, 1));
    if (!choose_blocks(threads)) {
      make_panels(kPacked, tiles_->max_vectors);
      choose_blocks(threads);
    }
  }

  int64_t read[kAxes], written[kAxes], input = 0, products = 0, pointers = 0;
  grid_.most_read(block_, read), grid_.most_written(block_, written);
  for (const WinogradTiles& c : classes_) {
    const TileBlock tiles = c.cover(block_, grid_);
    input = keeps_inputs() ? input + input_rows(c, tiles) : std::max(input, input_rows(c, tiles));
    products = std::max(products, (in_turn_ ? panels_per_item_ * results(c) : 1) * c.points * rows_of_point(tiles));
    pointers = std::max(pointers, (summed(c) + 1) * tiles.tiles());
  }
  const Slice slice = slice_of(most());
  const int64_t channels = in_turn_ ? slice.channels : depth_, real = sizeof(float);
  rows_.set_room(channels);
  pitch_ = row_pitch(channels, real);
  exact_ = make_exact_plan(p_, isa, threads);
  weights_part_ = layout_.shared(in_turn_ ? 0 : weights_.bytes());  // not touched where weights are packed ahead
  zeros_part_ = layout_.shared(pitch_ * real);
  bias_part_ = layout_.shared(g.groups * panels_ * width_ * real);
  stage_part_ = layout_.per_thread(weights_.stage_bytes());
  chunk_part_ = layout_.per_thread(
      in_turn_ ? most().points * WinogradPanels::chunk_pitch(slice.segments, slice.channels, width_) * real : 0);
  box_part_ = layout_.per_thread(in_place_input_ ? 0 : rows_.box_bytes(block_.sample.size(), read));
  input_part_ = layout_.per_thread(input * pitch_ * real);
  products_part_ = layout_.per_thread(products * width_ * real);
  box_floats_ = in_place_output_ ? 0 : block_.sample.size() * written[0] * written[1] * written[2] * width_;
  out_part_ = layout_.per_thread(boxes() * box_floats_ * real);
  pointers_part_ = layout_.per_thread(pointers * int64_t(sizeof(void*)));
  nowhere_part_ = layout_.per_thread(width_ * real);
  layout_.finish(threads);
}

int64_t Winograd::room() const {
  int64_t rows = 0;
  for (const WinogradTiles& c : classes_) {
    if (c.axes == 0) continue;
    const int64_t of_class = summed(c) * c.points * most().results / c.results;
    rows = keeps_inputs() ? rows + of_class : std::max(rows, of_class);
  }
  const int64_t of_tile = rows * row_pitch(depth_, sizeof(float)) * int64_t(sizeof(float));
  if (lanes() < kMaxLanes) return std::clamp<int64_t>(kInputBytesOf8Lanes / of_tile, 1, kMaxTilesOf8Lanes);
  return std::clamp<int64_t>(kInputBytes / of_tile, 1, kMaxTiles);
}

bool Winograd::fits_at_once(int64_t panels) const {
  const WinogradTiles& c = most();
  const int64_t of_point = summed(c) * row_pitch(slice_of(c).channels, sizeof(float)) + panels * results(c) * width_;
  return classes_.size() == 1 && c.count(p_.geometry.batch) * c.points * of_point * int64_t(sizeof(float)) <= kBlockBytes;
}

// Items of one block and as many panels as there is room for. Returns whether there are any that threads share evenly.
bool Winograd::choose_panels(int threads) {
  const Geometry& g = p_.geometry;
  block_ = grid_.cut(g.batch, grid_.count(g.batch) * grid_.results);
  for (int64_t panels = panels_; panels > 0; --panels) {
    panels_per_item_ = even_part(panels_, panels);
    if (fits_at_once(panels_per_item_) && shared_evenly(items(), g.flops(), threads)) return true;
  }
  return false;
}

void Winograd::make_panels(int64_t channels, int64_t most_vectors) {
  weights_ = WinogradPanels(p_, classes_, *tiles_, channels, most_vectors);
  width_ = weights_.width(), panels_ = weights_.count();
}

// Returns whether threads share the blocks evenly.
bool Winograd::choose_blocks(int threads) {
  const Geometry& g = p_.geometry;
  // Items of all panels transform their input once. Only where these would have too few tiles, an item is one panel.
  for (int64_t panels : {panels_, int64_t(1)}) {
    if (classes_meet() && !keeps_inputs()) panels = 1;  // else a box for each of them
    panels_per_item_ = panels;
    const int64_t least = std::min(room(), panels > 1 ? kFewTiles : kMinTiles);
    for (int64_t tiles = room(); tiles >= least; tiles = tiles * 15 / 16) {
      block_ = grid_.cut(g.batch, tiles * most().results);
      if (shared_evenly(items(), kFiner * g.flops(), threads)) return true;
    }
  }
  return false;
}

int64_t Winograd::items() const {
  return grid_.block_count(p_.geometry.batch, block_) * p_.geometry.groups * parts_of(panels_, panels_per_item_);
}

// Panels outermost: what threads compute at the same time shares its weights in the outer caches.
Winograd::Block Winograd::block(int64_t index) const {
  Block b{grid_.take_block(index, p_.geometry.batch, block_), index % p_.geometry.groups, 0, 0};
  const Range panels = even_range(index / p_.geometry.groups, parts_of(panels_, panels_per_item_), panels_);
  b.first_panel = panels.begin, b.last_panel = panels.end;
  return b;
}

bool Winograd::accurate() const {
  const WinogradTiles& c = most();
  const bool volume_of_threes = c.axes == kAxes && classes_.size() == 1 && !c.of_twos();
  if (volume_of_threes && WinogradTiles::saved(p_.geometry, p_.operation) < kLeastSavedOfVolumes) return false;
  return sums_at_least(kLeastTerms);
}

bool Winograd::sums_at_least(int64_t terms) const { return most().axes == 1 || depth_ * summed(most()) >= terms; }

bool Winograd::pays(double share) const {
  const int64_t channels = most().axes == kAxes ? kLeastChannelsOfVolume : kLeastChannels;
  const int64_t results = lanes() < kMaxLanes ? kLeastResultsOf8Lanes : kLeastResults;
  if (columns_ < results || depth_ < channels || !accurate()) return false;
  return winograd_share(p_, classes_, *tiles_, in_turn_ ? most().count(p_.geometry.batch) : room()) < share;
}

std::string Winograd::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(int64_t(classes_.size())) + " classes of phases, block " + text(block_.sample.size()) + "x" +
         text(block_.tile[0].size()) + "x" + text(block_.tile[1].size()) + "x" + text(block_.tile[2].size()) + " tiles, " +
         text(items()) + " items" + (in_turn_ ? ", weights transformed in turn" : "");
}

void Winograd::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  float* bias = layout_.at<float>(workspace, bias_part_);
  std::fill_n(bias, g.groups * panels_ * width_, 0.f);
  std::fill_n(layout_.at<float>(workspace, zeros_part_), pitch_, 0.f);
  for (int64_t group = 0; buffers.bias && group < g.groups; ++group)
    tiles_->widen(p_.type, element(buffers.bias, p_.type, group * columns_), bias + group * panels_ * width_, columns_);
  const auto* header = static_cast<const PackedHeader*>(buffers.packed);
  const float* weights = nullptr;
  std::atomic<bool> finite{true};
  if (header) {
    weights = reinterpret_cast<const float*>(header + 1), finite = header->finite != 0;
  } else if (!in_turn_) {
    float* to = layout_.at<float>(workspace, weights_part_);
    finite = weights_.pack(
        buffers.w, parallel, [&](int thread) { return layout_.at<float>(layout_.thread(workspace, thread), stage_part_); }, to);
    weights = to;
  }
  if (finite) {
    parallel.for_each(items(), [&](int64_t index, int thread) {
      std::byte* scratch = layout_.thread(workspace, thread);
      weights ? run_block(buffers, index, weights, scratch, finite) : run_in_turn(buffers, block(index), scratch, finite);
    });
  }
  if (finite) return;
  Buffers exact = buffers;
  exact.packed = nullptr;
  exact_->run(exact, parallel);
}

std::string Winograd::packing() const {
  const Geometry& g = p_.geometry;
  std::string text = std::string(forward_ ? "Winograd's conv_transpose" : "Winograd's backward_data by points") + ", panels of " +
                     std::to_string(width_) + " floats, points a row apart:";
  const auto add = [&](int64_t v) { text += ' ' + std::to_string(v); };
  add(g.groups), add(depth_), add(columns_);
  for (int a = 0; a < kAxes; ++a) add(g.axis[a].w), add(most().axis[a].stride);
  return text;
}

void Winograd::pack(const Buffers& buffers, const Parallel& parallel, void* packed) const {
  auto* header = static_cast<PackedHeader*>(packed);
  *header = {};
  const int64_t stage = weights_.stage_bytes() / int64_t(sizeof(float));
  std::vector<float> stages(size_t(parallel.threads * stage));
  header->finite = weights_.pack(
      buffers.w, parallel, [&](int thread) { return stages.data() + thread * stage; }, reinterpret_cast<float*>(header + 1));
}

namespace {

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request, bool in_turn) {
  if (p.operation == Operation::backward_weights || p.type == Type::f64) return nullptr;
  if (!winograd_allowed(p, isa, request)) return nullptr;
  std::vector<WinogradTiles> classes = WinogradTiles::of_all_phases(p.geometry, p.operation);
  if (classes.empty()) return nullptr;
  if (in_turn && p.prepacked) {
    // Those packed ahead are multiplied wherever a call that packs none would transform them in turn: bits are the same.
    if (request.by_name || !make(not_packed(p), isa, request, true)) return nullptr;
    auto plan = std::make_shared<Winograd>(p, std::move(classes), isa, request.threads, false);
    plan->kernel = isa == Isa::avx512 ? "winograd__avx512" : "winograd__avx2";
    return plan;
  }
  auto plan = std::make_shared<Winograd>(p, std::move(classes), isa, request.threads, in_turn);
  if (in_turn && !plan->fits_at_once(1)) return nullptr;
  const bool matrices = isa == Isa::avx512 && gather_takes_matrices(p, request);
  if (request.by_name) return plan->sums_at_least(kLeastTermsByName) ? plan : nullptr;
  double share = winograd_pays_below(p, request, matrices);
  if (const auto times = wide_times(p, request)) share *= std::min(1., times->wide / times->gather);
  return plan->pays(share) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_in_turn_avx512(const Problem& p, const Request& request) {
  return make(p, Isa::avx512, request, true);
}
std::shared_ptr<Plan> make_winograd_in_turn_avx2(const Problem& p, const Request& request) {
  return make(p, Isa::avx2, request, true);
}
std::shared_ptr<Plan> make_winograd_avx512(const Problem& p, const Request& request) {
  // Six products in matrix registers are as fast as these where the channels fill registers, and few rows of weights L1 (128 to
  // 64 channels of 16x16, k4 s2: 0.83 of the time; 256 to 128: 1.1 to 1.3; 96 to 48: 1.1 to 1.5).
  const int64_t x = p.geometry.x_channels, y = p.geometry.y_channels;
  const bool fill = x % 32 == 0 && y % 32 == 0 && std::min(x, y) < 128;
  return !request.by_name && fill && gather_takes_matrices(p, request) ? nullptr : make(p, Isa::avx512, request, false);
}
std::shared_ptr<Plan> make_winograd_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request, false); }

}  // namespace torch_ext::cpu
