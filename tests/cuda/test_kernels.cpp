// SPDX-License-Identifier: Apache-2.0
// Every kernel of csrc/cuda/kernels.inc, executed by the emulator, against the formula. A kernel that joins the list is tested by
// that alone.
#include <gtest/gtest.h>

#include <cmath>

#include "csrc/cuda/cuda.h"
#include "cuda_emulator.h"
#include "tests/cpp/harness.h"

namespace torch_ext::test {
namespace {

// A plan of the GPU in the clothes of one of the CPU, so that the same harness watches its memory.
class Emulated final : public cpu::Plan {
 public:
  explicit Emulated(std::shared_ptr<const cuda::Plan> plan) : plan_(std::move(plan)) { kernel = plan_->kernel; }
  std::string describe() const override { return std::string(plan_->kernel) + ": " + plan_->description; }
  int64_t workspace_bytes() const override { return plan_->workspace_bytes; }
  void run(const cpu::Buffers& b, const cpu::Parallel&) const override {
    const char* error = plan_->run({b.x, b.w, b.y, b.bias, b.workspace}, nullptr);
    EXPECT_EQ(error, nullptr) << error << ", " << describe();
  }

 private:
  std::shared_ptr<const cuda::Plan> plan_;
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
  // f(case, problem, plan) for every small case in every type, each in one of the layouts, until too much has failed.
  template <class F>
  void for_each_problem(F f) const {
    int computed = 0;
    for (size_t k = 0; k < small_cases().size() && !HasFailure(); ++k)
      for (Type type : kTypes) {
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
  for_each_problem([&](const Case& c, const Problem& p, const cpu::Plan& made) {
    const Data data = integers(c.geometry);
    const std::vector<double> exact = formula<double>(c.geometry, p.operation, data, p.bias);
    const std::vector<uint64_t> got = harness_.run(made, p, data, shuffled(1));
    ASSERT_EQ(got.size(), exact.size());
    for (size_t k = 0; k < got.size(); ++k) ASSERT_EQ(value_of(got[k], p.type), value_of(bits_of(exact[k], p.type), p.type)) << k;
  });
}

TEST_P(EveryKernel, KeepsTheErrorBound) {
  for_each_problem([&](const Case& c, const Problem& p, const cpu::Plan& made) {
    const Data data = reals(c.geometry, p.type, 1);
    const std::vector<double> exact = formula<double>(c.geometry, p.operation, data, p.bias);
    const std::vector<uint64_t> got = harness_.run(made, p, data, shuffled(1));
    ASSERT_EQ(got.size(), exact.size());
    const double sums = (terms_of_one_result(c.geometry, p.operation) + 1) * (p.type == Type::f64 ? 0x1p-50 : 0x1p-23);
    const double rounding = p.type == Type::bf16 ? 0x1p-8 : p.type == Type::f16 ? 0x1p-11 : 0;
    for (size_t k = 0; k < got.size(); ++k)
      ASSERT_NEAR(value_of(got[k], p.type), exact[k], sums + rounding * std::abs(exact[k]) + 0x1p-24) << k;
  });
}

// What no barrier orders may come in any order.
TEST_P(EveryKernel, GivesTheSameBitsInAnotherOrderOfThreads) {
  for_each_problem([&](const Case& c, const Problem& p, const cpu::Plan& made) {
    const Data data = reals(c.geometry, p.type, 1);
    const std::vector<uint64_t> first = harness_.run(made, p, data, shuffled(1));
    cuda::emulator::options() = {.descending = true, .eager_copies = true};
    const std::vector<uint64_t> second = harness_.run(made, p, data, shuffled(1), Against::begin);
    cuda::emulator::options() = {};
    ASSERT_EQ(first, second);
  });
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (int kernel = 0; kernel < cuda::kernel_count(); ++kernel)
    for (Operation operation : kOperations) all.push_back({kernel, operation});
  return all;
}
INSTANTIATE_TEST_SUITE_P(List, EveryKernel, testing::ValuesIn(subjects()), [](const auto& info) {
  return std::string(cuda::kernel_name(info.param.kernel)) + "_" + name_of(info.param.operation);
});

}  // namespace
}  // namespace torch_ext::test
