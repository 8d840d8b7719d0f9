// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The MFMA instructions of a CDNA3 device.

#include "hip_cpu/device.h"

#if !defined(HIPMLA_CPU_SM90)

#include "matrix_multiply.h"

namespace hip_cpu {
namespace internal {
namespace {

// Lane l holds elements k = kPerLane * (l / kSize) + j of row or column l % kSize.
template <Format kFormat, int kSize, int kDepth>
HIP_CPU_INLINE void gather_a(Matrices<kSize, kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  constexpr int kPerLane = kDepth * kSize / kWaveSize;
  for (int lane = 0; lane < kWaveSize; ++lane) {
    for (int j = 0; j < kPerLane; j += 4) {
      store(&m.a[lane % kSize][lane / kSize * kPerLane + j], widen<kFormat>(ops[lane][index].a, j));
    }
  }
}

template <Format kFormat, int kSize, int kDepth>
HIP_CPU_INLINE void gather_b(Matrices<kSize, kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  constexpr int kPerLane = kDepth * kSize / kWaveSize;
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    for (int j = 0; j < kPerLane; j += 4) {
      Floats4 block[4];
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) block[i] = widen<kFormat>(ops[lane + i][index].b, j);
      transpose(block);
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i)
        store(&m.b[lane / kSize * kPerLane + j + i][lane % kSize], block[i]);
    }
  }
}

// Quad q of a lane's accumulators are rows 4 * kGroups * q + 4 * (l / kSize) + 0..3.
template <int kSize, int kDepth>
HIP_CPU_INLINE void gather_c(Matrices<kSize, kSize, kDepth>& m, const MfmaOperands* const* ops,
                             int index) {
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    for (int quad = 0; quad < kSize * kSize / kWaveSize / 4; ++quad) {
      Floats4 block[4];
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) load(block[i], ops[lane + i][index].acc + 4 * quad);
      transpose(block);
      const int row = 4 * ((kWaveSize / kSize) * quad + lane / kSize);
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) store(&m.c[row + i][lane % kSize], block[i]);
    }
  }
}

template <int kSize, int kDepth>
HIP_CPU_INLINE void scatter_c(const Matrices<kSize, kSize, kDepth>& m,
                              const MfmaOperands* const* ops, int index) {
  for (int lane = 0; lane < kWaveSize; lane += 4) {
    for (int quad = 0; quad < kSize * kSize / kWaveSize / 4; ++quad) {
      const int row = 4 * ((kWaveSize / kSize) * quad + lane / kSize);
      Floats4 block[4];
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) load(block[i], &m.c[row + i][lane % kSize]);
      transpose(block);
      HIP_CPU_UNROLL
      for (int i = 0; i < 4; ++i) store(ops[lane + i][index].acc + 4 * quad, block[i]);
    }
  }
}

template <Format kFormat, int kSize, int kDepth>
struct Mfma {
  using Operands = MfmaOperands;
  static constexpr int kColumns = kSize;

  template <int kWidth, int kRows>
  HIP_CPU_INLINE static void run(void* const* lanes) {
    const MfmaOperands* ops[kWaveSize];
    const int count = collect_operands(ops, lanes);
    auto& m = matrices_of_this_thread<Matrices<kSize, kSize, kDepth>>();
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
};

}  // namespace
}  // namespace internal

void mfma_f32_16x16x16_bf16(const MfmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mfma<internal::Format::kBf16, 16, 16>>(ops, count, site);
}

void mfma_f32_16x16x16_f16(const MfmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mfma<internal::Format::kF16, 16, 16>>(ops, count, site);
}

void mfma_f32_32x32x8_bf16(const MfmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mfma<internal::Format::kBf16, 32, 8>>(ops, count, site);
}

void mfma_f32_32x32x8_f16(const MfmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mfma<internal::Format::kF16, 32, 8>>(ops, count, site);
}

void mfma_f32_16x16x32_fp8(const MfmaOperands* ops, int count, bool fnuz, const void* site) {
  if (fnuz)
    internal::run_collectively<internal::Mfma<internal::Format::kFp8Fnuz, 16, 32>>(ops, count,
                                                                                   site);
  else
    internal::run_collectively<internal::Mfma<internal::Format::kFp8Fn, 16, 32>>(ops, count, site);
}

}  // namespace hip_cpu

#endif
