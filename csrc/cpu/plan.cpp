// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a problem: the first of the list that accepts it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "csrc/cpu/cpu.h"
#include "csrc/cpu/kernels.h"

namespace torch_ext::cpu {
namespace {

struct Kernel {
  Isa isa;
  const char* name;
  std::shared_ptr<Plan> (*make)(const Problem&, const Request&);
};

constexpr Kernel kKernels[] = {
#define KERNEL(isa, name, make) {Isa::isa, #name, make},
#include "csrc/cpu/kernels.inc"
#undef KERNEL
};

struct CacheKey {
  Problem problem;
  int threads;
  bool operator==(const CacheKey&) const = default;
};

struct CacheHash {
  size_t operator()(const CacheKey& key) const { return hash_of(key.problem, uint64_t(key.threads)); }
};

// A plan is small, but a program that never repeats a shape must not grow without bound.
constexpr size_t kCachedPlans = 4096;

// FNV-1a: the same in every build, as packed weights may be saved by one and loaded by another.
uint64_t fingerprint(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : "1 " + text) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;  // 1: the version of packed forms
  return hash;
}

// The first kernel that accepts a problem.
std::shared_ptr<Plan> first_plan(const Problem& problem, Isa isa, int threads, const char* kernel) {
  for (const Kernel& k : kKernels) {
    if (k.isa > isa || (kernel && std::strcmp(kernel, k.name))) continue;
    auto plan = k.make(problem, {isa, threads, kernel != nullptr});
    if (!plan) continue;
    if (!*plan->kernel) plan->kernel = k.name;  // else it is that of another kernel
    return plan;
  }
  return nullptr;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace

std::shared_ptr<const Plan> make_plan(const Problem& problem, Isa isa, int threads, const char* kernel) {
  auto plan = first_plan(problem, isa, threads, kernel);
  if (!plan) return nullptr;
  const std::string packing = plan->packing();
  if (!packing.empty()) {
    plan->fingerprint = fingerprint(plan->kernel + (": " + packing));
  } else if (problem.prepacked && !kernel) {
    // One that packs nothing is faster than those that would read what is packed: choose among all, of which none reads it.
    return first_plan(not_packed(problem), isa, threads, nullptr);
  }
  return plan;
}

std::string packing_of(const Plan& inner) { return inner.fingerprint ? std::string(inner.kernel) + ' ' + inner.packing() : ""; }

std::shared_ptr<const Plan> make_exact_plan(const Problem& problem, Isa isa, int threads) {
  isa = std::min(isa, Isa::avx512);
  const std::string family = problem.operation == Operation::backward_weights ? "outer__" : "gather__";
  return make_plan(problem, isa, threads, (family + name_of(isa)).c_str());
}

std::shared_ptr<const Plan> cached_plan(const Problem& problem, int threads) {
  static const char* const forced = environment("TORCH_EXT_KERNEL");
  static const bool verbose = environment("TORCH_EXT_VERBOSE") && std::atoi(environment("TORCH_EXT_VERBOSE")) > 0;
  static std::mutex mutex;
  static auto& plans = *new std::unordered_map<CacheKey, std::shared_ptr<const Plan>, CacheHash>;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard lock(mutex);
    auto& entry = plans[{problem, threads}];
    if (!entry && forced) entry = make_plan(problem, active_isa(), threads, forced);
    if (!entry) entry = make_plan(problem, active_isa(), threads);
    plan = entry;
    if (plans.size() > kCachedPlans) plans.clear();
  }
  if (verbose) std::fprintf(stderr, "torch_ext: %s: %s %s\n", describe(problem).c_str(), plan->kernel, plan->describe().c_str());
  return plan;
}

int kernel_count() { return int(std::size(kKernels)); }
const char* kernel_name(int index) { return kKernels[index].name; }
bool kernel_supported(int index, Isa isa) { return kKernels[index].isa <= isa; }

std::string describe(const Problem& p) {
  static const char* const operations[] = {"conv_transpose", "backward_data", "backward_weights"};
  static const char* const types[] = {"f32", "f64", "bf16", "f16"};
  const Geometry& g = p.geometry;
  std::string text = std::string(operations[int(p.operation)]) + ' ' + types[int(p.type)];
  const auto number = [&](const char* tag, int64_t value) { text.append(tag).append(std::to_string(value)); };
  const auto axes = [&](const char* tag, int64_t Axis::*value) {
    for (int a = 0; a < kAxes; ++a) number(a ? "x" : tag, g.axis[a].*value);
  };
  number(" n", g.batch), number(" g", g.groups), number(" c", g.groups * g.x_channels), number(":", g.groups * g.y_channels);
  axes(" i", &Axis::x), axes(" k", &Axis::w), axes(" o", &Axis::y), axes(" s", &Axis::stride), axes(" d", &Axis::dilation);
  axes(" pb", &Axis::offset);
  return p.bias ? text + " +bias" : text;
}

}  // namespace torch_ext::cpu
