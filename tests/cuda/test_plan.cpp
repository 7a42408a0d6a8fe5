// SPDX-License-Identifier: Apache-2.0
// Plans for GPUs that no machine here needs to have, and the arithmetic that plans and kernels share.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "csrc/cuda/cuda.h"
#include "csrc/cuda/divide.h"
#include "csrc/cuda/gather.h"
#include "tests/cpp/cases.h"

namespace torch_ext::test {
namespace {

// Compute capability and multiprocessors: A100, A10, L4, H100, B200, RTX 5090.
const cuda::Device kDevices[] = {{80, 108}, {86, 72}, {89, 58}, {90, 132}, {100, 148}, {120, 170}};

constexpr Type kOfThree[] = {Type::f32, Type::bf16, Type::f16};

cuda::Setting setting_of(const cuda::Device& device, bool tf32, bool aligned) {
  cuda::Setting setting{device};
  setting.tf32 = tf32, setting.aligned = aligned;
  return setting;
}

Problem problem_of(const std::string& line, Operation operation, Type type, size_t layout = 0) {
  return make_problem(parse_case(line), operation, type, kLayouts[layout]);
}

// The kernel for the whole problem on an H100.
std::string kernel_of(const Problem& p, bool tf32 = false) {
  return cuda::make_plan(p, setting_of(kDevices[3], tf32, true))->kernel;
}

// ---- Plans -------------------------------------------------------------------------------------------------------------------

TEST(Plan, FitsEveryDevice) {
  for (const cuda::Device& device : kDevices)
    for (const auto* cases : {&small_cases(), &large_cases()})
      for (const Case& c : *cases)
        for (Operation operation : kOperations)
          for (Type type : kTypes)
            for (size_t layout = 0; layout < 2; ++layout)
              for (bool tf32_and_aligned : {false, true}) {
                const Problem p = make_problem(c, operation, type, kLayouts[layout]);
                const auto plan = cuda::make_plan(p, setting_of(device, tf32_and_aligned, tf32_and_aligned));
                ASSERT_TRUE(plan) << c.line;
                ASSERT_FALSE(plan->steps.empty()) << c.line;
                EXPECT_GE(plan->workspace_bytes, 0);
                for (const cuda::Step& step : plan->steps) {
                  EXPECT_TRUE(step.launch.blocks >= 1 && step.launch.blocks < int64_t(1) << 31) << step.name << " " << c.line;
                  EXPECT_TRUE(step.launch.threads >= 1 && step.launch.threads <= 1024) << step.name << " " << c.line;
                  EXPECT_LE(step.launch.shared_bytes, cuda::kMaxSharedBytes) << step.name << " " << c.line;
                }
              }
}

// The direct kernel is for what the others cannot compute: no real layer is left to it.
TEST(Plan, LeavesNoRealLayerToTheDirectKernel) {
  for (const Case& c : large_cases())
    for (Operation operation : kOperations)
      for (Type type : kOfThree)
        for (size_t layout = 0; layout < 2; ++layout) {
          const Problem p = make_problem(c, operation, type, kLayouts[layout]);
          EXPECT_NE(kernel_of(p), "direct") << name_of(operation) << " " << name_of(type) << " " << c.line;
        }
}

TEST(Plan, TakesTheKernelOfTheKindOfLayer) {
  const std::string dense = "dense n4 g1 c256:128 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0";
  const std::string long_stride = "long_stride n2 g1 c512:256 i100 k20 s10 d1 pb5 pe5 op0";
  const std::string depthwise = "depthwise n4 g256 c256:256 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0";
  const std::string image = "image n4 g1 c64:3 i64x64 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0";
  for (Type type : kOfThree) {
    for (const std::string& line : {dense, long_stride}) {
      EXPECT_EQ(kernel_of(problem_of(line, Operation::conv_transpose, type)), "gemm");
      EXPECT_EQ(kernel_of(problem_of(line, Operation::backward_data, type)), "gemm");
      EXPECT_EQ(kernel_of(problem_of(line, Operation::backward_weights, type)), "outer");
    }
    for (Operation operation : kOperations)
      for (size_t layout : {0, 1}) EXPECT_EQ(kernel_of(problem_of(depthwise, operation, type, layout)), "few");
    EXPECT_EQ(kernel_of(problem_of(image, Operation::conv_transpose, type)), "fold");
    EXPECT_EQ(kernel_of(problem_of(image, Operation::backward_data, type)), "few");
    EXPECT_EQ(kernel_of(problem_of(image, Operation::backward_weights, type)), "outer");
  }
  for (Operation operation : kOperations) EXPECT_EQ(kernel_of(problem_of(dense, operation, Type::f64)), "direct");
}

TEST(Plan, RoundsFloat32OnlyWhereThatIsAllowed) {
  const std::string line = "dense n4 g1 c256:128 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0";
  for (Operation operation : kOperations) {
    const Problem p = problem_of(line, operation, Type::f32);
    const auto description = [&](bool tf32) { return cuda::make_plan(p, setting_of(kDevices[0], tf32, true))->description; };
    EXPECT_EQ(description(false).find("multiply-adds"), 0u);
    EXPECT_EQ(description(true).find("matrix instructions"), 0u);
  }
}

TEST(Plan, CutsTheDepthOfSmallPlanesIntoParts) {
  const auto parts = [](const std::string& line) {
    return cuda::make_plan(problem_of(line, Operation::conv_transpose, Type::bf16), setting_of(kDevices[3], false, true), "gemm")
               ->steps.back()
               .name == std::string("gemm sum");
  };
  EXPECT_TRUE(parts("small n1 g1 c1024:512 i4x4 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"));
  EXPECT_FALSE(parts("large n8 g1 c1024:512 i64x64 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"));
}

TEST(Plan, TransposesWhatDoesNotLieInVectors) {
  const std::string line = "dense n4 g1 c256:128 i32x32 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0";
  const auto transposed = [&](size_t layout, bool aligned) {
    const Problem p = problem_of(line, Operation::conv_transpose, Type::bf16, layout);
    return cuda::make_plan(p, setting_of(kDevices[0], false, aligned), "gemm")->description.find("transposed") !=
           std::string::npos;
  };
  EXPECT_FALSE(transposed(0, true));
  EXPECT_TRUE(transposed(0, false));
  EXPECT_TRUE(transposed(1, true));
}

TEST(Plan, DeclinesWhatAKernelCannotCompute) {
  const auto declined = [](const char* kernel, const std::string& line, Operation operation, Type type) {
    return !cuda::make_plan(problem_of(line, operation, type), {kDevices[0]}, kernel);
  };
  const std::string plain = "plain n2 g1 c5:7 i9 k4 s2 d1 pb1 pe1 op0";
  for (const char* kernel : {"gemm", "fold", "few"}) {
    EXPECT_TRUE(declined(kernel, plain, Operation::conv_transpose, Type::f64));
    EXPECT_TRUE(
        declined(kernel, "far n1 g1 c5:7 i1 k2 s1 d1000000000 pb0 pe1000000000 op0", Operation::conv_transpose, Type::f32));
    EXPECT_FALSE(declined(kernel, plain, Operation::conv_transpose, Type::f32));
  }
  EXPECT_TRUE(declined("gemm", plain, Operation::backward_weights, Type::f32));
  EXPECT_TRUE(declined("fold", plain, Operation::backward_data, Type::f32));
  EXPECT_TRUE(declined("fold", "wide n2 g1 c5:65 i9 k4 s2 d1 pb1 pe1 op0", Operation::conv_transpose, Type::f32));
  EXPECT_TRUE(declined("few", "deep n2 g1 c20000:7 i9 k4 s2 d1 pb1 pe1 op0", Operation::conv_transpose, Type::f32));
  EXPECT_TRUE(declined("outer", plain, Operation::conv_transpose, Type::f32));
  EXPECT_TRUE(declined("no_such_kernel", plain, Operation::conv_transpose, Type::f32));
}

TEST(Plan, IsMadeOnceForAProblemAndASetting) {
  const Problem p = make_problem(small_cases()[0], Operation::conv_transpose, Type::f32, kLayouts[0]);
  const auto plan = cuda::cached_plan(p, {kDevices[0]});
  EXPECT_EQ(plan, cuda::cached_plan(p, {kDevices[0]}));
  EXPECT_NE(plan, cuda::cached_plan(p, {kDevices[1]}));
  EXPECT_NE(plan, cuda::cached_plan(p, setting_of(kDevices[0], true, false)));
  EXPECT_NE(plan, cuda::cached_plan(p, setting_of(kDevices[0], false, true)));
}

// ---- Arithmetic --------------------------------------------------------------------------------------------------------------

// Every term of an axis, (result, tap, source), by its phases and by the formula.
TEST(Gather, HasEveryTermOnce) {
  using Term = std::tuple<int64_t, int64_t, int64_t>;
  for (int64_t stride = 1; stride <= 7; ++stride)
    for (int64_t dilation = 1; dilation <= 7; ++dilation)
      for (int64_t w = 1; w <= 4; ++w)
        for (int64_t offset = 0; offset <= 9; offset += 3)
          for (Operation operation : {Operation::conv_transpose, Operation::backward_data}) {
            const Axis axis{4, w, 11, stride, dilation, offset};
            const bool forward = operation == Operation::conv_transpose;
            std::set<Term> expected;
            for (int64_t i = 0; i < axis.x; ++i)
              for (int64_t k = 0; k < axis.w; ++k)
                if (const int64_t o = axis.reach(i, k); o >= 0 && o < axis.y)
                  expected.insert(forward ? Term{o, k, i} : Term{i, k, o});
            std::set<Term> found;
            std::map<int64_t, int> results;
            const cuda::Gather gather(operation, axis);
            for (int64_t phase = 0; phase < gather.phases; ++phase) {
              const cuda::GatherAxis g = gather.phase(phase);
              EXPECT_LE(g.taps, gather.most_taps());
              EXPECT_LE(g.count, gather.phase(0).count);
              for (int64_t j = 0; j < g.count; ++j) {
                ++results[g.to + j * g.to_step];
                for (int64_t q = 0; q < g.taps; ++q) {
                  const int64_t from = g.from + j * g.from_step + q * g.from_tap;
                  if (from < 0 || from >= gather.source_extent()) continue;
                  EXPECT_TRUE(found.insert({g.to + j * g.to_step, g.tap + q * g.tap_step, from}).second);
                }
              }
            }
            EXPECT_EQ(found, expected) << "stride " << stride << " dilation " << dilation << " w " << w << " offset " << offset;
            EXPECT_EQ(int64_t(results.size()), gather.result_extent());
            for (const auto& [position, times] : results) EXPECT_EQ(times, 1) << position;
          }
}

TEST(Gather, KnowsStridesBeyond32Bits) {
  const int64_t stride = (int64_t(1) << 40) + 1, dilation = int64_t(1) << 33;
  const cuda::Gather gather(Operation::conv_transpose, {1, 3, 2 * dilation + 1, stride, dilation, 0});
  for (int64_t tap = 0; tap < 3; ++tap) {
    const cuda::GatherAxis g = gather.phase(tap * dilation);
    EXPECT_EQ(std::tie(g.tap, g.taps, g.from), std::make_tuple(tap, int64_t(1), int64_t(0)));
  }
  EXPECT_EQ(gather.phase(1).taps, 0);
}

TEST(Divider, DividesAllNumbersOf31Bits) {
  constexpr int64_t kLast = (int64_t(1) << 31) - 1;
  for (int64_t by : {1, 2, 3, 5, 7, 8, 10, 127, 128, 129, 641, 65535, 65536, 6700417, 1 << 30, int(kLast)}) {
    const cuda::Divider divider(by);
    for (int64_t n : {int64_t(0), int64_t(1), by - 1, by, by + 1, kLast / by * by - 1, kLast / by * by, kLast - 1, kLast}) {
      if (n < 0 || n > kLast) continue;
      int quotient = int(n);
      EXPECT_EQ(divider.take(quotient), n % by) << n << " by " << by;
      EXPECT_EQ(quotient, n / by) << n << " by " << by;
    }
  }
}

}  // namespace
}  // namespace torch_ext::test
