// SPDX-License-Identifier: Apache-2.0
// Every kernel of csrc/cpu/kernels.inc against the formula. A kernel that joins the list is tested by that alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <set>

#include "csrc/core/formula.h"
#include "csrc/cpu/upcoming.h"
#include "tests/cpp/checks.h"

namespace torch_ext::test {
namespace {

using cpu::Isa;
using cpu::Plan;

// ---- Each kernel ---------------------------------------------------------------------------------------------------------

struct Subjects {
  int kernel;
  Operation operation;
};
void PrintTo(const Subjects& s, std::ostream* os) { *os << cpu::kernel_name(s.kernel) << " " << name_of(s.operation); }

class EveryKernel : public testing::TestWithParam<Subjects> {
 protected:
  void SetUp() override {
    if (!cpu::kernel_supported(kernel(), cpu::detected_isa()))
      GTEST_SKIP() << cpu::kernel_name(kernel()) << " needs more than " << cpu::name_of(cpu::detected_isa())
                   << ", the best instruction set of this machine";
  }
  int kernel() const { return GetParam().kernel; }
  Operation operation() const { return GetParam().operation; }
  MakePlan make_plan() const {
    return [this](const Problem& problem, int threads) {
      return cpu::make_plan(problem, cpu::detected_isa(), threads, cpu::kernel_name(kernel()));
    };
  }
  void expect_computed(int computed) const {
    RecordProperty("computed", computed);
    EXPECT_GT(computed, 0) << cpu::kernel_name(kernel()) << " accepts no " << name_of(operation()) << " of these cases";
  }
};

TEST_P(EveryKernel, ComputesIntegersExactly) { expect_computed(compute_integers(make_plan(), operation(), small_cases(), true)); }

TEST_P(EveryKernel, KeepsTheErrorBound) { expect_computed(compute_reals(make_plan(), operation(), small_cases())); }

TEST_P(EveryKernel, KeepsTheErrorBoundOnLayersOfModels) {
  expect_computed(compute_reals(make_plan(), operation(), reduced_cases()));
}

// Nor may the place of the tensors in memory, or what an earlier call left in the workspace, change a bit.
void expect_same_bits(Harness& harness, const MakePlan& make_plan, const Case& c, const Problem& p) {
  const Data data = reals(c.geometry, p.type, 1);
  std::vector<uint64_t> first;
  const int threads[] = {1, 2, 5, 5};
  for (size_t run = 0; run < std::size(threads); ++run) {
    const auto plan = make_plan(p, threads[run]);
    ASSERT_TRUE(plan) << "accepted for one thread, not for " << threads[run] << ": " << c.line;
    harness.stale = run % 2 ? std::byte{0x3f} : kPoison;
    const Against against = run % 2 ? Against::begin : Against::end;
    const std::vector<uint64_t> bits = harness.run(*plan, p, data, racing(threads[run]), against);
    if (first.empty()) first = bits;
    EXPECT_TRUE(bits == first) << "run " << run << " on " << threads[run] << " threads differs: " << Subject{*plan, p, c.line};
  }
}

TEST_P(EveryKernel, GivesTheSameBitsForAnyNumberOfThreadsAndEveryTime) {
  Harness harness;
  int computed = 0;
  std::vector<const std::vector<Case>*> all = {&small_cases()};
#if !defined(TORCH_EXT_SANITIZE)  // layers take it most of its time, and KeepsTheErrorBoundOnLayersOfModels visits their memory
  all.push_back(&reduced_cases());
#endif
  for (const auto* cases : all)
    for (size_t k = 0; k < cases->size(); ++k)
      for (size_t t = 0; t < std::size(kTypes); ++t) {
        const Case& c = (*cases)[k];
        if ((t + 3 * k) % (c.large ? 4 : 2)) continue;  // layers in one of the four types, others in two
        const Problem p = make_problem(c, operation(), kTypes[t], kLayouts[(k + t) % 4], k % 2);
        if (!make_plan()(p, 1)) continue;
        ++computed;
        expect_same_bits(harness, make_plan(), c, p);
        if (enough_failures()) return;
      }
  expect_computed(computed);
}

// ---- Irregular strides ---------------------------------------------------------------------------------------------------

// Ways to disturb the layout of one problem. The result keeps a place for each of its elements.
struct Disturbance {
  const char* name;
  std::function<void(Problem&, const Layouts&)> apply;
};

bool reads(const Problem& p, Operation writer) { return p.operation != writer; }

const Disturbance kDisturbances[] = {
    {"sliced x", [](Problem& p, const Layouts& l) { p.x = sliced(x_extents(p.geometry), l.data); }},
    {"sliced w", [](Problem& p, const Layouts& l) { p.w = sliced(w_extents(p.geometry), l.weights); }},
    {"sliced y", [](Problem& p, const Layouts& l) { p.y = sliced(y_extents(p.geometry), l.data); }},
    {"turned axes",
     [](Problem& p, const Layouts&) {
       p.x = dense(x_extents(p.geometry), {4, 3, 1, 0, 2});
       p.y = dense(y_extents(p.geometry), {1, 3, 2, 4, 0});
       p.w = dense(w_extents(p.geometry), {3, 0, 4, 1, 2});
     }},
    {"expanded batch",
     [](Problem& p, const Layouts&) {
       if (reads(p, Operation::backward_data)) p.x.outer = 0;
       if (reads(p, Operation::conv_transpose)) p.y.outer = 0;
     }},
    {"expanded channels",
     [](Problem& p, const Layouts&) {
       if (reads(p, Operation::backward_data)) p.x.channel = 0;
       if (reads(p, Operation::backward_weights)) p.w.channel = 0;
       if (reads(p, Operation::conv_transpose)) p.y.channel = 0;
     }},
    {"expanded last axis",
     [](Problem& p, const Layouts&) {
       if (reads(p, Operation::backward_data)) p.x.axis[2] = 0;
       if (reads(p, Operation::backward_weights)) p.w.axis[2] = 0;
       if (reads(p, Operation::conv_transpose)) p.y.axis[2] = 0;
     }},
    {"one value",
     [](Problem& p, const Layouts&) {
       if (reads(p, Operation::backward_data)) p.x = {};
       if (reads(p, Operation::backward_weights)) p.w = {};
       if (reads(p, Operation::conv_transpose)) p.y = {};
     }},
};

// The values that are left when elements with stride 0 share their place.
void share(std::vector<double>& values, const Extents& extents, const Strides& strides) {
  std::vector<double> memory(span(extents, strides));
  for_each_element(extents, strides, [&](int64_t index, int64_t offset) { memory[offset] = values[index]; });
  for_each_element(extents, strides, [&](int64_t index, int64_t offset) { values[index] = memory[offset]; });
}

TEST_P(EveryKernel, TakesTheStridesItAccepts) {
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < small_cases().size(); ++k) {
    const Case& c = small_cases()[k];
    if (count_terms(c.geometry) > 40'000) continue;  // enough of them are left
    for (size_t v = 0; v < std::size(kDisturbances); ++v) {
      const Type type = kTypes[(k + v) % std::size(kTypes)];
      const Layouts& layouts = kLayouts[(k / 4 + v) % 4];
      Problem p = make_problem(c, operation(), type, layouts, v % 2);
      kDisturbances[v].apply(p, layouts);
      const auto plan = make_plan()(p, kThreads);
      if (!plan) continue;
      ++computed;
      Data data = integers(c.geometry);
      share(data.x, x_extents(p.geometry), p.x);
      share(data.w, w_extents(p.geometry), p.w);
      share(data.y, y_extents(p.geometry), p.y);
      SCOPED_TRACE(kDisturbances[v].name);
      const auto bits = harness.run(*plan, p, data, shuffled(kThreads), v % 2 ? Against::begin : Against::end);
      expect_exact({*plan, p, c.line}, bits, rounded(formula<double>(c.geometry, operation(), data, p.bias), type));
      if (enough_failures()) return;
    }
  }
  expect_computed(computed);
}

// ---- Values that are not finite ------------------------------------------------------------------------------------------

// Which elements of the result read element `index` (canonical) of the operand; and which share its sample or group.
struct Reach {
  std::vector<bool> reads;
  std::vector<bool> may_read;
};

enum class Place { x, w, y };

Reach reach_of(const Case& c, Operation operation, Place place, int64_t index) {
  const Geometry& g = c.geometry;
  const Problem p = make_problem(c, operation, Type::f64, {kNcx, kIox});
  const int64_t size = count(result_extents(p));
  Reach reach{std::vector<bool>(size), std::vector<bool>(size)};
  // Sample and group of each element, -1 where it belongs to all.
  const auto home = [&](Place of, int64_t k) -> std::pair<int64_t, int64_t> {
    if (of == Place::w) return {-1, k / std::max<int64_t>(g.w_size() / g.groups, 1)};
    const int64_t positions = of == Place::x ? g.x_positions() : g.y_positions();
    const int64_t channels = of == Place::x ? g.x_channels : g.y_channels;
    return {k / (positions * channels * g.groups), k / (positions * channels) % g.groups};
  };
  const Place result = operation == Operation::conv_transpose  ? Place::y
                       : operation == Operation::backward_data ? Place::x
                                                               : Place::w;
  const auto [sample, group] = home(place, index);
  for (int64_t k = 0; k < size; ++k) {
    const auto [s, h] = home(result, k);
    reach.may_read[k] = h == group && (s < 0 || sample < 0 || s == sample);
  }
  for_each_term(p, [&](int64_t X, int64_t W, int64_t Y, int64_t) {
    if ((place == Place::x ? X : place == Place::w ? W : Y) != index) return;
    reach.reads[result == Place::x ? X : result == Place::w ? W : Y] = true;
  });
  return reach;
}

// Winograd mixes the inputs of a tile; every other kernel keeps to the formula.
bool mixes_a_tile(const Plan& plan) { return std::strstr(plan.kernel, "winograd") != nullptr; }

// A NaN or an infinity in one element of one operand: what reads it is not finite, and nothing else.
int compute_not_finite(const MakePlan& make_plan, Operation operation, Place place) {
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < small_cases().size(); ++k) {
    const Case& c = small_cases()[k];
    if (count_terms(c.geometry) == 0 || count_terms(c.geometry) > 40'000) continue;
    const Type type = kTypes[k % std::size(kTypes)];
    const Problem p = make_problem(c, operation, type, rotating(k / 4, type), k % 2);
    const auto plan = make_plan(p, kThreads);
    if (!plan) continue;
    ++computed;
    Data data = reals(c.geometry, type, 1);
    std::vector<double>& values = place == Place::x ? data.x : place == Place::w ? data.w : data.y;
    const int64_t index = int64_t(k * 7919 % values.size());
    values[index] = k % 3 ? std::nan("") : INFINITY;
    const Reach reach = reach_of(c, operation, place, index);
    const auto bits = harness.run(*plan, p, data, shuffled(kThreads));
    expect_all(
        {*plan, p, c.line}, int64_t(bits.size()),
        [&](int64_t e) {
          const bool finite = std::isfinite(value_of(bits[e], type));
          return reach.reads[e] ? finite : !finite && !(mixes_a_tile(*plan) && reach.may_read[e]);
        },
        [&](int64_t e) {
          const std::string value = std::to_string(values[index]);
          return reach.reads[e] ? "finite, though it reads the " + value : "not finite, though it does not read the " + value;
        });
    if (enough_failures()) break;
  }
  return computed;
}

TEST_P(EveryKernel, KeepsNaNOfItsFirstOperandWhereItIsRead) {
  const Place first = operation() == Operation::backward_data ? Place::y : Place::x;
  expect_computed(compute_not_finite(make_plan(), operation(), first));
}

TEST_P(EveryKernel, KeepsNaNOfItsSecondOperandWhereItIsRead) {
  const Place second = operation() == Operation::backward_weights ? Place::y : Place::w;
  expect_computed(compute_not_finite(make_plan(), operation(), second));
}

// Asked for each kernel by each process, of which each test is one: with two types and one layout alone.
bool accepts_some(int kernel, Operation operation) {
  static const std::vector<Problem> problems = [] {
    std::vector<Problem> all;
    for (const Case& c : small_cases())
      for (Type type : {Type::f32, Type::bf16}) all.push_back(make_problem(c, Operation::conv_transpose, type, kLayouts[0]));
    return all;
  }();
  return std::any_of(problems.begin(), problems.end(), [&](Problem p) {
    p.operation = operation;
    return cpu::make_plan(p, cpu::detected_isa(), 1, cpu::kernel_name(kernel)) != nullptr;
  });
}

// A kernel is for some of the operations; that it is for none fails KernelList.EveryKernelAcceptsSomeCase.
std::vector<Subjects> every_kernel_and_operation() {
  std::vector<Subjects> all;
  for (int kernel = 0; kernel < cpu::kernel_count(); ++kernel)
    for (Operation operation : kOperations)
      if (!cpu::kernel_supported(kernel, cpu::detected_isa()) || accepts_some(kernel, operation))
        all.push_back({kernel, operation});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, EveryKernel, testing::ValuesIn(every_kernel_and_operation()), [](const auto& info) {
  return std::string(cpu::kernel_name(info.param.kernel)) + "_" + name_of(info.param.operation);
});

// ---- The list as a whole -------------------------------------------------------------------------------------------------

// Where the sums of all weights take more than 3 MB, `outer` keeps those of some rows alone.
TEST(KernelList, OuterIsExactBeyondTheCache) {
  const Case large = parse_case("large_weights n1 g2 c186:350 i1x2 k5x5 s2x2 d1x1 pb1x1 pe1x1 op0x0");
  for (int kernel = 0; kernel < cpu::kernel_count(); ++kernel) {
    const char* name = cpu::kernel_name(kernel);
    if (std::strncmp(name, "outer", 5) != 0) continue;
    if (!cpu::kernel_supported(kernel, cpu::detected_isa())) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    const MakePlan make_plan = [name](const Problem& p, int threads) {
      return cpu::make_plan(p, cpu::detected_isa(), threads, name);
    };
    EXPECT_GT(compute_integers(make_plan, Operation::backward_weights, {large}, true), 0) << name;
  }
}

// Winograd's results are sums of more products than the formula's, and yet err no more than those of multiply-adds; along three
// axes, whose transforms add up most, a quarter more. (Direct kernels err less where most of a volume is near its borders, and
// they sum each tap by itself: small volumes are left to them.)
TEST(KernelList, WinogradIsAsAccurateAsMultiplyAdds) {
  int computed = 0;
  Harness harness;
  for (const char* line :
       {"k4_s2 n1 g1 c128:64 i8x8 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0",
        "k3_s2 n1 g1 c128:64 i10x10 k3x3 s2x2 d1x1 pb1x1 pe1x1 op1x1", "k4_s2_line n1 g1 c128:64 i250 k4 s2 d1 pb1 pe1 op0",
        "k8_s4_line n2 g1 c96:160 i32 k8 s4 d1 pb2 pe2 op0", "k3_s1 n1 g1 c128:64 i14x14 k3x3 s1x1 d1x1 pb1x1 pe1x1 op0x0",
        "k3_s2_d2 n1 g1 c64:64 i20x20 k3x3 s2x2 d2x2 pb2x2 pe2x2 op1x1", "k3_s1_line n1 g1 c128:64 i250 k3 s1 d1 pb1 pe1 op0",
        "k3_s1_volume n1 g1 c32:32 i16x16x16 k3x3x3 s1x1x1 d1x1x1 pb1x1x1 pe1x1x1 op0x0x0",
        "k3_s1_small_volume n1 g1 c32:32 i8x8x8 k3x3x3 s1x1x1 d1x1x1 pb1x1x1 pe1x1x1 op0x0x0",
        "k4_s2_volume n1 g1 c32:32 i14x14x14 k4x4x4 s2x2x2 d1x1x1 pb1x1x1 pe1x1x1 op0x0x0",
        "k3_s2_volume n1 g1 c64:64 i14x14x14 k3x3x3 s2x2x2 d1x1x1 pb1x1x1 pe1x1x1 op1x1x1",
        "k6_s2 n1 g1 c64:64 i12x12 k6x6 s2x2 d1x1 pb2x2 pe2x2 op0x0"})
    for (const Operation operation : kOperations) {
      const Case c = parse_case(line);
      const Problem p = make_problem(c, operation, Type::f32, kLayouts[0], false);
      const bool sums = operation == Operation::backward_weights;
      const Data data = reals(c.geometry, Type::f32, 1);
      const std::vector<double> exact = formula<double>(c.geometry, operation, data, false);
      for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        const std::string suffix = std::string("__") + name_of(isa);
        if (c.name == "k3_s1_small_volume" && !sums) {
          EXPECT_EQ(std::string(cpu::make_plan(p, isa, 1)->kernel).find("winograd"), std::string::npos) << line;
          continue;
        }
        const auto plan = cpu::make_plan(p, isa, 1, ((sums ? "winograd_sums" : "winograd") + suffix).c_str());
        const auto direct = cpu::make_plan(p, isa, 1, ((sums ? "outer" : "gather") + suffix).c_str());
        if (isa > cpu::detected_isa() || !plan || !direct) {
          std::printf("%s: not on this machine\n", suffix.c_str());
          continue;
        }
        ++computed;
        const double error = rms(harness.run(*plan, p, data, shuffled(1)), exact, Type::f32);
        const double of_direct = rms(harness.run(*direct, p, data, shuffled(1)), exact, Type::f32);
        EXPECT_LE(error, (c.geometry.axis[0].w > 1 ? 1.25 : 1.1) * of_direct) << plan->kernel << ' ' << line;
      }
    }
  EXPECT_EQ(computed > 0, cpu::detected_isa() >= Isa::avx2);
}

TEST(KernelList, EveryKernelAcceptsSomeCase) {
  for (int kernel = 0; kernel < cpu::kernel_count(); ++kernel) {
    const char* name = cpu::kernel_name(kernel);
    if (!cpu::kernel_supported(kernel, cpu::detected_isa())) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    const auto accepts = [&](Operation operation) { return accepts_some(kernel, operation); };
    EXPECT_TRUE(std::any_of(std::begin(kOperations), std::end(kOperations), accepts)) << name;
  }
}

TEST(KernelList, HasDistinctNames) {
  for (int a = 0; a < cpu::kernel_count(); ++a)
    for (int b = 0; b < a; ++b) EXPECT_STRNE(cpu::kernel_name(a), cpu::kernel_name(b));
}

TEST(KernelList, ForcesOneKernelOrNone) {
  const Problem p = make_problem(small_cases()[0], Operation::conv_transpose, Type::f32, kLayouts[0]);
  EXPECT_EQ(cpu::make_plan(p, cpu::detected_isa(), 1, "no such kernel"), nullptr);
  for (int kernel = 0; kernel < cpu::kernel_count(); ++kernel) {
    const auto plan = cpu::make_plan(p, cpu::detected_isa(), 1, cpu::kernel_name(kernel));
    EXPECT_STREQ(plan ? plan->kernel : cpu::kernel_name(kernel), cpu::kernel_name(kernel));
    EXPECT_TRUE(!plan || cpu::kernel_supported(kernel, cpu::detected_isa())) << cpu::kernel_name(kernel);
  }
}

// Each instruction set that the machine has, as TORCH_EXT_ISA would choose it.
struct Capped {
  Isa isa;
  Operation operation;
};
void PrintTo(const Capped& s, std::ostream* os) { *os << cpu::name_of(s.isa) << " " << name_of(s.operation); }

class EveryIsa : public testing::TestWithParam<Capped> {};

TEST_P(EveryIsa, ComputesEveryCase) {
  const Isa isa = GetParam().isa;
  const MakePlan make_plan = [isa](const Problem& problem, int threads) {
    auto plan = cpu::make_plan(problem, isa, threads);
    EXPECT_TRUE(plan) << "no kernel for " << cpu::describe(problem);
    for (int kernel = 0; plan && kernel < cpu::kernel_count(); ++kernel)
      if (!std::strcmp(plan->kernel, cpu::kernel_name(kernel)) && !cpu::kernel_supported(kernel, isa))
        ADD_FAILURE() << plan->kernel << " chosen for " << cpu::name_of(isa);
    return plan;
  };
  EXPECT_GE(compute_integers(make_plan, GetParam().operation, small_cases(), false),
            int(small_cases().size() * std::size(kTypes)));
}

std::vector<Capped> every_isa_and_operation() {
  std::vector<Capped> all;
  for (int isa = 0; isa <= int(cpu::detected_isa()); ++isa)
    for (Operation operation : kOperations) all.push_back({Isa(isa), operation});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, EveryIsa, testing::ValuesIn(every_isa_and_operation()), [](const auto& info) {
  return std::string(cpu::name_of(info.param.isa)) + "_" + name_of(info.param.operation);
});

// ---- Plans ---------------------------------------------------------------------------------------------------------------

TEST(CachedPlan, IsMadeOnceForAProblemAndANumberOfThreads) {
  const Problem p = make_problem(small_cases()[3], Operation::conv_transpose, Type::f32, kLayouts[0]);
  Problem other = p;
  other.geometry.batch += 1;
  const auto plan = cpu::cached_plan(p, 2);
  ASSERT_TRUE(plan);
  EXPECT_EQ(cpu::cached_plan(p, 2), plan);
  EXPECT_NE(cpu::cached_plan(p, 3), plan);
  EXPECT_NE(cpu::cached_plan(other, 2), plan);
}

TEST(CachedPlan, DistinguishesEveryFieldOfAProblem) {
  const Problem p = make_problem(parse_case("p n2 g2 c4:6 i4x5x6 k2x3x4 s2x3x4 d1x2x3 pb1x1x1 pe0x0x0 op0x0x0"),
                                 Operation::conv_transpose, Type::f32, kLayouts[0]);
  const auto plan = cpu::cached_plan(p, 1);
  const std::function<void(Problem&)> changes[] = {[](Problem& q) { q.operation = Operation::backward_data; },
                                                   [](Problem& q) { q.type = Type::bf16; },
                                                   [](Problem& q) { q.bias = true; },
                                                   [](Problem& q) { q.geometry.groups = 1; },
                                                   [](Problem& q) { q.geometry.x_channels += 1; },
                                                   [](Problem& q) { q.geometry.y_channels += 1; },
                                                   [](Problem& q) { q.geometry.axis[0].x += 1; },
                                                   [](Problem& q) { q.geometry.axis[1].w += 1; },
                                                   [](Problem& q) { q.geometry.axis[2].y += 1; },
                                                   [](Problem& q) { q.geometry.axis[0].stride += 1; },
                                                   [](Problem& q) { q.geometry.axis[1].dilation += 1; },
                                                   [](Problem& q) { q.geometry.axis[2].offset += 1; },
                                                   [](Problem& q) { q.x.outer += 1; },
                                                   [](Problem& q) { q.w.channel += 1; },
                                                   [](Problem& q) { q.y.axis[0] += 1; }};
  for (size_t k = 0; k < std::size(changes); ++k) {
    Problem q = p;
    changes[k](q);
    EXPECT_NE(cpu::cached_plan(q, 1), plan) << "change " << k;
  }
  EXPECT_EQ(cpu::cached_plan(p, 1), plan);
}

TEST(CachedPlan, IsSharedByThreadsAndDoesNotGrowWithoutBound) {
  Problem base = make_problem(small_cases()[3], Operation::backward_data, Type::f32, kLayouts[1]);
  racing(4).for_each(12'000, [&](int64_t index, int) {
    Problem p = base;
    p.geometry.batch = 1 + index % 6000;
    const auto plan = cpu::cached_plan(p, 1);
    ASSERT_TRUE(plan);
    EXPECT_STRNE(plan->kernel, "");
  });
}

TEST(Describe, NamesTheProblemInTheFormOfTheCases) {
  const Problem p = make_problem(parse_case("p n2 g2 c4:6 i4x5 k2x3 s2x3 d1x2 pb1x1 pe0x0 op0x0"), Operation::conv_transpose,
                                 Type::bf16, kLayouts[0], true);
  EXPECT_EQ(cpu::describe(p), "conv_transpose bf16 n2 g2 c4:6 i1x4x5 k1x2x3 o1x7x16 s1x2x3 d1x1x2 pb0x1x1 +bias");
}

TEST(Describe, IsOneLine) {
  for (const Case& c : small_cases())
    for (Operation operation : kOperations) {
      const auto plan = cpu::make_plan(make_problem(c, operation, Type::f32, kLayouts[0]), cpu::detected_isa(), 2);
      ASSERT_TRUE(plan) << c.line;
      EXPECT_STRNE(plan->describe().c_str(), "") << plan->kernel;
      EXPECT_EQ(plan->describe().find('\n'), std::string::npos) << plan->describe();
      EXPECT_GE(plan->workspace_bytes(), 0);
    }
}

TEST(Isa, IsCappedByNameAndNeverBeyondTheMachine) {
  EXPECT_LE(cpu::active_isa(), cpu::detected_isa());
  for (int isa = 0; isa <= int(cpu::detected_isa()); ++isa) EXPECT_STRNE(cpu::name_of(Isa(isa)), "");
}

// A sample's bits are the same whatever batch it is part of, though that decides on the blocks and on what is left out of them.
TEST(Gather, SumsASampleAlikeInEveryBatch) {
  Harness harness;
  // Enough channels for two taps, and no more, to be summed at a time.
  const Case all = parse_case("all n14 g1 c48:48 i3x4 k4x5 s2x2 d1x1 pb1x2 pe1x1 op0x0");
  const Case one = parse_case("one n1 g1 c48:48 i3x4 k4x5 s2x2 d1x1 pb1x2 pe1x1 op0x0");
  const size_t batch = size_t(all.geometry.batch);
  for (int k = 0; k < cpu::kernel_count(); ++k) {
    const std::string kernel = cpu::kernel_name(k);
    if (kernel.rfind("gather__", 0) || !cpu::kernel_supported(k, cpu::detected_isa())) continue;
    for (Operation operation : {Operation::conv_transpose, Operation::backward_data})
      for (Type type : {Type::f32, Type::f64, Type::bf16}) {
        const Problem of_all = make_problem(all, operation, type, kLayouts[0]),
                      of_one = make_problem(one, operation, type, kLayouts[0]);
        const auto plan = cpu::make_plan(of_all, cpu::detected_isa(), kThreads, kernel.c_str());
        if (!plan) continue;
        Data data = reals(all.geometry, type, 1);
        auto expected = harness.run(*plan, of_all, data, shuffled(kThreads));
        data.x.resize(data.x.size() / batch), data.y.resize(data.y.size() / batch);
        expected.resize(expected.size() / batch);
        const auto alone = cpu::make_plan(of_one, cpu::detected_isa(), kThreads, kernel.c_str());
        EXPECT_EQ(harness.run(*alone, of_one, data, shuffled(kThreads)), expected) << kernel << ": " << cpu::describe(of_one);
      }
  }
}

// Few cells of many weights: these are packed a part at a time, where threads share the panels. No bit depends on it, and a NaN
// among the weights of one part reaches what reads it alone.
void expect_packed_in_turn(const std::string& line) {
  Harness harness;
  const Case c = parse_case(line);
  int in_turn = 0;
  for (int k = 0; k < cpu::kernel_count(); ++k) {
    const std::string kernel = cpu::kernel_name(k);
    if (kernel.rfind("gather__", 0) || !cpu::kernel_supported(k, cpu::detected_isa())) continue;
    for (Operation operation : {Operation::conv_transpose, Operation::backward_data})
      for (Type type : {Type::f32, Type::f64, Type::bf16})
        for (int layout = 0; layout < 3; ++layout) {
          const Problem p = make_problem(c, operation, type, kLayouts[layout], true);
          const MakePlan make_plan = [&](const Problem& problem, int threads) {
            return cpu::make_plan(problem, cpu::detected_isa(), threads, kernel.c_str());
          };
          const auto plan = make_plan(p, 1);
          if (!plan) continue;
          in_turn += plan->describe().find("in turn") != std::string::npos;
          expect_same_bits(harness, make_plan, c, p);
          Data data = reals(c.geometry, type, 1);
          const auto finite = harness.run(*plan, p, data, shuffled(1));
          const auto index = int64_t(data.w.size() / 2);
          data.w[size_t(index)] = std::nan("");
          const auto bits = harness.run(*plan, p, data, shuffled(1));
          const Reach reach = reach_of(c, operation, Place::w, index);
          expect_all(
              {*plan, p, c.line}, int64_t(bits.size()),
              [&](int64_t e) {
                const double value = value_of(bits[e], type), without = value_of(finite[e], type);
                return reach.reads[e] ? !std::isnan(value) : !(std::abs(value - without) <= 0.01 * (1 + std::abs(without)));
              },
              [&](int64_t e) { return reach.reads[e] ? "not the NaN that it reads" : "changed by a NaN that it does not read"; });
        }
  }
  EXPECT_GT(in_turn, 0);
}

TEST(Gather, PacksManyWeightsInTurn) { expect_packed_in_turn("one n1 g1 c530:120 i2x3 k4x3 s2x1 d1x1 pb1x1 pe1x1 op0x0"); }

TEST(Gather, PacksManyWeightsOfGroupsInTurn) {
  expect_packed_in_turn("groups n2 g3 c570:216 i3x2 k3x3 s2x2 d1x1 pb1x1 pe1x1 op1x0");
}

// Sixteen threads share the tiles of this volume evenly only with panels of half the width, which changes no bit.
TEST(Winograd, SharesNarrowPanelsAmongManyThreads) {
  if (cpu::detected_isa() < Isa::avx512) GTEST_SKIP() << "needs avx512";
  Harness harness;
  const Case c = parse_case("volume n1 g1 c64:64 i16x16x16 k3x3x3 s2x2x2 d1x1x1 pb1x1x1 pe1x1x1 op1x1x1");
  const Problem p = make_problem(c, Operation::conv_transpose, Type::f32, kLayouts[0], true);
  const Data data = reals(c.geometry, Type::f32, 1);
  const auto plan_for = [&](int threads) { return cpu::make_plan(p, Isa::avx512, threads, "winograd__avx512"); };
  const auto few = plan_for(1), many = plan_for(16);
  EXPECT_NE(few->packing(), many->packing()) << "both with " << many->packing();
  EXPECT_EQ(harness.run(*few, p, data, shuffled(1)), harness.run(*many, p, data, shuffled(16)));
}

// Many positions are multiplied by the rows of weights some at a time.
TEST(Native, MultipliesManyPositionsInParts) {
  Harness harness;
  const Case c = parse_case("plane n2 g1 c20:3 i11x13 k4x5 s2x3 d1x2 pb1x2 pe1x1 op0x0");
  int computed = 0;
  for (int k = 0; k < cpu::kernel_count(); ++k) {
    const std::string kernel = cpu::kernel_name(k);
    if (kernel.rfind("native__", 0) || !cpu::kernel_supported(k, cpu::detected_isa())) continue;
    const MakePlan make_plan = [&](const Problem& problem, int threads) {
      return cpu::make_plan(problem, cpu::detected_isa(), threads, kernel.c_str());
    };
    computed += compute_integers(make_plan, Operation::conv_transpose, {c}, true);
    for (int layout : {1, 2, 8})  // whose rows of weights are contiguous
      expect_same_bits(harness, make_plan, c, make_problem(c, Operation::conv_transpose, Type::f32, kLayouts[layout], true));
  }
  EXPECT_GT(computed, 0);
}

// ---- What is asked for ahead of time ---------------------------------------------------------------------------------------

// No line twice, none outside, all in so many steps; the last one of a piece may be missing where the piece does not begin a
// line.
TEST(PatchLines, CoverAPatch) {
  const Extents e = {3, 20, 4, 5, 40};
  const cpu::Patch patches[] = {{{0, 3}, {0, 20}, {{0, 4}, {0, 5}, {0, 40}}},
                                {{1, 3}, {4, 9}, {{1, 3}, {2, 5}, {0, 40}}},
                                {{2, 3}, {7, 8}, {{0, 4}, {1, 2}, {3, 31}}},
                                {{0, 1}, {0, 20}, {{0, 4}, {3, 2}, {0, 40}}}};  // empty
  const auto memory = std::make_unique<char[]>(size_t(span(e, dense(e, kNcx)) * 8));
  for (const Order& order : {kNcx, kNxc})
    for (const cpu::Patch& patch : patches)
      for (Type type : {Type::f64, Type::bf16})
        for (int64_t steps : {1, 7, 100000}) {
          const Strides strides = dense(e, order);
          std::set<const char*> asked;
          int64_t asks = 0;
          cpu::PatchLines lines(type, memory.get(), strides, patch, steps);
          for (int64_t i = 0; i < steps; ++i) lines.step([&](const char* line) { asked.insert(line), ++asks; });
          EXPECT_EQ(asks, int64_t(asked.size()));
          lines.step([](const char*) { ADD_FAILURE() << "more than so many steps"; });
          std::set<const char*> elements;
          for (int64_t n = patch.sample.begin; n < patch.sample.end; ++n)
            for (int64_t c = patch.channel.begin; c < patch.channel.end; ++c)
              for (int64_t p0 = patch.axis[0].begin; p0 < patch.axis[0].end; ++p0)
                for (int64_t p1 = patch.axis[1].begin; p1 < patch.axis[1].end; ++p1)
                  for (int64_t p2 = patch.axis[2].begin; p2 < patch.axis[2].end; ++p2)
                    elements.insert(memory.get() +
                                    bytes_of(type) * (n * strides.outer + c * strides.channel + p0 * strides.axis[0] +
                                                      p1 * strides.axis[1] + p2 * strides.axis[2]));
          for (const char* line : asked) EXPECT_TRUE(elements.count(line)) << "a line begins outside of the patch";
          for (const char* element : elements) {
            const auto next = asked.upper_bound(element);
            EXPECT_TRUE(next != asked.begin() && element - *std::prev(next) < 64) << "no line for an element";
          }
        }
}

}  // namespace
}  // namespace torch_ext::test
