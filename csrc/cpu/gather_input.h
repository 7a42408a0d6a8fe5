// SPDX-License-Identifier: Apache-2.0
// Where the rows of input channels lie that the tiles of a gather multiply: in the tensor, or in a box in cache.
#pragma once
#include "csrc/cpu/gather.h"
#include "csrc/cpu/phases.h"
#include "csrc/cpu/split.h"

namespace torch_ext::cpu {

inline constexpr int64_t kRowsOfRegister = 16;  // of a matrix register

template <class In>
class GatherInput {
 public:
  using Real = typename Operand<In>::Real;
  static constexpr int64_t kTerms = Operand<In>::terms;
  static constexpr bool kSplit = std::is_same_v<In, SplitBf16>;

  // `axis` are those of the plan that this is part of, which sums over so many `channels` of a group, or `depth` units of each
  // part.
  GatherInput(const Problem& problem, const Tiles<Real>& tiles, Split split, const GatherAxis* axis, int64_t channels,
              int64_t depth);

  bool in_place() const { return in_place_; }
  bool by_sample() const { return by_sample_; }  // rows of a tile are of different samples
  int64_t pitch() const { return pitch_; }       // from one position of a box to the next
  // The positions of the innermost axis that some of its cells read: those that a box has.
  Range line_of(int64_t begin, int64_t end) const;
  // How many positions of a line with those cells are listed (BlockRows), where these are more than the cells, else 0.
  int64_t listed(int64_t begin, int64_t end) const;
  // The rows of a block, in the tensor itself or brought to `box` with `line` of the innermost axis. Clears `splits` where they
  // cannot be split.
  RowsAt<const std::byte> load(const void* in, const CellBlock& block, int64_t group, Range line, In* box, bool& splits) const;

 private:
  bool load_rows(const void* from, const Box& shape, In* to) const;

  const Tiles<Real>* tiles_;
  Type type_;
  Split split_;
  Strides strides_;
  const GatherAxis* axis_;
  int64_t channels_, depth_, pitch_;
  bool by_sample_, in_place_;
};

}  // namespace torch_ext::cpu
