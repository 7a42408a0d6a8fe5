// SPDX-License-Identifier: Apache-2.0
// The problems of tests/cases.txt, and every way of laying their tensors out in memory.
#pragma once
#include <array>
#include <iosfwd>
#include <string>
#include <vector>

#include "csrc/core/geometry.h"

namespace torch_ext::test {

// ---- Problems ------------------------------------------------------------------------------------------------------------

struct Case {
  std::string name;
  std::string line;  // as it stands in cases.txt, for the messages of failures
  bool large = false;
  Geometry geometry;
  // What fixed the extents of y besides the geometry, per axis.
  std::array<int64_t, kAxes> pads_end{}, output_padding{};
};

// Reads one line; throws std::invalid_argument with the line where it makes no sense.
Case parse_case(const std::string& line);
const std::vector<Case>& small_cases();
const std::vector<Case>& large_cases();
// The same with batch and extents of x cut until L has at most `terms` terms, or little is left of them.
inline constexpr int64_t kReducedTerms = TORCH_EXT_REDUCED_TERMS;
Case reduce(Case c, int64_t terms);
const std::vector<Case>& reduced_cases();  // to kReducedTerms
// Layers drawn at random, always the same ones: of up to 512 channels, of which cases.txt has few, and of few enough positions
// that the formula takes milliseconds.
const std::vector<Case>& drawn_cases();
void PrintTo(const Case& c, std::ostream* os);

// Number of terms of L that are inside, and the largest number of them that one element of the result sums.
int64_t count_terms(const Geometry& geometry);
int64_t terms_of_one_result(const Geometry& geometry, Operation operation);

inline constexpr Operation kOperations[] = {Operation::conv_transpose, Operation::backward_data, Operation::backward_weights};
inline constexpr Type kTypes[] = {Type::f32, Type::f64, Type::bf16, Type::f16};
const char* name_of(Operation operation);
const char* name_of(Type type);

// ---- Layouts -------------------------------------------------------------------------------------------------------------

// Extents of one tensor in the order of Strides: outer, channel, the axes. Canonical order of elements is row-major over these.
using Extents = std::array<int64_t, 2 + kAxes>;
int64_t count(const Extents& extents);
Extents x_extents(const Geometry& geometry);
Extents w_extents(const Geometry& geometry);
Extents y_extents(const Geometry& geometry);

// A permutation of (outer, channel, axis 0, axis 1, axis 2), outermost first.
using Order = std::array<int, 2 + kAxes>;
inline constexpr Order kNcx = {0, 1, 2, 3, 4}, kNxc = {0, 2, 3, 4, 1};
inline constexpr Order kIox = {0, 1, 2, 3, 4}, kXoi = {2, 3, 4, 1, 0}, kXio = {2, 3, 4, 0, 1}, kOix = {1, 0, 2, 3, 4},
                       kIxo = {0, 2, 3, 4, 1};

struct Layouts {
  Order data, weights;
};
inline constexpr Layouts kLayouts[] = {{kNxc, kXoi}, {kNcx, kIox}, {kNxc, kIox}, {kNcx, kXoi}, {kNxc, kXio},
                                       {kNcx, kXio}, {kNxc, kOix}, {kNcx, kOix}, {kNxc, kIxo}, {kNcx, kIxo}};

// Strides of a tensor whose elements lie without gaps in `order`.
Strides dense(const Extents& extents, const Order& order);
// The same after slicing every second element, and all but the last, out of a larger tensor: no stride is 1.
Strides sliced(const Extents& extents, const Order& order);
// Elements from the first to the last, gaps included.
int64_t span(const Extents& extents, const Strides& strides);

Problem make_problem(const Case& c, Operation operation, Type type, const Layouts& layouts, bool bias = false);

// Calls f(canonical index, offset in memory) for every element.
template <class F>
void for_each_element(const Extents& e, const Strides& s, F f) {
  int64_t index = 0;
  for (int64_t n = 0; n < e[0]; ++n)
    for (int64_t c = 0; c < e[1]; ++c)
      for (int64_t i = 0; i < e[2]; ++i)
        for (int64_t j = 0; j < e[3]; ++j) {
          int64_t offset = n * s.outer + c * s.channel + i * s.axis[0] + j * s.axis[1];
          for (int64_t k = 0; k < e[4]; ++k, offset += s.axis[2]) f(index++, offset);
        }
}

}  // namespace torch_ext::test
