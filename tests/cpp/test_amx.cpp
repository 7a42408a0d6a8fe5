// SPDX-License-Identifier: Apache-2.0
// The kernel for AMX with matrix registers that are imitated, so that all but the instructions themselves runs on any processor.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "csrc/core/formula.h"
#include "csrc/core/scalar.h"
#include "csrc/cpu/gather.h"
#include "csrc/cpu/outer.h"
#include "csrc/cpu/tiles_isa.h"
#include "tests/cpp/harness.h"

namespace torch_ext::test {
namespace {

float wide(uint16_t bits) { return widen(bf16{bits}); }

// Eight registers of 16 rows of 64 bytes to a thread, there between enter and leave alone.
struct Registers {
  struct Register {
    unsigned char bytes[16][64];
  };
  static inline thread_local std::array<Register, 8> registers;
  static inline thread_local bool entered = false;

  static void enter() {
    EXPECT_FALSE(entered);
    entered = true;
    std::memset(&registers, 0x7f, sizeof(registers));  // NaN, unless something is put there
  }
  static void leave() { entered = false; }
  template <int R>
  static void zero() {
    EXPECT_TRUE(entered);
    registers[R] = {};
  }
  template <int R>
  static void load(const void* from, int64_t stride) {
    EXPECT_TRUE(entered);
    for (int64_t m = 0; m < 16; ++m) std::memcpy(registers[R].bytes[m], static_cast<const char*>(from) + m * stride, 64);
  }
  template <int R>
  static void store(void* to, int64_t stride) {
    EXPECT_TRUE(entered);
    for (int64_t m = 0; m < 16; ++m) std::memcpy(static_cast<char*>(to) + m * stride, registers[R].bytes[m], 64);
  }
  template <int C, int A, int B>
  static void add_product() {
    uint16_t a[16][32], b[16][32];
    float c[16][16];
    std::memcpy(a, &registers[A], sizeof(a));
    std::memcpy(b, &registers[B], sizeof(b));
    std::memcpy(c, &registers[C], sizeof(c));
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 32; ++k)
        for (int n = 0; n < 16; ++n) c[m][n] += wide(a[m][k]) * wide(b[k / 2][2 * n + k % 2]);
    std::memcpy(&registers[C], c, sizeof(c));
  }
};

struct Floats {
  using Real = float;
  using Reg = std::array<float, 16>;
  static constexpr int lanes = 16;
  static Reg load_first(const float* p, int64_t n) {
    Reg v{};
    std::copy_n(p, std::min<int64_t>(n, lanes), v.data());
    return v;
  }
  static Reg load(const float* p) { return load_first(p, lanes); }
  static void store_first(float* p, int64_t n, const Reg& v) { std::copy_n(v.data(), std::min<int64_t>(n, lanes), p); }
  static void store(float* p, const Reg& v) { store_first(p, lanes, v); }
  static Reg add(const Reg& a, Reg b) {
    for (int i = 0; i < lanes; ++i) b[size_t(i)] += a[size_t(i)];
    return b;
  }
  static void store_narrow(Type, void* to, int64_t n, const Reg& v) {
    for (int64_t i = 0; i < std::min<int64_t>(n, lanes); ++i) narrow(v[size_t(i)], static_cast<bf16*>(to)[i]);
  }
};

namespace imitated {
using namespace torch_ext::cpu;
#include "csrc/cpu/tiles_results.inl"
//
#include "csrc/cpu/tiles_amx.inl"
}  // namespace imitated

// With what the table of the processor's own pairs has besides tiles.
const cpu::Tiles<float>& tiles() {
  static const cpu::Tiles<float> table = [] {
    cpu::Tiles<float> t = cpu::tiles_portable(0.f);
    t.lanes = 16;
    t.transpose = [](const float* from, int64_t pitch, int rows, int64_t columns, float* to, const int64_t* offsets) {
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t i = 0; i < 16; ++i) to[offsets[j] + i] = i < rows ? from[i * pitch + j] : 0;
    };
    t.pair = [](const uint16_t* even, const uint16_t* odd, float* to, int64_t count) {
      bool finite = true;
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t pair[] = {even ? even[i] : uint16_t(0), odd ? odd[i] : uint16_t(0)};
        std::memcpy(to + i, pair, sizeof(pair));
        finite = finite && std::isfinite(wide(pair[0])) && std::isfinite(wide(pair[1]));
      }
      return finite;
    };
    t.finite = [](const float* values, int64_t count) {
      const auto* halves = reinterpret_cast<const uint16_t*>(values);
      return std::all_of(halves, halves + 2 * count, [](uint16_t bits) { return std::isfinite(wide(bits)); });
    };
    return imitated::with_amx_tiles<Registers, Floats>(t);
  }();
  return table;
}

class AmxKernel : public testing::TestWithParam<Operation> {};

// Returns how many problems were computed.
int compute(const std::vector<Case>& cases, Operation operation, size_t layouts) {
  Harness harness;
  int computed = 0;
  for (size_t k = 0; k < cases.size(); ++k) {
    const Case& c = cases[k];
    const Data data = integers(c.geometry);
    for (size_t l = 0; l < layouts; ++l) {
      const bool bias = operation == Operation::conv_transpose && (k + l) % 2;
      const Problem p = make_problem(c, operation, Type::bf16, kLayouts[l], bias);
      const auto plan = operation == Operation::backward_weights
                            ? cpu::make_outer_of_pairs(p, tiles(), {cpu::Isa::portable, 3, true})
                            : cpu::make_gather_of_pairs(p, tiles(), 3);
      if (!plan) continue;
      ++computed;
      const std::vector<double> exact = formula<double>(c.geometry, operation, data, bias);
      const std::vector<uint64_t> got = harness.run(*plan, p, data, shuffled(3), l % 2 ? Against::begin : Against::end);
      for (size_t i = 0; i < got.size(); ++i)
        if (value_of(got[i], p.type) != value_of(bits_of(exact[i], p.type), p.type)) {
          ADD_FAILURE() << "element " << i << " is " << value_of(got[i], p.type) << " instead of " << exact[i] << ": " << c.line
                        << "\n  " << plan->describe();
          return computed;
        }
    }
  }
  return computed;
}

TEST_P(AmxKernel, ComputesIntegersExactly) { EXPECT_GT(compute(small_cases(), GetParam(), std::size(kLayouts)), 100); }

// Several steps of depth, several tiles, both full and not.
TEST_P(AmxKernel, ComputesLayersOfModelsExactly) { EXPECT_GT(compute(reduced_cases(), GetParam(), 2), 20); }

INSTANTIATE_TEST_SUITE_P(All, AmxKernel, testing::ValuesIn(kOperations),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace torch_ext::test
