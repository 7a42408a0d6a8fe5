// SPDX-License-Identifier: Apache-2.0
// What moves elements to other places and leaves them as they are, for vectors `V`. Included as tiles.inl is.

template <class V>
void transpose(const typename V::Real* from, int64_t pitch, int rows, int64_t columns, typename V::Real* to,
               const int64_t* offsets) {
  using Real = typename V::Real;
  int64_t j = 0;
  for (; rows == V::lanes && j + V::lanes <= columns; j += V::lanes) {
    typename V::Reg r[V::lanes];
    TORCH_EXT_UNROLL for (int i = 0; i < V::lanes; ++i) r[i] = V::load(from + i * pitch + j);
    V::transpose(r);
    TORCH_EXT_UNROLL for (int i = 0; i < V::lanes; ++i) V::store(to + offsets[j + i], r[i]);
  }
  for (; j < columns; ++j) {
    Real* column = to + offsets[j];
    for (int i = 0; i < rows; ++i) column[i] = from[i * pitch + j];
    for (int i = rows; i < V::lanes; ++i) column[i] = 0;
  }
}

// One block of at most lanes x lanes: to[k*to_pitch + l] = from[l*from_pitch + k] for k < height, l < width.
template <class V>
void transpose_block(const typename V::Real* from, int64_t from_pitch, typename V::Real* to, int64_t to_pitch, int64_t height,
                     int64_t width) {
  typename V::Reg r[V::lanes];
  if (height >= V::lanes && width >= V::lanes) {
    TORCH_EXT_UNROLL for (int l = 0; l < V::lanes; ++l) r[l] = V::load(from + l * from_pitch);
    V::transpose(r);
    TORCH_EXT_UNROLL for (int k = 0; k < V::lanes; ++k) V::store(to + k * to_pitch, r[k]);
    return;
  }
  const auto of_height = V::first(height), of_width = V::first(width);
  for (int l = 0; l < V::lanes; ++l) r[l] = l < width ? V::load_masked(from + l * from_pitch, of_height) : V::zero();
  V::transpose(r);
  for (int k = 0; k < V::lanes && k < height; ++k) V::store_masked(to + k * to_pitch, of_width, r[k]);
}

// The lanes of three vectors a, b, c, one behind the other, in another order, for V::pick: every third of them, and back.
template <int Lanes>
struct Thirds {
  int every[3][Lanes]{}, woven[3][Lanes]{};
  constexpr Thirds() {
    for (int v = 0; v < 3; ++v)
      for (int l = 0; l < Lanes; ++l) {
        every[v][l] = 3 * l + v;
        woven[v][l] = (v * Lanes + l) % 3 * Lanes + (v * Lanes + l) / 3;
      }
  }
};
template <class V>
constexpr Thirds<V::lanes> kThirds;

// The inverse of weave: to[r*pitch + j] = from[j*step + r] for r < step <= 4, j < count.
template <class V>
void unweave(const typename V::Real* from, int64_t step, typename V::Real* to, int64_t pitch, int64_t count) {
  int64_t j = 0;
  if (step == 2) {
    for (; j + V::lanes <= count; j += V::lanes) {
      const auto a = V::load(from + 2 * j), b = V::load(from + 2 * j + V::lanes);
      V::store(to + j, V::even(a, b));
      V::store(to + pitch + j, V::odd(a, b));
    }
  } else if (step == 3) {
    for (; j + V::lanes <= count; j += V::lanes) {
      const auto a = V::load(from + 3 * j), b = V::load(from + 3 * j + V::lanes), c = V::load(from + 3 * j + 2 * V::lanes);
      V::store(to + j, V::pick(a, b, c, kThirds<V>.every[0]));
      V::store(to + pitch + j, V::pick(a, b, c, kThirds<V>.every[1]));
      V::store(to + 2 * pitch + j, V::pick(a, b, c, kThirds<V>.every[2]));
    }
  } else if (step == 4) {
    for (; j + V::lanes <= count; j += V::lanes) {
      const auto a = V::load(from + 4 * j), b = V::load(from + 4 * j + V::lanes);
      const auto c = V::load(from + 4 * j + 2 * V::lanes), d = V::load(from + 4 * j + 3 * V::lanes);
      const auto even_low = V::even(a, b), even_high = V::even(c, d), odd_low = V::odd(a, b), odd_high = V::odd(c, d);
      V::store(to + j, V::even(even_low, even_high));
      V::store(to + pitch + j, V::even(odd_low, odd_high));
      V::store(to + 2 * pitch + j, V::odd(even_low, even_high));
      V::store(to + 3 * pitch + j, V::odd(odd_low, odd_high));
    }
  }
  for (; j < count; ++j)
    for (int64_t r = 0; r < step; ++r) to[r * pitch + j] = from[j * step + r];
}

template <class V>
void weave(const typename V::Real* from, int64_t pitch, int64_t step, typename V::Real* to, int64_t count) {
  int64_t j = 0;
  const int64_t whole = count / step;
  if (step == 1) {
    for (; j + V::lanes <= whole; j += V::lanes) V::store(to + j, V::load(from + j));
  } else if (step == 2) {
    for (; j + V::lanes <= whole; j += V::lanes) {
      const auto a = V::load(from + j), b = V::load(from + pitch + j);
      V::store(to + 2 * j, V::weave_low(a, b));
      V::store(to + 2 * j + V::lanes, V::weave_high(a, b));
    }
  } else if (step == 3) {
    for (; j + V::lanes <= whole; j += V::lanes) {
      const auto a = V::load(from + j), b = V::load(from + pitch + j), c = V::load(from + 2 * pitch + j);
      V::store(to + 3 * j, V::pick(a, b, c, kThirds<V>.woven[0]));
      V::store(to + 3 * j + V::lanes, V::pick(a, b, c, kThirds<V>.woven[1]));
      V::store(to + 3 * j + 2 * V::lanes, V::pick(a, b, c, kThirds<V>.woven[2]));
    }
  } else if (step == 4) {
    for (; j + V::lanes <= whole; j += V::lanes) {
      const auto a = V::load(from + j), b = V::load(from + pitch + j);
      const auto c = V::load(from + 2 * pitch + j), d = V::load(from + 3 * pitch + j);
      const auto ac = V::weave_low(a, c), bd = V::weave_low(b, d);
      V::store(to + 4 * j, V::weave_low(ac, bd));
      V::store(to + 4 * j + V::lanes, V::weave_high(ac, bd));
      const auto ac_high = V::weave_high(a, c), bd_high = V::weave_high(b, d);
      V::store(to + 4 * j + 2 * V::lanes, V::weave_low(ac_high, bd_high));
      V::store(to + 4 * j + 3 * V::lanes, V::weave_high(ac_high, bd_high));
    }
  }
  for (; j < whole; ++j)
    for (int64_t r = 0; r < step; ++r) to[j * step + r] = from[r * pitch + j];
  for (int64_t r = 0; r < count - whole * step; ++r) to[whole * step + r] = from[r * pitch + whole];
}

// Runs along the side whose lines lie far apart, so that no more than a vector's worth of distant lines is open at a time: with channel
// planes a power of two apart, more would evict each other. So many open lines are more than the processor follows by itself: it is
// told what is read or written next.
template <class V>
void transpose_rows(const typename V::Real* from, int64_t from_pitch, typename V::Real* to, int64_t to_pitch, int64_t rows,
                    int64_t columns) {
  constexpr int64_t kAhead = 4 * 64 / sizeof(typename V::Real);  // four lines of cache
  constexpr int64_t kFew = 4;  // neighbours that all belong to one position: blocks would be mostly empty
  if (rows > 1 && rows <= kFew && from_pitch == rows) return unweave<V>(from, rows, to, to_pitch, columns);
  if (columns > 1 && columns <= kFew && to_pitch == columns) return weave<V>(from, from_pitch, columns, to, rows * columns);
  const auto block = [&](int64_t i, int64_t j) {
    transpose_block<V>(from + j * from_pitch + i, from_pitch, to + i * to_pitch + j, to_pitch, rows - i, columns - j);
  };
  if (to_pitch > from_pitch) {
    for (int64_t i = 0; i < rows; i += V::lanes)
      for (int64_t j = 0; j < columns; j += V::lanes) {
        for (int64_t l = i; l < i + V::lanes && l < rows; ++l) __builtin_prefetch(to + l * to_pitch + j + kAhead, 1);
        block(i, j);
      }
  } else {
    for (int64_t j = 0; j < columns; j += V::lanes)
      for (int64_t i = 0; i < rows; i += V::lanes) {
        for (int64_t l = j; l < j + V::lanes && l < columns; ++l) __builtin_prefetch(from + l * from_pitch + i + kAhead);
        block(i, j);
      }
  }
}

// A whole block of 2*lanes x 2*lanes: 128 bits of each row are brought together by loads, so that no more than 8x8 elements
// within 128 bits of some registers are left to transpose. A row is loaded once: where rows are a power of two apart, a second
// time it would not be in cache.
template <class V>
void transpose_block_of_halves(const uint16_t* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch) {
  constexpr int parts = V::lanes / 4;  // of 128 bits, in a vector
  typename V::Reg r[parts][8];
  TORCH_EXT_UNROLL for (int g = 0; g < 8; ++g)
    TORCH_EXT_UNROLL for (int p = 0; p < parts; ++p) r[p][g] = V::load_128(from + g * from_pitch + 8 * p, 8 * from_pitch);
  TORCH_EXT_UNROLL for (int p = 0; p < parts; ++p) {
    typename V::Reg columns[8];  // as pairs of rows, of four columns and of the other four
    TORCH_EXT_UNROLL for (int i = 0; i < 4; ++i) {
      columns[i] = V::pair_low(r[p][2 * i], r[p][2 * i + 1]);
      columns[4 + i] = V::pair_high(r[p][2 * i], r[p][2 * i + 1]);
    }
    V::transpose_quads(columns);
    V::transpose_quads(columns + 4);
    TORCH_EXT_UNROLL for (int e = 0; e < 8; ++e) V::store_halves(to + (8 * p + e) * to_pitch, 2 * V::lanes, columns[e]);
  }
}

// Blocks of 2*lanes x 2*lanes, of which far lines are asked for two blocks ahead. In those that are not whole, pairs of neighbouring
// rows become rows of 32-bit units, which transpose as floats do.
template <class V>
void transpose_halves(const uint16_t* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch, int64_t rows, int64_t columns) {
  constexpr int side = 2 * V::lanes, block = 4;  // V::pair_low takes the first `block` of each 2*block elements of a row
  const bool far_reads = to_pitch <= from_pitch;  // else the far lines are those written
  const auto move = [&](int64_t i, int64_t j) {
    const int64_t height = rows - i, width = columns - j;
    if (far_reads) {
      for (int64_t l = 0; l < side && l < width; ++l) __builtin_prefetch(from + (j + l) * from_pitch + i + 2 * side);
    } else {
      for (int64_t l = 0; l < side && l < height; ++l) __builtin_prefetch(to + (i + l) * to_pitch + j + 2 * side, 1);
    }
    if (height >= side && width >= side)
      return transpose_block_of_halves<V>(from + j * from_pitch + i, from_pitch, to + i * to_pitch + j, to_pitch);
    const auto row = [&](int64_t k) {
      return k < width ? V::load_halves(from + (j + k) * from_pitch + i, height) : V::zero();
    };
    typename V::Reg r[2][V::lanes];
    TORCH_EXT_UNROLL for (int l = 0; l < V::lanes; ++l) {
      const auto even = row(2 * l), odd = row(2 * l + 1);
      r[0][l] = V::pair_low(even, odd), r[1][l] = V::pair_high(even, odd);
    }
    TORCH_EXT_UNROLL for (int half = 0; half < 2; ++half) {
      V::transpose(r[half]);
      TORCH_EXT_UNROLL for (int l = 0; l < V::lanes; ++l) {
        const int64_t k = l / block * 2 * block + half * block + l % block;
        if (k < height) V::store_halves(to + (i + k) * to_pitch + j, width, r[half][l]);
      }
    }
  };
  if (far_reads) {
    for (int64_t j = 0; j < columns; j += side)
      for (int64_t i = 0; i < rows; i += side) move(i, j);
  } else {
    for (int64_t i = 0; i < rows; i += side)
      for (int64_t j = 0; j < columns; j += side) move(i, j);
  }
}

template <class V>
void every(const typename V::Real* from, int64_t step, typename V::Real* to, int64_t count) {
  for (int64_t j = 0; j < count; j += V::lanes) {
    const int64_t left = step * (count - j - 1) + 1;
    const auto load = [&](int v) {
      return left > v * V::lanes ? V::load_first(from + step * j + v * V::lanes, left - v * V::lanes) : V::zero();
    };
    const auto a = load(0), b = load(1);
    V::store_first(to + j, count - j,
                   step == 2   ? V::even(a, b)
                   : step == 3 ? V::pick(a, b, load(2), kThirds<V>.every[0])
                               : V::even(V::even(a, b), V::even(load(2), load(3))));
  }
}
