// SPDX-License-Identifier: Apache-2.0
// The emulator must notice what a GPU would suffer from: each test plants one bug in a kernel that is right without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "csrc/cuda/device.h"

namespace torch_ext::cuda {
namespace {

constexpr int kThreads = 64, kFloats = 4 * kThreads;

struct Arguments {
  const float* from;
  float* to;
  int fault = 0;  // what `faulty` does wrong
};

// Turns the values around through shared memory.
TORCH_EXT_KERNEL(kThreads, 1) reverse(const Arguments a) {
  auto* shared = reinterpret_cast<float*>(shared_memory());
  for (int i = thread_index(); i < kFloats; i += kThreads) shared[i] = a.from[i];
  sync_block();
  for (int i = thread_index(); i < kFloats; i += kThreads) a.to[i] = shared[kFloats - 1 - i];
}

// Sums eight stages of 16 bytes a thread, of which two are in flight, and which the neighbour has copied.
TORCH_EXT_KERNEL(kThreads, 1) pipeline(const Arguments a) {
  constexpr int kStages = 3, kSteps = 8;
  auto* shared = reinterpret_cast<float*>(shared_memory());
  const int t = thread_index(), neighbour = (t + 1) % kThreads;
  const auto issue = [&](int step) {
    if (step < kSteps) async_copy16(shared + (step % kStages * kThreads + t) * 4, a.from + (step * kThreads + t) * 4, true);
    async_commit();
  };
  issue(0), issue(1);
  float sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    async_wait<1>();
    sync_block();
    const float* mine = shared + (step % kStages * kThreads + neighbour) * 4;
    for (int i = 0; i < 4; ++i) sum += mine[i];
    issue(step + 2);
  }
  async_wait<0>();
  a.to[t] = sum;
}

TORCH_EXT_KERNEL(kThreads, 1) faulty(const Arguments a) {
  char* shared = shared_memory();
  const int t = thread_index();
  if (a.fault == 0) async_copy16(shared + kThreads * 16, a.from, true);
  if (a.fault == 1) async_copy16(shared + t * 16 + 4, a.from, true);
  if (a.fault == 2) async_copy16(shared + t * 16, a.from + 1, true);
  if (a.fault == 3 && t < kThreads / 2) sync_block();
  if (a.fault == 4 && t % 32 < 7) a.to[t] = shuffle_down(1.f, 1);
  if (a.fault == 5) async_copy16(shared + t * 16, a.from, true);  // and never committed
  if (a.fault == 6) store16(a.to + 1, load16(a.from));
}

class Emulator : public testing::Test {
 protected:
  void SetUp() override { std::iota(from_, from_ + std::size(from_), 1.f); }
  void TearDown() override { emulator::options() = {}; }
  const char* run(void (*kernel)(Arguments), int64_t shared_bytes, int fault = 0) {
    std::fill(std::begin(to_), std::end(to_), -1.f);
    return launch(kernel, {1, kThreads, shared_bytes}, nullptr, Arguments{from_, to_, fault});
  }
  bool reversed() const { return std::equal(from_, from_ + kFloats, std::make_reverse_iterator(to_ + kFloats)); }
  bool summed() const {
    for (int t = 0; t < kThreads; ++t) {
      float sum = 0;
      for (int step = 0; step < 8; ++step)
        for (int i = 0; i < 4; ++i) sum += from_[(step * kThreads + (t + 1) % kThreads) * 4 + i];
      if (to_[t] != sum) return false;
    }
    return true;
  }
  alignas(16) float from_[8 * kFloats], to_[kFloats];
};
constexpr int64_t kReverseBytes = kFloats * 4, kPipelineBytes = 3 * kThreads * 16;

TEST_F(Emulator, RunsWhatIsRight) {
  for (bool descending : {false, true})
    for (bool eager : {false, true}) {
      emulator::options() = {.descending = descending, .eager_copies = eager};
      EXPECT_EQ(run(reverse, kReverseBytes), nullptr);
      EXPECT_TRUE(reversed());
      EXPECT_EQ(run(pipeline, kPipelineBytes), nullptr);
      EXPECT_TRUE(summed());
    }
}

TEST_F(Emulator, ShowsADroppedBarrier) {
  emulator::options().drop_barrier = 0;
  EXPECT_EQ(run(reverse, kReverseBytes), nullptr);
  EXPECT_FALSE(reversed());
  EXPECT_EQ(run(pipeline, kPipelineBytes), nullptr);
  EXPECT_FALSE(summed());
}

TEST_F(Emulator, ShowsAMissingWait) {
  emulator::options().drop_waits = true;
  EXPECT_EQ(run(pipeline, kPipelineBytes), nullptr);
  EXPECT_FALSE(summed());
}

TEST_F(Emulator, ShowsAWrongStage) {
  emulator::options().wait_extra = 1;
  EXPECT_EQ(run(pipeline, kPipelineBytes), nullptr);
  EXPECT_FALSE(summed());
}

TEST_F(Emulator, NamesWhatAGpuWouldRefuse) {
  const char* const errors[] = {"outside of shared memory", "no multiple of 16", "no multiple of 16", "deadlock", "deadlock",
                                "never committed",          "no multiple of 16"};
  for (int fault = 0; fault < int(std::size(errors)); ++fault) {
    const char* error = run(faulty, kThreads * 16, fault);
    ASSERT_NE(error, nullptr) << fault;
    EXPECT_NE(std::string(error).find(errors[fault]), std::string::npos) << error;
  }
}

TEST_F(Emulator, RefusesLaunchesThatNoGpuTakes) {
  EXPECT_NE(launch(reverse, {0, kThreads, kReverseBytes}, nullptr, Arguments{from_, to_}), nullptr);
  EXPECT_NE(launch(reverse, {1, 1025, kReverseBytes}, nullptr, Arguments{from_, to_}), nullptr);
  EXPECT_NE(launch(reverse, {int64_t(1) << 31, kThreads, kReverseBytes}, nullptr, Arguments{from_, to_}), nullptr);
  EXPECT_NE(launch(reverse, {1, kThreads, kMaxSharedBytes + 1}, nullptr, Arguments{from_, to_}), nullptr);
}

// ---- Matrices --------------------------------------------------------------------------------------------------------------

// One product of 16 x 32 bytes by 32 bytes x 8 through shared memory, where `a` has its rows, and `b` its columns, or,
// transposed, its rows; 16-bit elements of both may be loaded transposed.
template <class T>
struct ProductArguments {
  const T* a;
  const T* b;
  float* c;
  bool transposed;
};

template <class T>
TORCH_EXT_KERNEL(32, 1)
product(const ProductArguments<T> args) {
  constexpr int kDepth = 32 / int(sizeof(T));
  T* a = reinterpret_cast<T*>(shared_memory());
  T* b = a + 16 * kDepth;
  const int lane = thread_index();
  for (int i = lane; i < 16 * kDepth; i += 32) a[i] = args.a[i];
  for (int i = lane; i < 8 * kDepth; i += 32) b[i] = args.b[i];
  sync_block();
  uint32_t left[4], right[4];
  // Of `b` only two matrices are there: the other lanes give the addresses of the same.
  if (args.transposed) {
    load_matrices_transposed(left, a + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
    load_matrices_transposed(right, b + lane % 16 * 8);
  } else {
    load_matrices(left, a + lane % 16 * kDepth + lane / 16 * (kDepth / 2));
    load_matrices(right, b + lane % 8 * kDepth + lane / 8 % 2 * (kDepth / 2));
  }
  float c[4] = {1, 2, 3, 4};
  multiply(c, left, right[0], right[1], T{});
  for (int e = 0; e < 4; ++e) args.c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = c[e];
}

template <class T>
void expect_product(bool transposed) {
  constexpr int kDepth = 32 / int(sizeof(T));
  const auto at = [&](int row, int depth, int rows) { return transposed ? depth * rows + row : row * kDepth + depth; };
  alignas(16) T a[16 * kDepth], b[8 * kDepth];
  float c[16 * 8];
  const auto value_a = [](int row, int depth) { return float((row * 5 + depth * 3) % 7 - 3); };
  const auto value_b = [](int column, int depth) { return float((column * 3 + depth * 11) % 9 - 4); };
  for (int depth = 0; depth < kDepth; ++depth) {
    for (int row = 0; row < 16; ++row) narrow(value_a(row, depth), a[at(row, depth, 16)]);
    for (int column = 0; column < 8; ++column) narrow(value_b(column, depth), b[at(column, depth, 8)]);
  }
  ASSERT_EQ(launch(product<T>, {1, 32, 24 * 32}, nullptr, ProductArguments<T>{a, b, c, transposed}), nullptr);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = float(row / 8 * 2 + column % 2 + 1);
      for (int depth = 0; depth < kDepth; ++depth) sum += value_a(row, depth) * value_b(column, depth);
      EXPECT_EQ(c[row * 8 + column], sum) << row << " " << column;
    }
}

TEST_F(Emulator, MultipliesMatrices) {
  expect_product<bf16>(false);
  expect_product<f16>(false);
  expect_product<float>(false);
  expect_product<bf16>(true);
  expect_product<f16>(true);
}

TEST_F(Emulator, RoundsToTf32) {
  const auto rounded = [](uint32_t bits) { return as_float(to_tf32(bits)); };
  EXPECT_EQ(rounded(0x3f800000), 1.f);
  EXPECT_EQ(rounded(0x3f800fff), 1.f);
  EXPECT_EQ(rounded(0x3f801000), 0x1.004p0f) << "a tie goes away from zero";
  EXPECT_EQ(rounded(0xbf801000), -0x1.004p0f);
  EXPECT_EQ(rounded(0x7f800000), INFINITY);
  EXPECT_EQ(rounded(0x7f7fffff), INFINITY);
  EXPECT_TRUE(std::isnan(rounded(0x7f800001)));
}

// Shared memory ends where a page begins that cannot be touched.
TEST_F(Emulator, FaultsBeyondSharedMemory) { EXPECT_DEATH(run(reverse, kReverseBytes - 64), ""); }

}  // namespace
}  // namespace torch_ext::cuda
