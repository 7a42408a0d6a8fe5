// SPDX-License-Identifier: Apache-2.0
// What moves elements to other places and leaves them as they are, for vectors `V`. Included as tiles.inl is.

// Neighbours so few that vectors of them would be mostly empty.
inline constexpr int64_t kFew = 4;

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

// Vectors one behind the other become those of their every Step-th lanes: r[k] has the lanes k, k + Step, k + 2*Step ...
template <class V, int Step>
void unweave_vectors(typename V::Reg (&r)[Step]) {
  if constexpr (Step == 3) {
    const auto a = r[0], b = r[1], c = r[2];
    TORCH_EXT_UNROLL for (int k = 0; k < 3; ++k) r[k] = V::pick(a, b, c, kThirds<V>.every[k]);
  } else if constexpr (Step > 1) {
    typename V::Reg even[Step / 2], odd[Step / 2];
    TORCH_EXT_UNROLL for (int i = 0; i < Step / 2; ++i) {
      even[i] = V::even(r[2 * i], r[2 * i + 1]);
      odd[i] = V::odd(r[2 * i], r[2 * i + 1]);
    }
    unweave_vectors<V, Step / 2>(even);
    unweave_vectors<V, Step / 2>(odd);
    TORCH_EXT_UNROLL for (int i = 0; i < Step / 2; ++i) r[2 * i] = even[i], r[2 * i + 1] = odd[i];
  }
}

// The inverse.
template <class V, int Step>
void weave_vectors(typename V::Reg (&r)[Step]) {
  if constexpr (Step == 3) {
    const auto a = r[0], b = r[1], c = r[2];
    TORCH_EXT_UNROLL for (int k = 0; k < 3; ++k) r[k] = V::pick(a, b, c, kThirds<V>.woven[k]);
  } else if constexpr (Step > 1) {
    typename V::Reg even[Step / 2], odd[Step / 2];
    TORCH_EXT_UNROLL for (int i = 0; i < Step / 2; ++i) even[i] = r[2 * i], odd[i] = r[2 * i + 1];
    weave_vectors<V, Step / 2>(even);
    weave_vectors<V, Step / 2>(odd);
    TORCH_EXT_UNROLL for (int i = 0; i < Step / 2; ++i) {
      r[2 * i] = V::weave_low(even[i], odd[i]);
      r[2 * i + 1] = V::weave_high(even[i], odd[i]);
    }
  }
}

// A vector's worth of rows of so few columns that follow each other in memory: to[offsets[k] + i] = from[i*Columns + k].
template <class V, int Columns>
void transpose_few(const typename V::Real* from, typename V::Real* to, const int64_t* offsets) {
  typename V::Reg r[Columns];
  TORCH_EXT_UNROLL for (int k = 0; k < Columns; ++k) r[k] = V::load(from + k * V::lanes);
  unweave_vectors<V, Columns>(r);
  TORCH_EXT_UNROLL for (int k = 0; k < Columns; ++k) V::store(to + offsets[k], r[k]);
}

template <class V>
void transpose(const typename V::Real* from, int64_t pitch, int rows, int64_t columns, typename V::Real* to,
               const int64_t* offsets) {
  using Real = typename V::Real;
  const bool whole = rows == V::lanes;
  if (whole && pitch == columns) {
    if (columns == 2) return transpose_few<V, 2>(from, to, offsets);
    if (columns == 3) return transpose_few<V, 3>(from, to, offsets);
    if (columns == 4) return transpose_few<V, 4>(from, to, offsets);
    if (columns == 8) return transpose_few<V, 8>(from, to, offsets);
  }
  int64_t j = 0;
  typename V::Reg r[V::lanes];
  for (; whole && j + V::lanes <= columns; j += V::lanes) {
    TORCH_EXT_UNROLL for (int i = 0; i < V::lanes; ++i) r[i] = V::load(from + i * pitch + j);
    V::transpose(r);
    TORCH_EXT_UNROLL for (int i = 0; i < V::lanes; ++i) V::store(to + offsets[j + i], r[i]);
  }
  if (whole && columns - j > kFew) {
    const auto mask = V::first(columns - j);
    TORCH_EXT_UNROLL for (int i = 0; i < V::lanes; ++i) r[i] = V::load_masked(from + i * pitch + j, mask);
    V::transpose(r);
    for (int i = 0; j + i < columns; ++i) V::store(to + offsets[j + i], r[i]);
    return;
  }
  for (; j < columns; ++j) {
    Real* column = to + offsets[j];
    for (int i = 0; i < rows; ++i) column[i] = from[i * pitch + j];
    for (int i = rows; i < V::lanes; ++i) column[i] = 0;
  }
}

// The cells of unweave from the j-th on, for steps that are a power of two, or three.
template <class V, int Step>
void unweave_cells(const typename V::Real* from, typename V::Real* to, int64_t pitch, int64_t j, int64_t count) {
  for (; j + V::lanes <= count; j += V::lanes) {
    typename V::Reg r[Step];
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] = V::load(from + Step * j + k * V::lanes);
    unweave_vectors<V, Step>(r);
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) V::store(to + k * pitch + j, r[k]);
  }
  if (j == count) return;
  const int64_t left = Step * (count - j);
  typename V::Reg r[Step];
  TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] =
      left > k * V::lanes ? V::load_first(from + Step * j + k * V::lanes, left - k * V::lanes) : V::zero();
  unweave_vectors<V, Step>(r);
  TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) V::store_first(to + k * pitch + j, count - j, r[k]);
}
template <class V, int Step>
void weave_cells(const typename V::Real* from, int64_t pitch, typename V::Real* to, int64_t count) {
  for (; count >= Step * V::lanes; count -= Step * V::lanes, from += V::lanes, to += Step * V::lanes) {
    typename V::Reg r[Step];
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] = V::load(from + k * pitch);
    weave_vectors<V, Step>(r);
    TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) V::store(to + k * V::lanes, r[k]);
  }
  if (count == 0) return;
  typename V::Reg r[Step];
  TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) r[k] =
      count > k ? V::load_first(from + k * pitch, (count - k + Step - 1) / Step) : V::zero();
  weave_vectors<V, Step>(r);
  TORCH_EXT_UNROLL for (int k = 0; k < Step; ++k) {
    if (count > k * V::lanes) V::store_first(to + k * V::lanes, count - k * V::lanes, r[k]);
  }
}

// Blocks of lanes x lanes, for steps that no shuffle of a few vectors suits: below.
template <class V>
void transpose_rows(const typename V::Real* from, int64_t from_pitch, typename V::Real* to, int64_t to_pitch, int64_t rows,
                    int64_t columns);

template <class V>
void unweave(const typename V::Real* from, int64_t step, typename V::Real* to, int64_t pitch, int64_t count) {
  constexpr int64_t kPart = 256;
  int64_t j = 0;
  if (step == 2) {
    // One residue after the other for some cells: two lines that are stored in turns take half as long again where they do not
    // begin on cache lines.
    for (int64_t end; j + V::lanes <= count; j = end) {
      end = j + kPart <= count ? j + kPart : j + (count - j) / V::lanes * V::lanes;
      const auto load = [&](int64_t i) { return V::load(from + i); };
      for (int64_t i = j; i < end; i += V::lanes) V::store(to + i, V::even(load(2 * i), load(2 * i + V::lanes)));
      for (int64_t i = j; i < end; i += V::lanes) V::store(to + pitch + i, V::odd(load(2 * i), load(2 * i + V::lanes)));
    }
    return unweave_cells<V, 2>(from, to, pitch, j, count);
  } else if (step == 3) {
    return unweave_cells<V, 3>(from, to, pitch, j, count);
  } else if (step == 4) {
    return unweave_cells<V, 4>(from, to, pitch, j, count);
  } else if (step == 8) {
    return unweave_cells<V, 8>(from, to, pitch, j, count);
  }
  transpose_rows<V>(from, step, to, pitch, step, count);
}

template <class V>
void weave(const typename V::Real* from, int64_t pitch, int64_t step, typename V::Real* to, int64_t count) {
  if (step == 1) return weave_cells<V, 1>(from, pitch, to, count);
  if (step == 2) return weave_cells<V, 2>(from, pitch, to, count);
  if (step == 3) return weave_cells<V, 3>(from, pitch, to, count);
  if (step == 4) return weave_cells<V, 4>(from, pitch, to, count);
  if (step == 8) return weave_cells<V, 8>(from, pitch, to, count);
  const int64_t whole = count / step;
  transpose_rows<V>(from, pitch, to, step, whole, step);
  for (int64_t r = 0; r < count - whole * step; ++r) to[whole * step + r] = from[r * pitch + whole];
}

// How many reals of rows so far apart are left of a vector's share of the cache line in which all of them begin; all of a vector
// where each begins elsewhere in one, or where rows are short.
template <class V>
inline __attribute__((always_inline)) int64_t reals_to_line(const typename V::Real* row, int64_t pitch, int64_t length) {
  constexpr int64_t kLine = 64 / sizeof(typename V::Real), kShort = 4 * V::lanes;
  const int64_t past = int64_t(reinterpret_cast<uintptr_t>(row) / sizeof(typename V::Real)) % kLine;
  const int64_t left = (kLine - past) % V::lanes;
  return pitch % kLine == 0 && length > kShort && left > 0 ? left : V::lanes;
}

// Runs along the side whose lines lie far apart, so that no more than a vector's worth of distant lines is open at a time: with
// channel planes a power of two apart, more would evict each other. So many open lines are more than the processor follows by
// itself: it is told what is read or written next. Whole cache lines of that side are moved at a time where its rows are a
// multiple of one apart: one that a block leaves half done would be gone when the next block comes to it (planes of 84 KB, to
// memory: 0.75 of the time).
template <class V>
void transpose_rows(const typename V::Real* from, int64_t from_pitch, typename V::Real* to, int64_t to_pitch, int64_t rows,
                    int64_t columns) {
  constexpr int64_t kAhead = 4 * 64 / sizeof(typename V::Real);  // four lines of cache
  if (rows > 1 && rows <= kFew && from_pitch == rows) return unweave<V>(from, rows, to, to_pitch, columns);
  if (columns > 1 && columns <= kFew && to_pitch == columns) return weave<V>(from, from_pitch, columns, to, rows * columns);
  const bool far_writes = to_pitch > from_pitch;
  const int64_t head = far_writes ? reals_to_line<V>(to, to_pitch, columns) : reals_to_line<V>(from, from_pitch, rows);
  // Blocks of up to so many rows and columns, but for the first ones along the side whose lines lie far apart.
  const auto block = [&](int64_t i, int64_t j, int64_t height, int64_t width) {
    transpose_block<V>(from + j * from_pitch + i, from_pitch, to + i * to_pitch + j, to_pitch, height, width);
  };
  if (far_writes) {
    for (int64_t i = 0; i < rows; i += V::lanes)
      for (int64_t j = 0, end = head; j < columns; j = end, end += V::lanes) {
        for (int64_t l = i; l < i + V::lanes && l < rows; ++l) __builtin_prefetch(to + l * to_pitch + j + kAhead, 1);
        block(i, j, rows - i, end < columns ? end - j : columns - j);
      }
  } else {
    for (int64_t j = 0; j < columns; j += V::lanes)
      for (int64_t i = 0, end = head; i < rows; i = end, end += V::lanes) {
        for (int64_t l = j; l < j + V::lanes && l < columns; ++l) __builtin_prefetch(from + l * from_pitch + i + kAhead);
        block(i, j, end < rows ? end - i : rows - i, columns - j);
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

// Whole vectors, of which the last of a line reaches into the next one.
template <class V>
void join_lines(const typename V::Real* from, int64_t pitch, int64_t lines, int64_t length, typename V::Real* to) {
  for (int64_t l = 0; l < lines; ++l, from += pitch, to += length)
    for (int64_t i = 0; i < length; i += V::lanes) V::store(to + i, V::load(from + i));
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

template <class V>
void stream(const void* from, void* to, int64_t bytes) {
  using Real = typename V::Real;
  constexpr int64_t kLine = 64;
  const char* source = static_cast<const char*>(from);
  char* at = static_cast<char*>(to);
  const auto copy = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) at[i] = source[i];
    at += count, source += count, bytes -= count;
  };
  if constexpr (requires(Real* p, typename V::Reg v) { V::stream(p, v); }) {
    const int64_t before = (kLine - int64_t(reinterpret_cast<uintptr_t>(at) % kLine)) % kLine;
    if (before + kLine <= bytes) copy(before);
    for (; reinterpret_cast<uintptr_t>(at) % kLine == 0 && bytes >= kLine; at += kLine, source += kLine, bytes -= kLine)
      TORCH_EXT_UNROLL for (int64_t i = 0; i < kLine / int64_t(sizeof(Real)); i += V::lanes)
          V::stream(reinterpret_cast<Real*>(at) + i, V::load(reinterpret_cast<const Real*>(source) + i));
  }
  copy(bytes);
}

// f(columns, y, mask) for what all links share, a vector or less of it at a time.
template <class V, class C, class Y, class F>
inline __attribute__((always_inline)) void for_each_piece(const Linked<C, Y>& l, F f) {
  for (const Link* link = l.links; link < l.links + l.count; ++link)
    for (int64_t e = 0; e < link->count; e += V::lanes) {
      const auto mask = V::first(link->count - e);
      C* columns = l.columns + link->m * l.pitch + link->tap + e;
      Y* y = l.y + link->y + e;
      for (int64_t c = 0; c < l.channels; ++c, columns += l.of_channel, y += l.y_pitch) f(columns, y, mask);
    }
}

template <class V>
void add_links(const Linked<const typename V::Real, typename V::Real>& l) {
  for_each_piece<V>(l, [](const auto* columns, auto* y, auto mask) __attribute__((always_inline)) {
    V::store_masked(y, mask, V::add(V::load_masked(y, mask), V::load_masked(columns, mask)));
  });
}

template <class V>
void copy_links(const Linked<typename V::Real, const typename V::Real>& l) {
  for_each_piece<V>(l, [](auto* columns, const auto* y, auto mask) __attribute__((always_inline)) {
    V::store_masked(columns, mask, V::load_masked(y, mask));
  });
}
