// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data with kernel = 2 * stride (k4 s2, k8 s4, k16 s8): every phase has two taps along each axis, and
// Winograd's F(3, 2) computes three of its results with four products instead of six: 1.5 times fewer for each axis.
//
// With o + offset = s*q + r, result o of phase r of conv_transpose is x[q-1]*w[r+s] + x[q]*w[r]: all phases share the same two
// inputs. Result i of backward_data is the sum over the phases of z[i]*w[r] + z[i+1]*w[r+s], where z[q] = y[s*q + r - offset]:
// all phases share their result. For three results and d = x[q-1 .. q+2], g = (w[r+s], w[r]), or d = z[i .. i+3], g = (w[r],
// w[r+s]):
//   m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1)/2      m2 = (d2 - d1) (g0 - g1)/2      m3 = (d1 - d3) g1
//   y0 = m0 + m1 + m2      y1 = m1 - m2                    y2 = m1 + m2 - m3
// (Winograd 1980, on the points 0, 1, -1 and infinity). Nested over the axes, the products are matrix products over channels.
#include <algorithm>
#include <atomic>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/upcoming.h"
#include "csrc/cpu/winograd_panels.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kInputBytes = 768 << 10;        // transformed input of a block, to stay in L2
constexpr int64_t kMaxTiles = 96;                 // of a block: beyond this the weights' trip into L1 is amortised
constexpr int64_t kFewTiles = 18, kMinTiles = 9;  // of a block of all panels, of one: some register tiles of products
constexpr int64_t kLeastTiles = 64;               // of a call with weights packed ahead
// What pays along one, two and three axes. Of fewer channels, the transforms cost more than the products save: channels that are
// summed over and of the result, and these times each other. Of fewer results of a phase, and of four times as many where few
// tiles fit into a block, those of the weights do, which are 2, 4 and 8 times as large as the weights.
struct Least {
  int64_t channels, pairs, results;
};
constexpr Least kLeast[] = {{48, 4096, 512}, {16, 512, 1024}, {16, 256, 5120}};

class Winograd final : public Plan {
 public:
  Winograd(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_->workspace_bytes()); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  std::string packing() const override;
  int64_t packed_bytes() const override { return int64_t(sizeof(PackedHeader)) + weights_.bytes(); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override;
  bool pays() const;

 private:
  struct Block : TileBlock {
    int64_t group, first_panel, last_panel;
  };

  // Tiles of a block at most.
  int64_t room() const {
    const int64_t of_tile = int64_t(in_phases_.size()) * tiling_.points * pitch_ * int64_t(sizeof(float));
    return std::clamp<int64_t>(kInputBytes / of_tile, 1, kMaxTiles);
  }
  void choose_blocks(int threads);
  int64_t items() const;
  Block block(int64_t index) const;
  bool transform_input(const Buffers& buffers, const Block& block, std::byte* scratch) const;
  void multiply(const Block& block, const float* weights, int64_t vectors, const float* bias, Upcoming results,
                std::byte* scratch) const;
  Upcoming results_ahead(const Buffers& buffers, const Block& block, int64_t panel, const Coordinates& phase) const;
  void store_results(const Buffers& buffers, const Block& block, int64_t panel, const Coordinates& phase,
                     std::byte* scratch) const;
  void store_output(const Buffers& buffers, const Block& block, int64_t panel, std::byte* scratch) const;
  void run_block(const Buffers& buffers, const Block& block, const float* weights, std::byte* scratch,
                 std::atomic<bool>& finite) const;
  // What one sum of a register tile takes of the input: some phases, or some channels of one.
  struct Sum {
    int64_t phases, channels;
  };
  Sum sum_of(int64_t vectors) const {
    const int64_t most = std::clamp<int64_t>(kPanelBytes / (vectors * lanes() * int64_t(sizeof(float))), 8, kMaxTerms);
    return {std::clamp<int64_t>(most / depth_, 1, int64_t(in_phases_.size())), even_part(depth_, most)};
  }

  int64_t lanes() const { return tiles_->lanes; }

  Problem p_;
  const Tiles<float>* tiles_;
  bool forward_;
  Strides in_, out_;
  int64_t depth_, columns_;  // channels of a group that are summed over, and of the result
  WinogradTiles tiling_;
  std::vector<Coordinates> in_phases_, out_phases_;
  Rows<float> rows_;  // of the input
  WinogradPanels weights_;
  int64_t width_, panels_;  // columns of a panel, panels of a group
  TileBlock block_{};       // the first one
  int64_t panels_per_item_;
  int64_t pitch_;  // of a row of transformed input
  bool in_place_input_, in_place_output_;
  std::shared_ptr<const Plan> exact_;  // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part weights_part_, zeros_part_, bias_part_, panels_part_, box_part_, input_part_, products_part_, out_part_,
      pointers_part_, nowhere_part_;
};

Winograd::Winograd(const Problem& problem, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<float>(isa)),
      forward_(p_.operation == Operation::conv_transpose),
      in_(forward_ ? p_.x : p_.y),
      out_(forward_ ? p_.y : p_.x),
      depth_(forward_ ? p_.geometry.x_channels : p_.geometry.y_channels),
      columns_(forward_ ? p_.geometry.y_channels : p_.geometry.x_channels),
      tiling_(p_.geometry, p_.operation),
      rows_(*tiles_, p_.type, in_, tiling_.axis[2].in_extent, depth_, tiling_.whole_input(), 1, 1, 0),
      weights_(p_, tiling_, *tiles_),
      width_(weights_.width()),
      panels_(weights_.count()) {
  const Geometry& g = p_.geometry;
  in_phases_ = out_phases_ = {{0, 0, 0}};
  (forward_ ? out_phases_ : in_phases_) = tiling_.phases;
  pitch_ = row_pitch(depth_, sizeof(float));
  in_place_input_ = in_.channel == 1 || depth_ == 1;
  in_place_output_ = out_.channel == 1 || columns_ == 1;
  choose_blocks(threads);

  const int64_t tiles = block_.tiles();
  int64_t read[kAxes], written[kAxes];
  tiling_.most_read(block_, read), tiling_.most_written(block_, written);
  rows_.set_room(depth_);
  const int64_t real = sizeof(float);
  exact_ = make_exact_plan(p_, isa, threads);
  weights_part_ = layout_.shared(weights_.bytes());  // not touched, like the panels, where weights are packed ahead
  zeros_part_ = layout_.shared(pitch_ * real);
  bias_part_ = layout_.shared(g.groups * panels_ * width_ * real);
  panels_part_ = layout_.shared(weights_.stage_bytes());
  box_part_ = layout_.per_thread(in_place_input_ ? 0 : rows_.box_bytes(block_.sample.size(), read));
  input_part_ = layout_.per_thread(int64_t(in_phases_.size()) * tiling_.points * tiles * pitch_ * real);
  products_part_ = layout_.per_thread(tiling_.points * tiles * width_ * real);
  out_part_ =
      layout_.per_thread(in_place_output_ ? 0 : block_.sample.size() * written[0] * written[1] * written[2] * width_ * real);
  pointers_part_ = layout_.per_thread((int64_t(in_phases_.size()) + 1) * tiles * int64_t(sizeof(void*)));
  nowhere_part_ = layout_.per_thread(width_ * real);
  layout_.finish(threads);
}

void Winograd::choose_blocks(int threads) {
  const Geometry& g = p_.geometry;
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  // Items of all panels transform their input once. Only where these would have too few tiles, an item is one panel.
  for (const int64_t panels : {panels_, int64_t(1)}) {
    panels_per_item_ = panels;
    const int64_t least = std::min(room(), panels > 1 ? kFewTiles : kMinTiles);
    for (int64_t tiles = room(); tiles >= least; tiles = tiles * 15 / 16) {
      block_ = tiling_.cut(g.batch, tiles);
      if (shared_evenly(items(), flops, threads)) return;
    }
  }
}

int64_t Winograd::items() const {
  return tiling_.block_count(p_.geometry.batch, block_) * p_.geometry.groups * parts_of(panels_, panels_per_item_);
}

// Panels outermost: what threads compute at the same time shares its weights in the outer caches.
Winograd::Block Winograd::block(int64_t index) const {
  Block b{tiling_.take_block(index, p_.geometry.batch, block_), index % p_.geometry.groups, 0, 0};
  b.first_panel = index / p_.geometry.groups * panels_per_item_;
  b.last_panel = std::min(b.first_panel + panels_per_item_, panels_);
  return b;
}

// Fewer products against more weights to read: transformed weights are (points/2)^axes times as large, and each call writes them
// once and reads them once a block.
bool Winograd::pays() const {
  const Least& least = kLeast[tiling_.axes - 1];
  if (std::min(depth_, columns_) < least.channels || depth_ * columns_ < least.pairs) return false;
  const int64_t tiles = tiling_.count(p_.geometry.batch);
  const int64_t results = room() < kFewTiles ? 4 * least.results : least.results;
  return tiling_.saved() >= 1.25 && (p_.prepacked ? tiles >= kLeastTiles : tiles * tiling_.results >= results);
}

std::string Winograd::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(tiling_.points) + " products for " + text(tiling_.results) + " results, block " + text(block_.sample.size()) + "x" +
         text(block_.tile[0].size()) + "x" + text(block_.tile[1].size()) + "x" + text(block_.tile[2].size()) + " tiles, " +
         text(items()) + " items";
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
  const float* weights = header ? reinterpret_cast<const float*>(header + 1) : layout_.at<float>(workspace, weights_part_);
  std::atomic<bool> finite{header ? header->finite != 0
                                  : weights_.pack(buffers.w, parallel, layout_.at<float>(workspace, panels_part_),
                                                  layout_.at<float>(workspace, weights_part_))};
  if (finite) {
    parallel.for_each(items(), [&](int64_t index, int thread) {
      run_block(buffers, block(index), weights, layout_.thread(workspace, thread), finite);
    });
  }
  if (finite) return;
  Buffers exact = buffers;
  exact.packed = nullptr;
  exact_->run(exact, parallel);
}

std::string Winograd::packing() const {
  const Geometry& g = p_.geometry;
  std::string text = std::string(forward_ ? "F(3, 2) of conv_transpose" : "F(3, 2) of backward_data by points") + ", panels of " +
                     std::to_string(width_) + " floats:";
  for (int64_t v : {g.groups, depth_, columns_, g.axis[0].w, g.axis[1].w, g.axis[2].w}) text += ' ' + std::to_string(v);
  return text;
}

void Winograd::pack(const Buffers& buffers, const Parallel& parallel, void* packed) const {
  auto* header = static_cast<PackedHeader*>(packed);
  *header = {};
  std::vector<float> panels(size_t(weights_.stage_bytes()) / sizeof(float));
  header->finite = weights_.pack(buffers.w, parallel, panels.data(), reinterpret_cast<float*>(header + 1));
}

// input[phase][point][tile][c] of a block; returns whether it is finite.
bool Winograd::transform_input(const Buffers& buffers, const Block& b, std::byte* scratch) const {
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  const void* tensor = forward_ ? buffers.x : buffers.y;
  std::atomic<bool> ignored{true};
  const RowView<float> in = in_place_input_
                                ? rows_.view(tensor, b.group)
                                : rows_.load(tensor, b.group * depth_, depth_, b.sample.begin, b.sample.end,
                                             tiling_.positions_read(b), layout_.at<float>(scratch, box_part_), ignored);
  float* input = layout_.at<float>(scratch, input_part_);
  const int64_t pitch = b.tiles() * pitch_;
  alignas(64) float check[kMaxLanes] = {};
  for (const Coordinates& phase : in_phases_) {
    float* to = input;
    b.for_each([&](int64_t n, const Coordinates& tile) {
      const float* rows[kMostPoints];
      tiling_.list_points(tile, phase, in.axis, in.origin + n * in.sample, zeros, rows);
      tiles_->winograd_input[tiling_.axes](rows, to, pitch, depth_, check);
      to += pitch_;
    });
    input += tiling_.points * pitch;
  }
  return std::all_of(check, check + lanes(), [](float v) { return v == 0; });
}

// products[point][tile][n] = sum over the phases of the input of input[phase][point][tile] * weights[phase][point], the bias in
// the product that every result contains once.
void Winograd::multiply(const Block& b, const float* weights, int64_t vectors, const float* bias, Upcoming results,
                        std::byte* scratch) const {
  const int64_t tiles = b.tiles(), width = vectors * lanes(), phases = int64_t(in_phases_.size());
  const float* input = layout_.at<float>(scratch, input_part_);
  float* products = layout_.at<float>(scratch, products_part_);
  const float** rows = layout_.at<const float*>(scratch, pointers_part_);
  float** out = const_cast<float**>(rows) + phases * tiles;
  alignas(64) static constexpr float kNothing[kMaxVectors * kMaxLanes] = {};
  int64_t ones = 0;
  for (const WinogradAxis& a : tiling_.axis) ones = ones * a.points + (a.transformed ? 1 : 0);
  const Sum sum = sum_of(vectors);
  const int64_t count = parts_of(tiles, tiles_->max_rows[vectors]);
  const float* panels[kMaxTerms];
  const int64_t points = tiling_.points;
  for (int64_t point = 0; point < points; ++point) {
    for (int64_t t = 0; t < tiles; ++t) out[t] = products + (point * tiles + t) * width;
    for (int64_t phase = 0; phase < phases; phase += sum.phases)
      for (int64_t c = 0; c < depth_; c += sum.channels) {
        const int64_t summed = std::min(sum.phases, phases - phase), depth = std::min(sum.channels, depth_ - c);
        for (int64_t k = 0; k < summed; ++k) {
          panels[k] = weights + k * depth_ * width;
          for (int64_t t = 0; t < tiles; ++t)
            rows[k * tiles + t] = input + (((phase + k) * points + point) * tiles + t) * pitch_ + c;
        }
        weights += summed * depth * width;
        const float* init = phase || c ? nullptr : point == ones ? bias : kNothing;
        GatherTile<float> tile{0, rows, tiles, panels, summed, 0, depth, out, 0, init, width};
        // While these weights are used, the next ones are asked for.
        const int64_t asks = summed * parts_of(depth, kCacheLine / int64_t(sizeof(float)));
        tile.soon = weights;
        tile.soon_step = round_up(summed * depth * width * int64_t(sizeof(float)) / (count * asks), kCacheLine);
        for (int64_t i = 0, done = 0; i < count; ++i) {
          const int64_t height = (tiles - done) / (count - i);
          tile.next = i + 1 < count ? height : 0;
          results.step();
          tiles_->gather[vectors][height](tile);
          tile.rows += height, tile.out += height, done += height;
          tile.soon = static_cast<const char*>(tile.soon) + asks * tile.soon_step;
        }
      }
  }
}

// Results of one phase from the products, into the tensor or the box.
void Winograd::store_results(const Buffers& buffers, const Block& b, int64_t panel, const Coordinates& phase,
                             std::byte* scratch) const {
  const int64_t width = weights_.vectors_of(panel) * lanes(), columns = std::min(width_, columns_ - panel * width_),
                pitch = b.tiles() * width;
  const float* products = layout_.at<float>(scratch, products_part_);
  float* nowhere = layout_.at<float>(scratch, nowhere_part_);
  // The tensor, or the box of the block's positions.
  Strides to = out_;
  float* origin = static_cast<float*>(forward_ ? buffers.y : buffers.x) + (b.group * columns_ + panel * width_) * out_.channel;
  if (!in_place_output_) {
    const Region box = tiling_.positions_written(b);
    to.axis[2] = width_;
    to.axis[1] = (box.end[2] - box.begin[2]) * to.axis[2], to.axis[0] = (box.end[1] - box.begin[1]) * to.axis[1];
    to.outer = (box.end[0] - box.begin[0]) * to.axis[0];
    origin = layout_.at<float>(scratch, out_part_) - b.sample.begin * to.outer;
    for (int a = 0; a < kAxes; ++a) origin -= box.begin[a] * to.axis[a];
  }
  b.for_each([&](int64_t n, const Coordinates& tile) {
    float* rows[kMostPoints];
    tiling_.list_results(tile, phase, to.axis, origin + n * to.outer, nowhere, rows);
    tiles_->winograd_output[tiling_.axes](products, pitch, rows, columns);
    products += width;
  });
}

// The results of a phase, where they go into the tensor one row after the other.
Upcoming Winograd::results_ahead(const Buffers& buffers, const Block& b, int64_t panel, const Coordinates& phase) const {
  if (!in_place_output_) return Upcoming();
  const float* origin =
      static_cast<const float*>(forward_ ? buffers.y : buffers.x) + (b.group * columns_ + panel * width_) * out_.channel;
  Strides strides = out_;
  Patch patch{b.sample, {0, std::min(width_, columns_ - panel * width_)}, {}};
  for (int a = 0; a < kAxes; ++a) {
    const WinogradAxis& axis = tiling_.axis[a];
    const int64_t step = axis.out_step(), low = axis.write(b.tile[a].begin, 0, phase[size_t(a)]);
    patch.axis[a] = {first_reaching(0, low, step),
                     std::min(first_reaching(axis.out_extent, low, step), b.tile[a].size() * axis.results)};
    origin += low * out_.axis[a];
    strides.axis[a] *= step;
  }
  const int64_t vectors = weights_.vectors_of(panel), phases = int64_t(in_phases_.size());
  const Sum sum = sum_of(vectors);
  Upcoming ahead(tiling_.points * parts_of(phases, sum.phases) * parts_of(depth_, sum.channels) *
                 parts_of(b.tiles(), tiles_->max_rows[vectors]));
  ahead.writes(p_.type, origin, strides, patch);
  return ahead;
}

void Winograd::run_block(const Buffers& buffers, const Block& b, const float* weights, std::byte* scratch,
                         std::atomic<bool>& finite) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  if (!transform_input(buffers, b, scratch)) {
    finite = false;
    return;
  }
  const float* bias = layout_.at<float>(workspace, bias_part_) + b.group * panels_ * width_;
  for (int64_t panel = b.first_panel; panel < b.last_panel; ++panel) {
    const int64_t vectors = weights_.vectors_of(panel), phase_size = tiling_.points * depth_ * vectors * lanes();
    const float* of_panel = weights + weights_.start(b.group, panel);
    for (const Coordinates& phase : out_phases_) {
      multiply(b, of_panel, vectors, bias + panel * width_, results_ahead(buffers, b, panel, phase), scratch);
      store_results(buffers, b, panel, phase, scratch);
      of_panel += phase_size;
    }
    if (!in_place_output_) store_output(buffers, b, panel, scratch);
  }
}

// From the box into the tensor, one line at a time.
void Winograd::store_output(const Buffers& buffers, const Block& b, int64_t panel, std::byte* scratch) const {
  const float* box = layout_.at<float>(scratch, out_part_);
  const Region at = tiling_.positions_written(b);
  const int64_t length = at.end[2] - at.begin[2];
  const Box line{{1, 1, length}, {0, 0, out_.axis[2]}, std::min(width_, columns_ - panel * width_), out_.channel};
  float* to = static_cast<float*>(forward_ ? buffers.y : buffers.x) + (b.group * columns_ + panel * width_) * out_.channel +
              at.begin[2] * out_.axis[2];
  for (int64_t n = b.sample.begin; n < b.sample.end; ++n)
    for (int64_t i = at.begin[0]; i < at.end[0]; ++i)
      for (int64_t j = at.begin[1]; j < at.end[1]; ++j, box += length * width_)
        store_box(*tiles_, p_.type, box, width_, to + n * out_.outer + i * out_.axis[0] + j * out_.axis[1], line);
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (p.operation == Operation::backward_weights || p.type != Type::f32 || !WinogradTiles::exist(p.geometry)) return nullptr;
  auto plan = std::make_shared<Winograd>(p, isa, request.threads);
  return request.by_name || (winograd_allowed(p) && plan->pays()) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_winograd_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }

}  // namespace torch_ext::cpu
