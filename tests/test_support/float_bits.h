// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The 16-bit formats on the host, bit by bit: independent of the library and of the platform under
// test.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "hipmla/types.h"

namespace hipmla::test {

inline float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float bf16_to_float(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even. NaN stays NaN.
inline uint16_t float_to_bf16(float x) {
  const uint32_t bits = bits_of_float(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return float_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Round to nearest, ties to even; too large becomes infinity. NaN stays NaN.
inline uint16_t float_to_f16(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const float steps = std::nearbyint(float_from_bits(magnitude) * 0x1p24f);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(steps));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Element `index` of an array of bf16, f16 or f32; NaN for another type.
inline float load_element(const void* data, DataType type, int64_t index) {
  switch (type) {
    case DataType::kBf16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DataType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DataType::kF32:
      return static_cast<const float*>(data)[index];
    case DataType::kI32:
      break;
  }
  return NAN;
}

inline uint16_t float_to_16bit(DataType type, float x) {
  return type == DataType::kBf16 ? float_to_bf16(x) : float_to_f16(x);
}

// NaN in bf16, f16 and f32 (twice in a row), a wild index as an integer, and no value that a kernel
// computes: fills everything that a test must neither read nor write.
constexpr uint16_t kPoison16 = 0x7fc1;
constexpr uint32_t kPoison32 = 0x7fc17fc1;

}  // namespace hipmla::test
