// SPDX-License-Identifier: Apache-2.0
// What a block computes: its input is transformed, multiplied with transformed weights point by point, and the products are
// transformed into results.
#include <algorithm>
#include <atomic>

#include "csrc/cpu/pack.h"
#include "csrc/cpu/panels.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/winograd.h"

namespace torch_ext::cpu {

void Winograd::run_block(const Buffers& buffers, int64_t index, const float* weights, std::byte* scratch,
                         std::atomic<bool>& finite) const {
  const Block b = block(index);
  Upcoming ahead = input_ahead(buffers, index + 1, b);
  const float* bias = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), bias_part_) + b.group * panels_ * width_;
  const Range channels{0, depth_};
  const RowView<float> in = load_input(buffers, b, channels, scratch);
  float* products = layout_.at<float>(scratch, products_part_);
  std::vector<Pass> passes;  // of the classes whose inputs are there at the same time
  for (size_t first = 0; first < classes_.size(); first += passes.size()) {
    passes.clear();
    float* input = layout_.at<float>(scratch, input_part_);
    for (size_t k = first; k < (keeps_inputs() ? classes_.size() : first + 1); ++k) {
      const WinogradTiles& c = classes_[k];
      passes.push_back({c, c.cover(b, grid_), in, channels, 0, 0, nullptr, {}, 0, input, products, !forward_ && k > 0, &ahead});
      if (!transform_input(buffers, passes.back())) {
        finite = false;
        return;
      }
      input += input_rows(c, passes.back().tiles) * pitch_;
    }
    for (int64_t panel = b.first_panel; panel < b.last_panel; ++panel) {
      for (size_t i = 0; i < passes.size(); ++i) {
        set_results(buffers, b, panel, scratch, passes[i]);
        if (first + i == 0) fill_unreached(b, passes[i], bias + panel * width_);
        run_pass(buffers, passes[i], weights + weights_.start(b.group, panel, first + i), bias + panel * width_, scratch);
      }
      if (!in_place_output_ && first + passes.size() == classes_.size()) store_output(buffers, b, panel, scratch);
    }
  }
}

// Of all phases of a class, whose weights those are.
void Winograd::run_pass(const Buffers& buffers, Pass& pass, const float* weights, const float* bias, std::byte* scratch) const {
  const WinogradTiles& c = pass.of;
  const int64_t of_point = weights_.point_pitch(summed(c), pass.vectors * lanes());
  for (pass.index = 0; pass.index < results(c); ++pass.index) {
    Upcoming next = results_ahead(pass);
    multiply(buffers, pass, {weights, {0, summed(c)}, of_point}, bias, scratch, next);
    store_results(pass, scratch);
    weights += c.points * of_point;
  }
}

// The same with input and weights transformed in turn.
void Winograd::run_in_turn(const Buffers& buffers, const Block& b, std::byte* scratch, std::atomic<bool>& finite) const {
  const float* bias = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), bias_part_) + b.group * panels_ * width_;
  float* stage = layout_.at<float>(scratch, stage_part_);
  float* weights = layout_.at<float>(scratch, chunk_part_);
  const WinogradTiles& c = classes_[0];
  const Slice slice = slice_of(c);
  Pass pass{c, b, {}, {0, 0}, 0, 0, nullptr, {}, 0, layout_.at<float>(scratch, input_part_), nullptr, false, nullptr};
  const int64_t of_index = c.points * rows_of_point(b) * width_;
  const auto set_products = [&](int64_t panel) {
    pass.products = layout_.at<float>(scratch, products_part_) + ((panel - b.first_panel) * results(c) + pass.index) * of_index;
  };
  for (Range& channels = pass.channels; channels.end < depth_;) {
    channels = {channels.end, std::min(channels.end + slice.channels, depth_)};
    pass.in = load_input(buffers, b, channels, scratch);
    bool all_finite = transform_input(buffers, pass);
    for (int64_t panel = b.first_panel; panel < b.last_panel; ++panel) {
      set_results(buffers, b, panel, scratch, pass);
      all_finite = weights_.load(buffers.w, b.group, panel, channels, stage) && all_finite;
      Upcoming next;
      if (panel + 1 < b.last_panel) {
        next = weights_ahead(buffers, b, panel + 1, channels, pass);
      } else if (channels.end < depth_) {
        next = weights_ahead(buffers, b, b.first_panel, {channels.end, std::min(channels.end + slice.channels, depth_)}, pass);
      }
      for (pass.index = 0; pass.index < results(c); ++pass.index) {
        set_products(panel);
        for (int64_t segment = 0; segment < summed(c); segment += slice.segments) {
          const Range segments{segment, std::min(segment + slice.segments, summed(c))};
          weights_.transform(pass.index, segments, panel, channels, stage, weights);
          const int64_t of_point = WinogradPanels::chunk_pitch(segments.size(), channels.size(), pass.vectors * lanes());
          multiply(buffers, pass, {weights, segments, of_point}, bias + panel * width_, scratch, next);
        }
      }
    }
    if (!all_finite) {
      finite = false;
      return;
    }
  }
  for (int64_t panel = b.first_panel; panel < b.last_panel; ++panel) {
    set_results(buffers, b, panel, scratch, pass);
    fill_unreached(b, pass, bias + panel * width_);
    for (pass.index = 0; pass.index < results(c); ++pass.index) set_products(panel), store_results(pass, scratch);
    if (!in_place_output_) store_output(buffers, b, panel, scratch);
  }
}

RowView<float> Winograd::load_input(const Buffers& buffers, const Block& b, Range channels, std::byte* scratch) const {
  const void* tensor = forward_ ? buffers.x : buffers.y;
  std::atomic<bool> ignored{true};
  if (in_place_input_) {
    RowView<float> view = rows_.view(tensor, b.group);
    view.origin += channels.begin;
    return view;
  }
  return rows_.load(tensor, b.group * depth_ + channels.begin, channels.size(), b.sample.begin, b.sample.end,
                    grid_.positions_read(b), layout_.at<float>(scratch, box_part_), ignored);
}

// input[segment][point][tile][c] of the tiles of a class; returns whether it is finite.
bool Winograd::transform_input(const Buffers& buffers, const Pass& pass) const {
  const WinogradTiles& c = pass.of;
  if (c.axes == 0) return true;  // it is taken as it is
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  float* input = pass.input;
  const int64_t pitch = rows_of_point(pass.tiles) * pitch_;
  alignas(64) float check[kMaxLanes] = {};
  for (int64_t segment = 0; segment < summed(c); ++segment) {
    float* to = input;
    c.each_points(pass.tiles, c.first_taps[size_t(segment)], pass.in.origin, pass.in.sample, pass.in.axis, zeros,
                  [&](const float* const* rows) {
                    tiles_->winograd_input[c.axes](rows, to, pitch, pass.channels.size(), check);
                    to += pitch_;
                  });
    input += c.points * pitch;
  }
  return std::all_of(check, check + lanes(), [](float v) { return v == 0; });
}

// The rows of a point of all tiles, transformed; where nothing is to be transformed, those of the input itself.
void Winograd::list_input(const Buffers& buffers, const Pass& pass, int64_t segment, int64_t point, const float** rows) const {
  const WinogradTiles& c = pass.of;
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  if (c.axes == 0)
    return c.each_points(pass.tiles, c.first_taps[size_t(segment)], pass.in.origin, pass.in.sample, pass.in.axis, zeros,
                         [&](const float* const* row) { *rows++ = *row; });
  const int64_t tiles = pass.tiles.tiles();
  const float* row = pass.input + (segment * c.points + point) * rows_of_point(pass.tiles) * pitch_;
  for (int64_t t = 0; t < tiles; ++t, row += pitch_) rows[t] = row;
}

// The rows of their products; where nothing is to be transformed, those of the results.
void Winograd::list_products(const Pass& pass, int64_t point, std::byte* scratch, float** rows) const {
  if (pass.of.axes == 0)
    return pass.of.each_results(pass.tiles, pass.phase(), pass.origin, pass.to.outer, pass.to.axis,
                                layout_.at<float>(scratch, nowhere_part_), [&](float* const* row) { *rows++ = *row; });
  const int64_t tiles = pass.tiles.tiles(), width = pass.vectors * lanes();
  float* row = pass.products + point * rows_of_point(pass.tiles) * width;
  for (int64_t t = 0; t < tiles; ++t, row += width) rows[t] = row;
}

// products[point][tile][n] = sum over some segments and channels of input[segment][point][tile] * weights[point][segment], added
// to those of the segments and channels before; the bias in the product that every result contains once. Asks for what is `next`.
void Winograd::multiply(const Buffers& buffers, const Pass& pass, const PassWeights& weights, const float* bias,
                        std::byte* scratch, Upcoming& next) const {
  const WinogradTiles& c = pass.of;
  const int64_t tiles = pass.tiles.tiles(), width = pass.vectors * lanes(), channels = pass.channels.size();
  const float** rows = layout_.at<const float*>(scratch, pointers_part_);
  float** out = const_cast<float**>(rows) + summed(c) * tiles;
  alignas(64) static constexpr float kNothing[kMaxVectors * kMaxLanes] = {};
  int64_t ones = 0;
  for (const WinogradAxis& a : c.axis) ones = ones * a.points + (a.transformed() ? 1 : 0);
  const Slice slice = slice_of(c);
  const int64_t count = parts_of(tiles, tiles_->max_chain_rows[pass.vectors]);
  const float* panels[kMaxTerms];
  for (int64_t point = 0; point < c.points; ++point) {
    const float* of_point = weights.first + point * weights.pitch;
    list_products(pass, point, scratch, out);
    for (int64_t first = 0; first < channels; first += slice.channels)
      for (int64_t segment = weights.segments.begin; segment < weights.segments.end; segment += slice.segments) {
        const int64_t some = std::min(slice.segments, weights.segments.end - segment),
                      depth = std::min(slice.channels, channels - first);
        for (int64_t k = 0; k < some; ++k) {
          list_input(buffers, pass, segment + k, point, rows + k * tiles);
          panels[k] = of_point + (segment - weights.segments.begin + k) * channels * width;
        }
        const bool more = segment || pass.channels.begin || first || (c.axes == 0 && pass.add);
        const float* init = more ? nullptr : point == ones ? bias : kNothing;
        GatherTile<float> tile{0, rows, tiles, panels, some, first, depth, out, 0, init, c.axes ? width : pass.columns};
        tile.terms = even_part(some * depth, terms_of_chain(c.axes));
        // While these weights are used, the next ones are asked for.
        const bool last_segments = segment + slice.segments >= weights.segments.end,
                   last = last_segments && first + slice.channels >= channels;
        const float* soon = last            ? of_point + weights.pitch
                            : last_segments ? of_point + (first + slice.channels) * width
                                            : panels[0] + (some * channels + first) * width;
        const int64_t share = tile.ask_for(soon, width, count);
        for (int64_t i = 0, done = 0; i < count; ++i) {
          const int64_t height = (tiles - done) / (count - i);
          tile.next = i + 1 < count ? height : 0;
          next.step();
          if (pass.ahead) pass.ahead->step();
          tiles_->gather_chains[pass.vectors][height](tile);
          tile.rows += height, tile.out += height, done += height;
          tile.soon += share;
        }
      }
  }
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
    const int64_t step = axis.out_step(), low = axis.write(tile.begin, 0, pass.phase()[size_t(a)]);
    patch.axis[a] = {first_reaching(0, low, step),
                     std::min(first_reaching(axis.out_extent, low, step), tile.size() * axis.results)};
    origin += low * out_.axis[a];
    strides.axis[a] *= step;
  }
  Upcoming ahead(steps(pass));
  ahead.writes(p_.type, origin, strides, patch);
  return ahead;
}

// What the next block reads in place (64 to 32 channels, 12800 positions, k4 s2: 0.9 of the time, gradients of data 0.8; 4 groups
// of 32 channels, 28x28, k4 s2: gradients of data 0.78). Boxes, whose lines are longer, gain nothing.
Upcoming Winograd::input_ahead(const Buffers& buffers, int64_t index, const Block& of) const {
  if (!in_place_input_ || index >= items()) return Upcoming();
  const Block b = block(index);
  if (b.first_panel != of.first_panel) return Upcoming();
  int64_t count = 0;
  for (const WinogradTiles& c : classes_)
    count += results(c) * steps(c, c.cover(of, grid_), depth_, weights_.vectors_of(of.first_panel));
  Upcoming next(count * (of.last_panel - of.first_panel));
  next.reads(p_.type, forward_ ? buffers.x : buffers.y, in_,
             grid_.patch(b, {b.group * depth_, (b.group + 1) * depth_}, grid_.positions_read(b)));
  return next;
}

// Some channels of a panel.
Upcoming Winograd::weights_ahead(const Buffers& buffers, const Block& b, int64_t panel, Range channels, const Pass& pass) const {
  return cpu::weights_ahead(p_, buffers.w, b.group, part(panel, width_, columns_), channels, results(pass.of) * steps(pass));
}

// Register tiles of a pass.
int64_t Winograd::steps(const WinogradTiles& of, const TileBlock& tiles, int64_t channels, int64_t vectors) const {
  const Slice slice = slice_of(of);
  return of.points * parts_of(summed(of), slice.segments) * parts_of(channels, slice.channels) *
         parts_of(tiles.tiles(), tiles_->max_chain_rows[vectors]);
}

// Where the results of a panel go.
void Winograd::set_results(const Buffers& buffers, const Block& b, int64_t panel, std::byte* scratch, Pass& pass) const {
  pass.vectors = weights_.vectors_of(panel), pass.columns = std::min(width_, columns_ - panel * width_);
  pass.to = out_;
  if (in_place_output_) {
    pass.origin = static_cast<float*>(forward_ ? buffers.y : buffers.x) + (b.group * columns_ + panel * width_) * out_.channel;
    return;
  }
  const Region box = grid_.positions_written(b);
  Strides& to = pass.to;
  to.axis[2] = width_;
  to.axis[1] = (box.end[2] - box.begin[2]) * to.axis[2], to.axis[0] = (box.end[1] - box.begin[1]) * to.axis[1];
  to.outer = (box.end[0] - box.begin[0]) * to.axis[0];
  pass.origin = out_box(b, panel, scratch) - b.sample.begin * to.outer;
  for (int a = 0; a < kAxes; ++a) pass.origin -= box.begin[a] * to.axis[a];
}

// The bias alone, where the spacing of the taps leaves positions out.
void Winograd::fill_unreached(const Block& b, const Pass& pass, const float* bias) const {
  const WinogradAxis* axis = grid_.axis;
  if (!forward_ || std::all_of(axis, axis + kAxes, [](const WinogradAxis& a) { return a.spacing == 1; })) return;
  const Region at = grid_.positions_written(b);
  for (int64_t n = b.sample.begin; n < b.sample.end; ++n)
    for (int64_t i = at.begin[0]; i < at.end[0]; ++i)
      for (int64_t j = at.begin[1]; j < at.end[1]; ++j) {
        const bool line_reached = axis[0].reached(i) && axis[1].reached(j);
        float* line = pass.origin + n * pass.to.outer + i * pass.to.axis[0] + j * pass.to.axis[1];
        for (int64_t k = at.begin[2]; k < at.end[2]; ++k)
          if (!line_reached || !axis[2].reached(k)) std::copy_n(bias, pass.columns, line + k * pass.to.axis[2]);
      }
}

// From the products.
void Winograd::store_results(const Pass& pass, std::byte* scratch) const {
  if (pass.of.axes == 0) return;  // there already
  const int64_t width = pass.vectors * lanes(), pitch = rows_of_point(pass.tiles) * width;
  const float* products = pass.products;
  float* nowhere = layout_.at<float>(scratch, nowhere_part_);
  pass.of.each_results(pass.tiles, pass.phase(), pass.origin, pass.to.outer, pass.to.axis, nowhere, [&](float* const* rows) {
    tiles_->winograd[pass.of.shape].output(products, pitch, rows, pass.columns, pass.add);
    products += width;
  });
}

// From the box into the tensor, one line at a time.
void Winograd::store_output(const Buffers& buffers, const Block& b, int64_t panel, std::byte* scratch) const {
  const float* box = out_box(b, panel, scratch);
  const Region at = grid_.positions_written(b);
  const int64_t length = at.end[2] - at.begin[2];
  const Box line{{1, 1, length}, {0, 0, out_.axis[2]}, std::min(width_, columns_ - panel * width_), out_.channel};
  void* to = element(forward_ ? buffers.y : buffers.x, p_.type,
                     (b.group * columns_ + panel * width_) * out_.channel + at.begin[2] * out_.axis[2]);
  for (int64_t n = b.sample.begin; n < b.sample.end; ++n)
    for (int64_t i = at.begin[0]; i < at.end[0]; ++i)
      for (int64_t j = at.begin[1]; j < at.end[1]; ++j, box += length * width_)
        store_box(*tiles_, p_.type, box, width_, element(to, p_.type, n * out_.outer + i * out_.axis[0] + j * out_.axis[1]),
                  line);
}

}  // namespace torch_ext::cpu
