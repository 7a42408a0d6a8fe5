// SPDX-License-Identifier: Apache-2.0
// Every kernel of the list on every real layer of tests/cases.txt that it accepts, for each operation in both layouts, on one
// thread: GFLOP/s, and the fraction of the FMA peak that the run itself measures before and after.
//   bench_kernels --benchmark_filter=gather__avx512/conv_transpose
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "csrc/cpu/cpu.h"
#include "tests/cpp/cases.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own headers leave the unused half of a mask uninitialised
#endif
#include <immintrin.h>
#endif

namespace torch_ext {
namespace {

constexpr int kChains = 12;  // independent sums: more than latency times throughput of any processor so far
constexpr int64_t kRounds = 2'000'000;

// GFLOP/s of fused multiply-adds between registers.
template <class F>
double rate(int lanes, F fused_rounds) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    fused_rounds();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * lanes * kChains * kRounds / seconds.count() / 1e9);
  }
  return best;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void rounds_avx512() {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_fmadd_ps(sum[c], a, b);
  for (auto& s : sum) benchmark::DoNotOptimize(s);
}
__attribute__((target("avx2,fma"))) void rounds_avx2() {
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_set1_ps(1);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = _mm256_fmadd_ps(sum[c], a, b);
  for (auto& s : sum) benchmark::DoNotOptimize(s);
}
#endif

void rounds_portable() {
  float sum[kChains];
  std::fill_n(sum, kChains, 1.f);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * 0.999f + 0.001f;
  for (float& s : sum) benchmark::DoNotOptimize(s);
}

double peak_gflops(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::avx512) return rate(16, rounds_avx512);
  if (isa == cpu::Isa::avx2) return rate(8, rounds_avx2);
#endif
  return rate(1, rounds_portable);
}

void run(benchmark::State& state, const Problem& problem, const char* kernel, double peak) {
  const auto plan = cpu::make_plan(problem, cpu::active_isa(), 1, kernel);
  const cpu::Parallel serial{1, [](int64_t count, const std::function<void(int64_t, int)>& task) {
                               for (int64_t i = 0; i < count; ++i) task(i, 0);
                             }};
  const Geometry& g = problem.geometry;
  // Values that are neither zero nor subnormal, as those of a trained layer.
  std::vector<float> x(size_t(g.x_size()), 0.5f), w(size_t(g.w_size()), 0.25f), y(size_t(g.y_size()), 0.125f), bias(4096, 1.f);
  const size_t bytes = size_t(plan->workspace_bytes() + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, std::max<size_t>(bytes, 64)), std::free);
  for (auto _ : state) plan->run({x.data(), w.data(), y.data(), bias.data(), workspace.get()}, serial);
  const double flops = 2.0 * double(g.batch * g.groups * g.x_channels * g.y_channels) * double(g.x_positions() * g.w_positions());
  state.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] = benchmark::Counter(flops / 1e9 / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(plan->describe());
}

}  // namespace
}  // namespace torch_ext

int main(int argc, char** argv) {
  using namespace torch_ext;
  benchmark::Initialize(&argc, argv);
  const cpu::Isa isa = cpu::active_isa();
  const double peak = peak_gflops(isa);
  std::printf("%s, %.1f GFLOP/s of FMA on one thread before\n", cpu::name_of(isa), peak);
  for (const test::Case& c : test::large_cases())
    for (Operation operation : test::kOperations)
      for (int layout = 0; layout < 2; ++layout) {
        const Problem problem = test::make_problem(c, operation, Type::f32, test::kLayouts[layout], true);
        for (int k = 0; k < cpu::kernel_count(); ++k) {
          const char* kernel = cpu::kernel_name(k);
          if (!cpu::kernel_supported(k, isa) || !cpu::make_plan(problem, isa, 1, kernel)) continue;
          const std::string name =
              std::string(kernel) + "/" + test::name_of(operation) + "/" + (layout ? "NCX" : "NXC") + "/" + c.name;
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, problem, kernel, peak); })
              ->Unit(benchmark::kMillisecond)
              ->MinTime(0.2);
        }
      }
  benchmark::RunSpecifiedBenchmarks();
  std::printf("%.1f GFLOP/s of FMA on one thread after\n", peak_gflops(isa));
}
