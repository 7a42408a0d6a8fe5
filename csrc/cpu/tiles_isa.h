// SPDX-License-Identifier: Apache-2.0
// The table of tiles of each instruction set. Each tiles_<isa>.cpp enables its instructions with a target region opened after all
// includes (no per-file compiler flags), so that no shared inline function can be emitted with them.
#pragma once
#include "csrc/cpu/tiles.h"

#define TORCH_EXT_UNROLL _Pragma("GCC unroll 64")

// The functions between these may use the instructions of `isa`.
#define TORCH_EXT_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define TORCH_EXT_TARGET(isa) TORCH_EXT_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define TORCH_EXT_TARGET_END TORCH_EXT_PRAGMA(clang attribute pop)
#else
#define TORCH_EXT_TARGET(isa) TORCH_EXT_PRAGMA(GCC push_options) TORCH_EXT_PRAGMA(GCC target(isa))
#define TORCH_EXT_TARGET_END TORCH_EXT_PRAGMA(GCC pop_options)
#endif

namespace torch_ext::cpu {
const Tiles<float>& tiles_portable(float);
const Tiles<double>& tiles_portable(double);
const Tiles<float>& tiles_avx2(float);
const Tiles<double>& tiles_avx2(double);
const Tiles<float>& tiles_avx512(float);
const Tiles<double>& tiles_avx512(double);
}  // namespace torch_ext::cpu
