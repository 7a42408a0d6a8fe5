// SPDX-License-Identifier: Apache-2.0
// The 16-bit element types as plain storage with exact conversions: widening is exact, narrowing rounds once, to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

#include "csrc/core/geometry.h"

namespace torch_ext {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

namespace detail {
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
}  // namespace detail

inline float widen(float v) { return v; }
inline double widen(double v) { return v; }
inline float widen(bf16 v) { return detail::float_of(uint32_t(v.bits) << 16); }
inline float widen(f16 v) {
  const uint32_t sign = uint32_t(v.bits & 0x8000) << 16, magnitude = v.bits & 0x7fff;
  if (magnitude >= 0x7c00) return detail::float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // infinity, NaN
  // As a float the bit pattern is 2^112 times too small; the product is exact, for subnormal values too.
  return detail::float_of(sign | detail::bits_of(detail::float_of(magnitude << 13) * 0x1p112f));
}

inline void narrow(float v, float& to) { to = v; }
inline void narrow(double v, double& to) { to = v; }
inline void narrow(float v, bf16& to) {
  const uint32_t bits = detail::bits_of(v);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    to.bits = uint16_t(bits >> 16 | 0x40);  // a NaN stays one
  } else {
    to.bits = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}
inline void narrow(float v, f16& to) {
  const uint32_t bits = detail::bits_of(v), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    to.bits = uint16_t(sign | 0x7e00);
  } else if (magnitude >= 0x477ff000) {  // rounds to 2^16 or more
    to.bits = uint16_t(sign | 0x7c00);
  } else if (magnitude < 0x38800000) {  // below 2^-14: adding 1/2 leaves the subnormal's bits, rounded, at the end of the sum
    to.bits = uint16_t(sign | (detail::bits_of(detail::float_of(magnitude) + 0.5f) - 0x3f000000));
  } else {
    to.bits = uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
  }
}

// Calls f with a value of the C++ type that stores `type`.
template <class F>
decltype(auto) visit(Type type, F&& f) {
  switch (type) {
    case Type::f64:
      return f(double{});
    case Type::bf16:
      return f(bf16{});
    case Type::f16:
      return f(f16{});
    default:
      return f(float{});
  }
}

}  // namespace torch_ext
