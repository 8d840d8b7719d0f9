// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// bf16 and f16 by their bits, for targets whose instructions do less. Included by <target>.h, which has defined bits_of,
// float_of, permute_bytes, f16_bits and f16_to_f32.

namespace hipmla::device {

// Round to nearest even; every NaN becomes the quiet NaN.
HIPMLA_DEVICE uint16_t bf16_bits(float x) {
  const uint32_t u = x != x ? 0x7fc00000u : bits_of(x);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Two values rounded to nearest even, the first in the low half.
template <DataType kType>
HIPMLA_DEVICE uint32_t pack_nearest(float first, float second) {
  if constexpr (kType == DataType::kBf16)
    return bf16_bits(first) | static_cast<uint32_t>(bf16_bits(second)) << 16;
  else
    return f16_bits(first) | static_cast<uint32_t>(f16_bits(second)) << 16;
}

// The value of a bf16 or f16 in the low half of a word.
template <DataType kType>
HIPMLA_DEVICE float half_to_f32(uint32_t bits) {
  if constexpr (kType == DataType::kBf16)
    return float_of(bits << 16);
  else
    return f16_to_f32(static_cast<uint16_t>(bits));
}

// Two values that kType holds exactly, the first in the low half.
template <DataType kType>
HIPMLA_DEVICE uint32_t pack_exact(float first, float second) {
  if constexpr (kType == DataType::kBf16)
    return permute_bytes(bits_of(second), bits_of(first), 0x07060302u);  // the high halves
  else
    return pack_nearest<kType>(first, second);
}

}  // namespace hipmla::device
