// SPDX-License-Identifier: Apache-2.0
// Plans for GPUs that no machine here needs to have.
#include <gtest/gtest.h>

#include "csrc/cuda/cuda.h"
#include "tests/cpp/cases.h"

namespace torch_ext::test {
namespace {

// Compute capability, multiprocessors, shared memory that a block may have: A100, A10, L4, H100, B200, RTX 5090.
const cuda::Device kDevices[] = {{80, 108, 163 << 10}, {86, 72, 99 << 10},    {89, 58, 99 << 10},
                                 {90, 132, 227 << 10}, {100, 148, 227 << 10}, {120, 170, 99 << 10}};

TEST(Plan, FitsEveryDevice) {
  for (const cuda::Device& device : kDevices)
    for (const auto* cases : {&small_cases(), &large_cases()})
      for (const Case& c : *cases)
        for (Operation operation : kOperations)
          for (Type type : kTypes)
            for (size_t layout = 0; layout < 2; ++layout) {
              const Problem p = make_problem(c, operation, type, kLayouts[layout]);
              const auto plan = cuda::make_plan(p, {device});
              ASSERT_TRUE(plan) << c.line;
              ASSERT_FALSE(plan->steps.empty()) << c.line;
              EXPECT_GE(plan->workspace_bytes, 0);
              for (const cuda::Step& step : plan->steps) {
                EXPECT_TRUE(step.launch.blocks >= 1 && step.launch.blocks < int64_t(1) << 31) << step.name << " " << c.line;
                EXPECT_TRUE(step.launch.threads >= 1 && step.launch.threads <= 1024) << step.name << " " << c.line;
                EXPECT_LE(step.launch.shared_bytes, device.shared_bytes) << step.name << " " << c.line;
              }
            }
}

TEST(Plan, IsMadeOnceForAProblemAndASetting) {
  const Problem p = make_problem(small_cases()[0], Operation::conv_transpose, Type::f32, kLayouts[0]);
  const auto plan = cuda::cached_plan(p, {kDevices[0]});
  EXPECT_EQ(plan, cuda::cached_plan(p, {kDevices[0]}));
  EXPECT_NE(plan, cuda::cached_plan(p, {kDevices[1]}));
  cuda::Setting tf32{kDevices[0]};
  tf32.tf32 = true;
  EXPECT_NE(plan, cuda::cached_plan(p, tf32));
}

TEST(Plan, OfAKernelThatIsNotThereIsNone) {
  const Problem p = make_problem(small_cases()[0], Operation::conv_transpose, Type::f32, kLayouts[0]);
  EXPECT_FALSE(cuda::make_plan(p, {kDevices[0]}, "no_such_kernel"));
}

}  // namespace
}  // namespace torch_ext::test
