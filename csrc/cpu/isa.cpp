// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "csrc/cpu/cpu.h"

namespace torch_ext::cpu {
namespace {

constexpr Isa kIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx};

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512_bf16:
      return "avx512_bf16";
    case Isa::amx:
      return "amx";
    default:
      return "portable";
  }
}

// __builtin_cpu_supports asks cpuid, and xgetbv for what the operating system saves.
Isa detected_isa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::portable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::avx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
  return amx_works() ? Isa::amx : Isa::avx512_bf16;
#else
  return Isa::portable;
#endif
}

Isa active_isa() {
  static const Isa active = [] {
    const Isa best = detected_isa();
    const char* cap = std::getenv("TORCH_EXT_ISA");
    if (!cap || !*cap) return best;
    for (Isa isa : kIsas)
      if (!std::strcmp(cap, name_of(isa))) return isa < best ? isa : best;
    std::fprintf(stderr, "torch_ext: TORCH_EXT_ISA=%s is not one of portable, avx2, avx512, avx512_bf16, amx; using %s\n", cap,
                 name_of(best));
    return best;
  }();
  return active;
}

}  // namespace torch_ext::cpu
