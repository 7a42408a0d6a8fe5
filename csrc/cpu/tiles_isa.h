// SPDX-License-Identifier: Apache-2.0
// The table of tiles of each instruction set. Each tiles_<isa>.cpp enables its instructions with a target region opened after all
// includes (no per-file compiler flags), so that no shared inline function can be emitted with them.
#pragma once
#include "csrc/cpu/tiles.h"

#define TORCH_EXT_UNROLL _Pragma("GCC unroll 64")

namespace torch_ext::cpu {
const Tiles<float>& tiles_portable(float);
const Tiles<double>& tiles_portable(double);
const Tiles<float>& tiles_avx2(float);
const Tiles<double>& tiles_avx2(double);
const Tiles<float>& tiles_avx512(float);
const Tiles<double>& tiles_avx512(double);
}  // namespace torch_ext::cpu
