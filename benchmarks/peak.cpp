// SPDX-License-Identifier: Apache-2.0
// The fastest that one core multiplies and adds floats, or pairs of bf16 to floats: a loop of nothing else, in registers or, for
// matrix registers, from L1. Built into bench_kernels, and by python -m benchmarks on its own, which is why it needs nothing of
// csrc.
#include <algorithm>
#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Enough independent sums to hide the latency of an instruction in every pipe, and few enough for 16 registers.
constexpr int kSums = 12;
constexpr int64_t kRounds = 20'000;

// Defined anew for each instruction set, so that the region around it decides what the compiler emits. `step` makes the next sum
// of `sum`, a and b, of `operations` a lane. Returns floating-point operations. The sums differ, or the compiler would keep one of
// them, and tend to 1: no infinities, no denormals.
#define DEFINE_LOOP(name, bytes, operations, step)                                        \
  int64_t name(float* sink) {                                                             \
    typedef float Reg __attribute__((vector_size(bytes)));                                \
    const Reg a = Reg{} + (0.999f + *sink), b = Reg{} + (0.001f + *sink);                 \
    Reg sums[kSums];                                                                      \
    for (int i = 0; i < kSums; ++i) sums[i] = Reg{} + (float(i) / kSums + *sink);         \
    for (int64_t round = 0; round < kRounds; ++round)                                     \
      _Pragma("GCC unroll 16") for (int i = 0; i < kSums; ++i) {                          \
        const Reg sum = sums[i];                                                          \
        sums[i] = step;                                                                   \
      }                                                                                   \
    for (int i = 1; i < kSums; ++i) sums[0] += sums[i];                                   \
    *static_cast<volatile float*>(sink) = sums[0][0];                                     \
    *sink = 0;                                                                            \
    return kRounds * kSums * operations * int64_t(sizeof(Reg) / sizeof(float));           \
  }

DEFINE_LOOP(portable, 16, 2, sum * a + b)
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
DEFINE_LOOP(avx2, 32, 2, sum * a + b)
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
DEFINE_LOOP(avx512, 64, 2, sum * a + b)
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bf16"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bf16")
#endif
// The halves of 0.999 and 0.001 are bf16 too: the sums grow by one small product and stay finite.
DEFINE_LOOP(avx512_bf16, 64, 4, Reg(_mm512_dpbf16_ps(__m512(sum), __m512bh(a), __m512bh(b))))
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,amx-tile,amx-bf16")
#endif
// Products of 16 x 32 by 32 x 16, in four registers of sums in turn. The process already has the permission to use them.
int64_t amx(float* sink) {
  alignas(64) unsigned char config[64] = {1};
  for (int r = 0; r < 8; ++r) config[16 + 2 * r] = 64, config[48 + r] = 16;
  asm volatile("" : : "r"(config) : "memory");  // GCC 12 takes the intrinsic for one that reads 8 bytes
  _tile_loadconfig(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  // The power that products take, and with it the core's clock, depends on their values: the same four registers again and again run a
  // third faster than any layer could, whose operands come from L1 at best.
  constexpr int kSteps = 8;
  alignas(64) uint16_t operands[kSteps][4][16 * 32];
  uint32_t state = 1;
  for (auto& of_step : operands)
    for (auto& of_register : of_step)
      for (uint16_t& value : of_register) {
        state = state * 1664525 + 1013904223;
        value = uint16_t(0x3f00 | (state >> 16 & 0x80ff));  // either sign, from 0.5 to 2
      }
  asm volatile("" : : "r"(operands) : "memory");
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto& of_step = operands[round % kSteps];
    _tile_loadd(4, of_step[0], 64);
    _tile_loadd(5, of_step[1], 64);
    _tile_loadd(6, of_step[2], 64);
    _tile_loadd(7, of_step[3], 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[16 * 16];
  _tile_stored(0, sums, 64);
  _tile_release();
  *static_cast<volatile float*>(sink) = sums[0];
  *sink = 0;
  return kRounds * 4 * 2 * 16 * 16 * 32;
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
constexpr int64_t (*kLoops[])(float*) = {portable, avx2, avx512, avx512_bf16, amx};
#else
constexpr int64_t (*kLoops[])(float*) = {portable};
#endif

}  // namespace

// Floating-point operations a second of the calling thread: the fastest of many short loops, as others may be using the core.
// `isa` is the number of a cpu::Isa that the processor has.
extern "C" double torch_ext_peak(int isa, double seconds) {
  using Clock = std::chrono::steady_clock;
  float sink = 0;
  double best = 0;
  const auto begin = Clock::now();
  for (auto now = begin; now - begin < std::chrono::duration<double>(seconds);) {
    const auto start = now;
    const auto operations = double(kLoops[isa](&sink));
    now = Clock::now();
    best = std::max(best, operations / std::chrono::duration<double>(now - start).count());
  }
  return best;
}
