// SPDX-License-Identifier: Apache-2.0
// The primitives that kernels are written against. Under nvcc each is one or two instructions; under another compiler
// cuda_emulator.h (tests/cuda) gives the same names a meaning on the CPU, so that the tests execute the very source of the
// kernels.
#pragma once
#include <cstdint>

#include "csrc/core/scalar.h"
#include "csrc/cuda/cuda.h"

#if !defined(__CUDACC__)
#include "cuda_emulator.h"
#else
#include <cuda_runtime_api.h>

// A kernel of at most `threads` threads, of which at least `blocks` blocks share a multiprocessor.
#define TORCH_EXT_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define TORCH_EXT_DEVICE __device__ __forceinline__
#define TORCH_EXT_UNROLL _Pragma("unroll")
#define TORCH_EXT_NO_UNROLL _Pragma("unroll 1")  // where copies of the body would cost more registers than they save time

namespace torch_ext::cuda {

// ---- Indices, barriers -----------------------------------------------------------------------------------------------------

TORCH_EXT_DEVICE int thread_index() { return int(threadIdx.x); }
TORCH_EXT_DEVICE int block_threads() { return int(blockDim.x); }
TORCH_EXT_DEVICE int64_t block_index() { return int64_t(blockIdx.x); }
TORCH_EXT_DEVICE int64_t block_count() { return int64_t(gridDim.x); }
TORCH_EXT_DEVICE void sync_block() { __syncthreads(); }

// The value of the lane `distance` further on in the warp. All 32 lanes take part.
template <class T>
TORCH_EXT_DEVICE T shuffle_down(T value, int distance) {
  return __shfl_down_sync(0xffffffffu, value, distance);
}

// ---- Conversions -----------------------------------------------------------------------------------------------------------

TORCH_EXT_DEVICE float to_sum(float v) { return v; }
TORCH_EXT_DEVICE double to_sum(double v) { return v; }
TORCH_EXT_DEVICE float to_sum(bf16 v) { return __uint_as_float(uint32_t(v.bits) << 16); }
TORCH_EXT_DEVICE float to_sum(f16 v) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
  return wide;
}
TORCH_EXT_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
TORCH_EXT_DEVICE void from_sum(float v, float& to) { to = v; }
TORCH_EXT_DEVICE void from_sum(double v, double& to) { to = v; }
TORCH_EXT_DEVICE void from_sum(float v, bf16& to) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
TORCH_EXT_DEVICE void from_sum(float v, f16& to) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }

// ---- Memory ----------------------------------------------------------------------------------------------------------------

struct alignas(16) Bytes16 {
  uint32_t word[4];
};
TORCH_EXT_DEVICE Bytes16 load16(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
TORCH_EXT_DEVICE void store16(void* to, const Bytes16& v) {
  *static_cast<uint4*>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

TORCH_EXT_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char torch_ext_shared[];
  return torch_ext_shared;
}
TORCH_EXT_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Copies 16 bytes from device to shared memory, or writes zeros there; they arrive by the async_wait of their group.
TORCH_EXT_DEVICE void async_copy16(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
TORCH_EXT_DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of this thread's groups but the last `newest`.
template <int newest>
TORCH_EXT_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

// ---- Matrices --------------------------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8, 16 bytes. Lane l receives the elements
// (l/4, 2*(l%4)) and (l/4, 2*(l%4)+1) of each, or, transposed, (2*(l%4), l/4) and (2*(l%4)+1, l/4).
TORCH_EXT_DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
TORCH_EXT_DEVICE void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a * b: a 16 x 32 bytes, b 32 bytes x 8, c 16 x 8 in float32. Lane l holds of c the elements (l/4, 2*(l%4)), the one beside
// it, and the two of row l/4 + 8.
#define TORCH_EXT_MMA(shape, types)                                                                                \
  asm("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
TORCH_EXT_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
  TORCH_EXT_MMA("m16n8k16", "bf16.bf16");
}
TORCH_EXT_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16) {
  TORCH_EXT_MMA("m16n8k16", "f16.f16");
}
TORCH_EXT_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float) {
  TORCH_EXT_MMA("m16n8k8", "tf32.tf32");
}
// The operand bits of a float32 as a tf32, rounded to nearest.
TORCH_EXT_DEVICE uint32_t to_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}
#undef TORCH_EXT_MMA

// ---- Launching -------------------------------------------------------------------------------------------------------------

// Null, or what went wrong. No kernel needs more shared memory than a GPU gives without being asked (kMaxSharedBytes).
template <class Arguments>
const char* launch(void (*kernel)(Arguments), const Launch& shape, Stream stream, const Arguments& arguments) {
  // clang-format takes the brackets of a launch for operators.
  // clang-format off
  kernel<<<unsigned(shape.blocks), unsigned(shape.threads), size_t(shape.shared_bytes), cudaStream_t(stream)>>>(arguments);
  // clang-format on
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace torch_ext::cuda
#endif
