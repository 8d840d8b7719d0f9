// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The 16-bit and 8-bit formats on the host, bit by bit: independent of the library and of the
// platform under test.

#include <algorithm>
#include <array>
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

// E4M3: a sign, 4 bits of exponent, 3 of mantissa; no infinity. FN: bias 7, NaN is all ones below
// the sign. FNUZ: bias 8, NaN is what would be -0.
struct Fp8Format {
  int bias;
  uint8_t nan;      // one pattern that is NaN
  uint8_t largest;  // positive, finite
};
constexpr Fp8Format fp8_format(DataType type) {
  return type == DataType::kFp8E4m3Fn ? Fp8Format{7, 0xff, 0x7e} : Fp8Format{8, 0x80, 0x7f};
}

inline float fp8_to_float(DataType type, uint8_t bits) {
  const Fp8Format format = fp8_format(type);
  const bool is_nan = type == DataType::kFp8E4m3Fn ? (bits & 0x7f) == 0x7f : bits == 0x80;
  if (is_nan) return NAN;
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - format.bias - 3)
                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - format.bias - 3);
  return bits & 0x80 ? -magnitude : magnitude;
}

// All 256 values of a format.
inline const std::array<float, 256>& fp8_values(DataType type) {
  const auto make = [](DataType format) {
    std::array<float, 256> values{};
    for (size_t i = 0; i < 256; ++i) values[i] = fp8_to_float(format, static_cast<uint8_t>(i));
    return values;
  };
  static const std::array<float, 256> fn = make(DataType::kFp8E4m3Fn);
  static const std::array<float, 256> fnuz = make(DataType::kFp8E4m3Fnuz);
  return type == DataType::kFp8E4m3Fn ? fn : fnuz;
}

// Round to nearest, ties to even; too large becomes the largest finite value, as quantisers do. NaN
// stays NaN.
inline uint8_t float_to_fp8(DataType type, float x) {
  const Fp8Format format = fp8_format(type);
  if (std::isnan(x)) return format.nan;
  const float magnitude = std::fabs(x);
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (magnitude >= fp8_values(type)[format.largest])
    return static_cast<uint8_t>(sign | format.largest);
  const int smallest = 1 - format.bias;  // exponent of normal values
  const int exponent = magnitude == 0.0f ? smallest : std::max(std::ilogb(magnitude), smallest);
  // In steps of the mantissa's last bit; 16 steps are 8 of the next exponent.
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  const int bits = (exponent - smallest) * 8 + steps;
  // FNUZ has no -0.
  if (bits == 0 && type == DataType::kFp8E4m3Fnuz) return 0;
  return static_cast<uint8_t>(sign | bits);
}

// Element `index` of an array of bf16, f16, f32 or fp8; NaN for another type.
inline float load_element(const void* data, DataType type, int64_t index) {
  switch (type) {
    case DataType::kBf16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DataType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DataType::kF32:
      return static_cast<const float*>(data)[index];
    case DataType::kFp8E4m3Fn:
    case DataType::kFp8E4m3Fnuz:
      return fp8_values(type)[static_cast<const uint8_t*>(data)[index]];
    case DataType::kI32:
      break;
  }
  return NAN;
}

// Rounds to `type`, which is bf16, f16 or fp8.
inline void store_element(void* data, DataType type, int64_t index, float x) {
  if (is_fp8(type))
    static_cast<uint8_t*>(data)[index] = float_to_fp8(type, x);
  else
    static_cast<uint16_t*>(data)[index] =
        type == DataType::kBf16 ? float_to_bf16(x) : float_to_f16(x);
}

// NaN in bf16, f16 and f32 (twice in a row), a wild index as an integer, and no value that a kernel
// computes: fills everything that a test must neither read nor write.
constexpr uint16_t kPoison16 = 0x7fc1;
constexpr uint32_t kPoison32 = 0x7fc17fc1;

}  // namespace hipmla::test
