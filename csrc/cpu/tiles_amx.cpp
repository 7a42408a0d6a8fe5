// SPDX-License-Identifier: Apache-2.0
// The gather, outer and wide tiles of AMX, whose matrix registers multiply 16 x 32 by 32 x 16 bf16 into 16 x 16 floats.
#include "csrc/cpu/tiles_isa.h"

#if defined(__x86_64__) && defined(__linux__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers leave the unused half of a mask uninitialised.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

TORCH_EXT_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")

namespace torch_ext::cpu {
namespace amx {

// In assembly, as GCC 12's intrinsics do not tell that they read memory: copies that they load would never be stored.
struct Registers {
  // All eight of 16 rows of 64 bytes. A thread's configuration is its own, and other libraries have theirs: it is loaded before
  // and released after some work.
  static void enter() {
    struct {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes[16];
      uint8_t rows[16];
    } config = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    static_assert(sizeof(config) == 64);
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static void leave() { asm volatile("tilerelease"); }
  template <int R>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(R));
  }
  template <int R>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0, %1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(R) : "memory");
  }
  template <int R>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0, %1)" : : "r"(to), "r"(stride), "i"(R) : "memory");
  }
  template <int C, int A, int B>
  static void add_product() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

struct Floats {
  using Real = float;
  using Reg = __m512;
  static constexpr int lanes = 16;
  static __mmask16 first(int64_t n) { return n >= lanes ? __mmask16(0xffff) : __mmask16((1u << n) - 1); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static Reg load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, int64_t n, Reg v) { _mm512_mask_storeu_ps(p, first(n), v); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static void store_two_narrow(void* to, Reg low, Reg high) { _mm512_storeu_si512(to, __m512i(_mm512_cvtne2ps_pbh(high, low))); }
  static void store_narrow(Type type, void* to, int64_t n, Reg v) {
    const __m256i halves = type == Type::bf16 ? __m256i(_mm512_cvtneps_pbh(v)) : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    _mm256_mask_storeu_epi16(to, first(n), halves);
  }
};

#include "csrc/cpu/tiles_results.inl"
//
#include "csrc/cpu/tiles_amx.inl"
//
#include "csrc/cpu/tiles_speed.inl"

// Whether a product of small integers is right.
bool multiplies() {
  alignas(64) uint16_t a[16 * 32], b[16 * 32];
  const auto bits = [](int64_t value) {
    const float wide = float(value);
    uint32_t word;
    __builtin_memcpy(&word, &wide, 4);
    return uint16_t(word >> 16);
  };
  const auto of_a = [](int64_t m, int64_t k) { return (3 * m + k) % 7 - 3; };
  const auto of_b = [](int64_t k, int64_t n) { return (k + 5 * n) % 9 - 4; };
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t k = 0; k < 32; ++k) {
      a[i * 32 + k] = bits(of_a(i, k));
      b[k / 2 * 32 + 2 * i + k % 2] = bits(of_b(k, i));
    }
  alignas(64) float c[16 * 16];
  Registers::enter();
  Registers::zero<3>();
  Registers::load<5>(a, 64);
  Registers::load<7>(b, 64);
  Registers::add_product<3, 5, 7>();
  Registers::store<3>(c, 64);
  Registers::leave();
  for (int64_t m = 0; m < 16; ++m)
    for (int64_t n = 0; n < 16; ++n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < 32; ++k) sum += of_a(m, k) * of_b(k, n);
      if (c[m * 16 + n] != float(sum)) return false;
    }
  return true;
}

}  // namespace amx

// From the median of some tries each, in turns, of a millisecond in all: a core's other hyperthread comes and goes.
double matrix_speed() {
  static const double speed = [] {
    constexpr int kTries = 9, kRounds = 1000;
    alignas(64) static const float operands[512] = {};
    const __m512 one = _mm512_set1_ps(1);
    double matrices[kTries], vectors[kTries];
    amx::Registers::enter();
    for (int i = 0; i < kTries; ++i) {
      matrices[i] = amx::seconds([&] {
        for (int round = 0; round < kRounds; ++round) {
          amx::Registers::load<4>(operands, 64);
          amx::Registers::load<5>(operands + 256, 64);
          amx::load_columns<amx::Registers, 2>(operands, 128);
          amx::add_products<amx::Registers, 2, 2>();
        }
      });
      vectors[i] = amx::seconds_of_sums(kRounds, [&](__m512 sum) { return _mm512_fmadd_ps(one, one, sum); });
    }
    amx::Registers::leave();
    std::sort(matrices, matrices + kTries);
    std::sort(vectors, vectors + kTries);
    return (4. * 16 * 16 * 32 / matrices[kTries / 2]) / (amx::kTimedSums * 16 / vectors[kTries / 2]);
  }();
  return speed;
}

const Tiles<float>& amx_tiles() {
  static const Tiles<float> table = amx::with_amx_tiles<amx::Registers, amx::Floats>(pair_tiles());
  return table;
}

bool amx_works() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl: Linux asks for it once a process
  // Clang has no names of them for __builtin_cpu_supports.
  const auto has_tiles_of_bf16 = [] {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx >> 24 & 1 && edx >> 22 & 1;
  };
  static const bool works =
      has_tiles_of_bf16() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 && amx::multiplies();
  return works;
}

}  // namespace torch_ext::cpu

TORCH_EXT_TARGET_END
#else
namespace torch_ext::cpu {
bool amx_works() { return false; }
const Tiles<float>& amx_tiles() { return tiles_portable(0.f); }  // never asked for
double matrix_speed() { return 0; }
}  // namespace torch_ext::cpu
#endif
