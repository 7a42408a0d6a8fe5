// SPDX-License-Identifier: Apache-2.0
// conv_transpose with kernel = 2 * stride (k4 s2, k8 s4, k16 s8): every phase has two taps along each axis, and Winograd's F(3,
// 2) computes three of its results with four products instead of six: 1.5 times fewer for each axis.
//
// With o + offset = s*q + r, result o of phase r is x[q-1]*w[r+s] + x[q]*w[r]: all phases share the same two inputs. For the
// results q, q+1, q+2 and d = x[q-1 .. q+2], g = (w[r+s], w[r]):
//   m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1)/2      m2 = (d2 - d1) (g0 - g1)/2      m3 = (d1 - d3) g1
//   y0 = m0 + m1 + m2      y1 = m1 - m2                    y2 = m1 + m2 - m3
// (Winograd 1980, on the points 0, 1, -1 and infinity). Nested over the axes, the products are matrix products over channels.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/pack.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kPoints = 4, kResults = 3;  // along an axis
constexpr int64_t kInputBytes = 512 << 10;    // transformed input of a block: half of L2
constexpr int64_t kMaxTiles = 96;             // of a block: beyond this the weights' trip into L1 is amortised
constexpr int64_t kMaxTerms = 128;            // that a tile sums at a time, for the accuracy of long sums
constexpr int64_t kDepthBytes = 24 << 10;     // of a panel that stays in L1 while tiles pass over it
constexpr int64_t kItems = 32;
constexpr int64_t kMinDepth = 64,
                  kMinColumns = 32;  // below (three times that for one axis), the transforms cost more than the products save

// One axis: transformed (kernel = 2*stride), or of no extent in the kernel (kernel = stride = 1).
struct WinogradAxis {
  bool transformed = false;
  int64_t stride = 1, offset = 0, in_extent = 1, out_extent = 1;
  int64_t points = 1, results = 1;  // of a tile
  int64_t first = 0, tiles = 1;     // q of the first result, tiles along the axis

  WinogradAxis() = default;
  explicit WinogradAxis(const Axis& a)
      : transformed(a.w == 2 * a.stride),
        stride(a.stride),
        offset(a.offset),
        in_extent(a.x),
        out_extent(a.y),
        points(transformed ? kPoints : 1),
        results(transformed ? kResults : 1),
        first(a.offset / a.stride) {
    tiles = parts_of((a.y - 1 + a.offset) / a.stride + 1 - first, results);
  }
};

bool accepts(const Problem& p) {
  const Geometry& g = p.geometry;
  if (p.operation != Operation::conv_transpose || p.type != Type::f32 || g.batch == 0 || g.x_size() == 0 || g.y_size() == 0)
    return false;
  bool any = false;
  for (const Axis& a : g.axis) {
    const bool two_taps = a.w == 2 * a.stride && a.dilation == 1;
    if (!two_taps && !(a.w == 1 && a.stride == 1)) return false;
    any = any || two_taps;
  }
  return any;
}

class Winograd final : public Plan {
 public:
  Winograd(const Problem& problem, Isa isa, int threads);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return layout_.bytes(); }
  void run(const Buffers& buffers, const Parallel& parallel) const override;
  bool pays() const;

 private:
  struct Block {
    int64_t sample_begin, sample_end, begin[kAxes], end[kAxes];  // tiles
    int64_t tiles() const {
      return (sample_end - sample_begin) * (end[0] - begin[0]) * (end[1] - begin[1]) * (end[2] - begin[2]);
    }
  };

  void choose_blocks();
  int64_t block_count() const;
  Block block(int64_t index) const;
  bool transform_weights(const Buffers& buffers, const Parallel& parallel) const;
  bool transform_input(const Buffers& buffers, const Block& block, int64_t group, std::byte* scratch) const;
  void multiply(const Block& block, const float* weights, int64_t vectors, const float* bias, std::byte* scratch) const;
  void store_results(const Buffers& buffers, const Block& block, int64_t group, int64_t panel, int64_t phase,
                     std::byte* scratch) const;
  void run_block(const Buffers& buffers, const Block& block, int64_t group, std::byte* scratch, std::atomic<bool>& finite) const;

  int64_t lanes() const { return tiles_->lanes; }
  int64_t panel_vectors(int64_t panel) const {
    return std::min(vectors_, parts_of(p_.geometry.y_channels - panel * width_, lanes()));
  }
  // Transformed weights of a group, and where its panel starts.
  int64_t group_weights() const { return phases_ * points_ * p_.geometry.x_channels * round_up(p_.geometry.y_channels, lanes()); }
  int64_t panel_size() const { return p_.geometry.w_positions() * tap_pitch<float>(p_.geometry.x_channels, width_); }  // packed
  int64_t panel_start(int64_t panel) const { return panel * phases_ * points_ * p_.geometry.x_channels * width_; }

  Problem p_;
  const Tiles<float>* tiles_;
  WinogradAxis axis_[kAxes];
  int64_t points_ = 1, results_ = 1, phases_ = 1;  // of all axes
  int64_t vectors_, width_, panels_;
  std::vector<PanelPacker<float>> packers_;
  int64_t block_samples_, block_tiles_[kAxes];
  int64_t pitch_;  // of a row of transformed input
  bool in_place_input_, in_place_output_;
  int64_t box_extent_[kAxes];          // of x for a block
  std::shared_ptr<const Plan> exact_;  // for non-finite values, which a transform would spread
  Layout layout_;
  Layout::Part exact_part_, weights_part_, zeros_part_, bias_part_, panels_part_, box_part_, input_part_, products_part_,
      out_part_, pointers_part_, stage_part_;
};

Winograd::Winograd(const Problem& problem, Isa isa, int threads) : p_(problem), tiles_(&tiles<float>(isa)) {
  const Geometry& g = p_.geometry;
  for (int a = 0; a < kAxes; ++a) {
    axis_[a] = WinogradAxis(g.axis[a]);
    points_ *= axis_[a].points, results_ *= axis_[a].results, phases_ *= axis_[a].stride;
  }
  const int64_t total = parts_of(g.y_channels, lanes());
  panels_ = parts_of(total, tiles_->max_vectors);
  vectors_ = parts_of(total, panels_);
  panels_ = parts_of(total, vectors_);
  width_ = vectors_ * lanes();
  WeightsMatrix matrix{g.x_channels, p_.w.outer, g.y_channels, p_.w.channel, {}, {}};
  for (int a = 0; a < kAxes; ++a) matrix.taps[a] = g.axis[a].w, matrix.tap_stride[a] = p_.w.axis[a];
  packers_.emplace_back(*tiles_, p_.type, matrix, width_);
  packers_.emplace_back(*tiles_, p_.type, matrix, panel_vectors(panels_ - 1) * lanes());
  pitch_ = round_up(g.x_channels, lanes());
  if (pitch_ % 512 == 0) pitch_ += 16;  // rows 2 KB apart would share a few sets of the L1 cache
  in_place_input_ = p_.x.channel == 1 || g.x_channels == 1;
  in_place_output_ = p_.y.channel == 1 || g.y_channels == 1;
  choose_blocks();

  int64_t tiles = block_samples_, box = block_samples_, out = block_samples_;
  for (int a = 0; a < kAxes; ++a) {
    box_extent_[a] = block_tiles_[a] * axis_[a].results + (axis_[a].transformed ? 1 : 0);
    tiles *= block_tiles_[a], box *= box_extent_[a], out *= block_tiles_[a] * axis_[a].results * axis_[a].stride;
  }
  const int64_t real = sizeof(float);
  exact_ = make_plan(p_, isa, threads,
                     isa == Isa::avx512 ? "gather__avx512"
                     : isa == Isa::avx2 ? "gather__avx2"
                                        : "gather__portable");
  exact_part_ = layout_.shared(exact_->workspace_bytes());
  weights_part_ = layout_.shared(g.groups * group_weights() * real);
  zeros_part_ = layout_.shared(pitch_ * real);
  bias_part_ = layout_.shared(g.groups * panels_ * width_ * real);
  panels_part_ = layout_.shared(g.groups * panels_ * panel_size() * real);
  box_part_ = layout_.per_thread(in_place_input_ ? 0 : box * pitch_ * real);
  input_part_ = layout_.per_thread(points_ * tiles * pitch_ * real);
  products_part_ = layout_.per_thread(points_ * tiles * width_ * real);
  out_part_ = layout_.per_thread(in_place_output_ ? 0 : out * width_ * real);
  pointers_part_ = layout_.per_thread(2 * tiles * int64_t(sizeof(void*)));
  stage_part_ = layout_.per_thread(4 * points_ * std::max(pitch_, width_) * real);
  layout_.finish(threads);
}

void Winograd::choose_blocks() {
  const Geometry& g = p_.geometry;
  int64_t limit = std::clamp<int64_t>(kInputBytes / (points_ * pitch_ * int64_t(sizeof(float))), 1, kMaxTiles);
  for (;; limit = std::max<int64_t>(6, limit / 2)) {
    int64_t room = limit;
    for (int a = kAxes - 1; a >= 0; --a) {
      block_tiles_[a] = parts_of(axis_[a].tiles, parts_of(axis_[a].tiles, room));
      room = std::max<int64_t>(1, room / block_tiles_[a]);
    }
    block_samples_ = std::clamp<int64_t>(room, 1, g.batch);
    if (block_count() * g.groups >= kItems || limit <= 24) return;
  }
}

int64_t Winograd::block_count() const {
  int64_t count = parts_of(p_.geometry.batch, block_samples_);
  for (int a = 0; a < kAxes; ++a) count *= parts_of(axis_[a].tiles, block_tiles_[a]);
  return count;
}

Winograd::Block Winograd::block(int64_t index) const {
  Block b;
  for (int a = kAxes - 1; a >= 0; --a) {
    const int64_t parts = parts_of(axis_[a].tiles, block_tiles_[a]);
    b.begin[a] = index % parts * block_tiles_[a];
    b.end[a] = std::min(b.begin[a] + block_tiles_[a], axis_[a].tiles);
    index /= parts;
  }
  b.sample_begin = index * block_samples_;
  b.sample_end = std::min(b.sample_begin + block_samples_, p_.geometry.batch);
  return b;
}

// Fewer products against more weights to read: transformed weights are (points/2)^axes times as large, and each call writes them
// once and reads them once a block.
bool Winograd::pays() const {
  const Geometry& g = p_.geometry;
  int64_t transformed = 0;
  for (const WinogradAxis& a : axis_) transformed += a.transformed;
  if (g.x_channels < (transformed > 1 ? kMinDepth : 3 * kMinDepth) || g.y_channels < kMinColumns) return false;
  int64_t tiles = g.batch;
  double waste = 1;  // results that tiles compute beyond the last one
  for (const WinogradAxis& a : axis_) {
    tiles *= a.tiles;
    waste *= double(a.tiles * a.results) / (double(a.out_extent) / double(a.stride));
  }
  double taps = 1;
  for (const WinogradAxis& a : axis_) taps *= a.transformed ? 2 : 1;
  const double saved = taps * double(results_) / double(points_) / waste;
  return saved >= 1.25 && tiles >= 64;
}

std::string Winograd::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return text(points_) + " products for " + text(results_) + " results, block " + text(block_samples_) + "x" +
         text(block_tiles_[0]) + "x" + text(block_tiles_[1]) + "x" + text(block_tiles_[2]) + " tiles, " +
         text(block_count() * p_.geometry.groups) + " items";
}

void Winograd::run(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  float* bias = layout_.at<float>(workspace, bias_part_);
  std::fill_n(bias, g.groups * panels_ * width_, 0.f);
  std::fill_n(layout_.at<float>(workspace, zeros_part_), pitch_, 0.f);
  for (int64_t group = 0; buffers.bias && group < g.groups; ++group)
    tiles_->widen(p_.type, element(buffers.bias, p_.type, group * g.y_channels), bias + group * panels_ * width_, g.y_channels);
  std::atomic<bool> finite{transform_weights(buffers, parallel)};
  if (finite) {
    const int64_t blocks = block_count();
    parallel.for_each(blocks * g.groups, [&](int64_t index, int thread) {
      run_block(buffers, block(index % blocks), index / blocks, layout_.thread(workspace, thread), finite);
    });
  }
  if (finite) return;
  Buffers exact = buffers;
  exact.workspace = layout_.at<void>(workspace, exact_part_);
  exact_->run(exact, parallel);
}

// weights[group][panel][phase][point][c][n] from panels of 16 channels at a time; returns whether they are all finite.
bool Winograd::transform_weights(const Buffers& buffers, const Parallel& parallel) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  float* weights = layout_.at<float>(workspace, weights_part_);
  constexpr int64_t kChannels = 16;
  const int64_t chunks = parts_of(g.x_channels, kChannels);
  std::atomic<bool> finite{true};
  parallel.for_each(g.groups * panels_ * chunks, [&](int64_t index, int) {
    const int64_t begin = index % chunks * kChannels, end = std::min(begin + kChannels, g.x_channels);
    const int64_t panel = index / chunks % panels_, group = index / chunks / panels_;
    const int64_t width = panel_vectors(panel) * lanes(), count = (end - begin) * width;
    const int64_t pitch = tap_pitch<float>(g.x_channels, width);
    float* packed = layout_.at<float>(workspace, panels_part_) + (group * panels_ + panel) * panel_size();
    const PanelPacker<float>& packer = packers_[panel == panels_ - 1];
    if (!packer.pack(element(buffers.w, p_.type, group * g.x_channels * p_.w.outer), panel * width_, begin, end, packed))
      finite = false;
    for (int64_t phase = 0; phase < phases_; ++phase) {
      int64_t r[kAxes], rest = phase;
      for (int a = kAxes - 1; a >= 0; --a) r[a] = rest % axis_[a].stride, rest /= axis_[a].stride;
      for (int64_t point = 0; point < points_; ++point) {
        // Sum over the taps of the product of each axis' factor.
        int64_t e[kAxes];
        rest = point;
        for (int a = kAxes - 1; a >= 0; --a) e[a] = rest % axis_[a].points, rest /= axis_[a].points;
        float* to =
            weights + group * group_weights() + panel_start(panel) + ((phase * points_ + point) * g.x_channels + begin) * width;
        static constexpr float kFactor[kPoints][2] = {{1, 0}, {.5f, .5f}, {.5f, -.5f}, {0, 1}};  // of g0, g1
        bool first = true;
        for (int64_t t0 = 0; t0 < (axis_[0].transformed ? 2 : 1); ++t0)
          for (int64_t t1 = 0; t1 < (axis_[1].transformed ? 2 : 1); ++t1)
            for (int64_t t2 = 0; t2 < (axis_[2].transformed ? 2 : 1); ++t2) {
              const int64_t t[kAxes] = {t0, t1, t2};
              float factor = 1;
              int64_t k = 0;
              for (int a = 0; a < kAxes; ++a) {
                const int64_t s = axis_[a].stride;
                factor *= axis_[a].transformed ? kFactor[e[a]][t[a]] : 1;
                k = k * g.axis[a].w + (axis_[a].transformed ? r[a] + (t[a] == 0 ? s : 0) : 0);
              }
              if (factor == 0) continue;
              tiles_->scale(packed + k * pitch + begin * width, factor, to, count, !first);
              first = false;
            }
      }
    }
  });
  return finite;
}

// input[point][tile][c] of a block, by one axis after the other; returns whether x is finite in it.
bool Winograd::transform_input(const Buffers& buffers, const Block& b, int64_t group, std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const float* zeros = layout_.at<float>(static_cast<std::byte*>(buffers.workspace), zeros_part_);
  // Where rows of channels lie: in the tensor, or in a box.
  const float* origin = static_cast<const float*>(buffers.x) + group * g.x_channels * p_.x.channel;
  int64_t sample = p_.x.outer, stride[kAxes] = {p_.x.axis[0], p_.x.axis[1], p_.x.axis[2]};
  if (!in_place_input_) {
    float* box = layout_.at<float>(scratch, box_part_);
    Box shape{{}, {p_.x.axis[0], p_.x.axis[1], p_.x.axis[2]}, g.x_channels, p_.x.channel};
    int64_t first[kAxes], offset = 0;
    bool empty = false;
    for (int a = 0; a < kAxes; ++a) {
      const int64_t back = axis_[a].transformed ? 1 : 0, low = axis_[a].first + b.begin[a] * axis_[a].results - back;
      const int64_t high = axis_[a].first + b.end[a] * axis_[a].results;
      first[a] = std::max<int64_t>(low, 0);
      shape.extent[a] = std::min(high, axis_[a].in_extent) - first[a];
      empty = empty || shape.extent[a] <= 0;
      offset += first[a] * p_.x.axis[a];
    }
    if (!empty) {
      stride[2] = pitch_, stride[1] = shape.extent[2] * pitch_, stride[0] = shape.extent[1] * stride[1];
      sample = shape.extent[0] * stride[0];
      for (int64_t n = b.sample_begin; n < b.sample_end; ++n)
        load_box(*tiles_, p_.type, origin + n * p_.x.outer + offset, shape, box + (n - b.sample_begin) * sample, pitch_);
      origin = box - b.sample_begin * sample;
      for (int a = 0; a < kAxes; ++a) origin -= first[a] * stride[a];
    }
  }
  float* input = layout_.at<float>(scratch, input_part_);
  float* stage = layout_.at<float>(scratch, stage_part_);
  const int64_t tiles = b.tiles(), c = g.x_channels;
  bool finite = true;
  int64_t tile = 0;
  for (int64_t n = b.sample_begin; n < b.sample_end; ++n)
    for (int64_t t0 = b.begin[0]; t0 < b.end[0]; ++t0)
      for (int64_t t1 = b.begin[1]; t1 < b.end[1]; ++t1)
        for (int64_t t2 = b.begin[2]; t2 < b.end[2]; ++t2, ++tile) {
          const int64_t t[kAxes] = {t0, t1, t2};
          int64_t low[kAxes];
          for (int a = 0; a < kAxes; ++a) low[a] = axis_[a].first + t[a] * axis_[a].results - (axis_[a].transformed ? 1 : 0);
          // rows[point]: first of the input, then of what each axis made of them.
          const float* rows[kPoints * kPoints * kPoints];
          for (int64_t point = 0; point < points_; ++point) {
            int64_t rest = point, at = n * sample;
            bool inside = true;
            for (int a = kAxes - 1; a >= 0; --a) {
              const int64_t i = low[a] + rest % axis_[a].points;
              rest /= axis_[a].points;
              inside = inside && i >= 0 && i < axis_[a].in_extent;
              at += i * stride[a];
            }
            rows[point] = inside ? origin + at : zeros;
          }
          int64_t step = 1, passes = 0;
          for (int a = kAxes - 1; a >= 0; step *= axis_[a--].points) {
            if (!axis_[a].transformed) continue;
            const bool final = passes + 1 == (axis_[0].transformed + axis_[1].transformed + axis_[2].transformed);
            float* to[kPoints * kPoints * kPoints];
            for (int64_t point = 0; point < points_; ++point)
              to[point] = final ? input + (point * tiles + tile) * pitch_ : stage + (passes * points_ + point) * pitch_;
            for (int64_t point = 0; point < points_; ++point) {
              if (point / step % kPoints != 0) continue;
              const float* from[kPoints] = {rows[point], rows[point + step], rows[point + 2 * step], rows[point + 3 * step]};
              float* into[kPoints] = {to[point], to[point + step], to[point + 2 * step], to[point + 3 * step]};
              tiles_->winograd_input(from, into, c);
            }
            for (int64_t point = 0; point < points_; ++point) rows[point] = to[point];
            ++passes;
          }
          for (int64_t point = 0; point < points_; ++point) finite = tiles_->finite(rows[point], c) && finite;
        }
  return finite;
}

// products[point][tile][n] = input[point][tile] * weights[point], the bias in the product that every result contains once.
void Winograd::multiply(const Block& b, const float* weights, int64_t vectors, const float* bias, std::byte* scratch) const {
  const int64_t tiles = b.tiles(), depth = p_.geometry.x_channels, width = vectors * lanes();
  const float* input = layout_.at<float>(scratch, input_part_);
  float* products = layout_.at<float>(scratch, products_part_);
  const float** rows = layout_.at<const float*>(scratch, pointers_part_);
  float** out = const_cast<float**>(rows) + tiles;
  alignas(64) static constexpr float kNothing[kMaxVectors * 16] = {};
  int64_t ones = 0;
  for (const WinogradAxis& a : axis_) ones = ones * a.points + (a.transformed ? 1 : 0);
  const int64_t slice = std::clamp<int64_t>(kDepthBytes / (width * int64_t(sizeof(float))), 8, kMaxTerms);
  const int64_t slices = parts_of(depth, slice), part = parts_of(depth, slices);
  const int64_t tallest = tiles_->max_rows[vectors], count = parts_of(tiles, tallest);
  for (int64_t point = 0; point < points_; ++point) {
    for (int64_t t = 0; t < tiles; ++t) {
      rows[t] = input + (point * tiles + t) * pitch_;
      out[t] = products + (point * tiles + t) * width;
    }
    const float* panel = weights + point * depth * width;
    for (int64_t c = 0; c < depth; c += part) {
      GatherTile<float> tile{
          rows, 0, &panel, 1, c, std::min(part, depth - c), out, 0, c ? nullptr : point == ones ? bias : kNothing, width};
      for (int64_t i = 0, done = 0; i < count; ++i) {
        const int64_t height = (tiles - done) / (count - i);
        tiles_->gather[vectors][height](tile);
        tile.rows += height, tile.out += height, done += height;
      }
    }
  }
}

// Results of one phase from the products, into the tensor or the box.
void Winograd::store_results(const Buffers& buffers, const Block& b, int64_t group, int64_t panel, int64_t phase,
                             std::byte* scratch) const {
  const Geometry& g = p_.geometry;
  const int64_t width = panel_vectors(panel) * lanes(), columns = std::min(width_, g.y_channels - panel * width_),
                tiles = b.tiles();
  const float* products = layout_.at<float>(scratch, products_part_);
  float* stage = layout_.at<float>(scratch, stage_part_);
  float* box = layout_.at<float>(scratch, out_part_);
  float* tensor = static_cast<float*>(buffers.y) + (group * g.y_channels + panel * width_) * p_.y.channel;
  int64_t r[kAxes], rest = phase, low[kAxes], extent[kAxes];
  for (int a = kAxes - 1; a >= 0; --a) {
    r[a] = rest % axis_[a].stride, rest /= axis_[a].stride;
    low[a] = (axis_[a].first + b.begin[a] * axis_[a].results) * axis_[a].stride - axis_[a].offset;  // of the box
    extent[a] = (b.end[a] - b.begin[a]) * axis_[a].results * axis_[a].stride;
  }
  int64_t tile = 0;
  for (int64_t n = b.sample_begin; n < b.sample_end; ++n)
    for (int64_t t0 = b.begin[0]; t0 < b.end[0]; ++t0)
      for (int64_t t1 = b.begin[1]; t1 < b.end[1]; ++t1)
        for (int64_t t2 = b.begin[2]; t2 < b.end[2]; ++t2, ++tile) {
          const int64_t t[kAxes] = {t0, t1, t2};
          const float* rows[kPoints * kPoints * kPoints];
          for (int64_t point = 0; point < points_; ++point) rows[point] = products + (point * tiles + tile) * width;
          // One axis after the other, from the innermost: kPoints rows become kResults; `inner` results are done within each
          // point.
          int64_t inner = 1, outer = points_, used = 0;
          for (int a = kAxes - 1; a >= 0; --a) {
            outer /= axis_[a].points;
            if (!axis_[a].transformed) continue;
            const float* next[kPoints * kPoints * kPoints];
            for (int64_t o = 0; o < outer; ++o)
              for (int64_t i = 0; i < inner; ++i) {
                const float* from[kPoints];
                float* into[kResults];
                for (int64_t e = 0; e < kPoints; ++e) from[e] = rows[(o * kPoints + e) * inner + i];
                for (int64_t e = 0; e < kResults; ++e) next[(o * kResults + e) * inner + i] = into[e] = stage + used++ * width;
                tiles_->winograd_output(from, into, width);
              }
            inner *= kResults;
            std::copy(next, next + outer * inner, rows);
          }
          for (int64_t result = 0; result < results_; ++result) {
            int64_t at_tensor = n * p_.y.outer, at_box = n - b.sample_begin, index = result, e[kAxes];
            for (int a = kAxes - 1; a >= 0; --a) e[a] = index % axis_[a].results, index /= axis_[a].results;
            bool inside = true;
            for (int a = 0; a < kAxes; ++a) {
              const int64_t q = axis_[a].first + t[a] * axis_[a].results + e[a], o = q * axis_[a].stride + r[a] - axis_[a].offset;
              inside = inside && o >= 0 && o < axis_[a].out_extent;
              at_tensor += o * p_.y.axis[a];
              at_box = at_box * extent[a] + o - low[a];
            }
            if (!inside) continue;
            std::copy_n(rows[result], columns, in_place_output_ ? tensor + at_tensor : box + at_box * width_);
          }
        }
}

void Winograd::run_block(const Buffers& buffers, const Block& b, int64_t group, std::byte* scratch,
                         std::atomic<bool>& finite) const {
  const Geometry& g = p_.geometry;
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  if (!transform_input(buffers, b, group, scratch)) {
    finite = false;
    return;
  }
  const float* weights = layout_.at<float>(workspace, weights_part_) + group * group_weights();
  const float* bias = layout_.at<float>(workspace, bias_part_) + group * panels_ * width_;
  const float* box = layout_.at<float>(scratch, out_part_);
  for (int64_t panel = 0; panel < panels_; ++panel) {
    const int64_t vectors = panel_vectors(panel), phase_size = points_ * g.x_channels * vectors * lanes();
    for (int64_t phase = 0; phase < phases_; ++phase) {
      multiply(b, weights + panel_start(panel) + phase * phase_size, vectors, bias + panel * width_, scratch);
      store_results(buffers, b, group, panel, phase, scratch);
    }
    if (in_place_output_) continue;
    Box shape{{}, {p_.y.axis[0], p_.y.axis[1], p_.y.axis[2]}, std::min(width_, g.y_channels - panel * width_), p_.y.channel};
    // The part of the box that exists, one line at a time where it is cut.
    int64_t low[kAxes], extent[kAxes], begin[kAxes];
    for (int a = 0; a < kAxes; ++a) {
      low[a] = (axis_[a].first + b.begin[a] * axis_[a].results) * axis_[a].stride - axis_[a].offset;
      extent[a] = (b.end[a] - b.begin[a]) * axis_[a].results * axis_[a].stride;
      begin[a] = std::max<int64_t>(low[a], 0);
      shape.extent[a] = std::min(low[a] + extent[a], axis_[a].out_extent) - begin[a];
    }
    Box line = shape;
    line.extent[0] = line.extent[1] = 1;
    for (int64_t n = b.sample_begin; n < b.sample_end; ++n)
      for (int64_t o0 = begin[0]; o0 < begin[0] + shape.extent[0]; ++o0)
        for (int64_t o1 = begin[1]; o1 < begin[1] + shape.extent[1]; ++o1) {
          const int64_t from =
              (((n - b.sample_begin) * extent[0] + o0 - low[0]) * extent[1] + o1 - low[1]) * extent[2] + begin[2] - low[2];
          const int64_t to = n * p_.y.outer + (group * g.y_channels + panel * width_) * p_.y.channel + o0 * p_.y.axis[0] +
                             o1 * p_.y.axis[1] + begin[2] * p_.y.axis[2];
          store_box(*tiles_, p_.type, box + from * width_, width_, static_cast<float*>(buffers.y) + to, line);
        }
  }
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!accepts(p)) return nullptr;
  auto plan = std::make_shared<Winograd>(p, isa, request.threads);
  static const bool enabled = [] {
    const char* value = std::getenv("TORCH_EXT_WINOGRAD");
    return !value || std::strcmp(value, "0") != 0;
  }();
  return request.by_name || (enabled && p.transforms_allowed && plan->pays()) ? plan : nullptr;
}

}  // namespace

std::shared_ptr<Plan> make_winograd_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_winograd_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }

}  // namespace torch_ext::cpu
