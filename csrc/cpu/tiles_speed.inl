// SPDX-License-Identifier: Apache-2.0
// Times instructions, to choose between them. Included as tiles.inl is, by tables that have 16 floats in a vector.

template <class F>
double seconds(F call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Some rounds of f for each of independent sums, enough of them to hide the latency of an instruction in every pipe.
constexpr int kTimedSums = 12;
template <class F>
double seconds_of_sums(int rounds, F f) {
  return seconds([&] {
    __m512 sums[kTimedSums];  // here, or they are kept in memory
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    for (int round = 0; round < rounds; ++round) {
      TORCH_EXT_UNROLL for (__m512& sum : sums) sum = f(sum);
      TORCH_EXT_UNROLL for (__m512& sum : sums) asm volatile("" : "+v"(sum));
    }
  });
}
