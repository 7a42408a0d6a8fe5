// SPDX-License-Identifier: Apache-2.0
// Times instructions, to choose between them. Included as tiles.inl is, by tables that have 16 floats in a vector.

template <class F>
double seconds(F call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Some rounds of f for each of independent sums, enough of them to hide the latency of an instruction in every pipe. Each has a
// name: GCC keeps an array of them in memory, and would time its loads and stores.
constexpr int kTimedSums = 12;
template <class F, class Reg = __m512>
double seconds_of_sums(int rounds, F f, Reg zero = _mm512_setzero_ps()) {
  return seconds([&] {
    Reg s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero;
    Reg s6 = zero, s7 = zero, s8 = zero, s9 = zero, s10 = zero, s11 = zero;
    for (int round = 0; round < rounds; ++round) {
      s0 = f(s0), s1 = f(s1), s2 = f(s2), s3 = f(s3), s4 = f(s4), s5 = f(s5);
      s6 = f(s6), s7 = f(s7), s8 = f(s8), s9 = f(s9), s10 = f(s10), s11 = f(s11);
      asm volatile("" : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5));
      asm volatile("" : "+v"(s6), "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));
    }
  });
}

// How many times longer f takes than g, each of which times itself: the fastest of some tries, in turns, as an interruption slows
// down one of them alone.
template <class F, class G>
double ratio_of(F f, G g) {
  double of_f = 1, of_g = 1;
  for (int i = 0; i < 8; ++i) of_f = std::min(of_f, f()), of_g = std::min(of_g, g());
  return of_f / of_g;
}
constexpr int kTimedRounds = 500;

// Tiles of V end in half a vector where multiply-adds of halves take so much less time, half of it where vectors are computed in
// two halves, that they are faster for it. While the other hyperthread of the core is busy, halves may take two thirds of the time.
template <class V>
Tiles<float> with_halves(Tiles<float> table) {
  using Half = typename V::Half;
  const auto one = V::set(1);
  const auto half_one = Half::of(one);
  const auto whole = [&] { return seconds_of_sums(kTimedRounds, [&](__m512 sum) { return V::fma(one, one, sum); }); };
  const auto half = [&] {
    return seconds_of_sums(
        kTimedRounds, [&](__m256 sum) { return Half::fma(half_one, half_one, sum); }, Half::zero());
  };
  V::halves_pay = ratio_of(whole, half) > 1.25;
  table.column_step = V::halves_pay ? V::lanes / 2 : V::lanes;
  return table;
}
