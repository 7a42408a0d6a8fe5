// SPDX-License-Identifier: Apache-2.0
#include "csrc/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "csrc/cpu/rounding.h"
#include "csrc/cpu/upcoming.h"

namespace torch_ext::cpu {
namespace {

constexpr int64_t kStage = 256;  // elements of a row that are converted at a time before they are transposed
// Channels of a position that are converted at a time on their way to or from planes (64 to 2 channels of float16, 256x256, NXC,
// with 8 lanes: 0.58 of the time of as many as a vector has).
constexpr int64_t kStagedChannels = 64;
constexpr int64_t kShortLine = 32;  // elements, of a line that takes longer to call for than to convert
// Whose columns are asked for while those of a panel are packed (1024 to 512 channels: 0.96 of the time of some layers, of 16-bit
// types 0.95).
constexpr int64_t kUnitsAhead = 4;

template <class Real>
bool computes_in(Type type) {
  return bytes_of(type) == int64_t(sizeof(Real));
}

// Joins axes that follow each other in memory, so that small planes become long rows.
void merge_rows(Box& box) {
  for (int joined = 1; joined < kAxes; ++joined) {
    if (box.extent[2] == 1) {
      box.stride[2] = box.stride[1];
    } else if (box.extent[1] != 1 && box.stride[1] != box.stride[2] * box.extent[2]) {
      return;
    }
    box.extent[2] *= box.extent[1];
    box.extent[1] = box.extent[0], box.stride[1] = box.stride[0];
    box.extent[0] = 1;
  }
}

// How lines of channels are converted on their way through kMaxLanes * kStage elements: so many channels at a time, so much of a
// line of each. Short lines of all channels, one behind the other, are a run, which is converted as a whole.
struct Staged {
  bool run;
  int64_t line, channels;
};
Staged staged_lines(const Box& box, int64_t lanes) {
  const int64_t line = box.extent[2];
  if (box.channel_stride == line && line <= kShortLine) return {true, line, kMaxLanes * kStage / line};
  return {false, kStage, lanes};
}

// Calls f(position, channel, positions, channels) for what is converted at a time between positions and planes: whole vectors of
// positions, and no more than kMaxLanes * kStage elements.
template <class F>
void for_each_stage(int64_t count, int64_t channels, F f) {
  const int64_t some = std::min(kStagedChannels, channels), at_once = kStage / some * kMaxLanes;
  for (int64_t p = 0; p < count; p += at_once)
    for (int64_t c = 0; c < channels; c += some) f(p, c, std::min(at_once, count - p), std::min(some, channels - c));
}

template <class F>
void for_each_row(const Box& box, F f) {
  for (int64_t p0 = 0; p0 < box.extent[0]; ++p0)
    for (int64_t p1 = 0; p1 < box.extent[1]; ++p1)
      f(p0 * box.stride[0] + p1 * box.stride[1], (p0 * box.extent[1] + p1) * box.extent[2]);
}

}  // namespace

template <class Real>
void load_box(const Tiles<typename Operand<Real>::Real>& tiles, Type type, const void* from, Box box, Real* rows, int64_t pitch) {
  if (box.channel_stride == 1) {
    const RowsAhead ahead(type, box.channels, box.stride[2]);
    return for_each_row(box, [&](int64_t offset, int64_t position) {
      for (int64_t p = 0; p < box.extent[2]; ++p) {
        const void* row = element(from, type, offset + p * box.stride[2]);
        ahead.ask(row);
        tiles.widen(type, row, rows + (position + p) * pitch, box.channels);
      }
    });
  }
  merge_rows(box);
  if (box.stride[2] == 1 || box.extent[2] == 1) {
    const Staged staged = staged_lines(box, tiles.lanes);
    return for_each_row(box, [&](int64_t offset, int64_t position) {
      if (computes_in<Real>(type))
        return tiles.transpose_rows(static_cast<const Real*>(element(from, type, offset)), box.channel_stride,
                                    rows + position * pitch, pitch, box.extent[2], box.channels);
      alignas(64) Real stage[kMaxLanes * kStage];
      for (int64_t c = 0; c < box.channels; c += staged.channels)
        for (int64_t p = 0; p < box.extent[2]; p += staged.line) {
          const int64_t channels = std::min(staged.channels, box.channels - c), count = std::min(staged.line, box.extent[2] - p);
          const void* first = element(from, type, offset + c * box.channel_stride + p);
          if (staged.run) tiles.widen(type, first, stage, channels * count);
          for (int64_t i = 0; !staged.run && i < channels; ++i)
            tiles.widen(type, element(first, type, i * box.channel_stride), stage + i * staged.line, count);
          tiles.transpose_rows(stage, staged.line, rows + (position + p) * pitch + c, pitch, count, channels);
        }
    });
  }
  visit(type, [&](auto scalar) {
    using Stored = decltype(scalar);
    for_each_row(box, [&](int64_t offset, int64_t position) {
      for (int64_t p = 0; p < box.extent[2]; ++p)
        for (int64_t c = 0; c < box.channels; ++c)
          rows[(position + p) * pitch + c] =
              Real(widen(static_cast<const Stored*>(from)[offset + p * box.stride[2] + c * box.channel_stride]));
    });
  });
}

template <>
void load_box(const Tiles<float>& tiles, Type type, const void* from, Box box, bf16* rows, int64_t pitch) {
  const auto* source = static_cast<const bf16*>(element(from, type, 0));
  merge_rows(box);
  const RowsAhead ahead(type, box.channels, box.stride[2]);
  for_each_row(box, [&](int64_t offset, int64_t position) {
    const bf16* line = source + offset;
    bf16* to = rows + position * pitch;
    if (box.channel_stride != 1 && (box.stride[2] == 1 || box.extent[2] == 1)) {
      tiles.transpose_halves(reinterpret_cast<const uint16_t*>(line), box.channel_stride, reinterpret_cast<uint16_t*>(to), pitch,
                             box.extent[2], box.channels);
    } else if (box.channel_stride == 1) {
      for (int64_t p = 0; p < box.extent[2]; ++p) {
        ahead.ask(line + p * box.stride[2]);
        std::copy_n(line + p * box.stride[2], box.channels, to + p * pitch);
      }
    } else {
      for (int64_t p = 0; p < box.extent[2]; ++p)
        for (int64_t c = 0; c < box.channels; ++c) to[p * pitch + c] = line[p * box.stride[2] + c * box.channel_stride];
    }
  });
}

void copy_box(Isa isa, Type type, const void* from, const Box& box, void* rows, int64_t pitch) {
  if (type == Type::f64) return load_box(tiles<double>(isa), type, from, box, static_cast<double*>(rows), pitch);
  if (type == Type::f32) return load_box(tiles<float>(isa), type, from, box, static_cast<float*>(rows), pitch);
  load_box(tiles<float>(isa), type, from, box, static_cast<bf16*>(rows), pitch);
}

template <class Real>
void move_box(const Tiles<Real>& tiles, Type type, const void* rows, int64_t pitch, void* to, Box box) {
  merge_rows(box);
  const bool lines = box.stride[2] == 1 || box.extent[2] == 1;
  visit(type, [&](auto scalar) {
    using Stored = decltype(scalar);
    for_each_row(box, [&](int64_t offset, int64_t position) {
      const Stored* source = static_cast<const Stored*>(rows) + position * pitch;
      Stored* target = static_cast<Stored*>(to) + offset;
      if constexpr (std::is_same_v<Stored, Real>) {
        if (lines) return tiles.transpose_rows(source, pitch, target, box.channel_stride, box.channels, box.extent[2]);
      } else if constexpr (sizeof(Stored) == 2) {
        if (lines)
          return tiles.transpose_halves(reinterpret_cast<const uint16_t*>(source), pitch, reinterpret_cast<uint16_t*>(target),
                                        box.channel_stride, box.channels, box.extent[2]);
      }
      for (int64_t p = 0; p < box.extent[2]; ++p)
        for (int64_t c = 0; c < box.channels; ++c) target[p * box.stride[2] + c * box.channel_stride] = source[p * pitch + c];
    });
  });
}

template <class Real>
void store_box(const Tiles<Real>& tiles, Type type, const Real* rows, int64_t pitch, void* to, Box box) {
  if (box.channel_stride == 1) {
    return for_each_row(box, [&](int64_t offset, int64_t position) {
      for (int64_t p = 0; p < box.extent[2]; ++p)
        tiles.narrow(type, rows + (position + p) * pitch, element(to, type, offset + p * box.stride[2]), box.channels);
    });
  }
  merge_rows(box);
  if (box.stride[2] == 1 || box.extent[2] == 1) {
    const Staged staged = staged_lines(box, tiles.lanes);
    return for_each_row(box, [&](int64_t offset, int64_t position) {
      if (computes_in<Real>(type))
        return tiles.transpose_rows(rows + position * pitch, pitch, static_cast<Real*>(element(to, type, offset)),
                                    box.channel_stride, box.channels, box.extent[2]);
      alignas(64) Real stage[kMaxLanes * kStage];
      for (int64_t c = 0; c < box.channels; c += staged.channels)
        for (int64_t p = 0; p < box.extent[2]; p += staged.line) {
          const int64_t channels = std::min(staged.channels, box.channels - c), count = std::min(staged.line, box.extent[2] - p);
          void* first = element(to, type, offset + c * box.channel_stride + p);
          tiles.transpose_rows(rows + (position + p) * pitch + c, pitch, stage, staged.line, channels, count);
          if (staged.run) tiles.narrow(type, stage, first, channels * count);
          for (int64_t i = 0; !staged.run && i < channels; ++i)
            tiles.narrow(type, stage + i * staged.line, element(first, type, i * box.channel_stride), count);
        }
    });
  }
  visit(type, [&](auto scalar) {
    using Stored = decltype(scalar);
    using Wide = decltype(widen(scalar));
    for_each_row(box, [&](int64_t offset, int64_t position) {
      for (int64_t p = 0; p < box.extent[2]; ++p)
        for (int64_t c = 0; c < box.channels; ++c)
          narrow(Wide(rows[(position + p) * pitch + c]),
                 static_cast<Stored*>(to)[offset + p * box.stride[2] + c * box.channel_stride]);
    });
  });
}

template <class Real>
void load_planes(const Tiles<Real>& tiles, Type type, const void* from, int64_t position_stride, int64_t count,
                 int64_t channel_stride, int64_t channels, Real* planes, int64_t pitch) {
  if (position_stride == 1) {
    for (int64_t c = 0; c < channels; ++c) tiles.widen(type, element(from, type, c * channel_stride), planes + c * pitch, count);
  } else if (position_stride >= 2 && position_stride <= 4 && computes_in<Real>(type) && !(channel_stride == 1 && channels > 1)) {
    for (int64_t c = 0; c < channels; ++c)
      tiles.every(static_cast<const Real*>(from) + c * channel_stride, position_stride, planes + c * pitch, count);
  } else if (channel_stride == 1 && channels > 1) {
    if (computes_in<Real>(type))
      return tiles.transpose_rows(static_cast<const Real*>(from), position_stride, planes, pitch, channels, count);
    alignas(64) Real stage[kMaxLanes * kStage];
    for_each_stage(count, channels, [&](int64_t p, int64_t c, int64_t part, int64_t width) {
      const bool dense = width == channels && position_stride == channels;
      if (dense) tiles.widen(type, element(from, type, p * width), stage, part * width);
      for (int64_t i = 0; !dense && i < part; ++i)
        tiles.widen(type, element(from, type, (p + i) * position_stride + c), stage + i * width, width);
      tiles.transpose_rows(stage, width, planes + c * pitch + p, pitch, width, part);
    });
  } else {
    visit(type, [&](auto scalar) {
      const auto* source = static_cast<const decltype(scalar)*>(from);
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < count; ++p) planes[c * pitch + p] = Real(widen(source[p * position_stride + c * channel_stride]));
    });
  }
}

void load_pairs(const Tiles<float>& tiles, const uint16_t* from, int64_t position_stride, int64_t count, int64_t channel_stride,
                int64_t channels, float* planes, int64_t pitch) {
  const auto pair_up = [&](const uint16_t* lines, int64_t line, int64_t position, int64_t positions) {
    for (int64_t c = 0; c < channels; c += 2)
      tiles.pair(lines + c * line, c + 1 < channels ? lines + (c + 1) * line : nullptr, planes + c / 2 * pitch + position,
                 positions);
  };
  if (position_stride == 1) return pair_up(from, channel_stride, 0, count);
  const bool lie_as_pairs = channel_stride == 1 && channels % 2 == 0 && position_stride % 2 == 0 &&
                            reinterpret_cast<uintptr_t>(from) % sizeof(float) == 0;
  if (lie_as_pairs)
    return tiles.transpose_rows(reinterpret_cast<const float*>(from), position_stride / 2, planes, pitch, channels / 2, count);
  thread_local std::vector<uint16_t> stage;
  stage.resize(size_t(channels * kStage));
  for (int64_t p = 0; p < count; p += kStage) {
    const int64_t part = std::min(kStage, count - p);
    const uint16_t* first = from + p * position_stride;
    if (channel_stride == 1) {
      tiles.transpose_halves(first, position_stride, stage.data(), kStage, channels, part);
    } else {
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t i = 0; i < part; ++i) stage[size_t(c * kStage + i)] = first[i * position_stride + c * channel_stride];
    }
    pair_up(stage.data(), kStage, p, part);
  }
}

template <class Real>
void load_residues(const Tiles<Real>& tiles, Type type, const void* from, int64_t step, Real* to, int64_t pitch, int64_t count) {
  if (computes_in<Real>(type)) return tiles.unweave(static_cast<const Real*>(from), step, to, pitch, count);
  alignas(64) Real stage[kMaxResidues];
  const int64_t some = kMaxResidues / step;
  for (int64_t j = 0; j < count; j += some) {
    const int64_t cells = std::min(some, count - j);
    tiles.widen(type, element(from, type, j * step), stage, cells * step);
    tiles.unweave(stage, step, to + j, pitch, cells);
  }
}

void load_planes(const Tiles<float>& tiles, Type, const void* from, int64_t position_stride, int64_t count,
                 int64_t channel_stride, int64_t channels, bf16* planes, int64_t pitch) {
  const auto* source = static_cast<const bf16*>(from);
  if (position_stride != 1 && channel_stride == 1 && channels > 1) {
    tiles.transpose_halves(&source->bits, position_stride, &planes->bits, pitch, channels, count);
    return;
  }
  for (int64_t c = 0; c < channels; ++c, source += channel_stride, planes += pitch) {
    if (position_stride == 1) {
      std::copy_n(source, count, planes);
    } else {
      for (int64_t p = 0; p < count; ++p) planes[p] = source[p * position_stride];
    }
  }
}

void load_residues(const Tiles<float>& tiles, Type type, const void* from, int64_t step, bf16* to, int64_t pitch, int64_t count) {
  alignas(64) float stage[kMaxResidues], residues[kMaxResidues];
  const int64_t some = kMaxResidues / step;
  for (int64_t j = 0; j < count; j += some) {
    const int64_t cells = std::min(some, count - j);
    tiles.widen(type, element(from, type, j * step), stage, cells * step);
    tiles.unweave(stage, step, residues, cells, cells);
    for (int64_t r = 0; r < step; ++r) tiles.narrow(type, residues + r * cells, to + r * pitch + j, cells);
  }
}

template <class Real>
void store_planes(const Tiles<Real>& tiles, Type type, const Real* planes, int64_t pitch, void* to, int64_t position_stride,
                  int64_t count, int64_t channel_stride, int64_t channels) {
  if (position_stride == 1) {
    for (int64_t c = 0; c < channels; ++c) tiles.narrow(type, planes + c * pitch, element(to, type, c * channel_stride), count);
  } else if (channel_stride == 1 && channels > 1) {
    if (computes_in<Real>(type))
      return tiles.transpose_rows(planes, pitch, static_cast<Real*>(to), position_stride, count, channels);
    alignas(64) Real stage[kMaxLanes * kStage];
    for_each_stage(count, channels, [&](int64_t p, int64_t c, int64_t part, int64_t width) {
      tiles.transpose_rows(planes + c * pitch + p, pitch, stage, width, part, width);
      const bool dense = width == channels && position_stride == channels;
      if (dense) tiles.narrow(type, stage, element(to, type, p * width), part * width);
      for (int64_t i = 0; !dense && i < part; ++i)
        tiles.narrow(type, stage + i * width, element(to, type, (p + i) * position_stride + c), width);
    });
  } else {
    visit(type, [&](auto scalar) {
      using Wide = decltype(widen(scalar));
      auto* target = static_cast<decltype(scalar)*>(to);
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < count; ++p) narrow(Wide(planes[c * pitch + p]), target[p * position_stride + c * channel_stride]);
    });
  }
}

template <class Real>
PanelPacker<Real>::PanelPacker(const Tiles<Real>& tiles, Type type, const WeightsMatrix& weights, int64_t width, int64_t terms,
                               int64_t depth)
    : tiles_(&tiles),
      type_(type),
      w_(weights),
      width_(width),
      terms_(terms),
      units_(parts_of(w_.depth, terms)),
      tap_count_(w_.taps[0] * w_.taps[1] * w_.taps[2]),
      tap_pitch_(tap_pitch<Real>(depth, width)) {
  bool dense_taps = true;
  for (int64_t a = kAxes - 1, step = 1; a >= 0; step *= w_.taps[a--])
    dense_taps = dense_taps && (w_.taps[a] == 1 || w_.tap_stride[a] == step);
  order_ = w_.columns_stride == 1                                                                 ? Order::columns
           : dense_taps && w_.depth_stride == tap_count_ && (terms_ == 1 || tap_count_ <= kStage) ? Order::everything
           : w_.depth_stride == 1                                                                 ? Order::channels_of_a_tap
           : dense_taps && tap_count_ > 1                                                         ? Order::taps_of_a_channel
                                                                                                  : Order::scattered;
  if (order_ == Order::everything)
    for (int64_t c = 0; c < units_; ++c)
      for (int64_t k = 0; k < tap_count_; ++k) offsets_.push_back(k * tap_pitch_ + c * width_);
  if (order_ == Order::channels_of_a_tap)
    for (int64_t c = 0; c < units_; ++c) offsets_.push_back(c * width_);
  if (order_ == Order::taps_of_a_channel)
    for (int64_t k = 0; k < tap_count_; ++k) offsets_.push_back(k * tap_pitch_);
}

template <class Real>
bool PanelPacker<Real>::pack(const void* weights, int64_t first_column, Range units, Range taps, Real* panel) const {
  for (int64_t k = taps.begin; units.end > units_ && k < taps.end; ++k)
    std::fill(panel + k * tap_pitch_ + std::max(units.begin, units_) * width_, panel + k * tap_pitch_ + units.end * width_,
              Real(0));
  units.end = std::min(units.end, units_);
  if (units.size() <= 0) return true;
  copy(weights, first_column, units, taps, panel);
  bool finite = true;
  for (int64_t k = taps.begin; k < taps.end; ++k)
    finite = tiles_->finite(panel + k * tap_pitch_ + units.begin * width_, units.size() * width_) && finite;
  return finite;
}

// to[j] = unit j of the run that begins at element `index`, with unit c of the channels.
template <class Real>
void PanelPacker<Real>::load_run(const void* weights, int64_t index, int64_t c, int64_t count, Real* to) const {
  if (terms_ == 1) return tiles_->widen(type_, element(weights, type_, index), to, count);
  const auto* halves = static_cast<const uint16_t*>(weights) + index;
  if (order_ != Order::columns && w_.depth_stride == 1) {  // the channels of all pairs lie side by side
    to[count - 1] = 0;
    std::memcpy(to, halves, size_t(std::min(2 * count, w_.depth - 2 * c) * 2));
    return;
  }
  const int64_t pair = order_ == Order::everything ? tap_count_ : count;  // units
  for (const Real* end = to + count; to < end; ++c, halves += 2 * pair, to += pair)
    tiles_->pair(halves, 2 * c + 1 < w_.depth ? halves + w_.depth_stride : nullptr, to, pair);
}

template <class Real>
void PanelPacker<Real>::copy(const void* weights, int64_t first_column, Range units, Range taps, Real* panel) const {
  const int64_t begin = units.begin, end = units.end;
  const int64_t columns = std::min(width_, w_.columns - first_column);
  const void* from = element(weights, type_, first_column * w_.columns_stride);
  const auto for_each_tap = [&](auto f) {
    for (int64_t k = taps.begin; k < taps.end; ++k)
      f(k, k / (w_.taps[1] * w_.taps[2]) * w_.tap_stride[0] + k / w_.taps[2] % w_.taps[1] * w_.tap_stride[1] +
               k % w_.taps[2] * w_.tap_stride[2]);
  };
  // One vector of columns at a time: each is a run of `count` consecutive elements, whose element j goes to to[offsets[j]].
  const auto transpose = [&](int64_t source, int64_t c, const int64_t* offsets, int64_t count, Real* to) {
    alignas(64) Real stage[kMaxLanes * kStage];
    for (int64_t v = 0; v < width_; v += tiles_->lanes) {
      const int64_t rows = std::clamp<int64_t>(columns - v, 0, tiles_->lanes), first = source + v * w_.columns_stride;
      if (computes_in<Real>(type_)) {
        tiles_->transpose(static_cast<const Real*>(element(from, type_, first)), w_.columns_stride, int(rows), count, to + v,
                          offsets);
        continue;
      }
      const bool of_channel = order_ == Order::taps_of_a_channel;
      if (of_channel && w_.columns_stride == count && count <= kStage) {  // the columns are one run
        load_run(from, first, c, rows * count, stage);
        tiles_->transpose(stage, count, int(rows), count, to + v, offsets);
        continue;
      }
      // Units of a pair of channels stay together.
      const int64_t group = terms_ > 1 && order_ == Order::everything ? tap_count_ : 1, most = kStage / group * group;
      for (int64_t j = 0; j < count; j += most) {
        const int64_t part = std::min(most, count - j);
        for (int64_t i = 0; i < rows; ++i)
          load_run(from, first + i * w_.columns_stride + (of_channel ? 1 : terms_) * j, c + (of_channel ? 0 : j / group), part,
                   stage + i * kStage);
        tiles_->transpose(stage, kStage, int(rows), part, to + v, offsets + j);
      }
    }
  };
  switch (order_) {
    case Order::columns: {
      const RowsAhead ahead(type_, columns, w_.depth_stride, kUnitsAhead * terms_);
      const auto row = [&](int64_t k, int64_t tap, int64_t c) {
        Real* to = panel + k * tap_pitch_ + c * width_;
        const int64_t first = tap + terms_ * c * w_.depth_stride;
        for (int64_t t = 0; t < terms_; ++t) ahead.ask(element(from, type_, first + t * w_.depth_stride));
        load_run(from, first, c, columns, to);
        std::fill(to + columns, to + width_, Real(0));
      };
      // As they lie in memory.
      if (w_.depth_stride > w_.tap_stride[kAxes - 1]) {
        for (int64_t c = begin; c < end; ++c) for_each_tap([&](int64_t k, int64_t tap) { row(k, tap, c); });
      } else {
        for_each_tap([&](int64_t k, int64_t tap) {
          for (int64_t c = begin; c < end; ++c) row(k, tap, c);
        });
      }
      return;
    }
    case Order::everything:
      return transpose(terms_ * begin * tap_count_, begin, offsets_.data() + begin * tap_count_, (end - begin) * tap_count_,
                       panel);
    case Order::channels_of_a_tap:
      return for_each_tap([&](int64_t k, int64_t tap) {
        transpose(tap + terms_ * begin, begin, offsets_.data() + begin, end - begin, panel + k * tap_pitch_);
      });
    case Order::taps_of_a_channel:
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t t = 0; w_.columns_stride == tap_count_ && t < terms_; ++t)
          ask_for(element(from, type_, (terms_ * (c + kUnitsAhead) + t) * w_.depth_stride),
                  columns * tap_count_ * bytes_of(type_));
        transpose(terms_ * c * w_.depth_stride, c, offsets_.data(), tap_count_, panel + c * width_);
      }
      return;
    case Order::scattered:
      return visit(type_, [&](auto scalar) {
        const auto* source = static_cast<const decltype(scalar)*>(from);
        for_each_tap([&](int64_t k, int64_t tap) {
          if (terms_ > 1) {  // column by column
            for (int64_t c = begin; c < end; ++c)
              for (int64_t n = 0; n < width_; ++n) {
                Real* unit = panel + k * tap_pitch_ + c * width_ + n;
                *unit = 0;
                if (n < columns) load_run(from, tap + terms_ * c * w_.depth_stride + n * w_.columns_stride, c, 1, unit);
              }
            return;
          }
          for (int64_t c = begin; c < end; ++c)
            for (int64_t n = 0; n < width_; ++n)
              panel[k * tap_pitch_ + c * width_ + n] =
                  n < columns ? Real(widen(source[tap + c * w_.depth_stride + n * w_.columns_stride])) : Real(0);
        });
      });
  }
}

template void move_box(const Tiles<float>&, Type, const void*, int64_t, void*, Box);
template void move_box(const Tiles<double>&, Type, const void*, int64_t, void*, Box);
template void load_box<float>(const Tiles<float>&, Type, const void*, Box, float*, int64_t);
template void load_box<double>(const Tiles<double>&, Type, const void*, Box, double*, int64_t);
template void store_box<float>(const Tiles<float>&, Type, const float*, int64_t, void*, Box);
template void store_box<double>(const Tiles<double>&, Type, const double*, int64_t, void*, Box);
template void load_planes<float>(const Tiles<float>&, Type, const void*, int64_t, int64_t, int64_t, int64_t, float*, int64_t);
template void load_residues<float>(const Tiles<float>&, Type, const void*, int64_t, float*, int64_t, int64_t);
template void store_planes<float>(const Tiles<float>&, Type, const float*, int64_t, void*, int64_t, int64_t, int64_t, int64_t);
template class PanelPacker<float>;
template void load_planes<double>(const Tiles<double>&, Type, const void*, int64_t, int64_t, int64_t, int64_t, double*, int64_t);
template void load_residues<double>(const Tiles<double>&, Type, const void*, int64_t, double*, int64_t, int64_t);
template void store_planes<double>(const Tiles<double>&, Type, const double*, int64_t, void*, int64_t, int64_t, int64_t, int64_t);
template class PanelPacker<double>;

}  // namespace torch_ext::cpu
