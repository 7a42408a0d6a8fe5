// SPDX-License-Identifier: Apache-2.0
// Every kernel of csrc/cpu/kernels.inc against the formula. A kernel that joins the list is tested by that alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>

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

#if !defined(TORCH_EXT_SANITIZE)  // ComputesIntegersExactly visits the same memory
TEST_P(EveryKernel, KeepsTheErrorBound) { expect_computed(compute_reals(make_plan(), operation(), small_cases())); }
#endif

TEST_P(EveryKernel, KeepsTheErrorBoundOnLayersOfModels) {
  expect_computed(compute_reals(make_plan(), operation(), reduced_cases()));
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

TEST(KernelList, ChoosesAmongAllWhereNothingIsPackedAhead) {
  std::vector<Case> cases = small_cases();
  cases.push_back(parse_case("few n1 g1 c256:8 i2x2 k5x5 s1x1 d1x1 pb1x1 pe1x1 op0x0"));  // the weights as they lie
  int packed = 0, not_packed = 0;
  for (const Case& c : cases)
    for (const Layouts& layouts : kLayouts) {
      Problem p = make_problem(c, Operation::conv_transpose, Type::f32, layouts);
      const auto without = cpu::make_plan(p, cpu::detected_isa(), 1);
      p.prepacked = true;
      const auto plan = cpu::make_plan(p, cpu::detected_isa(), 1);
      const bool packs = plan->fingerprint != 0;
      (packs ? packed : not_packed) += 1;
      EXPECT_TRUE(packs || !std::strcmp(plan->kernel, without->kernel)) << cpu::describe(p);
    }
  EXPECT_GT(packed, 0);
  EXPECT_GT(not_packed, 0);
}

// Each instruction set that the machine has, as TORCH_EXT_ISA would choose it.
struct Capped {
  Isa isa;
  Operation operation;
};
void PrintTo(const Capped& s, std::ostream* os) { *os << cpu::name_of(s.isa) << " " << name_of(s.operation); }

// The plan of the list, of a kernel that the instruction set has.
std::shared_ptr<const cpu::Plan> chosen(const Problem& problem, int threads, Isa isa) {
  auto plan = cpu::make_plan(problem, isa, threads);
  EXPECT_TRUE(plan) << "no kernel for " << cpu::describe(problem);
  for (int kernel = 0; plan && kernel < cpu::kernel_count(); ++kernel)
    if (!std::strcmp(plan->kernel, cpu::kernel_name(kernel)) && !cpu::kernel_supported(kernel, isa))
      ADD_FAILURE() << plan->kernel << " chosen for " << cpu::name_of(isa);
  return plan;
}

class EveryIsa : public testing::TestWithParam<Capped> {};

TEST_P(EveryIsa, ComputesEveryCase) {
  // Strides whose product no integer holds; not in cases.txt, as torch asks for memory by them.
  const std::vector<Case> long_strides = {
      parse_case("long n2 g1 c20:8 i1x1x1 k1x1x1 s4194304x4194304x4194304 d1x1x1 pb0x0x0 pe0x0x0 op0x0x0"),
      parse_case("long n2 g4 c20:8 i1x1x1 k2x3x1 s4194304x4194304x4194304 d1x1x1 pb0x1x0 pe0x0x0 op0x0x0"),
      parse_case("long n1 g6 c6:6 i1x1x1 k2x2x3 s4194304x4194304x4194304 d1x1x1 pb0x0x0 pe0x0x1 op0x0x0")};
  const MakePlan make_plan = [](const Problem& problem, int threads) { return chosen(problem, threads, GetParam().isa); };
  for (const std::vector<Case>& cases : {small_cases(), drawn_cases(), long_strides})
    EXPECT_GE(compute_integers(make_plan, GetParam().operation, cases, false), int(cases.size() * std::size(kTypes)));
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

TEST(PackedAhead, ComputesEveryCase) {
  // Where `native` would take what is packed, and Winograd's transforms in turn what is not.
  const std::vector<Case> in_turn = {parse_case("in_turn n16 g1 c320:12 i20 k9 s3 d1 pb3 pe3 op0")};
  for (int isa = 0; isa <= int(cpu::detected_isa()); ++isa) {
    SCOPED_TRACE(cpu::name_of(Isa(isa)));
    int packed = 0;
    const MakePlan make_plan = [&](Problem problem, int threads) -> std::shared_ptr<const cpu::Plan> {
      problem.prepacked = true;
      auto plan = chosen(problem, threads, Isa(isa));
      if (!plan || !plan->fingerprint) return plan;
      ++packed;
      return std::make_shared<PackedAhead>(plan);
    };
    for (const std::vector<Case>& cases : {small_cases(), drawn_cases()})
      compute_integers(make_plan, Operation::conv_transpose, cases, false);
    compute_integers(make_plan, Operation::conv_transpose, in_turn, true);
    EXPECT_GT(packed, 100);
  }
}

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

}  // namespace
}  // namespace torch_ext::test
