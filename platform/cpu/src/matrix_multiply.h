// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What the emulated matrix instructions share. The last lane to arrive gathers A, B and C from all lanes into
// row-major f32 arrays, multiplies them with the widest vectors that the host has, and scatters D. All variants give
// the same bits: products are exact, and multiply and add are kept apart, so that no compiler may fuse them where
// products overflow or underflow.

#include <cstring>

#include "hip_cpu/device.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define HIP_CPU_INLINE inline __attribute__((always_inline))

// Unrolls the loop that follows, whatever the optimisation level, so that small arrays become
// registers.
//
// HIP_CPU_NO_FUSING: at the start of a block, keeps the compiler from making fused multiply-adds in
// it. GCC has no such pragma; keep_apart does it there.
#if defined(__clang__)
#define HIP_CPU_UNROLL _Pragma("unroll")
#define HIP_CPU_NO_FUSING _Pragma("clang fp contract(off)")
#else
#define HIP_CPU_UNROLL _Pragma("GCC unroll 16")
#define HIP_CPU_NO_FUSING
#endif

namespace hip_cpu::internal {

enum class Format { kBf16, kF16, kFp8Fn, kFp8Fnuz };

typedef float Floats4 __attribute__((vector_size(16)));
typedef uint32_t Words4 __attribute__((vector_size(16)));

// ---- vectors of kWidth floats

template <int kWidth>
struct Vector;
template <>
struct Vector<4> {
  typedef float Type __attribute__((vector_size(16)));
};
template <>
struct Vector<8> {
  typedef float Type __attribute__((vector_size(32)));
};
template <>
struct Vector<16> {
  typedef float Type __attribute__((vector_size(64)));
};

// Hides from GCC where a product comes from, so that it cannot become part of a fused multiply-add.
template <typename T>
HIP_CPU_INLINE void keep_apart(T& product) {
#if defined(__clang__)
  (void)product;
#elif defined(__x86_64__)
  if constexpr (sizeof(T) == 64) {
    asm("" : "+v"(product));
  } else {
    asm("" : "+x"(product));
  }
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
}

template <typename T>
HIP_CPU_INLINE void load(T& value, const void* address) {
  std::memcpy(&value, address, sizeof(T));
}

template <typename T>
HIP_CPU_INLINE void store(void* address, const T& value) {
  std::memcpy(address, &value, sizeof(T));
}

// Rows r of a 4x4 block become its columns.
HIP_CPU_INLINE void transpose(Floats4 (&rows)[4]) {
#if defined(__x86_64__)
  __m128 r0 = rows[0], r1 = rows[1], r2 = rows[2], r3 = rows[3];
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  rows[0] = r0;
  rows[1] = r1;
  rows[2] = r2;
  rows[3] = r3;
#else
  for (int i = 0; i < 4; ++i) {
    for (int k = i + 1; k < 4; ++k) {
      const float x = rows[i][k];
      rows[i][k] = rows[k][i];
      rows[k][i] = x;
    }
  }
#endif
}

// Elements first .. first + 3 of a lane's A or B, as f32.
template <Format kFormat>
HIP_CPU_INLINE Floats4 widen(const void* elements, int first) {
  if constexpr (kFormat == Format::kFp8Fn || kFormat == Format::kFp8Fnuz) {
    const auto* bytes = static_cast<const uint8_t*>(elements) + first;
    const float* values = fp8_values(kFormat == Format::kFp8Fnuz);
    return Floats4{values[bytes[0]], values[bytes[1]], values[bytes[2]], values[bytes[3]]};
  }
  typedef uint16_t Halves4 __attribute__((vector_size(8)));
  Halves4 raw;
  load(raw, static_cast<const uint16_t*>(elements) + first);
  const Words4 bits = __builtin_convertvector(raw, Words4);
  if constexpr (kFormat == Format::kBf16) {
    return (Floats4)(bits << 16);
  } else {
    // As f16_to_f32, but infinity and NaN get their exponent afterwards.
    const Words4 magnitude = bits & 0x7FFFu;
    const float scale = f32_from_bits((127u + 112u) << 23);
    const Floats4 scaled = (Floats4)(magnitude << 13) * scale;
    const Words4 special = (Words4)(magnitude >= 0x7C00u) & 0x7F800000u;
    return (Floats4)((Words4)scaled | special | (bits & 0x8000u) << 16);
  }
}

// What a lane hands to the rendezvous.
template <typename Operands>
struct MatrixCall {
  const Operands* ops;
  int count;
};

// One instruction: D[kM][kN] = C + A[kM][kDepth] B[kDepth][kN].
template <int kM, int kN, int kDepth>
struct Matrices {
  alignas(64) float a[kM][kDepth];
  alignas(64) float b[kDepth][kN];
  alignas(64) float c[kM][kN];
};

// Not on the stack: that is another fiber's each time, and cold. The asm keeps the address in a register.
template <typename M>
HIP_CPU_INLINE M& matrices_of_this_thread() {
  static thread_local M matrices;
  M* address = &matrices;
  asm("" : "+r"(address));
  return *address;
}

// kRows rows at a time, so that their sums stay in registers and do not wait for each other.
template <int kWidth, int kRows, int kM, int kN, int kDepth>
HIP_CPU_INLINE void multiply(Matrices<kM, kN, kDepth>& m) {
  HIP_CPU_NO_FUSING
  using V = typename Vector<kWidth>::Type;
  for (int column = 0; column < kN; column += kWidth) {
    for (int row = 0; row < kM; row += kRows) {
      V sum[kRows];
      HIP_CPU_UNROLL
      for (int i = 0; i < kRows; ++i) load(sum[i], &m.c[row + i][column]);
      for (int k = 0; k < kDepth; ++k) {
        V b;
        load(b, &m.b[k][column]);
        HIP_CPU_UNROLL
        for (int i = 0; i < kRows; ++i) {
          V product = m.a[row + i][k] * b;
          keep_apart(product);
          sum[i] += product;
        }
      }
      HIP_CPU_UNROLL
      for (int i = 0; i < kRows; ++i) store(&m.c[row + i][column], sum[i]);
    }
  }
}

// Variants by the host's vectors. Run::run<kWidth, kRows>(lanes) is the whole rendezvous; kMaxWidth: columns of D.
template <typename Run>
void run_generic(void* const* lanes, void* /*context*/) {
  Run::template run<4, 4>(lanes);
}

#if defined(__x86_64__)
template <typename Run>
__attribute__((target("avx2"))) void run_avx2(void* const* lanes, void* /*context*/) {
  Run::template run<8, 8>(lanes);
}

template <typename Run>
__attribute__((target("avx512f,avx512vl"))) void run_avx512(void* const* lanes, void* /*context*/) {
  Run::template run<16, 16>(lanes);
}
#endif

template <typename Run>
CollectiveOp choose_variant() {
#if defined(__x86_64__)
  if constexpr (Run::kColumns >= 16)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
      return &run_avx512<Run>;
  if (__builtin_cpu_supports("avx2")) return &run_avx2<Run>;
#endif
  return &run_generic<Run>;
}

// Runs the lane's ops with the others'.
template <typename Run>
HIP_CPU_INLINE void run_collectively(const typename Run::Operands* ops, int count,
                                     const void* site) {
  static const CollectiveOp op = choose_variant<Run>();
  if (current_thread->wave_lanes != kWaveSize) fail("a matrix op needs a full wave");
  MatrixCall<typename Run::Operands> call{ops, count};
  wave_collective(op, &call, nullptr, site);
}

// The operands of all lanes; returns how many there are in each.
template <typename Operands>
HIP_CPU_INLINE int collect_operands(const Operands* (&ops)[kWaveSize], void* const* lanes) {
  const int count = static_cast<const MatrixCall<Operands>*>(lanes[0])->count;
  for (int lane = 0; lane < kWaveSize; ++lane) {
    const auto* call = static_cast<const MatrixCall<Operands>*>(lanes[lane]);
    if (call->count != count) fail("lanes of a wave pass different counts to a matrix op");
    ops[lane] = call->ops;
  }
  return count;
}

// True if op `index` and the one before it have the same `member` pointer in every lane.
template <typename Operands, typename Member>
HIP_CPU_INLINE bool same_as_previous(const Operands* const* ops, int index, Member member) {
  bool same = true;
  for (int lane = 0; lane < kWaveSize; ++lane)
    same &= ops[lane][index].*member == ops[lane][index - 1].*member;
  return same;
}

}  // namespace hip_cpu::internal
