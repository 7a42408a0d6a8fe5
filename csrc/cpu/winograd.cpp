// SPDX-License-Identifier: Apache-2.0
// conv_transpose and backward_data with a kernel of up to two strides: phases with two taps along an axis (all of them for k4 s2,
// k8 s4, k16 s8, some for k3 s2, k5 s3), of which Winograd's F(3, 2) computes three results with four products instead of
// six: 1.5 times fewer for each such axis.
//
// With o + offset = s*q + r, result o of phase r of conv_transpose is x[q-1]*w[r+s] + x[q]*w[r]: all phases share the same two
// inputs. Result i of backward_data is the sum over the phases of z[i]*w[r] + z[i+1]*w[r+s], where z[q] = y[s*q + r - offset]:
// all phases share their result. For three results and d = x[q-1 .. q+2], g = (w[r+s], w[r]), or d = z[i .. i+3], g = (w[r],
// w[r+s]):
//   m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1)/2      m2 = (d2 - d1) (g0 - g1)/2      m3 = (d1 - d3) g1
//   y0 = m0 + m1 + m2      y1 = m1 - m2                    y2 = m1 + m2 - m3
// (Winograd 1980, on the points 0, 1, -1 and infinity). Nested over the axes, the products are matrix products over channels. The
// phases that have two taps along the same axes are a class, with a transform of its own; the last class may have none, and then
// its products are of the input as it is.
#include <algorithm>
#include <atomic>
#include <utility>
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
constexpr int64_t kLeastTiles[] = {16, 64, 64};   // of a call with weights packed ahead, by axes
// What pays along one, two and three axes. Of fewer channels, the transforms cost more than the products save. Of fewer results,
// and of four times as many where few tiles fit into a block, those of the weights do, which are 2, 4 and 8 times as large as the
// weights.
constexpr WinogradLeast kLeast[] = {{48, 4096, 512}, {16, 512, 1024}, {16, 256, 5120}};
// And by how much products must be fewer. Where phases differ in their taps, input is transformed for each class of them.
constexpr WinogradLeast kLeastOfClasses[] = {{64, 8192, 1024}, {64, 8192, 1024}, {64, 8192, 16384}};
constexpr double kLeastSaved = 1.25, kLeastSavedOfClasses = 1.45;

class Winograd final : public Plan {
 public:
  Winograd(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads);
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

  // The products of a class for a panel: of one phase of conv_transpose, or of all phases, which backward_data sums.
  struct Pass {
    const WinogradTiles& of;
    TileBlock tiles;
    RowView<float> in;
    int64_t vectors, columns;  // of the panel
    float* origin;             // of its results: position 0 of sample 0, in the tensor or in a box
    Strides to;
    Coordinates phase;
    bool add;  // to the results of other classes
  };

  // Tiles of a block at most.
  int64_t room() const {
    int64_t rows = 0;
    for (const WinogradTiles& c : classes_) rows = std::max(rows, phases_summed(c) * c.points * (grid().results / c.results));
    const int64_t of_tile = rows * pitch_ * int64_t(sizeof(float));
    return std::clamp<int64_t>(kInputBytes / of_tile, 1, kMaxTiles);
  }
  void choose_blocks(int threads);
  int64_t items() const;
  Block block(int64_t index) const;
  RowView<float> load_input(const Buffers& buffers, const Block& block, std::byte* scratch) const;
  bool transform_input(const Buffers& buffers, const Pass& pass, std::byte* scratch) const;
  void set_results(const Buffers& buffers, const Block& block, int64_t panel, std::byte* scratch, Pass& pass) const;
  void list_input(const Buffers& buffers, const Pass& pass, int64_t phase, int64_t point, std::byte* scratch,
                  const float** rows) const;
  void list_products(const Pass& pass, int64_t point, std::byte* scratch, float** rows) const;
  void multiply(const Buffers& buffers, const Pass& pass, const float* weights, const float* bias, std::byte* scratch) const;
  Upcoming results_ahead(const Pass& pass) const;
  void store_results(const Pass& pass, std::byte* scratch) const;
  void store_output(const Buffers& buffers, const Block& block, int64_t panel, std::byte* scratch) const;
  void run_block(const Buffers& buffers, const Block& block, const float* weights, std::byte* scratch,
                 std::atomic<bool>& finite) const;
  // The box of a panel; several of a block are there where it takes more than a class of phases to fill them.
  float* out_box(const Block& block, int64_t panel, std::byte* scratch) const {
    return layout_.at<float>(scratch, out_part_) + (classes_.size() > 1 ? panel - block.first_panel : 0) * box_floats_;
  }
  // What one sum of a register tile takes of the input: some phases, or some channels of one.
  struct Sum {
    int64_t phases, channels;
  };
  // With each axis that is transformed the errors of sums weigh more, and so these are shorter.
  Sum sum_of(const WinogradTiles& c, int64_t vectors) const {
    const int64_t panel = kPanelBytes / (vectors * lanes() * int64_t(sizeof(float)));
    const int64_t most = std::clamp<int64_t>(panel, 8, kMaxTerms >> std::max(c.axes - 1, 0));
    return {std::clamp<int64_t>(most / depth_, 1, phases_summed(c)), even_part(depth_, most)};
  }

  int64_t lanes() const { return tiles_->lanes; }
  const WinogradTiles& grid() const { return classes_[0]; }
  // Of a class, that make the same results.
  int64_t phases_summed(const WinogradTiles& c) const { return forward_ ? 1 : int64_t(c.phases.size()); }

  Problem p_;
  const Tiles<float>* tiles_;
  bool forward_;
  Strides in_, out_;
  int64_t depth_, columns_;  // channels of a group that are summed over, and of the result
  std::vector<WinogradTiles> classes_;
  Rows<float> rows_;  // of the input
  WinogradPanels weights_;
  int64_t width_, panels_;  // columns of a panel, panels of a group
  TileBlock block_{};       // the first one
  int64_t panels_per_item_;
  int64_t pitch_;       // of a row of transformed input
  int64_t box_floats_;  // of the results of a panel
  bool in_place_input_, in_place_output_;
  std::shared_ptr<const Plan> exact_;  // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part weights_part_, zeros_part_, bias_part_, stage_part_, box_part_, input_part_, products_part_, out_part_,
      pointers_part_, nowhere_part_;
};

Winograd::Winograd(const Problem& problem, std::vector<WinogradTiles> classes, Isa isa, int threads)
    : p_(problem),
      tiles_(&tiles<float>(isa)),
      forward_(p_.operation == Operation::conv_transpose),
      in_(forward_ ? p_.x : p_.y),
      out_(forward_ ? p_.y : p_.x),
      depth_(forward_ ? p_.geometry.x_channels : p_.geometry.y_channels),
      columns_(forward_ ? p_.geometry.y_channels : p_.geometry.x_channels),
      classes_(std::move(classes)),
      rows_(*tiles_, p_.type, in_, grid().axis[2].in_extent, depth_, grid().whole_input(), 1, 1, 0),
      weights_(p_, classes_, *tiles_),
      width_(weights_.width()),
      panels_(weights_.count()) {
  const Geometry& g = p_.geometry;
  pitch_ = row_pitch(depth_, sizeof(float));
  in_place_input_ = in_.channel == 1 || depth_ == 1;
  in_place_output_ = out_.channel == 1 || columns_ == 1;
  choose_blocks(threads);

  int64_t read[kAxes], written[kAxes], input = 0, products = 0, pointers = 0;
  grid().most_read(block_, read), grid().most_written(block_, written);
  for (const WinogradTiles& c : classes_) {
    const int64_t tiles = c.cover(block_, grid()).tiles();
    input = std::max(input, phases_summed(c) * c.points * tiles), products = std::max(products, c.points * tiles);
    pointers = std::max(pointers, (phases_summed(c) + 1) * tiles);
  }
  rows_.set_room(depth_);
  const int64_t real = sizeof(float);
  exact_ = make_exact_plan(p_, isa, threads);
  weights_part_ = layout_.shared(weights_.bytes());  // not touched where weights are packed ahead
  zeros_part_ = layout_.shared(pitch_ * real);
  bias_part_ = layout_.shared(g.groups * panels_ * width_ * real);
  stage_part_ = layout_.per_thread(weights_.stage_bytes());
  box_part_ = layout_.per_thread(in_place_input_ ? 0 : rows_.box_bytes(block_.sample.size(), read));
  input_part_ = layout_.per_thread(input * pitch_ * real);
  products_part_ = layout_.per_thread(products * width_ * real);
  box_floats_ = in_place_output_ ? 0 : block_.sample.size() * written[0] * written[1] * written[2] * width_;
  out_part_ = layout_.per_thread((classes_.size() > 1 ? panels_per_item_ : 1) * box_floats_ * real);
  pointers_part_ = layout_.per_thread(pointers * int64_t(sizeof(void*)));
  nowhere_part_ = layout_.per_thread(width_ * real);
  layout_.finish(threads);
}

void Winograd::choose_blocks(int threads) {
  const Geometry& g = p_.geometry;
  const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
  // Items of all panels transform their input once. Only where these would have too few tiles, an item is one panel.
  for (int64_t panels : {panels_, int64_t(1)}) {
    if (forward_ && !in_place_output_ && classes_.size() > 1) panels = 1;  // else boxes of all phases
    panels_per_item_ = panels;
    const int64_t least = std::min(room(), panels > 1 ? kFewTiles : kMinTiles);
    for (int64_t tiles = room(); tiles >= least; tiles = tiles * 15 / 16) {
      block_ = grid().cut(g.batch, tiles);
      if (shared_evenly(items(), flops, threads)) return;
    }
  }
}

int64_t Winograd::items() const {
  return grid().block_count(p_.geometry.batch, block_) * p_.geometry.groups * parts_of(panels_, panels_per_item_);
}

// Panels outermost: what threads compute at the same time shares its weights in the outer caches.
Winograd::Block Winograd::block(int64_t index) const {
  Block b{grid().take_block(index, p_.geometry.batch, block_), index % p_.geometry.groups, 0, 0};
  b.first_panel = index / p_.geometry.groups * panels_per_item_;
  b.last_panel = std::min(b.first_panel + panels_per_item_, panels_);
  return b;
}

// Fewer products against more weights to read: transformed weights are (points/2)^axes times as large, and each call writes them
// once and reads them once a block.
bool Winograd::pays() const {
  const bool one_class = classes_.size() == 1;
  const WinogradLeast& least = (one_class ? kLeast : kLeastOfClasses)[grid().axes - 1];
  if (!least.reached(depth_, columns_)) return false;
  if (grid().saved(p_.geometry) < (one_class ? kLeastSaved : kLeastSavedOfClasses)) return false;
  const int64_t tiles = grid().count(p_.geometry.batch);
  const int64_t results = room() < kFewTiles ? 4 * least.results : least.results;
  return p_.prepacked ? tiles >= kLeastTiles[grid().axes - 1] : tiles * grid().results >= results;
}

std::string Winograd::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(int64_t(classes_.size())) + " classes of phases, block " + text(block_.sample.size()) + "x" +
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
  std::atomic<bool> finite{
      header ? header->finite != 0
             : weights_.pack(
                   buffers.w, parallel,
                   [&](int thread) { return layout_.at<float>(layout_.thread(workspace, thread), stage_part_); },
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
  const int64_t stage = weights_.stage_bytes() / int64_t(sizeof(float));
  std::vector<float> stages(size_t(parallel.threads * stage));
  header->finite = weights_.pack(
      buffers.w, parallel, [&](int thread) { return stages.data() + thread * stage; }, reinterpret_cast<float*>(header + 1));
}

RowView<float> Winograd::load_input(const Buffers& buffers, const Block& b, std::byte* scratch) const {
  const void* tensor = forward_ ? buffers.x : buffers.y;
  std::atomic<bool> ignored{true};
  if (in_place_input_) return rows_.view(tensor, b.group);
  return rows_.load(tensor, b.group * depth_, depth_, b.sample.begin, b.sample.end, grid().positions_read(b),
                    layout_.at<float>(scratch, box_part_), ignored);
}

// input[phase][point][tile][c] of the tiles of a class; returns whether it is finite.
bool Winograd::transform_input(const Buffers& buffers, const Pass& pass, std::byte* scratch) const {
  const WinogradTiles& c = pass.of;
  if (c.axes == 0) return true;  // it is taken as it is
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  float* input = layout_.at<float>(scratch, input_part_);
  const int64_t pitch = pass.tiles.tiles() * pitch_;
  alignas(64) float check[kMaxLanes] = {};
  for (int64_t phase = 0; phase < phases_summed(c); ++phase) {
    float* to = input;
    c.each_points(pass.tiles, c.phases[size_t(phase)], pass.in.origin, pass.in.sample, pass.in.axis, zeros,
                  [&](const float* const* rows) {
                    tiles_->winograd_input[c.axes](rows, to, pitch, depth_, check);
                    to += pitch_;
                  });
    input += c.points * pitch;
  }
  return std::all_of(check, check + lanes(), [](float v) { return v == 0; });
}

// The rows of a point of all tiles, transformed; where nothing is to be transformed, those of the input itself.
void Winograd::list_input(const Buffers& buffers, const Pass& pass, int64_t phase, int64_t point, std::byte* scratch,
                          const float** rows) const {
  const WinogradTiles& c = pass.of;
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  if (c.axes == 0)
    return c.each_points(pass.tiles, c.phases[size_t(phase)], pass.in.origin, pass.in.sample, pass.in.axis, zeros,
                         [&](const float* const* row) { *rows++ = *row; });
  const int64_t tiles = pass.tiles.tiles();
  const float* row = layout_.at<float>(scratch, input_part_) + (phase * c.points + point) * tiles * pitch_;
  for (int64_t t = 0; t < tiles; ++t, row += pitch_) rows[t] = row;
}

// The rows of their products; where nothing is to be transformed, those of the results.
void Winograd::list_products(const Pass& pass, int64_t point, std::byte* scratch, float** rows) const {
  if (pass.of.axes == 0)
    return pass.of.each_results(pass.tiles, pass.phase, pass.origin, pass.to.outer, pass.to.axis,
                                layout_.at<float>(scratch, nowhere_part_), [&](float* const* row) { *rows++ = *row; });
  const int64_t tiles = pass.tiles.tiles(), width = pass.vectors * lanes();
  float* row = layout_.at<float>(scratch, products_part_) + point * tiles * width;
  for (int64_t t = 0; t < tiles; ++t, row += width) rows[t] = row;
}

// products[point][tile][n] = sum over the phases of the input of input[phase][point][tile] * weights[phase][point], the bias in
// the product that every result contains once.
void Winograd::multiply(const Buffers& buffers, const Pass& pass, const float* weights, const float* bias,
                        std::byte* scratch) const {
  const WinogradTiles& c = pass.of;
  const int64_t tiles = pass.tiles.tiles(), width = pass.vectors * lanes(), phases = phases_summed(c);
  const float** rows = layout_.at<const float*>(scratch, pointers_part_);
  float** out = const_cast<float**>(rows) + phases * tiles;
  alignas(64) static constexpr float kNothing[kMaxVectors * kMaxLanes] = {};
  int64_t ones = 0;
  for (const WinogradAxis& a : c.axis) ones = ones * a.points + (a.transformed ? 1 : 0);
  const Sum sum = sum_of(c, pass.vectors);
  const int64_t count = parts_of(tiles, tiles_->max_chain_rows[pass.vectors]);
  const float* panels[kMaxTerms];
  Upcoming results = results_ahead(pass);
  for (int64_t point = 0; point < c.points; ++point) {
    list_products(pass, point, scratch, out);
    for (int64_t phase = 0; phase < phases; phase += sum.phases) {
      const int64_t summed = std::min(sum.phases, phases - phase);
      for (int64_t k = 0; k < summed; ++k) list_input(buffers, pass, phase + k, point, scratch, rows + k * tiles);
      for (int64_t first = 0; first < depth_; first += sum.channels) {
        const int64_t depth = std::min(sum.channels, depth_ - first);
        for (int64_t k = 0; k < summed; ++k) panels[k] = weights + (k * depth_ - first) * width;
        weights += summed * depth * width;
        const bool more = phase || first || (c.axes == 0 && pass.add);
        const float* init = more ? nullptr : point == ones ? bias : kNothing;
        GatherTile<float> tile{0, rows, tiles, panels, summed, first, depth, out, 0, init, c.axes ? width : pass.columns};
        // While these weights are used, the next ones are asked for.
        const int64_t asks = summed * parts_of(depth, kCacheLine / int64_t(sizeof(float)));
        tile.soon = weights;
        tile.soon_step = round_up(summed * depth * width * int64_t(sizeof(float)) / (count * asks), kCacheLine);
        for (int64_t i = 0, done = 0; i < count; ++i) {
          const int64_t height = (tiles - done) / (count - i);
          tile.next = i + 1 < count ? height : 0;
          results.step();
          tiles_->gather_chains[pass.vectors][height](tile);
          tile.rows += height, tile.out += height, done += height;
          tile.soon = static_cast<const char*>(tile.soon) + asks * tile.soon_step;
        }
      }
    }
  }
}

// Where the results of a panel go.
void Winograd::set_results(const Buffers& buffers, const Block& b, int64_t panel, std::byte* scratch, Pass& pass) const {
  pass.vectors = weights_.vectors_of(panel), pass.columns = std::min(width_, columns_ - panel * width_);
  pass.to = out_;
  pass.origin = static_cast<float*>(forward_ ? buffers.y : buffers.x) + (b.group * columns_ + panel * width_) * out_.channel;
  if (in_place_output_) return;
  const Region box = grid().positions_written(b);
  Strides& to = pass.to;
  to.axis[2] = width_;
  to.axis[1] = (box.end[2] - box.begin[2]) * to.axis[2], to.axis[0] = (box.end[1] - box.begin[1]) * to.axis[1];
  to.outer = (box.end[0] - box.begin[0]) * to.axis[0];
  pass.origin = out_box(b, panel, scratch) - b.sample.begin * to.outer;
  for (int a = 0; a < kAxes; ++a) pass.origin -= box.begin[a] * to.axis[a];
}

// From the products.
void Winograd::store_results(const Pass& pass, std::byte* scratch) const {
  if (pass.of.axes == 0) return;  // there already
  const int64_t width = pass.vectors * lanes(), pitch = pass.tiles.tiles() * width;
  const float* products = layout_.at<float>(scratch, products_part_);
  float* nowhere = layout_.at<float>(scratch, nowhere_part_);
  pass.of.each_results(pass.tiles, pass.phase, pass.origin, pass.to.outer, pass.to.axis, nowhere, [&](float* const* rows) {
    tiles_->winograd_output[pass.of.axes](products, pitch, rows, pass.columns, pass.add);
    products += width;
  });
}

// The results of a phase, where they go into the tensor one row after the other.
Upcoming Winograd::results_ahead(const Pass& pass) const {
  const WinogradTiles& c = pass.of;
  if (!in_place_output_ || c.axes == 0) return Upcoming();  // tiles ask for what they store
  const float* origin = pass.origin;
  Strides strides = pass.to;
  Patch patch{pass.tiles.sample, {0, pass.columns}, {}};
  for (int a = 0; a < kAxes; ++a) {
    const WinogradAxis& axis = c.axis[a];
    const Range& tile = pass.tiles.tile[a];
    const int64_t step = axis.out_step(), low = axis.write(tile.begin, 0, pass.phase[size_t(a)]);
    patch.axis[a] = {first_reaching(0, low, step),
                     std::min(first_reaching(axis.out_extent, low, step), tile.size() * axis.results)};
    origin += low * out_.axis[a];
    strides.axis[a] *= step;
  }
  const Sum sum = sum_of(c, pass.vectors);
  Upcoming ahead(c.points * parts_of(phases_summed(c), sum.phases) * parts_of(depth_, sum.channels) *
                 parts_of(pass.tiles.tiles(), tiles_->max_chain_rows[pass.vectors]));
  ahead.writes(p_.type, origin, strides, patch);
  return ahead;
}

void Winograd::run_block(const Buffers& buffers, const Block& b, const float* weights, std::byte* scratch,
                         std::atomic<bool>& finite) const {
  const float* bias = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), bias_part_) + b.group * panels_ * width_;
  const RowView<float> in = load_input(buffers, b, scratch);
  for (size_t k = 0; k < classes_.size(); ++k) {
    const WinogradTiles& c = classes_[k];
    Pass pass{c, c.cover(b, grid()), in, 0, 0, nullptr, {}, {}, !forward_ && k > 0};
    if (!transform_input(buffers, pass, scratch)) {
      finite = false;
      return;
    }
    for (int64_t panel = b.first_panel; panel < b.last_panel; ++panel) {
      set_results(buffers, b, panel, scratch, pass);
      const float* of_phase = weights + weights_.start(b.group, panel, k);
      for (size_t phase = 0; phase < (forward_ ? c.phases.size() : 1); ++phase) {
        pass.phase = c.phases[phase];
        multiply(buffers, pass, of_phase, bias + panel * width_, scratch);
        store_results(pass, scratch);
        of_phase += c.points * depth_ * pass.vectors * lanes();
      }
      if (!in_place_output_ && k + 1 == classes_.size()) store_output(buffers, b, panel, scratch);
    }
  }
}

// From the box into the tensor, one line at a time.
void Winograd::store_output(const Buffers& buffers, const Block& b, int64_t panel, std::byte* scratch) const {
  const float* box = out_box(b, panel, scratch);
  const Region at = grid().positions_written(b);
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
  if (p.operation == Operation::backward_weights || p.type != Type::f32) return nullptr;
  std::vector<WinogradTiles> classes = WinogradTiles::of_all_phases(p.geometry, p.operation);
  if (classes.empty()) return nullptr;
  auto plan = std::make_shared<Winograd>(p, std::move(classes), isa, request.threads);
  return request.by_name || (winograd_allowed(p) && plan->pays()) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_winograd_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }

}  // namespace torch_ext::cpu
