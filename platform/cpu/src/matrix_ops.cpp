// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The MFMA instructions. The last lane to arrive gathers A, B and C from all lanes into row-major
// f32 arrays, multiplies them with the widest vectors that the host has, and scatters D. All
// variants give the same bits: products are exact, and multiply and add are kept apart, so that no
// compiler may fuse them where products overflow or underflow.

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

namespace hip_cpu {

namespace {

enum class Format { kBf16, kF16 };

// What a lane hands to the rendezvous.
struct MatrixCall {
  const MfmaOperands* ops;
  int count;
};

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

// A lane's 4 elements of A or B, as f32.
template <Format kFormat>
HIP_CPU_INLINE Floats4 widen(const void* elements) {
  typedef uint16_t Halves4 __attribute__((vector_size(8)));
  Halves4 raw;
  load(raw, elements);
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

// ---- one instruction: D[kSize][kSize] = C + A[kSize][kDepth] B[kDepth][kSize]

template <int kSize, int kDepth>
struct Matrices {
  // Lane l holds elements k = 4 * (l / kSize) + j of row or column l % kSize.
  static constexpr int kGroups = kWaveSize / kSize;
  static constexpr int kAccPerLane = kSize * kSize / kWaveSize;
  static_assert(kGroups * 4 == kDepth, "4 elements of A and B per lane");

  alignas(64) float a[kSize][kDepth];
  alignas(64) float b[kDepth][kSize];
  alignas(64) float c[kSize][kSize];
};

template <Format kFormat, int kSize, int kDepth>
HIP_CPU_INLINE void gather_a(Matrices<kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  for (int lane = 0; lane < kWaveSize; ++lane) {
    store(&m.a[lane % kSize][lane / kSize * 4], widen<kFormat>(ops[lane][index].a));
  }
}

template <Format kFormat, int kSize, int kDepth>
HIP_CPU_INLINE void gather_b(Matrices<kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    Floats4 block[4];
    HIP_CPU_UNROLL
    for (int i = 0; i < 4; ++i) block[i] = widen<kFormat>(ops[lane + i][index].b);
    transpose(block);
    HIP_CPU_UNROLL
    for (int i = 0; i < 4; ++i) store(&m.b[lane / kSize * 4 + i][lane % kSize], block[i]);
  }
}

// Quad q of a lane's accumulators are rows 4 * kGroups * q + 4 * (l / kSize) + 0..3.
template <int kSize, int kDepth>
HIP_CPU_INLINE void gather_c(Matrices<kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  using M = Matrices<kSize, kDepth>;
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    for (int quad = 0; quad < M::kAccPerLane / 4; ++quad) {
      Floats4 block[4];
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) load(block[i], ops[lane + i][index].acc + 4 * quad);
      transpose(block);
      const int row = 4 * (M::kGroups * quad + lane / kSize);
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) store(&m.c[row + i][lane % kSize], block[i]);
    }
  }
}

template <int kSize, int kDepth>
HIP_CPU_INLINE void scatter_c(const Matrices<kSize, kDepth>& m, const MfmaOperands* const* ops,
                              int index) {
  using M = Matrices<kSize, kDepth>;
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    for (int quad = 0; quad < M::kAccPerLane / 4; ++quad) {
      const int row = 4 * (M::kGroups * quad + lane / kSize);
      Floats4 block[4];
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) load(block[i], &m.c[row + i][lane % kSize]);
      transpose(block);
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) store(ops[lane + i][index].acc + 4 * quad, block[i]);
    }
  }
}

// kRows rows at a time, so that their sums stay in registers and do not wait for each other.
template <int kWidth, int kRows, int kSize, int kDepth>
HIP_CPU_INLINE void multiply(Matrices<kSize, kDepth>& m) {
  HIP_CPU_NO_FUSING
  using V = typename Vector<kWidth>::Type;
  for (int column = 0; column < kSize; column += kWidth) {
    for (int row = 0; row < kSize; row += kRows) {
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

// True if op `index` and the one before it have the same `member` pointer in every lane.
template <typename Member>
HIP_CPU_INLINE bool same_as_previous(const MfmaOperands* const* ops, int index, Member member) {
  bool same = true;
  for (int lane = 0; lane < kWaveSize; ++lane) {
    same &= ops[lane][index].*member == ops[lane][index - 1].*member;
  }
  return same;
}

template <Format kFormat, int kSize, int kDepth, int kWidth, int kRows>
HIP_CPU_INLINE void run_ops(void* const* lanes) {
  const MfmaOperands* ops[kWaveSize];
  const int count = static_cast<const MatrixCall*>(lanes[0])->count;
  for (int lane = 0; lane < kWaveSize; ++lane) {
    const auto* call = static_cast<const MatrixCall*>(lanes[lane]);
    if (call->count != count) fail("lanes of a wave pass different counts to a matrix op");
    ops[lane] = call->ops;
  }
  // Not on the stack: that is another fiber's each time, and cold. The asm keeps the address in a
  // register.
  static thread_local Matrices<kSize, kDepth> matrices;
  Matrices<kSize, kDepth>* address = &matrices;
  asm("" : "+r"(address));
  Matrices<kSize, kDepth>& m = *address;
  // Neighbours often share a matrix: a chain its accumulator, an outer product its B. It is then
  // kept in `m`.
  bool same_acc = false, same_b = false;
  for (int i = 0; i < count; ++i) {
    if (!same_acc) gather_c(m, ops, i);
    if (!same_b) gather_b<kFormat>(m, ops, i);
    gather_a<kFormat>(m, ops, i);
    multiply<kWidth, kRows>(m);
    const bool is_last = i + 1 == count;
    same_acc = !is_last && same_as_previous(ops, i + 1, &MfmaOperands::acc);
    same_b = !is_last && same_as_previous(ops, i + 1, &MfmaOperands::b);
    if (!same_acc) scatter_c(m, ops, i);
  }
}

// ---- variants by the host's vectors

template <Format kFormat, int kSize, int kDepth>
void run_ops_generic(void* const* lanes, void* /*context*/) {
  run_ops<kFormat, kSize, kDepth, 4, 4>(lanes);
}

#if defined(__x86_64__)
template <Format kFormat, int kSize, int kDepth>
__attribute__((target("avx2"))) void run_ops_avx2(void* const* lanes, void* /*context*/) {
  run_ops<kFormat, kSize, kDepth, 8, 8>(lanes);
}

template <Format kFormat, int kSize, int kDepth>
__attribute__((target("avx512f,avx512vl"))) void run_ops_avx512(void* const* lanes,
                                                                void* /*context*/) {
  run_ops<kFormat, kSize, kDepth, 16, 16>(lanes);
}
#endif

template <Format kFormat, int kSize, int kDepth>
CollectiveOp choose_variant() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    return &run_ops_avx512<kFormat, kSize, kDepth>;
  }
  if (__builtin_cpu_supports("avx2")) return &run_ops_avx2<kFormat, kSize, kDepth>;
#endif
  return &run_ops_generic<kFormat, kSize, kDepth>;
}

template <Format kFormat, int kSize, int kDepth>
HIP_CPU_INLINE void run_collectively(const MfmaOperands* ops, int count, const void* site) {
  static const CollectiveOp op = choose_variant<kFormat, kSize, kDepth>();
  if (internal::current_thread->wave_lanes != kWaveSize) {
    fail("a matrix op needs a full wave of 64 threads");
  }
  MatrixCall call{ops, count};
  wave_collective(op, &call, nullptr, site);
}

}  // namespace

void mfma_f32_16x16x16_bf16(const MfmaOperands* ops, int count, const void* site) {
  run_collectively<Format::kBf16, 16, 16>(ops, count, site);
}

void mfma_f32_16x16x16_f16(const MfmaOperands* ops, int count, const void* site) {
  run_collectively<Format::kF16, 16, 16>(ops, count, site);
}

void mfma_f32_32x32x8_bf16(const MfmaOperands* ops, int count, const void* site) {
  run_collectively<Format::kBf16, 32, 8>(ops, count, site);
}

void mfma_f32_32x32x8_f16(const MfmaOperands* ops, int count, const void* site) {
  run_collectively<Format::kF16, 32, 8>(ops, count, site);
}

}  // namespace hip_cpu
