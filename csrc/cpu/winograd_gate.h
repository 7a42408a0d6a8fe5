// SPDX-License-Identifier: Apache-2.0
// Whether kernels may choose Winograd's products, and how long these take.
#pragma once
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/winograd_tiles.h"

namespace torch_ext::cpu {

// Whether kernels of that instruction set may compute it: by name always. TORCH_EXT_WINOGRAD=0 and who wants the same bits for a
// sample in any batch do not want it, and matrix registers are faster where fewer than six products of bf16 will do for float32.
bool winograd_allowed(const Problem& problem, Isa isa, const Request& request);

// The time of `winograd` as a share of that of `gather`, or of `winograd_sums` as one of `outer`, by a model of what was
// measured. Weights are read for each block of so many tiles of the phases with most taps; `winograd_sums` reads none.
double winograd_share(const Problem& problem, const std::vector<WinogradTiles>& classes, const Tiles<float>& tiles_of_isa,
                      int64_t tiles_of_block);

// What such a share must be below, where matrix registers would compute the problem otherwise, and where not.
double winograd_pays_below(const Problem& problem, const Request& request, bool matrices);

}  // namespace torch_ext::cpu
