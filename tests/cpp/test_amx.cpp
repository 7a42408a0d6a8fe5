// SPDX-License-Identifier: Apache-2.0
// The kernels for AMX with matrix registers that are imitated, so that all but the instructions themselves runs on any processor.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "csrc/core/formula.h"
#include "csrc/core/scalar.h"
#include "csrc/cpu/gather.h"
#include "csrc/cpu/outer.h"
#include "csrc/cpu/overlap.h"
#include "csrc/cpu/rounding.h"
#include "csrc/cpu/tiles_isa.h"
#include "tests/cpp/checks.h"
#include "tests/cpp/imitated_product.h"

namespace torch_ext::test {
namespace {

float wide(uint16_t bits) { return widen(bf16{bits}); }

// Eight registers of 16 rows of 64 bytes to a thread, there between enter and leave alone.
struct Registers {
  struct Register {
    unsigned char bytes[16][64];
  };
  static inline thread_local std::array<Register, 8> registers;
  static inline thread_local bool entered = false;
  static inline std::atomic<int64_t> products = 0;  // of all threads

  static void enter() {
    EXPECT_FALSE(entered);
    entered = true;
    std::memset(&registers, 0x7f, sizeof(registers));  // NaN, unless something is put there
  }
  static void leave() { entered = false; }
  template <int R>
  static void zero() {
    EXPECT_TRUE(entered);
    registers[R] = {};
  }
  template <int R>
  static void load(const void* from, int64_t stride) {
    EXPECT_TRUE(entered);
    for (int64_t m = 0; m < 16; ++m) std::memcpy(registers[R].bytes[m], static_cast<const char*>(from) + m * stride, 64);
  }
  template <int R>
  static void store(void* to, int64_t stride) {
    EXPECT_TRUE(entered);
    for (int64_t m = 0; m < 16; ++m) std::memcpy(static_cast<char*>(to) + m * stride, registers[R].bytes[m], 64);
  }
  template <int C, int A, int B>
  static void add_product() {
    ++products;
    uint16_t a[16][32], b[16][32];
    float c[16][16];
    std::memcpy(a, &registers[A], sizeof(a));
    std::memcpy(b, &registers[B], sizeof(b));
    std::memcpy(c, &registers[C], sizeof(c));
    imitate_product(c, a, b);
    std::memcpy(&registers[C], c, sizeof(c));
  }
};

struct Floats {
  using Real = float;
  using Reg = std::array<float, 16>;
  static constexpr int lanes = 16;
  static Reg load_first(const float* p, int64_t n) {
    Reg v{};
    std::copy_n(p, std::min<int64_t>(n, lanes), v.data());
    return v;
  }
  static Reg load(const float* p) { return load_first(p, lanes); }
  static void store_first(float* p, int64_t n, const Reg& v) { std::copy_n(v.data(), std::min<int64_t>(n, lanes), p); }
  static void store(float* p, const Reg& v) { store_first(p, lanes, v); }
  static Reg add(const Reg& a, Reg b) {
    for (int i = 0; i < lanes; ++i) b[size_t(i)] += a[size_t(i)];
    return b;
  }
  static void store_narrow(Type type, void* to, int64_t n, const Reg& v) {
    for (int64_t i = 0; i < std::min<int64_t>(n, lanes); ++i) {
      if (type == Type::bf16) {
        narrow(v[size_t(i)], static_cast<bf16*>(to)[i]);
      } else {
        narrow(v[size_t(i)], static_cast<f16*>(to)[i]);
      }
    }
  }
};

namespace imitated {
using namespace torch_ext::cpu;
#include "csrc/cpu/tiles_results.inl"
//
#include "csrc/cpu/tiles_amx.inl"
}  // namespace imitated

// Tiles::split, by an instruction that takes what is below 2^-126 for zero.
bool split(const float* from, int64_t count, int parts, uint16_t* to, int64_t pitch) {
  bool splits = true;
  for (int64_t j = 0; j < count; ++j) {
    float rest = from[j];
    splits = splits && (rest == 0 || (std::abs(rest) >= 0x1p-103f && std::abs(rest) <= 0x1p120f));
    for (int i = 0; i < parts; ++i) {
      bf16 part;
      narrow(std::abs(rest) < 0x1p-126f ? std::copysign(0.f, rest) : rest, part);
      to[i * pitch + j] = part.bits;
      rest -= wide(part.bits);
    }
  }
  return splits;
}

// Tiles::pair.
bool pair(const uint16_t* even, const uint16_t* odd, float* to, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t halves[] = {even ? even[i] : uint16_t(0), odd ? odd[i] : uint16_t(0)};
    std::memcpy(to + i, halves, sizeof(halves));
    finite = finite && std::isfinite(wide(halves[0])) && std::isfinite(wide(halves[1]));
  }
  return finite;
}

// With what the table of the processor's own pairs has besides tiles.
const cpu::Tiles<float>& tiles() {
  static const cpu::Tiles<float> table = [] {
    cpu::Tiles<float> t = cpu::tiles_portable(0.f);
    t.lanes = 16;
    t.transpose = [](const float* from, int64_t pitch, int rows, int64_t columns, float* to, const int64_t* offsets) {
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t i = 0; i < 16; ++i) to[offsets[j] + i] = i < rows ? from[i * pitch + j] : 0;
    };
    t.pair = pair;
    t.pair_rows = [](const uint16_t* const* rows, int64_t offset, int64_t pairs, int64_t count, float* to, int64_t pitch) {
      for (int64_t i = 0; i < pairs; ++i) pair(rows[2 * i] + offset, rows[2 * i + 1] + offset, to + i * pitch, count);
    };
    t.finite = [](const float* values, int64_t count) {
      const auto* halves = reinterpret_cast<const uint16_t*>(values);
      return std::all_of(halves, halves + 2 * count, [](uint16_t bits) { return std::isfinite(wide(bits)); });
    };
    t.split = split;
    return imitated::with_amx_tiles<Registers, Floats>(t);
  }();
  return table;
}

std::shared_ptr<const cpu::Plan> plan_of(const Problem& p) {
  const cpu::Request request{cpu::Isa::portable, 3, true};
  return p.operation == Operation::backward_weights ? cpu::make_outer_of_pairs(p, tiles(), request)
                                                    : cpu::make_gather_of_pairs(p, tiles(), request);
}

// That multiplies the values as they are.
std::shared_ptr<const cpu::Plan> direct_plan_of(const Problem& p) {
  return cpu::make_plan(p, cpu::Isa::portable, 1,
                        p.operation == Operation::backward_weights ? "outer__portable" : "gather__portable");
}

struct Product {
  Operation operation;
  Type type;
};
void PrintTo(const Product& s, std::ostream* os) { *os << name_of(s.operation) << " " << name_of(s.type); }

// Computes with every step-th case in some layouts, starting with one after the other; returns how many problems it computed.
int compute_by(std::shared_ptr<const cpu::Plan> (*make)(const Problem&), Product product, const std::vector<Case>& cases,
               size_t layouts, size_t step = 1, Precision precision = Precision::full) {
  const auto [operation, type] = product;
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < cases.size(); k += step) {
    const Case& c = cases[k];
    const Data data = integers(c.geometry);
    for (size_t l = k; l < k + layouts; ++l) {
      const bool bias = operation == Operation::conv_transpose && l % 2;
      Problem p = make_problem(c, operation, type, kLayouts[l % std::size(kLayouts)], bias);
      p.precision = precision;
      const auto plan = make(p);
      if (!plan) continue;
      ++computed;
      const std::vector<uint64_t> got = harness.run(*plan, p, data, shuffled(3), l % 2 ? Against::begin : Against::end);
      expect_exact({*plan, p, c.line}, got, rounded(formula<double>(c.geometry, operation, data, bias), p.type));
      if (enough_failures()) return computed;
    }
  }
  return computed;
}

class AmxKernel : public testing::TestWithParam<Product> {
 protected:
  int compute(const std::vector<Case>& cases, size_t layouts, size_t step = 1, Precision precision = Precision::full) {
    return compute_by(plan_of, GetParam(), cases, layouts, step, precision);
  }
  bool split() const { return GetParam().type != Type::bf16; }
};

TEST_P(AmxKernel, ComputesIntegersExactly) { EXPECT_GT(compute(small_cases(), split() ? 1 : std::size(kLayouts)), 100); }

// Layers of models, cut until the registers multiply as many elements as others have terms: of a few channels, most are zeros.
std::vector<Case> layers(int64_t terms = kReducedTerms) {
  std::vector<Case> cases = large_cases();
  for (Case& c : cases) {
    const Geometry& g = c.geometry;
    const int64_t multiplied = cpu::round_up(g.x_channels, 32) * cpu::round_up(g.y_channels, 32);
    c = reduce(c, terms * g.x_channels * g.y_channels / multiplied);
  }
  return cases;
}

// Several steps of depth, several tiles, both full and not.
TEST_P(AmxKernel, ComputesLayersOfModelsExactly) { EXPECT_GT(compute(layers(), split() ? 1 : 2, split() ? 3 : 1), 5); }

// Few output channels, whose tiles go along positions. Registers that multiply 16 rows by 32 channels multiply mostly zeros.
TEST(AmxOverlap, ComputesIntegersExactly) {
  const auto make = [](const Problem& p) -> std::shared_ptr<const cpu::Plan> {
    return cpu::make_overlap_of_pairs(p, tiles(), {cpu::Isa::portable, 3, true});
  };
  std::vector<Case> few;
  for (const Case& c : layers())
    if (c.geometry.y_channels <= 8) few.push_back(c);
  const Product product{Operation::conv_transpose, Type::bf16};
  EXPECT_GT(compute_by(make, product, small_cases(), std::size(kLayouts)), 100);
  EXPECT_GT(compute_by(make, product, few, 2), 5);
}

// A position of y is then more than a thread brings at a time.
TEST(AmxOuter, TakesRowsOfManyChannels) {
  const std::vector<Case> many = {parse_case("many n1 g1 c3:6000 i2x3 k1x1 s1x1 d1x1 pb0x0 pe0x0 op0x0")};
  EXPECT_EQ(compute_by(plan_of, {Operation::backward_weights, Type::f32}, many, 2), 2);
}

// Only float32 has a precision.
class AmxKernelOfFloat32 : public AmxKernel {};

// Small integers are bf16 themselves.
TEST_P(AmxKernelOfFloat32, ComputesIntegersExactlyInFewerParts) {
  for (Precision precision : {Precision::high, Precision::medium}) EXPECT_GT(compute(small_cases(), 1, 1, precision), 100);
}

class AmxKernelOfEveryType : public testing::TestWithParam<Operation> {};

TEST_P(AmxKernelOfEveryType, KeepsTheErrorBound) {
  EXPECT_GT(compute_reals([](const Problem& p, int) { return plan_of(p); }, GetParam(), small_cases()), 300);
}

class AmxKernelOfSplitValues : public AmxKernel {};

// The error against float64 is not above that of the kernel that multiplies the values as they are, or, of sums of a few terms,
// not above the unit of rounding of the result.
TEST_P(AmxKernelOfSplitValues, IsAsAccurateAsMultiplyAdds) {
  constexpr int64_t kLongTerms = 8'000'000;  // under sanitizers too: shorter sums do not tell the errors apart
  const auto [operation, type] = GetParam();
  const std::vector<Case> cases = layers(kLongTerms);
  Harness harness;
  int computed = 0, better = 0;
  for (size_t k = 0; k < cases.size(); k += 3) {
    const Case& c = cases[k];
    const Problem p = make_problem(c, operation, type, kLayouts[0], false);
    const auto plan = plan_of(p), direct = direct_plan_of(p);
    if (!plan || !direct) continue;
    ++computed;
    const Data data = reals(c.geometry, type, 1);
    const std::vector<double> exact = formula<double>(c.geometry, operation, data, false);
    const double of_split = rms(harness.run(*plan, p, data, shuffled(1)), exact, type);
    const double of_direct = rms(harness.run(*direct, p, data, shuffled(1)), exact, type);
    EXPECT_LE(of_split, type == Type::f32 ? std::max(of_direct, 0x1p-24) : 1.01 * of_direct) << c.line;
    better += of_split < 0.75 * of_direct;
  }
  EXPECT_GT(computed, 5);
  EXPECT_GE(better, type == Type::f32 ? computed / 2 : 0);
}

// What cannot be split is computed by the other kernel, bit for bit. All finite float16 can be split.
TEST_P(AmxKernelOfFloat32, LeavesWhatItCannotSplit) {
  const auto [operation, type] = GetParam();
  const Case c = parse_case("dense n2 g1 c40:36 i5x9 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x0");
  Harness harness;
  for (double spoiler : {0x1p-103, 0x1p-104, 0x1p-140, 0x1p120, 0x1.8p120, 0x1p127, double(INFINITY), double(NAN)})
    for (int spoiled = 0; spoiled < 3; ++spoiled) {
      const Problem p = make_problem(c, operation, type, kLayouts[size_t(spoiled)], false);
      Data data = integers(c.geometry);
      std::vector<double>& values = spoiled == 0 ? data.x : spoiled == 1 ? data.w : data.y;
      values[values.size() / 2] = spoiler;
      const std::vector<uint64_t> expected = harness.run(*direct_plan_of(p), p, data, shuffled(1));
      const std::vector<uint64_t> got = harness.run(*plan_of(p), p, data, shuffled(1));
      for (size_t i = 0; i < got.size(); ++i) {
        const double a = value_of(got[i], type), b = value_of(expected[i], type);
        ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
            << spoiler << " in operand " << spoiled << ", element " << i << " is " << a << " instead of " << b;
      }
    }
}

// But for what is near them: one value in one of eight samples.
TEST_P(AmxKernelOfFloat32, SplitsWhatCanBe) {
  const auto [operation, type] = GetParam();
  const Case c = parse_case("dense n8 g1 c36:40 i24x24 k3x3 s2x2 d1x1 pb1x1 pe1x1 op1x1");
  const Problem p = make_problem(c, operation, type, kLayouts[0], false);
  const auto plan = plan_of(p);
  Harness harness;
  const auto run = [&](const Data& data, int64_t& products) {
    Registers::products = 0;
    std::vector<uint64_t> bits = harness.run(*plan, p, data, shuffled(3));
    products = Registers::products;
    return bits;
  };
  Data data = reals(c.geometry, type, 1);
  int64_t all = 0, some = 0;
  const std::vector<uint64_t> clean = run(data, all);
  std::vector<double>& values = operation == Operation::backward_data ? data.y : data.x;
  values[values.size() / 16] *= 0x1p-110;
  const std::vector<uint64_t> got = run(data, some);
  EXPECT_LT(some, all);
  EXPECT_GT(2 * some, all) << plan->describe();
  if (operation == Operation::backward_weights) return;  // sums over the samples
  for (size_t i = got.size() / 2; i < got.size(); ++i) ASSERT_EQ(got[i], clean[i]) << "element " << i;
}

class AmxKernelOfWeights : public AmxKernel {};

TEST_P(AmxKernelOfWeights, ComputesTheSameFromPackedWeights) {
  const auto [operation, type] = GetParam();
  const Case c = parse_case("dense n2 g2 c80:72 i5x9 k3x3 s2x2 d1x1 pb1x1 pe1x1 op0x0");
  Harness harness;
  for (double spoiler : {1.0, 0x1p-106, double(INFINITY)})
    for (int spoiled = 0; spoiled < 3; ++spoiled) {
      const Problem p = make_problem(c, operation, type, kLayouts[size_t(spoiled)], false);
      Data data = integers(c.geometry);
      std::vector<double>& values = spoiled == 0 ? data.x : spoiled == 1 ? data.w : data.y;
      values[values.size() / 2] = spoiler;
      const auto plan = plan_of(p);
      const std::vector<uint64_t> expected = harness.run(*plan, p, data, shuffled(3));
      EXPECT_EQ(harness.run(PackedAhead(plan), p, data, shuffled(3)), expected) << spoiler << " in operand " << spoiled;
    }
}

// The processor's own, where it has one.
TEST(Split, IsThatOfTheProcessor) {
  if (cpu::detected_isa() < cpu::Isa::avx512_bf16) GTEST_SKIP() << "this processor has no vectors of bf16";
  std::vector<float> values;
  for (int exponent = -149; exponent < 128; ++exponent)
    for (float mantissa : {1.f, 1.f + 0x1p-23f, 1.99609375f, 1.2345678f, -1.7654321f})
      values.push_back(std::ldexp(mantissa, exponent));
  values.insert(values.end(), {0.f, -0.f, INFINITY, -INFINITY, NAN});
  const int64_t count = int64_t(values.size());
  for (int parts = 1; parts <= 3; ++parts)
    for (int64_t j = 0; j < count; ++j) {  // one by one, and in a row with valid ones
      uint16_t expected[3], got[3];
      const bool splits = split(&values[size_t(j)], 1, parts, expected, 1);
      EXPECT_EQ(cpu::pair_tiles().split(&values[size_t(j)], 1, parts, got, 1), splits) << values[size_t(j)];
      if (std::isfinite(values[size_t(j)])) {
        EXPECT_TRUE(std::equal(got, got + parts, expected)) << values[size_t(j)];
      }
      float row[40];
      std::fill(row, row + 40, 1.f);
      row[j % 40] = values[size_t(j)];
      uint16_t many[3 * 40];
      EXPECT_EQ(cpu::pair_tiles().split(row, 40, parts, many, 40), splits);
      if (parts == 3 && splits) {
        EXPECT_EQ(wide(many[j % 40]) + wide(many[40 + j % 40]) + wide(many[80 + j % 40]), values[size_t(j)]);
      }
    }
}

constexpr Type kAll[] = {Type::bf16, Type::f16, Type::f32}, kSplit[] = {Type::f16, Type::f32}, kFloat32[] = {Type::f32};

template <size_t operations, size_t types>
auto subjects(const Operation (&of)[operations], const Type (&in)[types]) {
  std::vector<Product> all;
  for (Operation operation : of)
    for (Type type : in) all.push_back({operation, type});
  return testing::ValuesIn(all);
}
std::string name(const testing::TestParamInfo<Product>& info) {
  return std::string(name_of(info.param.operation)) + "_" + name_of(info.param.type);
}
INSTANTIATE_TEST_SUITE_P(All, AmxKernel, subjects(kOperations, kAll), name);
INSTANTIATE_TEST_SUITE_P(All, AmxKernelOfEveryType, testing::ValuesIn(kOperations),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(All, AmxKernelOfSplitValues, subjects(kOperations, kSplit), name);
INSTANTIATE_TEST_SUITE_P(All, AmxKernelOfFloat32, subjects(kOperations, kFloat32), name);
INSTANTIATE_TEST_SUITE_P(All, AmxKernelOfWeights, subjects({Operation::conv_transpose, Operation::backward_data}, kAll), name);

}  // namespace
}  // namespace torch_ext::test
