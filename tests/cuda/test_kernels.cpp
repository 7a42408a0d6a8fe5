// SPDX-License-Identifier: Apache-2.0
// Every kernel of csrc/cuda/kernels.inc, executed by the emulator, against the formula. A kernel that joins the list is tested by
// that alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "csrc/cuda/cuda.h"
#include "cuda_emulator.h"
#include "tests/cpp/harness.h"

namespace torch_ext::test {
namespace {

// A plan of the GPU in the clothes of one of the CPU, so that the same harness watches its memory.
class Emulated final : public cpu::Plan {
 public:
  // Errors are failures of the test, unless there is `errors` to count them.
  explicit Emulated(std::shared_ptr<const cuda::Plan> plan, int* errors = nullptr) : plan_(std::move(plan)), errors_(errors) {
    kernel = plan_->kernel;
  }
  std::string describe() const override { return std::string(plan_->kernel) + ": " + plan_->description; }
  int64_t workspace_bytes() const override { return plan_->workspace_bytes; }
  void run(const cpu::Buffers& b, const cpu::Parallel&) const override {
    const char* error = plan_->run({b.x, b.w, b.y, b.bias, b.workspace}, nullptr);
    if (errors_) {
      *errors_ += error != nullptr;
    } else {
      EXPECT_EQ(error, nullptr) << error << ", " << describe();
    }
  }

 private:
  std::shared_ptr<const cuda::Plan> plan_;
  int* errors_;
};

struct Subject {
  int kernel;
  Operation operation;
};
void PrintTo(const Subject& s, std::ostream* os) { *os << cuda::kernel_name(s.kernel) << " " << name_of(s.operation); }

class EveryKernel : public testing::TestWithParam<Subject> {
 protected:
  std::shared_ptr<const cpu::Plan> plan(const Problem& problem) const {
    auto made = cuda::make_plan(problem, {}, cuda::kernel_name(GetParam().kernel));
    return made ? std::make_shared<Emulated>(std::move(made)) : nullptr;
  }
  // f(case, problem, plan) for every small case in every type, or in one of them, each in one of the layouts, until too much has
  // failed.
  template <class F>
  void for_each_problem(bool every_type, F f) const {
    int computed = 0;
    for (size_t k = 0; k < small_cases().size() && !HasFailure(); ++k)
      for (Type type : kTypes) {
        if (!every_type && type != kTypes[k % std::size(kTypes)]) continue;
        const Case& c = small_cases()[k];
        const bool bias = k % 2 && GetParam().operation == Operation::conv_transpose;
        const Problem p =
            make_problem(c, GetParam().operation, type, kLayouts[(k + 3 * size_t(type)) % std::size(kLayouts)], bias);
        const auto made = plan(p);
        if (!made) continue;
        ++computed;
        SCOPED_TRACE(c.line + "\n  " + cpu::describe(p) + "\n  " + made->describe());
        f(c, p, *made);
      }
    EXPECT_GT(computed, 0) << "no case is accepted";
  }
  Harness harness_;
};

TEST_P(EveryKernel, ComputesIntegersExactly) {
  for_each_problem(true, [&](const Case& c, const Problem& p, const cpu::Plan& made) {
    const Data data = integers(c.geometry);
    const std::vector<double> exact = formula<double>(c.geometry, p.operation, data, p.bias);
    const std::vector<uint64_t> got = harness_.run(made, p, data, shuffled(1));
    ASSERT_EQ(got.size(), exact.size());
    for (size_t k = 0; k < got.size(); ++k) ASSERT_EQ(value_of(got[k], p.type), value_of(bits_of(exact[k], p.type), p.type)) << k;
  });
}

// And what no barrier orders may come in any order.
TEST_P(EveryKernel, KeepsTheErrorBoundWithTheSameBitsInAnotherOrderOfThreads) {
  for_each_problem(false, [&](const Case& c, const Problem& p, const cpu::Plan& made) {
    const Data data = reals(c.geometry, p.type, 1);
    const std::vector<double> exact = formula<double>(c.geometry, p.operation, data, p.bias);
    const std::vector<uint64_t> got = harness_.run(made, p, data, shuffled(1));
    ASSERT_EQ(got.size(), exact.size());
    const double sums = (terms_of_one_result(c.geometry, p.operation) + 1) * (p.type == Type::f64 ? 0x1p-50 : 0x1p-23);
    const double rounding = p.type == Type::bf16 ? 0x1p-8 : p.type == Type::f16 ? 0x1p-11 : 0;
    for (size_t k = 0; k < got.size(); ++k)
      ASSERT_NEAR(value_of(got[k], p.type), exact[k], sums + rounding * std::abs(exact[k]) + 0x1p-24) << k;
    cuda::emulator::options() = {.descending = true, .eager_copies = true, .poison = 0x4b};
    const std::vector<uint64_t> other = harness_.run(made, p, data, shuffled(1), Against::begin);
    cuda::emulator::options() = {};
    ASSERT_EQ(got, other);
  });
}

// ---- Products --------------------------------------------------------------------------------------------------------------

// The kernels that compute with an operation where everything begins at a multiple of 16 bytes.
constexpr const char* kProducts[] = {"gemm", "fold", "few", "outer"};

// Of the cases, those that they compute from where the source lies, in vectors, with float32 rounded to tf32 or not. Integers are
// exact in tf32 too.
TEST(Products, ReadAlignedRowsInPlace) {
  Harness harness;
  harness.alignment = 16;
  std::map<std::string, int> computed;
  int in_parts = 0;
  constexpr std::pair<Type, bool> kTypesAndTf32[] = {
      {Type::bf16, false}, {Type::f32, false}, {Type::f16, false}, {Type::f32, true}};
  int turn = 0;
  for (const auto* cases : {&small_cases(), &reduced_cases()})
    for (const Case& c : *cases)
      for (Operation operation : kOperations)
        for (const char* kernel : kProducts)
          for (int t = 0; t < int(std::size(kTypesAndTf32)); ++t) {
            const auto [type, tf32] = kTypesAndTf32[t];
            const Geometry& g = c.geometry;
            const Problem p = make_problem(c, operation, type, kLayouts[0], operation == Operation::conv_transpose);
            cuda::Setting setting;
            setting.tf32 = tf32, setting.aligned = true;
            const auto made = cuda::make_plan(p, setting, kernel);
            if (!made || made->description.find("transposed") != std::string::npos) continue;
            // Of real layers, which take the emulator a second, one in turn.
            if (cases == &reduced_cases() && turn++ % 6) continue;
            ++computed[kernel];
            in_parts += std::string(made->steps.back().name) == "gemm sum";
            SCOPED_TRACE(c.line + "\n  " + cpu::describe(p) + "\n  " + kernel + ", " + made->description);
            const Data data = integers(g);
            const std::vector<double> exact = formula<double>(g, operation, data, p.bias);
            const std::vector<uint64_t> got = harness.run(Emulated(made), p, data, shuffled(1));
            for (size_t k = 0; k < got.size(); ++k)
              ASSERT_EQ(value_of(got[k], type), value_of(bits_of(exact[k], type), type)) << k;
          }
  for (const char* kernel : kProducts) EXPECT_GT(computed[kernel], 20) << kernel;
  EXPECT_GT(in_parts, 1);
}

// The zeros of borders, of channels that fill up a tile and of positions that fill up a step must not meet what is not finite.
TEST(Products, LeaveInfinitiesToTheResultsThatReadThem) {
  Harness harness;
  const auto same = [](double got, double expected) { return std::isfinite(expected) ? got == expected : !std::isfinite(got); };
  std::map<std::string, int> not_finite, finite;
  for (const Case& c : small_cases()) {
    if (c.name != "plain_2d" && c.name != "g4" && c.name != "plain_3d" && c.name != "plane_4x4") continue;
    for (Operation operation : kOperations)
      for (const char* kernel : kProducts)
        for (Type type : {Type::f32, Type::bf16})
          for (int spoiled = 0; spoiled < 3; ++spoiled) {  // x, w or y
            const Problem p = make_problem(c, operation, type, kLayouts[size_t(spoiled)], false);
            const auto made = cuda::make_plan(p, {}, kernel);
            if (!made) continue;
            Data data = integers(c.geometry);
            std::vector<double>& values = spoiled == 0 ? data.x : spoiled == 1 ? data.w : data.y;
            values[values.size() / 2] = INFINITY;
            const std::vector<double> exact = formula<double>(c.geometry, operation, data, false);
            const std::vector<uint64_t> got = harness.run(Emulated(made), p, data, shuffled(1));
            for (size_t k = 0; k < got.size(); ++k) {
              ASSERT_TRUE(same(value_of(got[k], type), value_of(bits_of(exact[k], type), type)))
                  << c.line << " " << kernel << ", " << made->description << ", element " << k << " is " << value_of(got[k], type)
                  << " instead of " << exact[k];
              ++(std::isfinite(exact[k]) ? finite : not_finite)[kernel];
            }
          }
  }
  for (const char* kernel : kProducts) EXPECT_TRUE(finite[kernel] > 1000 && not_finite[kernel] > 50) << kernel;
}

// The pipelines without one of their barriers or waits. What shared memory holds at first is finite here, as a NaN would be
// computed again; but for the first two barriers of gemm, whose rows go nowhere where they are -1.
TEST(Products, PlantedBugsAreNoticed) {
  const Case c = parse_case("planted n1 g1 c130:20 i5x16 k1x1 s1x1 d1x1 pb0x0 pe0x0 op0x0");
  Harness harness;
  for (Type type : {Type::f32, Type::bf16})
    for (const auto& [operation, kernel, barriers] :
         {std::tuple{Operation::conv_transpose, "gemm", 4}, std::tuple{Operation::backward_weights, "outer", 2}}) {
      SCOPED_TRACE(std::string(kernel) + " " + name_of(type));
      const Problem p = make_problem(c, operation, type, kLayouts[0], operation == Operation::conv_transpose);
      const auto made = cuda::make_plan(p, {}, kernel);
      ASSERT_TRUE(made);
      const Data data = integers(c.geometry);
      const std::vector<uint64_t> right = harness.run(Emulated(made), p, data, shuffled(1));
      const auto noticed = [&](cuda::emulator::Options options) {
        bool wrong = false;
        for (bool descending : {false, true}) {
          options.descending = descending;
          cuda::emulator::options() = options;
          int errors = 0;
          wrong = wrong || harness.run(Emulated(made, &errors), p, data, shuffled(1)) != right || errors;
        }
        cuda::emulator::options() = {};
        return wrong;
      };
      EXPECT_FALSE(noticed({.poison = 0x4b}));
      EXPECT_TRUE(noticed({.drop_waits = true, .poison = 0x4b}));
      EXPECT_TRUE(noticed({.wait_extra = 1, .poison = 0x4b}));
      for (int64_t barrier = 0; barrier < barriers; ++barrier)
        EXPECT_TRUE(noticed({.drop_barrier = barrier, .poison = barrier < barriers - 2 ? 0xff : 0x4b})) << barrier;
    }
}

// The operations that a kernel takes of the plainest case.
std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (int kernel = 0; kernel < cuda::kernel_count(); ++kernel)
    for (Operation operation : kOperations) {
      const Problem plainest = make_problem(small_cases()[0], operation, Type::f32, kLayouts[0]);
      if (cuda::make_plan(plainest, {}, cuda::kernel_name(kernel))) all.push_back({kernel, operation});
    }
  return all;
}
INSTANTIATE_TEST_SUITE_P(List, EveryKernel, testing::ValuesIn(subjects()), [](const auto& info) {
  return std::string(cuda::kernel_name(info.param.kernel)) + "_" + name_of(info.param.operation);
});

}  // namespace
}  // namespace torch_ext::test
