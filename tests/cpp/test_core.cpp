// SPDX-License-Identifier: Apache-2.0
// csrc/core: sizes, the formula and the 16-bit types; and that the helpers of these tests are right themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "csrc/core/formula.h"
#include "tests/cpp/harness.h"

namespace torch_ext::test {
namespace {

// ---- Sizes ---------------------------------------------------------------------------------------------------------------

TEST(OutputExtent, IsTheFullReachPlusOutputPaddingMinusPads) {
  for (const Case& c : small_cases())
    for (int a = 0; a < kAxes; ++a) {
      const Axis& axis = c.geometry.axis[a];
      if (axis.x == 0) continue;
      const int64_t last = axis.reach(axis.x - 1, axis.w - 1) + axis.offset;  // without pads
      EXPECT_EQ(axis.y, last + 1 + c.output_padding[a] - axis.offset - c.pads_end[a]) << c.line;
    }
}

TEST(OutputExtent, IsUndoneByStridedSpan) {
  for (const Case& c : small_cases())
    for (int a = 0; a < kAxes; ++a) {
      const Axis& axis = c.geometry.axis[a];
      EXPECT_EQ(strided_span(axis.y, axis.w, axis.dilation, axis.offset, c.pads_end[a], c.output_padding[a]),
                axis.stride * (axis.x - 1))
          << c.line;
    }
}

// Sizes may be symbols: an expression that only knows +, - and *.
struct Symbol {
  std::string text;
  Symbol(const char* name) : text(name) {}
  Symbol(int value) : text(std::to_string(value)) {}
  Symbol(std::string text) : text(std::move(text)) {}
};
Symbol operator+(const Symbol& a, const Symbol& b) { return "(" + a.text + "+" + b.text + ")"; }
Symbol operator-(const Symbol& a, const Symbol& b) { return "(" + a.text + "-" + b.text + ")"; }
Symbol operator*(const Symbol& a, const Symbol& b) { return a.text + "*" + b.text; }

TEST(OutputExtent, TakesSymbolicSizes) {
  EXPECT_EQ(output_extent<Symbol>("i", "k", "s", "d", "pb", "pe", "op").text, "((((s*(i-1)+((k-1)*d+1))+op)-pb)-pe)");
}

// ---- The formula ---------------------------------------------------------------------------------------------------------

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// <y, T(x,w)> = <x, C(y,w)> = <w, B(x,y)>: on integers exact, and no reference is needed.
void expect_adjoint(const Case& c) {
  const Geometry& g = c.geometry;
  const Data data = integers(g);
  const double form = dot(data.y, formula<double>(g, Operation::conv_transpose, data, false));
  EXPECT_EQ(form, dot(data.x, formula<double>(g, Operation::backward_data, data, false))) << c.line;
  EXPECT_EQ(form, dot(data.w, formula<double>(g, Operation::backward_weights, data, false))) << c.line;
}

TEST(Formula, OperationsAreDerivativesOfOneForm) {
  for (const Case& c : small_cases()) expect_adjoint(c);
}

TEST(Formula, OperationsAreDerivativesOfOneFormOnLayersOfModels) {
  for (const Case& c : reduced_cases()) expect_adjoint(c);
}

TEST(Formula, MatchesAHandComputedExample) {
  // x = (1, 2), w = (10, 20, 30), stride 2, pads_begin 1: y = 10 20 30+20 40 60 without its first element.
  const Case c = parse_case("example n1 g1 c1:1 i2 k3 s2 d1 pb1 pe0 op0");
  Data data;
  data.x = {1, 2}, data.w = {10, 20, 30}, data.y = {1, 1, 1, 1}, data.bias = {5};
  EXPECT_EQ(formula<double>(c.geometry, Operation::conv_transpose, data, true), (std::vector<double>{25, 55, 45, 65}));
  EXPECT_EQ(formula<double>(c.geometry, Operation::backward_data, data, false), (std::vector<double>{50, 60}));
  EXPECT_EQ(formula<double>(c.geometry, Operation::backward_weights, data, false), (std::vector<double>{2, 3, 3}));
}

TEST(Formula, VisitsAsManyTermsAsCounted) {
  for (const Case& c : small_cases()) {
    int64_t terms = 0;
    for_each_term(make_problem(c, Operation::conv_transpose, Type::f64, kLayouts[0]), [&](auto...) { ++terms; });
    EXPECT_EQ(terms, count_terms(c.geometry)) << c.line;
  }
}

TEST(Formula, SumsAsManyTermsAsCounted) {
  for (const Case& c : small_cases()) {
    const Geometry& g = c.geometry;
    Data ones;
    ones.x.assign(g.x_size(), 1), ones.w.assign(g.w_size(), 1), ones.y.assign(g.y_size(), 1);
    for (Operation operation : kOperations) {
      double most = 0;
      for (double sum : formula<double>(g, operation, ones, false)) most = std::max(most, sum);
      const int64_t counted = count_terms(g) ? terms_of_one_result(g, operation) : 0;
      EXPECT_EQ(most, double(counted)) << name_of(operation) << " " << c.line;
    }
  }
}

// ---- 16-bit types --------------------------------------------------------------------------------------------------------

// A 16-bit float with `exponent` and `mantissa` bits, read by its definition.
double definition(uint16_t bits, int exponent, int mantissa) {
  const int field = bits >> mantissa & ((1 << exponent) - 1), fraction = bits & ((1 << mantissa) - 1);
  const int bias = (1 << (exponent - 1)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (field == (1 << exponent) - 1) return fraction ? std::nan("") : sign * INFINITY;
  if (field == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp((1 << mantissa) + fraction, field - bias - mantissa);
}

template <class T>
struct Format;
template <>
struct Format<f16> {
  static constexpr int exponent = 5, mantissa = 10;
};
template <>
struct Format<bf16> {
  static constexpr int exponent = 8, mantissa = 7;
};

template <class T>
class SixteenBit : public testing::Test {
 public:
  static double exact(int bits) { return definition(uint16_t(bits), Format<T>::exponent, Format<T>::mantissa); }
  static int infinity() { return ((1 << Format<T>::exponent) - 1) << Format<T>::mantissa; }
  static int narrowed(float value) {
    T to{};
    narrow(value, to);
    return to.bits;
  }
};
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return std::is_same_v<T, f16> ? "f16" : "bf16";
  }
};
using SixteenBitTypes = testing::Types<f16, bf16>;
TYPED_TEST_SUITE(SixteenBit, SixteenBitTypes, TypeNames);

TYPED_TEST(SixteenBit, EveryPatternWidensToItsDefinition) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double exact = this->exact(bits), wide = widen(TypeParam{uint16_t(bits)});
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
    } else {
      EXPECT_EQ(wide, exact) << bits;
      EXPECT_EQ(std::signbit(wide), std::signbit(exact)) << bits;
    }
  }
}

TYPED_TEST(SixteenBit, EveryPatternNarrowsBackToItself) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float wide = widen(TypeParam{uint16_t(bits)});
    const int back = this->narrowed(wide);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(this->exact(back))) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

// Between any two neighbours: below the middle rounds down, above it up, and the middle itself to the even pattern.
TYPED_TEST(SixteenBit, NarrowingRoundsToNearestEven) {
  for (int low = 0; low < this->infinity(); ++low)
    for (int sign : {0, 0x8000}) {
      const int high = low + 1;
      const float s = sign ? -1.f : 1.f;
      // Where `high` is infinity the format goes on as if one more exponent were there.
      const double above = high == this->infinity() ? 2 * this->exact(low) - this->exact(low - 1) : this->exact(high);
      const float middle = float((this->exact(low) + above) / 2);
      if (std::isinf(middle)) continue;
      EXPECT_EQ(this->narrowed(s * middle), sign | (low % 2 ? high : low)) << low;
      EXPECT_EQ(this->narrowed(s * std::nextafter(middle, 0.f)), sign | low) << low;
      EXPECT_EQ(this->narrowed(s * std::nextafter(middle, INFINITY)), sign | high) << low;
    }
}

TYPED_TEST(SixteenBit, NarrowingKeepsWhatIsNotFinite) {
  EXPECT_EQ(this->narrowed(INFINITY), this->infinity());
  EXPECT_EQ(this->narrowed(-INFINITY), 0x8000 | this->infinity());
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0x7fc00000u, 0xff800001u})  // signalling and quiet NaN
    EXPECT_TRUE(std::isnan(this->exact(this->narrowed(detail::float_of(bits))))) << bits;
}

TEST(Visit, GivesATypeOfTheRightSize) {
  for (Type type : kTypes) visit(type, [&](auto v) { EXPECT_EQ(int64_t(sizeof v), bytes_of(type)); });
}

// ---- The helpers of these tests ------------------------------------------------------------------------------------------

TEST(Cases, HaveDistinctNames) {
  std::set<std::string> names;
  for (const auto* cases : {&small_cases(), &reduced_cases()})
    for (const Case& c : *cases) EXPECT_TRUE(names.insert(c.name).second) << c.line;
  EXPECT_GE(names.size(), 150u);
}

TEST(Cases, ReadEveryAttribute) {
  const Case c = parse_case("t n2 g3 c6:9 i4x5 k3x2 s2x1 d1x4 pb1x2 pe0x3 op1x2 large  # note");
  EXPECT_EQ(c.name, "t");
  EXPECT_TRUE(c.large);
  EXPECT_EQ(c.geometry.batch, 2);
  EXPECT_EQ(c.geometry.groups, 3);
  EXPECT_EQ(c.geometry.x_channels, 2);
  EXPECT_EQ(c.geometry.y_channels, 3);
  EXPECT_EQ(c.geometry.axis[0], Axis());
  EXPECT_EQ(c.geometry.axis[1], (Axis{4, 3, 9, 2, 1, 1}));
  EXPECT_EQ(c.geometry.axis[2], (Axis{5, 2, 6, 1, 4, 2}));
}

TEST(Cases, RejectLinesWithoutMeaning) {
  for (const char* line : {"no_axes n1 g1 c1:1", "length n1 g1 c1:1 i4x4 k3 s1x1 d1x1 pb0x0 pe0x0 op0x0",
                           "groups n1 g2 c3:2 i4 k3 s1 d1 pb0 pe0 op0", "op n1 g1 c1:1 i4 k3 s2 d1 pb0 pe0 op2",
                           "stride n1 g1 c1:1 i4 k3 s0 d1 pb0 pe0 op0", "negative n1 g1 c1:1 i1 k1 s1 d1 pb1 pe1 op0",
                           "number n1 g1 c1:1 i4y k3 s1 d1 pb0 pe0 op0", "auto n1 g1 c1:1 i4 k3 s1 d1 pb0 pe0 op0 auto=same"})
    EXPECT_THROW(parse_case(line), std::invalid_argument) << line;
}

TEST(Layouts, AreBijectionsOntoMemory) {
  const Extents extents = {2, 3, 4, 1, 5};
  for (const Order& order : {kNcx, kNxc, kIox, kXoi, kXio, kOix, kIxo}) {
    std::set<int64_t> offsets;
    for_each_element(extents, dense(extents, order), [&](int64_t, int64_t offset) { offsets.insert(offset); });
    EXPECT_EQ(int64_t(offsets.size()), count(extents));
    EXPECT_EQ(*offsets.rbegin(), count(extents) - 1);
    EXPECT_EQ(span(extents, dense(extents, order)), count(extents));
  }
}

TEST(Layouts, AreThoseOfTheSpecification) {
  const Extents e = {2, 3, 4, 5, 6};  // (batch or input channels, channels or output channels of a group, three axes)
  const auto strides = [&](const Order& order) {
    const Strides s = dense(e, order);
    return std::vector<int64_t>{s.outer, s.channel, s.axis[0], s.axis[1], s.axis[2]};
  };
  EXPECT_EQ(strides(kNcx), (std::vector<int64_t>{360, 120, 30, 6, 1}));
  EXPECT_EQ(strides(kNxc), (std::vector<int64_t>{360, 1, 90, 18, 3}));
  EXPECT_EQ(strides(kXoi), (std::vector<int64_t>{1, 2, 180, 36, 6}));    // (sp..., OC/g, IC)
  EXPECT_EQ(strides(kXio), (std::vector<int64_t>{3, 1, 180, 36, 6}));    // (sp..., IC, OC/g)
  EXPECT_EQ(strides(kIxo), (std::vector<int64_t>{360, 1, 90, 18, 3}));   // (IC, sp..., OC/g), channels_last
  EXPECT_EQ(strides(kOix), (std::vector<int64_t>{120, 240, 30, 6, 1}));  // (OC/g, IC, sp...)
}

TEST(Fence, NoticesABytePastEitherEnd) {
  Fence fence;
  for (Against against : {Against::end, Against::begin}) {
    std::byte* memory = fence.place(100, 64, against);
    EXPECT_TRUE(fence.intact());
    std::byte& stray = against == Against::end ? memory[-1] : memory[100];
    stray = std::byte{0};
    EXPECT_FALSE(fence.intact());
  }
}

TEST(FenceDeathTest, FaultsPastTheEndThatLiesAgainstIt) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  Fence fence;
  std::byte* memory = fence.place(100, 1, Against::end);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(memory + 100) = std::byte{0}, "");
  memory = fence.place(100, 1, Against::begin);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(memory - 1) = std::byte{0}, "");
}

}  // namespace
}  // namespace torch_ext::test
