// SPDX-License-Identifier: Apache-2.0
// What single kernels, and what they are made of, do that those of test_cpu.cpp do not all have in common.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>

#include "csrc/cpu/channel_sums.h"
#include "csrc/cpu/upcoming.h"
#include "tests/cpp/checks.h"

namespace torch_ext::test {
namespace {

using cpu::Isa;

// Says so where this machine lacks an instruction set.
bool missing(Isa isa) {
  if (isa <= cpu::detected_isa()) return false;
  std::printf("%s: not on this machine\n", cpu::name_of(isa));
  return true;
}

// Of the kernels whose names begin so, in every layout and type that they take.
void expect_exact_integers(const char* kernels, Operation operation, const Case& c) {
  for (int kernel = 0; kernel < cpu::kernel_count(); ++kernel) {
    const char* name = cpu::kernel_name(kernel);
    if (std::strncmp(name, kernels, std::strlen(kernels)) != 0) continue;
    if (!cpu::kernel_supported(kernel, cpu::detected_isa())) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    const MakePlan make_plan = [name](const Problem& p, int threads) {
      return cpu::make_plan(p, cpu::detected_isa(), threads, name);
    };
    EXPECT_GT(compute_integers(make_plan, operation, {c}, true), 0) << name;
  }
}

// Where the sums of all weights take more than 3 MB, `outer` keeps those of some rows alone.
TEST(Outer, IsExactBeyondTheCache) {
  expect_exact_integers("outer", Operation::backward_weights,
                        parse_case("large_weights n1 g2 c186:350 i1x2 k5x5 s2x2 d1x1 pb1x1 pe1x1 op0x0"));
}

// What is written past the caches: many weights from few positions, large planes.
TEST(Streams, AreExact) {
  expect_exact_integers("native", Operation::backward_weights,
                        parse_case("many_weights n2 g2 c520:260 i1x1 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"));
  expect_exact_integers("native", Operation::backward_weights,
                        parse_case("odd_positions n3 g1 c512:260 i1x1 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"));
  expect_exact_integers("patches", Operation::conv_transpose,
                        parse_case("large_planes n1 g5 c5:5 i58x17 k18x18 s17x57 d1x1 pb1x1 pe1x0 op0x0"));
  expect_exact_integers("wide", Operation::conv_transpose,
                        parse_case("long_lines n1 g1 c64:2 i9x2056 k1x2 s64x2 d1x1 pb0x0 pe0x0 op0x0"));
}

// Lines of y so long that they are taken one by one, of which some meet no line of the kernel.
TEST(Patches, LeaveOutLinesThatNothingReads) {
  expect_exact_integers("patches", Operation::backward_data,
                        parse_case("gaps n1 g2 c2:2 i3x120 k2x18 s5x40 d1x1 pb1x1 pe0x0 op0x0"));
}

// Winograd's results are sums of more products than the formula's, and yet err no more than those of multiply-adds; along three
// axes, whose transforms add up most, a quarter more. (Direct kernels err less where most of a volume is near its borders, and
// they sum each tap by itself: small volumes are left to them.)
TEST(Winograd, IsAsAccurateAsMultiplyAdds) {
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
        "k6_s2 n1 g1 c64:64 i12x12 k6x6 s2x2 d1x1 pb2x2 pe2x2 op0x0",
        "k5_s2 n1 g1 c64:64 i12x12 k5x5 s2x2 d1x1 pb2x2 pe2x2 op1x1", "k5_s2_line n1 g1 c128:64 i250 k5 s2 d1 pb2 pe2 op1",
        "k7_s2 n1 g1 c64:64 i15x15 k7x7 s2x2 d1x1 pb3x3 pe3x3 op1x1", "k7_s2_line n1 g1 c128:64 i250 k7 s2 d1 pb3 pe3 op1",
        "k5_s2_volume n1 g1 c32:32 i12x12x12 k5x5x5 s2x2x2 d1x1x1 pb2x2x2 pe2x2x2 op1x1x1"})
    for (const Operation operation : kOperations) {
      const Case c = parse_case(line);
      const Problem p = make_problem(c, operation, Type::f32, kLayouts[0], false);
      const bool sums = operation == Operation::backward_weights;
      const Data data = reals(c.geometry, Type::f32, 1);
      const std::vector<double> exact = formula<double>(c.geometry, operation, data, false);
      for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        const std::string suffix = std::string("__") + name_of(isa);
        if (missing(isa)) continue;
        if (c.name == "k3_s1_small_volume" && !sums) {
          EXPECT_EQ(std::string(cpu::make_plan(p, isa, 1)->kernel).find("winograd"), std::string::npos) << line;
          continue;
        }
        const auto plan = cpu::make_plan(p, isa, 1, ((sums ? "winograd_sums" : "winograd") + suffix).c_str());
        const auto direct = cpu::make_plan(p, isa, 1, ((sums ? "outer" : "gather") + suffix).c_str());
        ASSERT_TRUE(plan && direct) << suffix << ' ' << line;
        ++computed;
        const double error = rms(harness.run(*plan, p, data, shuffled(1)), exact, Type::f32);
        const double of_direct = rms(harness.run(*direct, p, data, shuffled(1)), exact, Type::f32);
        EXPECT_LE(error, (c.geometry.axis[0].w > 1 ? 1.25 : 1.1) * of_direct) << plan->kernel << ' ' << line;
      }
    }
  EXPECT_EQ(computed > 0, cpu::detected_isa() >= Isa::avx2);
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

// Where the workspace ends another tensor may begin: its first row is a row like others.
TEST(Gather, ComputesTheRowBehindItsWorkspace) {
  const Case c = parse_case("behind n2 g1 c13:14 i5x6 k16x16 s8x8 d1x1 pb4x4 pe4x4 op0x0");
  const Problem p = make_problem(c, Operation::backward_data, Type::f32, {kNxc, kIox}, false);
  const Geometry& g = p.geometry;
  std::vector<float> w(size_t(g.w_size())), y(size_t(g.y_size())), elsewhere(size_t(g.x_size()));
  for (size_t i = 0; i < w.size(); ++i) w[i] = float(i % 7) - 3;
  for (size_t i = 0; i < y.size(); ++i) y[i] = float(i % 5) - 2;
  const auto plan = cpu::make_plan(p, cpu::detected_isa(), 1, "gather__portable");
  ASSERT_TRUE(plan);
  constexpr size_t kAlignment = 64;
  ASSERT_EQ(size_t(plan->workspace_bytes()) % kAlignment, 0u);
  std::vector<float> memory(size_t(plan->workspace_bytes()) / sizeof(float) + elsewhere.size() + kAlignment / sizeof(float));
  void* workspace = memory.data();
  size_t space = memory.size() * sizeof(float);
  ASSERT_TRUE(std::align(kAlignment, 1, workspace, space));
  auto* behind = reinterpret_cast<float*>(static_cast<char*>(workspace) + plan->workspace_bytes());
  const cpu::Parallel alone{1, [](int64_t count, const std::function<void(int64_t, int)>& task) {
                              for (int64_t i = 0; i < count; ++i) task(i, 0);
                            }};
  for (float* x : {elsewhere.data(), behind}) plan->run({x, w.data(), y.data(), nullptr, workspace}, alone);
  EXPECT_TRUE(std::equal(elsewhere.begin(), elsewhere.end(), behind));
}

TEST(Gather, PacksManyWeightsInTurn) { expect_packed_in_turn("one n1 g1 c530:120 i2x3 k4x3 s2x1 d1x1 pb1x1 pe1x1 op0x0"); }

TEST(Gather, PacksManyWeightsOfGroupsInTurn) {
  expect_packed_in_turn("groups n2 g3 c570:216 i3x2 k3x3 s2x2 d1x1 pb1x1 pe1x1 op1x0");
}

// Sixteen threads share the tiles of each of these evenly only with panels of half the width, which changes no bit.
TEST(Winograd, SharesNarrowPanelsAmongManyThreads) {
  if (cpu::detected_isa() < Isa::avx2) GTEST_SKIP() << "needs avx2";
  struct Shared {
    Isa isa;
    const char* line;
  };
  const Shared cases[] = {{Isa::avx2, "plane n1 g1 c128:64 i16x16 k4x4 s2x2 d1x1 pb1x1 pe1x1 op0x0"},
                          {Isa::avx512, "volume n1 g1 c64:64 i16x16x16 k3x3x3 s2x2x2 d1x1x1 pb1x1x1 pe1x1x1 op1x1x1"}};
  Harness harness;
  for (const auto& [isa, line] : cases) {
    if (missing(isa)) continue;
    const std::string kernel = std::string("winograd__") + cpu::name_of(isa);
    const Case c = parse_case(line);
    const Problem p = make_problem(c, Operation::conv_transpose, Type::f32, kLayouts[0], true);
    const Data data = reals(c.geometry, Type::f32, 1);
    const auto few = cpu::make_plan(p, isa, 1, kernel.c_str()), many = cpu::make_plan(p, isa, 16, kernel.c_str());
    EXPECT_NE(few->packing(), many->packing()) << kernel << ": both with " << many->packing();
    EXPECT_EQ(harness.run(*few, p, data, shuffled(1)), harness.run(*many, p, data, shuffled(16))) << kernel;
  }
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
    const Type type = kernel == "native__avx512_bf16" ? Type::bf16 : Type::f32;
    for (int layout : {1, 2, 8})  // whose rows of weights are contiguous
      expect_same_bits(harness, make_plan, c, make_problem(c, Operation::conv_transpose, type, kLayouts[layout], true));
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

// The gradient of the bias: integers, whose sums are exact, in every type and order, next to memory that must not be touched.
TEST(ChannelSums, AreExactInEveryOrder) {
  struct Shape {
    int64_t batch, channels, positions, gap;  // elements between one row of channels, or one plane, and the next
  };
  const Shape shapes[] = {{1, 1, 1, 0},   {3, 1, 7, 0},     {2, 3, 5, 0},   {1, 21, 1000, 0}, {2, 16, 64, 0},  {1, 300, 3, 0},
                          {2, 40, 33, 8}, {1, 2, 70000, 0}, {1, 5, 513, 3}, {1, 1, 40000, 0}, {70, 2, 600, 0}, {1, 70000, 2, 0}};
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (missing(isa)) continue;
    for (const Type type : {Type::f32, Type::f64, Type::bf16, Type::f16})
      for (const Shape& s : shapes)
        for (const bool planes : {false, true}) {
          const int64_t rows = planes ? s.channels : s.positions, pitch = (planes ? s.positions : s.channels) + s.gap;
          const cpu::ChannelSums of{type, s.batch, s.channels, s.positions, rows * pitch, planes ? pitch : 1, planes ? 1 : pitch};
          const int64_t size = bytes_of(type), count = s.batch * rows * pitch - s.gap;
          Fence memory, result;
          std::byte* from = memory.place(count * size, size, Against::end);
          std::vector<double> exact(size_t(s.channels), 0);
          uint64_t random = 1;
          for (int64_t n = 0; n < s.batch; ++n)
            for (int64_t c = 0; c < s.channels; ++c)
              for (int64_t p = 0; p < s.positions; ++p) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                const double value = double(random >> 60) - 7;
                const uint64_t bits = bits_of(value, type);
                std::memcpy(from + (n * of.outer + c * of.channel + p * of.position) * size, &bits, size_t(size));
                exact[size_t(c)] += value;
              }
          std::byte* sums = result.place(s.channels * size, size, Against::end);
          for (const cpu::Parallel& parallel : {shuffled(1), racing(3)}) {
            std::memset(sums, 0xff, size_t(s.channels * size));
            cpu::sum_channels(of, from, sums, isa, parallel);
            EXPECT_TRUE(result.intact());
            for (int64_t c = 0; c < s.channels; ++c) {
              uint64_t bits = 0;
              std::memcpy(&bits, sums + c * size, size_t(size));
              ASSERT_EQ(bits, bits_of(exact[size_t(c)], type))
                  << "channel " << c << " of " << s.batch << "x" << s.channels << "x" << s.positions << " planes " << planes;
            }
          }
        }
  }
}

// Many terms of one sign: errors add up where sums are long.
TEST(ChannelSums, KeepTheirPrecision) {
  for (const bool planes : {false, true}) {
    const cpu::ChannelSums of{Type::f32, 1, 3, 1 << 20, 3 << 20, planes ? 1 << 20 : 1, planes ? 1 : 3};
    std::vector<float> values(size_t(3 << 20), 0.1f);
    float sums[3];
    cpu::sum_channels(of, values.data(), sums, cpu::detected_isa(), shuffled(1));
    for (const float sum : sums) EXPECT_NEAR(sum, double(0.1f) * (1 << 20), 0.1);
  }
}

}  // namespace
}  // namespace torch_ext::test
