// SPDX-License-Identifier: Apache-2.0
// Every kernel of the list on every real layer of tests/cases.txt that it accepts, for each operation in both layouts and in the
// types that layers have, on one thread: GFLOP/s, and the fraction of the peak, of multiply-adds of float32 or of what the
// instruction set has for bf16, that the run itself measures before and after. `cold_ms` is the time where nothing is in cache,
// as in a training loop whose other layers have been there since.
//   bench_kernels --benchmark_filter=gather__avx512/conv_transpose/f32
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "csrc/cpu/cpu.h"
#include "tests/cpp/cases.h"

extern "C" double torch_ext_peak(int isa, double seconds);  // peak.cpp

namespace torch_ext {
namespace {

constexpr Type kTypes[] = {Type::f32, Type::bf16, Type::f16};
constexpr const char* kTypeNames[] = {"f32", "bf16", "f16"};

// Some processors multiply pairs of bf16 at half of the rate of float32.
double peak_gflops(Type type) {
  const double floats = torch_ext_peak(int(std::min(cpu::active_isa(), cpu::Isa::avx512)), 0.3) / 1e9;
  return type == Type::bf16 ? std::max(torch_ext_peak(int(cpu::active_isa()), 0.3) / 1e9, floats) : floats;
}

void print_peaks(const char* when) {
  std::printf("%s, on one thread %s: %.1f GFLOP/s of float32, %.1f of bf16\n", cpu::name_of(cpu::active_isa()), when,
              peak_gflops(Type::f32), peak_gflops(Type::bf16));
}

// Aligned as torch's allocator aligns tensors.
struct Operand {
  float* data;
  Operand(int64_t count, float value) : data(static_cast<float*>(std::aligned_alloc(64, size_t(count * 4 + 63) / 64 * 64 + 64))) {
    std::fill_n(data, count, value);
  }
  ~Operand() { std::free(data); }
  Operand(const Operand&) = delete;
};

// The median time of a call, in milliseconds, before each of which all caches, and what they hold of page tables, are filled
// anew.
template <class Call>
double cold_milliseconds(Call call) {
  static std::vector<int> other(size_t(32) << 20);
  double times[5];
  for (double& time : times) {
    for (size_t i = 0; i < other.size(); i += 16) ++other[i];  // each line
    const auto start = std::chrono::steady_clock::now();
    call();
    time = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(std::begin(times), std::end(times));
  return times[2];
}

// The library calls this several times to choose a number of iterations; `cold_ms`, 0 at first, is measured in the first call.
void run(benchmark::State& state, const Problem& problem, const char* kernel, double peak, double& cold_ms) {
  const auto plan = cpu::make_plan(problem, cpu::active_isa(), 1, kernel);
  const cpu::Parallel serial{1, [](int64_t count, const std::function<void(int64_t, int)>& task) {
                               for (int64_t i = 0; i < count; ++i) task(i, 0);
                             }};
  const Geometry& g = problem.geometry;
  // Values that are neither zero nor subnormal, as those of a trained layer.
  const Operand x(g.x_size(), 0.5f), w(g.w_size(), 0.25f), y(g.y_size(), 0.125f), bias(g.groups * g.y_channels, 1.f);
  const Operand workspace(plan->workspace_bytes() / int64_t(sizeof(float)) + 1, 0.f);
  const std::clock_t start = std::clock();  // processor time, as others may be using the core
  const auto call = [&] { plan->run({x.data, w.data, y.data, problem.bias ? bias.data : nullptr, workspace.data}, serial); };
  for (auto _ : state) call();
  const double seconds = double(std::clock() - start) / CLOCKS_PER_SEC / double(state.iterations());
  state.counters["GFLOP/s"] = g.flops() / seconds / 1e9;
  state.counters["of_peak"] = g.flops() / seconds / 1e9 / peak;
  if (cold_ms == 0) cold_ms = cold_milliseconds(call);
  state.counters["cold_ms"] = cold_ms;
  state.SetLabel(plan->describe());
}

}  // namespace
}  // namespace torch_ext

int main(int argc, char** argv) {
  using namespace torch_ext;
  benchmark::Initialize(&argc, argv);
  const cpu::Isa isa = cpu::active_isa();
  print_peaks("before");
  for (size_t t = 0; t < std::size(kTypes); ++t) {
    const double peak = peak_gflops(kTypes[t]);
    for (const test::Case& c : test::large_cases())
      for (Operation operation : test::kOperations)
        for (int layout = 0; layout < 2; ++layout) {
          const Problem problem = test::make_problem(c, operation, kTypes[t], test::kLayouts[layout], true);
          for (int k = 0; k < cpu::kernel_count(); ++k) {
            const char* kernel = cpu::kernel_name(k);
            if (!cpu::kernel_supported(k, isa) || !cpu::make_plan(problem, isa, 1, kernel)) continue;
            const std::string name = std::string(kernel) + "/" + test::name_of(operation) + "/" + kTypeNames[t] + "/" +
                                     (layout ? "NCX" : "NXC") + "/" + c.name;
            benchmark::RegisterBenchmark(
                name.c_str(), [=, cold_ms = 0.0](benchmark::State& state) mutable { run(state, problem, kernel, peak, cold_ms); })
                ->Unit(benchmark::kMillisecond)
                ->MinTime(0.2);
          }
        }
  }
  benchmark::RunSpecifiedBenchmarks();
  print_peaks("after");
}
