// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Numbers, for all targets. Included by <target>.h, which has defined bits_of and float_of.

namespace hipmla::device {

// Four fp8 values from their bits alone, for targets without an instruction for the format. The exponent field of
// E4M3 is put where f32 has its own and the bias made up by a product, which is exact, subnormals included.
template <DataType kFp8>
HIPMLA_DEVICE void fp8_bits_to_f32(float (&out)[4], uint32_t word) {
#if defined(__clang__)
#pragma clang fp contract(off)  // a fused a * b - a * b is a rounding error, not 0
#endif
  constexpr bool kIsFn = kFp8 == DataType::kFp8E4m3Fn;
  const float rebias = kIsFn ? 0x1p120f : 0x1p119f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = word >> (8 * i) & 0xffu;
    const uint32_t magnitude = bits & 0x7fu;
    const float value = float_of(magnitude << 20) * rebias;
    const float x = float_of(bits_of(value) | (bits & 0x80u) << 24);
    if constexpr (kIsFn) {
      // NaN is the pattern after 448, which reads as 480 here. Only that overflows, and infinity - infinity is NaN: no
      // comparison, because of which the compiler would hold a lane mask for each of many values.
      const float above_448 = value * (0x1p120f / 1.8125f);
      out[i] = x - (above_448 - above_448);
    } else {
      // NaN is the pattern of minus zero: all ones, by arithmetic for the same reason.
      const uint32_t is_nan =
          static_cast<uint32_t>(static_cast<int32_t>((bits ^ 0x80u) - 1u) >> 31);
      out[i] = float_of(bits_of(x) | (is_nan & 0x7fc00000u));
    }
  }
}

// Not 0 if a 16-bit value of the words is NaN or infinite: the sign bit of each that is, as an exponent of all ones
// carries into it.
template <DataType kType>
HIPMLA_DEVICE uint32_t non_finite_halves(Words4 words) {
  constexpr uint32_t kExponent = kType == DataType::kBf16 ? 0x7f807f80u : 0x7c007c00u;
  constexpr uint32_t kLowestBit = kType == DataType::kBf16 ? 0x00800080u : 0x04000400u;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum |= (words[i] & kExponent) + kLowestBit;
  return sum & 0x80008000u;
}

}  // namespace hipmla::device
