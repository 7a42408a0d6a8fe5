// SPDX-License-Identifier: Apache-2.0
// The primitives of csrc/cuda/device.h on a CPU: blocks run one after the other, each thread of a block on a stack of its own. A
// thread runs as far ahead of the others as barriers and warps let it, so that what no barrier orders comes out in the wrong
// order; shared memory is poisoned before each block and fenced by a page that cannot be touched; asynchronous copies arrive as
// late as the waits permit, or at once.
#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "csrc/core/scalar.h"
#include "csrc/cuda/cuda.h"

#define TORCH_EXT_KERNEL(threads, blocks) void
#define TORCH_EXT_DEVICE inline
#define TORCH_EXT_UNROLL
#define TORCH_EXT_NO_UNROLL

namespace torch_ext::cuda {

// ---- The machine -----------------------------------------------------------------------------------------------------------

namespace emulator {

// Planted bugs and orders of execution.
struct Options {
  bool descending = false;    // later threads run first
  bool eager_copies = false;  // asynchronous copies arrive when they are issued
  int64_t drop_barrier = -1;  // which barrier, in the order in which the code calls it, no thread waits at
  bool drop_waits = false;    // async_wait returns at once, and the data arrive at the next barrier but one
  int wait_extra = 0;         // async_wait leaves this many more groups in flight: a wrong stage
  int poison = 0xff;          // what every byte of shared memory is at first: NaN, or 0x4b, large and finite in every type
};
Options& options();

int thread();
int threads();
int64_t block();
int64_t blocks();
char* shared();
int64_t shared_bytes();
void barrier();
void copy(void* to, const void* from, bool inside);
void commit();
void wait(int newest);
// Lets the 32 lanes of a warp meet, each with its argument; the last one calls `all` with those of every lane.
void meet(const char* what, void* argument, void (*all)(void* const (&)[32]));
// Ends the launch with this error.
[[noreturn]] void fail(const std::string& error);
const char* run(const Launch& shape, const std::function<void()>& body);

inline void check_aligned(const void* p, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % 16) fail(std::string(what) + ": the address is no multiple of 16 bytes");
}
inline void check_shared(const void* p, int64_t bytes, const char* what) {
  const char* at = static_cast<const char*>(p);
  if (at < shared() || at + bytes > shared() + shared_bytes()) fail(std::string(what) + ": outside of shared memory");
}

}  // namespace emulator

// ---- Indices, barriers -----------------------------------------------------------------------------------------------------

inline int thread_index() { return emulator::thread(); }
inline int block_threads() { return emulator::threads(); }
inline int64_t block_index() { return emulator::block(); }
inline int64_t block_count() { return emulator::blocks(); }
inline void sync_block() { emulator::barrier(); }

template <class T>
T shuffle_down(T value, int distance) {
  struct Lane {
    T value;
    int distance;
    T result;
  } lane{value, distance, value};
  emulator::meet("shuffle_down", &lane, [](void* const(&all)[32]) {
    for (int l = 0; l < 32; ++l) {
      Lane& self = *static_cast<Lane*>(all[l]);
      if (l + self.distance < 32) self.result = static_cast<Lane*>(all[l + self.distance])->value;
    }
  });
  return lane.result;
}

// ---- Conversions -----------------------------------------------------------------------------------------------------------

template <class T>
auto to_sum(T v) {
  return widen(v);
}
inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
template <class Sum, class T>
void from_sum(Sum v, T& to) {
  narrow(v, to);
}

// ---- Memory ----------------------------------------------------------------------------------------------------------------

struct alignas(16) Bytes16 {
  uint32_t word[4];
};
inline Bytes16 load16(const void* from) {
  emulator::check_aligned(from, "load16");
  Bytes16 v;
  std::memcpy(&v, from, 16);
  return v;
}
inline void store16(void* to, const Bytes16& v) {
  emulator::check_aligned(to, "store16");
  std::memcpy(to, &v, 16);
}

inline char* shared_memory() { return emulator::shared(); }
inline void async_copy16(void* to, const void* from, bool inside) {
  emulator::check_aligned(to, "async_copy16");
  emulator::check_shared(to, 16, "async_copy16");
  if (inside) emulator::check_aligned(from, "async_copy16");
  emulator::copy(to, from, inside);
}
inline void async_commit() { emulator::commit(); }
template <int newest>
void async_wait() {
  emulator::wait(newest);
}

// ---- Matrices --------------------------------------------------------------------------------------------------------------

namespace emulator {

struct MatricesLane {
  uint32_t* to;
  const char* row;
};
template <bool transposed>
void load_matrices(uint32_t (&to)[4], const void* row) {
  check_aligned(row, "load_matrices");
  check_shared(row, 16, "load_matrices");
  MatricesLane lane{to, static_cast<const char*>(row)};
  meet(transposed ? "load_matrices_transposed" : "load_matrices", &lane, [](void* const(&all)[32]) {
    const auto element = [&](int matrix, int r, int c) {
      uint16_t value;
      std::memcpy(&value, static_cast<MatricesLane*>(all[8 * matrix + r])->row + 2 * c, 2);
      return uint32_t(value);
    };
    for (int l = 0; l < 32; ++l)
      for (int m = 0; m < 4; ++m) {
        const int a = l / 4, b = 2 * (l % 4);
        static_cast<MatricesLane*>(all[l])->to[m] =
            transposed ? element(m, b, a) | element(m, b + 1, a) << 16 : element(m, a, b) | element(m, a, b + 1) << 16;
      }
  });
}

// Element `index` of a row of 32 bytes that starts in register 0 (elements of the first 16 bytes) and goes on in register 1.
inline float element_of(const uint32_t first, const uint32_t second, int which, bf16) {
  return widen(bf16{uint16_t((which >= 2 ? second : first) >> (which % 2 ? 16 : 0))});
}
inline float element_of(const uint32_t first, const uint32_t second, int which, f16) {
  return widen(f16{uint16_t((which >= 2 ? second : first) >> (which % 2 ? 16 : 0))});
}
// The hardware reads the upper 19 bits of a tf32.
inline float element_of(const uint32_t first, const uint32_t second, int which, float) {
  const uint32_t bits = (which ? second : first) & 0xffffe000u;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct MultiplyLane {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

}  // namespace emulator

inline void load_matrices(uint32_t (&to)[4], const void* row) { emulator::load_matrices<false>(to, row); }
inline void load_matrices_transposed(uint32_t (&to)[4], const void* row) { emulator::load_matrices<true>(to, row); }

template <class T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T) {
  emulator::MultiplyLane lane{c, a, {b0, b1}};
  emulator::meet("multiply", &lane, [](void* const(&all)[32]) {
    // What a lane holds of a row: as many elements of either half as fit into a register.
    constexpr int kHeld = 4 / sizeof(T);
    float a[16][8 * kHeld], b[8 * kHeld][8];
    for (int l = 0; l < 32; ++l) {
      const auto& lane = *static_cast<emulator::MultiplyLane*>(all[l]);
      for (int e = 0; e < 2 * kHeld; ++e) {
        const int k = e / kHeld * 4 * kHeld + l % 4 * kHeld + e % kHeld;
        a[l / 4][k] = emulator::element_of(lane.a[0], lane.a[2], e, T{});
        a[l / 4 + 8][k] = emulator::element_of(lane.a[1], lane.a[3], e, T{});
        b[k][l / 4] = emulator::element_of(lane.b[0], lane.b[1], e, T{});
      }
    }
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < 4; ++e) {
        float& c = static_cast<emulator::MultiplyLane*>(all[l])->c[e];
        for (int k = 0; k < 8 * kHeld; ++k) c += a[l / 4 + e / 2 * 8][k] * b[k][2 * (l % 4) + e % 2];
      }
  });
}
inline uint32_t to_tf32(uint32_t bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return bits | 0x400000;  // a NaN whose payload would be cut off stays one
  return (bits + 0x1000) & 0xffffe000u;
}

// ---- Launching -------------------------------------------------------------------------------------------------------------

template <class Arguments>
const char* launch(void (*kernel)(Arguments), const Launch& shape, Stream, const Arguments& arguments) {
  return emulator::run(shape, [&] { kernel(arguments); });
}

}  // namespace torch_ext::cuda
