// SPDX-License-Identifier: Apache-2.0
// float32 and float16 as sums of bf16, for instructions that multiply nothing else.
#pragma once
#include "csrc/core/geometry.h"
#include "csrc/cpu/pack.h"

namespace torch_ext::cpu {

inline constexpr int kMaxParts = 3;

// The values of a problem as sums of `parts` bf16, the largest first: two hold a float16, three a float32, fewer what its
// precision allows. Products of part i and part j are summed where i + j < orders; those beyond are below the rounding of sums.
struct Split {
  int parts = 1, orders = 1;
  int products() const;
};
Split split_of(const Problem& problem);

// Whether matrix instructions are to compute the problem. float32 needs up to six products of its parts, which pay where a matrix
// instruction is that much faster than multiply-adds: measured once a process, as it depends on what else the core is doing (a
// busy hyperthread costs three quarters of it). TORCH_EXT_AMX_F32=1 and =0 say so without measuring.
bool matrices_take(const Problem& problem);

// Positions of a box of one sample, to[position*pitch + part*plane + channel], the largest part first, zeros beyond the last
// channel. Returns whether all can be split.
bool split_box(const Tiles<float>& tiles, Type type, const void* from, const Box& box, int parts, uint16_t* to, int64_t pitch,
               int64_t plane);

// to[part*plane + i] = the pair of that part of even[i] and of odd[i], the smallest part first. Returns whether all can be split.
bool split_pairs(const Tiles<float>& tiles, const float* even, const float* odd, int64_t count, int parts, float* to,
                 int64_t plane);

}  // namespace torch_ext::cpu
