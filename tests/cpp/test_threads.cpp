// SPDX-License-Identifier: Apache-2.0
// How evenly plans share out the real layers to many threads, of which no machine here has enough: by counting the items.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "csrc/cpu/cpu.h"
#include "tests/cpp/cases.h"

namespace torch_ext::test {
namespace {

double processor_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

// The number of items of the stage of a plan that takes most of its time, by the processor's clock and once all pages are there,
// so that what else the machine does has no part in it.
int64_t main_items(const Problem& problem, int threads) {
  const auto plan = cpu::make_plan(problem, cpu::active_isa(), threads);
  int64_t items = 0;
  double longest = 0;
  const cpu::Parallel serial{threads, [&](int64_t count, const std::function<void(int64_t, int)>& task) {
                               const double start = processor_seconds();
                               for (int64_t i = 0; i < count; ++i) task(i, 0);
                               const double seconds = processor_seconds() - start;
                               if (seconds > longest) longest = seconds, items = count;
                             }};
  const Geometry& g = problem.geometry;
  std::vector<float> x(size_t(g.x_size()), 1), w(size_t(g.w_size()), 1), y(size_t(g.y_size()), 1);
  const size_t bytes = size_t(plan->workspace_bytes() + 63) / 64 * 64 + 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, bytes), std::free);
  for (int run = 0; run < 2; ++run) {
    longest = 0;
    plan->run({x.data(), w.data(), y.data(), nullptr, workspace.get()}, serial);
  }
  return items;
}

class Threads : public testing::TestWithParam<int> {};

// Equal items, each taken by the next thread that is free.
TEST_P(Threads, ShareRealLayersEvenly) {
  const int threads = GetParam();
  for (const Case& c : large_cases())
    for (Operation operation : kOperations)
      for (int layout = 0; layout < 2; ++layout) {
        const Problem problem = make_problem(c, operation, Type::f32, kLayouts[layout]);
        const Geometry& g = problem.geometry;
        const double flops = 2.0 * double(g.x_size()) * double(g.y_channels * g.w_positions());
        if (flops < (threads == 64 ? 64e6 : 16e6) * threads) continue;  // some fifty microseconds a thread, or two hundred
        const int64_t items = main_items(problem, threads);
        const double imbalance = double((items + threads - 1) / threads * threads) / double(items) - 1;
        EXPECT_LT(imbalance, 0.15) << items << " items for " << threads << " threads: " << cpu::describe(problem) << " "
                                   << c.name;
      }
}

INSTANTIATE_TEST_SUITE_P(Simulated, Threads, testing::Values(2, 8, 16, 64));

}  // namespace
}  // namespace torch_ext::test
