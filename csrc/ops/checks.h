// SPDX-License-Identifier: Apache-2.0
// Checks that the public and the private operators share. Messages name the operator, the argument, its value and the rule.
#pragma once
#include <limits>

#include "csrc/ops/arguments.h"

namespace torch_ext::ops {

// A condition on sizes that may be symbolic: a guard where they are, a plain check where they are not.
#define TORCH_EXT_CHECK_SYM(condition, ...) TORCH_CHECK((condition).expect_true(__FILE__, __LINE__), __VA_ARGS__)

using Int128 = __int128;

// A value of a size formula, where all its terms are concrete computed without overflow.
template <class Formula, class... Terms>
SymInt checked(const char* op, const char* what, int64_t axis, Formula formula, const Terms&... terms) {
  if ((terms.maybe_as_int().has_value() && ...)) {
    const Int128 value = formula(Int128(*terms.maybe_as_int())...);
    TORCH_CHECK(value <= std::numeric_limits<int64_t>::max() / 4 && value >= std::numeric_limits<int64_t>::min() / 4, op,
                ": the ", what, " of spatial axis ", axis, " overflows int64");
    return SymInt(int64_t(value));
  }
  return formula(terms...);
}

// ---- Tensors ----------------------------------------------------------------------------------------------------------------

// One type and one device.
void check_alike(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first);
// The same in a public operator, by the names of its arguments. Under autocast types may differ until a private operator casts
// them.
void check_alike_or_cast(const char* op, const char* name, const Tensor& t, const char* first_name, const Tensor& first);
int64_t check_data_rank(const char* op, const char* name, const Tensor& t);
// Two dense tensors of types that are computed, alike by one of the two rules above, and of one rank, which it returns.
int64_t check_operands(const char* op, const char* first_name, const Tensor& first, const char* second_name, const Tensor& second,
                       decltype(check_alike)* alike);

// ---- Attributes -------------------------------------------------------------------------------------------------------------

void check_length(const char* op, const char* name, SymInts values, int64_t axes);
void check_at_least(const char* op, const char* name, SymInts values, int64_t least);

// ---- Shapes -----------------------------------------------------------------------------------------------------------------

// Sizes of a weights tensor, or of a shape that describes one.
struct WeightsSizes {
  SymInt in, out;
  SymSizes kernel;

  WeightsSizes(SymInts sizes, WeightsFormat format) {
    const int64_t rank = int64_t(sizes.size());
    in = sizes[format.in(rank)];
    out = sizes[format.out(rank)];
    for (int64_t a = 0; a < rank - 2; ++a) kernel.push_back(sizes[format.axis(a)]);
  }

  // Output channels of all groups together.
  SymInt out_of_all(const char* op, const SymInt& groups) const {
    const auto one = out.maybe_as_int(), count = groups.maybe_as_int();
    int64_t product;
    TORCH_CHECK(!one || !count || !__builtin_mul_overflow(*one, *count, &product), op, ": ", out, " output channels in each of ",
                groups, " groups overflow int64");
    return out * groups;
  }
};

struct DataSizes {
  SymInt batch, channels;
  SymSizes extent;

  DataSizes(const Tensor& t, DataFormat format) {
    const SymInts sizes = t.sym_sizes();
    batch = sizes[0];
    channels = sizes[format.channel(t.dim())];
    for (int64_t a = 0; a < t.dim() - 2; ++a) extent.push_back(sizes[format.axis(a)]);
  }
};

void check_kernel(const char* op, const char* name, const SymSizes& kernel);
void check_groups_divide(const char* op, const char* name, const SymInt& channels, const SymInt& groups);
// src has all input channels, weights have all of them too.
void check_in_channels(const char* op, const char* src, const SymInt& channels, const char* weights, const WeightsSizes& w,
                       const SymInt& groups);
void check_out_channels(const char* op, const char* dst, const SymInt& channels, const char* weights, const WeightsSizes& w,
                        const SymInt& groups);
void check_bias(const char* op, const Tensor& bias, const SymInt& channels);

}  // namespace torch_ext::ops
