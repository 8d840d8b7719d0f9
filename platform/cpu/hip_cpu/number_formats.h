// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// bf16 and f16 bit patterns to and from f32, fp8 to f32, and v_perm_b32. Conversions to 16 bits round to
/// nearest even and keep NaN a (quiet) NaN with its sign.

#include <cstdint>
#include <cstring>

namespace hip_cpu {

inline uint32_t f32_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float f32_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float bf16_to_f32(uint16_t bits) { return f32_from_bits(static_cast<uint32_t>(bits) << 16); }

inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = f32_bits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity, NaN
    const uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;
    return f32_from_bits(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13) | quiet);
  }
  // The pattern shifted into place has an exponent that is 112 too small; the product by 2^112
  // mends it, and is exact for subnormals as well.
  const float scaled = f32_from_bits(magnitude << 13) * f32_from_bits((127u + 112u) << 23);
  return f32_from_bits(sign | f32_bits(scaled));
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = f32_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {  // NaN
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520
  if (magnitude < 0x38800000u) {  // < 2^-14: multiples of 2^-24, which is the last place of 0.5f
    const float rounded = f32_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (f32_bits(rounded) - f32_bits(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

/// E4M3: sign, 4 bits of exponent, 3 of mantissa. FN (OCP): bias 7, NaN is 0x7F and 0xFF. FNUZ: bias
/// 8, NaN is 0x80, no minus zero. Neither has infinity.
inline float fp8_e4m3_to_f32(uint8_t bits, bool fnuz) {
  const uint32_t magnitude = bits & 0x7Fu;
  if (fnuz ? bits == 0x80u : magnitude == 0x7Fu) return f32_from_bits(0x7FC00000u);
  // Exact, also for subnormals: the exponent field moves to that of f32, a product mends the bias.
  const uint32_t exponent = 127u + 127u - (fnuz ? 8u : 7u);
  const float value = f32_from_bits(magnitude << 20) * f32_from_bits(exponent << 23);
  return f32_from_bits(f32_bits(value) | (bits & 0x80u) << 24);
}

/// The values of all 256 patterns.
inline const float* fp8_values(bool fnuz) {
  struct Table {
    float values[2][256];
    Table() {
      for (int kind = 0; kind < 2; ++kind)
        for (int bits = 0; bits < 256; ++bits)
          values[kind][bits] = fp8_e4m3_to_f32(static_cast<uint8_t>(bits), kind == 1);
    }
  };
  static const Table table;
  return table.values[fnuz ? 1 : 0];
}

/// v_perm_b32. Bytes 0-3 of the source are s1, 4-7 are s0. Each selector byte picks one: 0-7 that
/// byte; 8, 9, 10, 11 the sign of byte 1, 3, 5, 7, replicated; 12 gives 0x00; 13 and above 0xFF.
inline uint32_t perm_b32(uint32_t s0, uint32_t s1, uint32_t selector) {
  const uint64_t source = static_cast<uint64_t>(s0) << 32 | s1;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t pick = (selector >> (8 * i)) & 0xFFu;
    uint32_t byte;
    if (pick < 8) {
      byte = static_cast<uint32_t>(source >> (8 * pick)) & 0xFFu;
    } else if (pick < 12) {
      byte = (source >> (16 * (pick - 8) + 15)) & 1u ? 0xFFu : 0u;
    } else {
      byte = pick == 12 ? 0u : 0xFFu;
    }
    result |= byte << (8 * i);
  }
  return result;
}

}  // namespace hip_cpu
