// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a problem: the first of the list that accepts it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "csrc/cuda/planners.h"

namespace torch_ext::cuda {
namespace {

struct Kernel {
  const char* name;
  std::shared_ptr<Plan> (*make)(const Problem&, const Request&);
};

constexpr Kernel kKernels[] = {
#define KERNEL(name, planner) {#name, planner},
#include "csrc/cuda/kernels.inc"
#undef KERNEL
};

struct CacheKey {
  Problem problem;
  Setting setting;
  bool operator==(const CacheKey&) const = default;
};

struct CacheHash {
  size_t operator()(const CacheKey& key) const {
    const Setting& s = key.setting;
    return hash_of(key.problem, uint64_t(s.device.capability) << 2 | uint64_t(s.tf32) << 1 | uint64_t(s.aligned));
  }
};

// A plan is small, but a program that never repeats a shape must not grow without bound.
constexpr size_t kCachedPlans = 4096;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace

const char* Plan::run(const Buffers& buffers, Stream stream) const {
  for (const Step& step : steps)
    if (const char* error = step.run(buffers, step.launch, stream)) return error;
  return nullptr;
}

std::shared_ptr<const Plan> make_plan(const Problem& problem, const Setting& setting, const char* kernel) {
  for (const Kernel& k : kKernels) {
    if (kernel && std::strcmp(kernel, k.name)) continue;
    if (auto plan = k.make(problem, {setting, kernel != nullptr})) {
      plan->kernel = k.name;
      return plan;
    }
  }
  return nullptr;
}

std::shared_ptr<const Plan> cached_plan(const Problem& problem, const Setting& setting) {
  static const char* const forced = environment("TORCH_EXT_KERNEL");
  static const bool verbose = environment("TORCH_EXT_VERBOSE") && std::atoi(environment("TORCH_EXT_VERBOSE")) > 0;
  static std::mutex mutex;
  static auto& plans = *new std::unordered_map<CacheKey, std::shared_ptr<const Plan>, CacheHash>;
  std::shared_ptr<const Plan> plan;
  {
    std::lock_guard lock(mutex);
    auto& entry = plans[{problem, setting}];
    if (!entry && forced) entry = make_plan(problem, setting, forced);
    if (!entry) entry = make_plan(problem, setting);
    plan = entry;
    if (plans.size() > kCachedPlans) plans.clear();
  }
  if (verbose) std::fprintf(stderr, "torch_ext: cuda %s: %s\n", plan->kernel, plan->description.c_str());
  return plan;
}

int kernel_count() { return int(std::size(kKernels)); }
const char* kernel_name(int index) { return kKernels[index].name; }

}  // namespace torch_ext::cuda
