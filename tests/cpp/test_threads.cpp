// SPDX-License-Identifier: Apache-2.0
// How evenly plans share out the real layers to many threads, of which no machine here has enough: by counting the items.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/cpu/cpu.h"
#include "tests/cpp/cases.h"

namespace torch_ext::test {
namespace {

double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

// How much longer a plan takes than where its work is shared evenly: each stage is cut into equal items, of which each is taken
// by the next thread that is free.
struct Imbalance {
  double main_stage, all;
};

// Stages weigh what they take by the processor's clock, the shortest time of some runs, so that what else the machine does has
// little part in it.
Imbalance imbalance(const Problem& problem, cpu::Isa isa, int threads) {
  constexpr int kRuns = 3;
  struct Stage {
    int64_t items;
    double seconds;
  };
  const auto plan = cpu::make_plan(problem, isa, threads);
  std::vector<Stage> stages;
  size_t stage = 0;
  const cpu::Parallel serial{threads, [&](int64_t count, const std::function<void(int64_t, int)>& task) {
                               const double start = processor_seconds();
                               for (int64_t i = 0; i < count; ++i) task(i, 0);
                               const double seconds = processor_seconds() - start;
                               if (stage == stages.size()) stages.push_back({count, seconds});
                               stages[stage].seconds = std::min(stages[stage].seconds, seconds);
                               ++stage;
                             }};
  const Geometry& g = problem.geometry;
  std::vector<float> x(size_t(g.x_size()), 1), w(size_t(g.w_size()), 1), y(size_t(g.y_size()), 1);
  const size_t bytes = size_t(plan->workspace_bytes() + 63) / 64 * 64 + 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, bytes), std::free);
  for (int run = 0; run < kRuns; ++run) {
    stage = 0;
    plan->run({x.data(), w.data(), y.data(), nullptr, workspace.get()}, serial);
  }
  const auto extra = [&](const Stage& s) { return double((s.items + threads - 1) / threads * threads) / double(s.items) - 1; };
  const auto longest =
      std::max_element(stages.begin(), stages.end(), [](const Stage& a, const Stage& b) { return a.seconds < b.seconds; });
  double seconds = 0, lost = 0;
  for (const Stage& s : stages) seconds += s.seconds, lost += s.seconds * extra(s);
  return {extra(*longest), lost / seconds};
}

class Threads : public testing::TestWithParam<std::tuple<int, cpu::Isa>> {};

TEST_P(Threads, ShareRealLayersEvenly) {
  const auto [threads, isa] = GetParam();
  for (const Case& c : large_cases())
    for (Operation operation : kOperations)
      for (int layout = 0; layout < 2; ++layout) {
        const Problem problem = make_problem(c, operation, Type::f32, kLayouts[layout]);
        // Some fifty microseconds a thread, or two hundred.
        if (problem.geometry.flops() < (threads == 64 ? 64e6 : 16e6) * threads) continue;
        const Imbalance lost = imbalance(problem, isa, threads);
        EXPECT_LT(lost.main_stage, 0.15) << threads << " threads: " << cpu::describe(problem) << " " << c.name;
        EXPECT_LT(lost.all, 0.3) << threads << " threads: " << cpu::describe(problem) << " " << c.name;
      }
}

// The best instruction set, and those below it that plan float32 otherwise.
std::vector<cpu::Isa> planned_isas() {
  std::vector<cpu::Isa> isas = {cpu::active_isa()};
  if (cpu::active_isa() == cpu::Isa::amx) isas.push_back(cpu::Isa::avx512);
  if (cpu::active_isa() > cpu::Isa::avx2) isas.push_back(cpu::Isa::avx2);
  return isas;
}

INSTANTIATE_TEST_SUITE_P(Simulated, Threads, testing::Combine(testing::Values(2, 8, 16, 64), testing::ValuesIn(planned_isas())),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" + cpu::name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace torch_ext::test
