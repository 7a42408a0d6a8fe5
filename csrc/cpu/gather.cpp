// SPDX-License-Identifier: Apache-2.0
// The dense kernel of conv_transpose and backward_data, for any geometry: the weights are packed into panels of a few vectors of
// result channels, the cells of the result are cut into blocks, and each block is computed phase by phase with tiles of
// (positions) x (channels). A tile's rows are given by pointers, so that borders (a row of zeros), small planes (rows of several
// samples in one tile), strides and dilations cost nothing in the inner loop and no padded copy is made. Tensors whose channels
// are not contiguous pass through a box in cache on their way in and out; so does an input that is not of the type `In` that the
// tiles multiply. Results of 16 bits are rounded by the tiles, from sums that stay in cache.
//
// Where cells are few and weights many, writing these to memory packed and reading them again takes longer than multiplying: the
// one block packs some units of its panels at a time, and multiplies them while they are in cache.
//
// Matrix registers multiply bf16 so much faster than vectors multiply float32 that a float32 is worth being split into the three
// bf16 that it is the sum of, for six products (the three smallest of the nine are below its rounding), and a float16 into two,
// for four. Weights that cannot be split are left to the kernel that multiplies them as they are, and so are blocks that read
// values of the input that cannot.
#include "csrc/cpu/gather.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>

#include "csrc/cpu/gather_input.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/panels.h"
#include "csrc/cpu/phase_sums.h"
#include "csrc/cpu/phases.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/scratch.h"

namespace torch_ext::cpu {
namespace {

// What one thread touches between two passes over a panel should stay in its L2 cache, of which 1 MB is common: the input box and
// the output box. Panels pass through, those of large weights from memory, and once a block: the larger it is, the better (2048
// to 256 channels of 20x20, k4 s2: 0.74 of the time of a third of that box).
constexpr int64_t kOutBoxBytes = 256 << 10;   // beside kGatherBoxBytes of input
constexpr int64_t kMinCells = 64;             // about ten tiles, for which a panel's trip into L1 is short
constexpr int64_t kPointerBytes = 128 << 10;  // row pointers of a block
// Processors whose tiles do not ask have smaller L2 caches, which input that is used in place had better not leave, as their
// panels are narrower and thus many (256 to 128 channels, 64x64, k2 s2: 0.92 of the time).
constexpr int64_t kUnaskedInputBytes = 128 << 10;
// Large items share more of what they bring to cache: no more than kItems are aimed for, of some 20 microseconds at least, until
// each takes some 300, and then up to kMostItems.
constexpr double kItemFlops = 4e6, kLongItemFlops = 64e6;
constexpr int64_t kItems = 16, kMostItems = 64;
// Each tap has its own cells where at most this share of all cells and taps meet in the input (with 7x7 of them and a kernel of
// 5x5, 0.69), and the rest is worth that results are loaded and stored for each tap, which takes as long as so many terms.
constexpr double kMostInside = 0.85;
constexpr int64_t kTermsOfResult = 5;
// More weights than this are packed in turn where cells are few: as many units of as many panels at a time as stay in the caches.
constexpr int64_t kManyWeightBytes = 1 << 20, kTurnBytes = 2 << 20, kTurnSumBytes = 256 << 10;

template <class In>
class Gather final : public Plan {
 public:
  using Real = typename Operand<In>::Real;  // in which is summed
  static constexpr int64_t kTerms = Operand<In>::terms;
  static constexpr bool kSplit = std::is_same_v<In, SplitBf16>;
  // `exact` are the tiles for what cannot be split.
  Gather(const Problem& problem, const Tiles<Real>& tiles, int threads, Split split = {}, const Tiles<float>* exact = nullptr);
  std::string describe() const override;
  int64_t workspace_bytes() const override { return std::max(layout_.bytes(), exact_ ? exact_->workspace_bytes() : 0); }
  void run(const Buffers& buffers, const Parallel& parallel) const override { run(buffers, parallel, nullptr); }
  // Where `wanted` is given, only those blocks of a group for which it is true.
  using Wanted = std::function<bool(const CellBlock&, int64_t group)>;
  void run(const Buffers& buffers, const Parallel& parallel, const Wanted& wanted) const;
  std::string packing() const override;
  int64_t packed_bytes() const override { return own_packed_bytes() + (exact_ ? exact_->packed_bytes() : 0); }
  void pack(const Buffers& buffers, const Parallel& parallel, void* packed) const override;

 private:
  struct PackedWeights {
    const Real* data;
    bool finite;  // and can be split, where they are
  };
  void choose_blocks(int threads);
  bool choose_turns(int threads);
  // Of results that are kept until they are complete.
  int64_t row_width() const { return (turn_ ? panels_per_item_ : 1) * width_; }
  int64_t cells() const { return p_.geometry.batch * axis_[0].cells * axis_[1].cells * axis_[2].cells; }
  double flops() const { return 2.0 * double(p_.geometry.w_size()) * double(cells()); }
  // Of a block.
  int64_t most_cells() const {
    return by_tap_ ? kGatherCells : std::min(kGatherCells, kPointerBytes / (taps() * int64_t(sizeof(void*))));
  }
  int64_t out_per_cell() const { return axis_[0].out_step * axis_[1].out_step * axis_[2].out_step; }
  int64_t block_count() const;
  CellBlock block(int64_t index) const;
  void run_exactly(const Buffers& buffers, const Parallel& parallel, const Wanted& wanted) const;
  // Where the results of a block go, and how: into the tensor itself, or into a box from where each panel is moved there.
  struct Target {
    void* tensor;
    int64_t corner;  // of the block in it, in elements
    const std::byte* box;
    RowsAt<std::byte> rows;
    Box shape;
  };
  Target target(const Buffers& buffers, const CellBlock& block, int64_t group, std::byte* box) const;
  void move_panel(const Target& target, Range samples, int64_t panel, int64_t beside) const;
  // Returns whether the input can be split; else nothing is computed.
  bool run_block(const Buffers& buffers, const CellBlock& block, int64_t group, Range panels, const PackedWeights& packed,
                 std::byte* scratch) const;

  int64_t lanes() const { return tiles_->lanes; }
  int64_t taps() const { return p_.geometry.w_positions(); }
  int64_t result_bytes() const { return bytes_of(p_.type); }
  int64_t own_packed_bytes() const { return round_up(int64_t(sizeof(PackedHeader)) + weights_.bytes(), alignof(PackedHeader)); }

  Problem p_;
  const Tiles<Real>* tiles_;
  Split split_;
  std::shared_ptr<const Gather<float>> exact_;
  GatherAxis axis_[kAxes];
  Strides out_;
  int64_t channels_, columns_;  // of a group that are summed over, and of the result
  Panels<In> weights_;
  int64_t depth_;  // channels that are summed over in units of a tile, of one part
  GatherInput<In> in_;
  bool in_place_output_, narrow_;
  bool by_tap_;                     // each tap with the positions that it reaches alone
  std::optional<Panels<In>> turn_;  // where the one block packs its weights itself, some units at a time
  PhaseSums<Real> phase_sums_;
  int64_t vectors_, width_, panels_;  // vectors and columns of a panel, panels of a group
  int64_t block_samples_, block_cells_[kAxes], panels_per_item_;
  // Workspace: shared parts, then the parts of each thread.
  Layout layout_;
  Layout::Part panels_part_, turn_part_, zeros_part_, bias_part_, in_box_part_, out_box_part_, sums_part_, pointers_part_,
      nowhere_part_;
};

template <class In>
Gather<In>::Gather(const Problem& problem, const Tiles<Real>& tiles, int threads, Split split, const Tiles<float>* exact)
    : p_(problem),
      tiles_(&tiles),
      split_(split),
      exact_(exact ? std::make_shared<Gather<float>>(problem, *exact, threads) : nullptr),
      axis_{{p_.geometry.axis[0], p_.operation}, {p_.geometry.axis[1], p_.operation}, {p_.geometry.axis[2], p_.operation}},
      out_(p_.operation == Operation::conv_transpose ? p_.y : p_.x),
      channels_(weights_matrix(p_).depth),
      columns_(weights_matrix(p_).columns),
      weights_(p_, tiles, split.parts),
      depth_(weights_.depth()),
      in_(p_, tiles, split, axis_, channels_, depth_),
      vectors_(weights_.vectors()),
      width_(weights_.width()),
      panels_(weights_.count()) {
  narrow_ = result_bytes() < int64_t(sizeof(Real));
  double inside = 1;
  for (const GatherAxis& axis : axis_) inside *= axis.share_inside();
  by_tap_ = !tiles_->matrices && inside < std::min(kMostInside, double(depth_) / double(depth_ + kTermsOfResult));
  in_place_output_ = out_.channel == 1 || columns_ == 1;
  const bool read_once = double(taps()) <= double(axis_[0].in_step) * double(axis_[1].in_step) * double(axis_[2].in_step);
  phase_sums_ = PhaseSums<Real>(tiles, p_.type, split_, depth_, in_.in_place() && read_once);

  if (!choose_turns(threads)) choose_blocks(threads);

  int64_t most_listed = 0;
  int64_t in_box = block_samples_, out_box = block_samples_, pointers = block_samples_;
  for (int a = 0; a < kAxes; ++a) {
    int64_t longest = 0;
    for_each_piece(axis_[a].cells, block_cells_[a], [&](const Range& cells) {
      longest = std::max(longest, (a + 1 < kAxes ? axis_[a].read_by(cells) : in_.line_of(cells.begin, cells.end)).size());
      if (a + 1 == kAxes) most_listed = std::max(most_listed, in_.listed(cells.begin, cells.end));
    });
    in_box *= longest;
    out_box *= block_cells_[a] * axis_[a].out_step;
    pointers *= a + 1 < kAxes ? block_cells_[a] : std::max(block_cells_[a], most_listed);
  }
  in_box += std::max<int64_t>(most_listed - 1, 0) * axis_[2].in_step;  // what is read behind the cells of the last line
  const int64_t sums = narrow_ ? pointers * row_width() * (turn_ ? out_per_cell() : 1) : 0;
  pointers = by_tap_ ? BlockRows<Real>::pointers_by_tap(pointers) : BlockRows<Real>::pointers(axis_, pointers, narrow_);

  const Geometry& g = p_.geometry;
  panels_part_ = layout_.shared(turn_ ? 0 : weights_.bytes());  // not touched where weights are packed ahead
  turn_part_ = layout_.per_thread(turn_ ? panels_per_item_ * turn_->panel() * int64_t(sizeof(Real)) : 0);
  zeros_part_ = layout_.shared(split_.parts * depth_ * int64_t(sizeof(Real)));
  bias_part_ = layout_.shared(g.groups * panels_ * width_ * int64_t(sizeof(Real)));
  in_box_part_ = layout_.per_thread(in_.in_place() ? 0 : in_box * in_.pitch() * int64_t(sizeof(In)));
  out_box_part_ = layout_.per_thread(in_place_output_ ? 0 : out_box * row_width() * result_bytes());
  sums_part_ = layout_.per_thread(sums * int64_t(sizeof(Real)));
  pointers_part_ = layout_.per_thread(pointers * int64_t(sizeof(void*)));
  nowhere_part_ = layout_.per_thread(tiles_->matrices ? (in_place_output_ ? panels_ : 1) * width_ * result_bytes() : 0);
  layout_.finish(threads);
}

// Blocks of cells, as large as their boxes and pointers may be, but small enough to give every thread its share.
template <class In>
void Gather<In>::choose_blocks(int threads) {
  const Geometry& g = p_.geometry;
  int64_t in_per_cell = 1;
  for (const GatherAxis& axis : axis_) in_per_cell *= std::min(axis.in_step, std::max<int64_t>(axis.in_extent, 1));
  const int64_t together = in_.by_sample() ? kRowsOfRegister : 1;  // samples
  int64_t limit = most_cells();
  const int64_t cell_bytes = in_per_cell * split_.parts * channels_ * int64_t(sizeof(In));
  if (!in_.in_place()) {
    limit = std::min(limit, kGatherBoxBytes / cell_bytes);
  } else if (!tiles_->asks) {
    limit = std::min(limit, std::max(kMinCells, kUnaskedInputBytes / cell_bytes));
  }
  if (!in_place_output_) limit = std::min(limit, kOutBoxBytes / (out_per_cell() * width_ * result_bytes()));
  limit = std::max<int64_t>(limit, 1);
  const double flops = this->flops();
  // A block whose values cannot be split is computed by other tiles: those of split values are the same for any number of
  // threads.
  const int64_t shared_by = kSplit ? kAnyThreads : threads;
  // Down to some tiles, or to one where each thread has much to do.
  const bool long_items = flops > kLongItemFlops / 4 * double(shared_by);
  const int64_t least = std::min(long_items ? tiles_->max_rows[vectors_] : kMinCells / 4, limit / 2);
  const int64_t items = std::min(
      2 * shared_by,
      std::clamp(int64_t(flops / kLongItemFlops), std::clamp<int64_t>(int64_t(flops / kItemFlops), 1, kItems), kMostItems));

  // Halves until there are enough items, of which panels may make up the rest; then a little less until they are even.
  bool enough = false;
  for (;; limit = enough ? limit * 7 / 8 : std::max(kMinCells, limit / 2)) {
    const int64_t room = cut_axes([&](int a) { return axis_[a].cells; }, std::max<int64_t>(limit / together, 1), block_cells_);
    block_samples_ = std::min(together * even_part(parts_of(g.batch, together), room), g.batch);
    const int64_t blocks = block_count() * g.groups;
    panels_per_item_ = blocks >= items ? panels_ : std::max<int64_t>(1, panels_ * blocks / items);
    enough = enough || blocks >= items || limit <= kMinCells || (blocks * panels_ >= items && limit <= 4 * kMinCells);
    if (limit <= least) return;
    for (int64_t panels = panels_per_item_; enough && panels > 0 && 2 * panels >= panels_per_item_; --panels) {
      const int64_t slices = parts_of(panels_, panels);
      if (!even(panels_, slices) || !shared_evenly(blocks * slices, flops, shared_by)) continue;
      panels_per_item_ = panels;
      return;
    }
  }
}

// Few cells of many weights are one block: items of some of its panels, as many as there is room for. Returns whether threads
// share them evenly.
template <class In>
bool Gather<In>::choose_turns(int threads) {
  const Geometry& g = p_.geometry;
  if (kSplit || tiles_->matrices || p_.prepacked || weights_.bytes() < kManyWeightBytes || cells() > most_cells()) return false;
  const int64_t units = phase_sums_.units_at_once(vectors_), row = width_ * int64_t(sizeof(Real));
  const int64_t room = std::min(kTurnBytes / (taps() * units * row), kTurnSumBytes / (cells() * out_per_cell() * row));
  for (int64_t panels = std::min(room, panels_); panels > 0; --panels) {
    panels_per_item_ = even_part(panels_, panels);
    if (!shared_evenly(g.groups * parts_of(panels_, panels_per_item_), flops(), threads)) continue;
    block_samples_ = g.batch;
    for (int a = 0; a < kAxes; ++a) block_cells_[a] = axis_[a].cells;
    turn_.emplace(p_, *tiles_, 1, units);
    return true;
  }
  return false;
}

template <class In>
int64_t Gather<In>::block_count() const {
  return parts_of(p_.geometry.batch, block_samples_) * piece_count([&](int a) { return axis_[a].cells; }, block_cells_);
}

template <class In>
CellBlock Gather<In>::block(int64_t index) const {
  CellBlock b;
  take_piece(
      index, [&](int a) { return axis_[a].cells; }, block_cells_, b.cell);
  b.sample = part(index, block_samples_, p_.geometry.batch);
  return b;
}

template <class In>
std::string Gather<In>::describe() const {
  const auto text = [](int64_t v) { return std::to_string(v); };
  return "tile " + text(tiles_->max_rows[vectors_]) + "x" + text(width_) + ", block " + text(block_samples_) + "x" +
         text(block_cells_[0]) + "x" + text(block_cells_[1]) + "x" + text(block_cells_[2]) + ", " +
         text(block_count() * p_.geometry.groups * (parts_of(panels_, panels_per_item_))) + " items" +
         (turn_ ? ", weights packed in turn" : "") + (in_.in_place() ? "" : ", input boxed") +
         (in_place_output_ ? "" : ", output boxed");
}

template <class In>
void Gather<In>::run(const Buffers& buffers, const Parallel& parallel, const Wanted& wanted) const {
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Geometry& g = p_.geometry;
  Real* zeros = layout_.at<Real>(workspace, zeros_part_);
  std::fill(zeros, zeros + split_.parts * depth_, Real(0));
  Real* bias = layout_.at<Real>(workspace, bias_part_);
  std::fill(bias, bias + g.groups * panels_ * width_, Real(0));
  if (buffers.bias)
    for (int64_t group = 0; group < g.groups; ++group)
      tiles_->widen(p_.type, element(buffers.bias, p_.type, group * columns_), bias + group * panels_ * width_, columns_);
  PackedWeights packed{turn_ ? nullptr : layout_.at<Real>(workspace, panels_part_), true};
  if (buffers.packed) {
    const auto* header = static_cast<const PackedHeader*>(buffers.packed);
    packed = {reinterpret_cast<const Real*>(header + 1), header->finite != 0};
  } else if (!turn_) {
    packed.finite = weights_.pack(buffers.w, parallel, layout_.at<Real>(workspace, panels_part_));
  }
  if (exact_ && !packed.finite) return run_exactly(buffers, parallel, nullptr);

  // Panels outermost: what threads compute at the same time shares its panels in the outer caches.
  const int64_t blocks = block_count(), slices = parts_of(panels_, panels_per_item_);
  std::mutex mutex;
  std::vector<std::pair<CellBlock, int64_t>> left;  // what cannot be split, and its group
  // Groups that share the cache lines of a position follow each other.
  const bool groups_inside = out_.channel == 1;
  parallel.for_each(g.groups * slices * blocks, [&](int64_t index, int thread) {
    const int64_t group = groups_inside ? index % g.groups : index / (blocks * slices);
    const int64_t of_group = groups_inside ? index / g.groups : index % (blocks * slices), slice = of_group / blocks;
    const CellBlock cells = block(of_group % blocks);
    if (wanted && !wanted(cells, group)) return;
    const ForTiles<Real> ready(*tiles_);
    const bool done =
        run_block(buffers, cells, group, even_range(slice, slices, panels_), packed, layout_.thread(workspace, thread));
    if (done) return;
    std::lock_guard lock(mutex);
    left.emplace_back(cells, group);
  });
  if (left.empty()) return;
  run_exactly(buffers, parallel, [&](const CellBlock& cells, int64_t group) {
    return std::any_of(left.begin(), left.end(), [&](const auto& of) { return of.second == group && meet(of.first, cells); });
  });
}

// Without splitting; weights that are packed ahead are there in that form too.
template <class In>
void Gather<In>::run_exactly(const Buffers& buffers, const Parallel& parallel, const Wanted& wanted) const {
  Buffers exact = buffers;
  if (buffers.packed) exact.packed = static_cast<const std::byte*>(buffers.packed) + own_packed_bytes();
  exact_->run(exact, parallel, wanted);
}

template <class In>
std::string Gather<In>::packing() const {
  const Geometry& g = p_.geometry;
  std::string text = exact_ ? exact_->packing() + ", split into " + std::to_string(split_.parts) + ": " : "";
  text += "panels of " + std::to_string(width_) + (kTerms == 2 ? " pairs:" : sizeof(Real) == 4 ? " floats:" : " doubles:");
  for (int64_t v : {g.groups, channels_, columns_, g.axis[0].w, g.axis[1].w, g.axis[2].w}) text += ' ' + std::to_string(v);
  return text;
}

template <class In>
void Gather<In>::pack(const Buffers& buffers, const Parallel& parallel, void* packed) const {
  auto* header = static_cast<PackedHeader*>(packed);
  *header = {};
  // Between taps, and behind narrower panels, there are gaps: the same weights give the same bytes.
  std::memset(header + 1, 0, size_t(weights_.bytes()));
  header->finite = weights_.pack(buffers.w, parallel, reinterpret_cast<Real*>(header + 1));
  if (exact_) exact_->pack(buffers, parallel, static_cast<std::byte*>(packed) + own_packed_bytes());
}

template <class In>
typename Gather<In>::Target Gather<In>::target(const Buffers& buffers, const CellBlock& block, int64_t group,
                                               std::byte* box) const {
  const int64_t size = result_bytes();
  Target t{p_.operation == Operation::conv_transpose ? buffers.y : buffers.x,
           group * columns_ * out_.channel,
           box,
           {},
           {{}, {out_.axis[0], out_.axis[1], out_.axis[2]}, 0, out_.channel}};
  if (in_place_output_) {
    t.rows = {static_cast<std::byte*>(element(t.tensor, p_.type, t.corner)),
              out_.outer * size,
              {out_.axis[0] * size, out_.axis[1] * size, out_.axis[2] * size}};
    return t;
  }
  int64_t first[kAxes];
  for (int a = 0; a < kAxes; ++a) {
    first[a] = block.cell[a].begin * axis_[a].out_step;
    t.shape.extent[a] = std::min(block.cell[a].end * axis_[a].out_step, axis_[a].out_extent) - first[a];
    t.corner += first[a] * out_.axis[a];
  }
  const int64_t row = row_width() * size, line = t.shape.extent[2] * row;
  t.rows = {box, t.shape.positions() * row, {t.shape.extent[1] * line, line, row}};
  t.rows.origin = t.rows.at(-block.sample.begin, -first[0], -first[1], -first[2]);
  return t;
}

// From the box, where its columns lie behind those of so many panels.
template <class In>
void Gather<In>::move_panel(const Target& t, Range samples, int64_t panel, int64_t beside) const {
  Box shape = t.shape;
  shape.channels = std::min(width_, columns_ - panel * width_);
  for (int64_t n = samples.begin; n < samples.end; ++n)
    move_box(*tiles_, p_.type, t.box + (n - samples.begin) * t.rows.sample + beside * width_ * result_bytes(), row_width(),
             element(t.tensor, p_.type, n * out_.outer + t.corner + panel * width_ * out_.channel), shape);
}

template <class In>
bool Gather<In>::run_block(const Buffers& buffers, const CellBlock& block, int64_t group, Range panels,
                           const PackedWeights& packed, std::byte* scratch) const {
  bool splits = true;
  const Range all{0, axis_[2].in_extent};
  Range line = in_.in_place() ? all : in_.line_of(block.cell[2].begin, block.cell[2].end);
  const RowsAt<const std::byte> in = in_.load(p_.operation == Operation::conv_transpose ? buffers.x : buffers.y, block, group,
                                              line, layout_.at<In>(scratch, in_box_part_), splits);
  // An infinity or NaN among the weights times a zero would spoil what does not read it.
  if (!packed.finite) line = {std::max(line.begin, all.begin), std::min(line.end, all.end)};
  if (!splits) return false;
  const Target to = target(buffers, block, group, layout_.at<std::byte>(scratch, out_box_part_));
  thread_local std::vector<Phase<Real>> phases;
  std::byte* workspace = static_cast<std::byte*>(buffers.workspace);
  const Real* zeros = layout_.at<Real>(workspace, zeros_part_);
  const BlockRows<Real> rows{axis_,
                             p_.geometry.axis,
                             in,
                             to.rows,
                             zeros,
                             line,
                             narrow_ ? layout_.at<Real>(scratch, sums_part_) : nullptr,
                             row_width(),
                             turn_.has_value(),
                             in_.by_sample(),
                             tiles_->max_rows[vectors_],
                             !tiles_->matrices,
                             packed.finite ? in_.listed(block.cell[2].begin, block.cell[2].end) : 0,
                             tiles_->matrices ? layout_.at<std::byte>(scratch, nowhere_part_) : nullptr};
  std::byte* pointers = layout_.at<std::byte>(scratch, pointers_part_);
  phases.clear();
  if (!by_tap_) rows.point(block, pointers, phases);

  // Packed weights of all units, or of some at a time; by tap, the number of tiles is not known before.
  const Panels<In>& held = packed.data ? weights_ : *turn_;
  const int64_t at_once = packed.data ? depth_ : phase_sums_.units_at_once(vectors_);
  Real* turn = layout_.at<Real>(scratch, turn_part_);
  const Real* first_panel = packed.data ? packed.data + group * held.group() + panels.begin * held.panel() : turn;
  int64_t tiles = 0;
  for (const Phase<Real>& phase : phases) tiles += phase.taps * parts_of(phase.positions, tiles_->max_rows[vectors_]);
  for (int64_t unit = 0; unit < depth_; unit += at_once) {
    const Range units{unit, std::min(unit + at_once, depth_)}, next{units.end, std::min(units.end + at_once, depth_)};
    const bool finite = packed.data ? packed.finite : held.pack(buffers.w, group, panels, units, turn);
    const bool asks = tiles > 0 && next.size() > 0;
    Upcoming ahead;
    if (asks)
      ahead = weights_ahead(p_, buffers.w, group, {panels.begin * width_, std::min(panels.end * width_, columns_)},
                            {next.begin * kTerms, std::min(next.end * kTerms, channels_)}, panels.size() * tiles);
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const int64_t first = panel * width_, vectors = weights_.vectors_of(panel), beside = turn_ ? panel - panels.begin : 0;
      const int64_t before = packed.data ? 0 : unit * vectors * lanes();  // weights of units that have been there
      const PhasePanel<Real> of_panel{.weights = first_panel + (panel - panels.begin) * held.panel() - before,
                                      .tap_pitch = held.tap(vectors),
                                      .vectors = vectors,
                                      .columns = std::min(width_, columns_ - first),
                                      .out_offset = in_place_output_ ? first : beside * width_,
                                      .sums_offset = beside * width_,
                                      .bias = layout_.at<Real>(workspace, bias_part_) + group * panels_ * width_ + first,
                                      .ahead = asks ? &ahead : nullptr};
      if (by_tap_) rows.point_by_tap(block, pointers, [&](const Phase<Real>& part) { phase_sums_.run(part, of_panel, units); });
      for (const Phase<Real>& phase : phases)
        finite ? phase_sums_.run(phase, of_panel, units) : phase_sums_.run_exactly(phase, of_panel, units, zeros);
      if (!in_place_output_ && units.end == depth_) move_panel(to, block.sample, panel, beside);
    }
  }
  return true;
}

std::shared_ptr<Plan> make(const Problem& p, Isa isa, const Request& request) {
  if (!gather_accepts(p)) return nullptr;
  if (p.type == Type::f64) return std::make_shared<Gather<double>>(p, tiles<double>(isa), request.threads);
  return std::make_shared<Gather<float>>(p, tiles<float>(isa), request.threads);
}

}  // namespace

std::shared_ptr<Plan> make_gather_of_pairs(const Problem& p, const Tiles<float>& tiles, const Request& request) {
  if (!gather_accepts(p) || p.type == Type::f64) return nullptr;
  if (p.type == Type::bf16) return std::make_shared<Gather<bf16>>(p, tiles, request.threads);
  if (tiles.depth_step == 1) return nullptr;  // vectors multiply float32 as fast
  return std::make_shared<Gather<SplitBf16>>(p, tiles, request.threads, split_of(p),
                                             &cpu::tiles<float>(std::min(request.isa, Isa::avx512)));
}

#if defined(__x86_64__)
std::shared_ptr<Plan> make_gather_amx(const Problem& p, const Request& request) {
  return request.by_name || gather_takes_matrices(p, request) ? make_gather_of_pairs(p, amx_tiles(), request) : nullptr;
}
std::shared_ptr<Plan> make_gather_avx512_bf16(const Problem& p, const Request& request) {
  return request.by_name || gather_takes_pairs(p) ? make_gather_of_pairs(p, pair_tiles(), request) : nullptr;
}
#endif
std::shared_ptr<Plan> make_gather_avx512(const Problem& p, const Request& request) { return make(p, Isa::avx512, request); }
std::shared_ptr<Plan> make_gather_avx2(const Problem& p, const Request& request) { return make(p, Isa::avx2, request); }
std::shared_ptr<Plan> make_gather_portable(const Problem& p, const Request& request) { return make(p, Isa::portable, request); }

}  // namespace torch_ext::cpu
