// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The CPU platform's primitives: waves on fibers (platform/cpu). The emulated device is a CDNA3 processor with the layouts
// of cdna.h or, if the build says so, an sm_90 with those of mma.h.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "hip_cpu/device.h"
#include "hipmla/types.h"

#define HIPMLA_DEVICE inline __attribute__((always_inline))
#define HIPMLA_STAGE1_KERNEL(num_threads, waves_per_simd) __global__
#define HIPMLA_KERNEL(num_threads) __global__

namespace hipmla::device {

using hip_cpu::launch_kernel;

constexpr int kWaveSize = hip_cpu::kWaveSize;
constexpr Arch kCompiledArch = Arch::kUnknown;  // one build stands for all it emulates

typedef uint32_t Words2 __attribute__((vector_size(8), may_alias));
typedef uint32_t Words4 __attribute__((vector_size(16), may_alias));
typedef float Floats4 __attribute__((vector_size(16), may_alias));

HIPMLA_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
HIPMLA_DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
HIPMLA_DEVICE float max_of(float a, float b) { return __builtin_fmaxf(a, b); }

}  // namespace hipmla::device

#include "kernels/platform/numbers.h"

namespace hipmla::device {

HIPMLA_DEVICE int thread_id() { return static_cast<int>(threadIdx.x); }
HIPMLA_DEVICE int block_id() { return static_cast<int>(blockIdx.x); }
HIPMLA_DEVICE int lane_id() { return hip_cpu::lane_id(); }
HIPMLA_DEVICE int wave_id() { return hip_cpu::wave_id(); }
HIPMLA_DEVICE void block_barrier() { __syncthreads(); }
HIPMLA_DEVICE bool any_lane(bool condition) { return __any(condition) != 0; }
HIPMLA_DEVICE bool any_of_8_lanes(bool condition) {
  return (hip_cpu::ballot(condition) >> (lane_id() & ~7) & 0xff) != 0;
}
HIPMLA_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor(x, mask); }

HIPMLA_DEVICE float wave_max(float x) {
  for (int mask = kWaveSize / 2; mask > 0; mask /= 2) x = std::fmax(x, shuffle_xor(x, mask));
  return x;
}
HIPMLA_DEVICE float wave_sum(float x) {
  for (int mask = kWaveSize / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

HIPMLA_DEVICE Words4 load_global16(const void* p) { return *static_cast<const Words4*>(p); }
HIPMLA_DEVICE Words2 load_global8(const void* p) { return *static_cast<const Words2*>(p); }
HIPMLA_DEVICE void store_global16(void* p, Words4 x) { *static_cast<Words4*>(p) = x; }
HIPMLA_DEVICE void store_global(float* p, float x) { *p = x; }
template <int kCount>
HIPMLA_DEVICE void store_global_words(void* p, const uint32_t (&words)[kCount]) {
  if constexpr (kCount == 1) {
    *static_cast<uint32_t*>(p) = words[0];
  } else if constexpr (kCount == 2) {
    *static_cast<Words2*>(p) = Words2{words[0], words[1]};
  } else {
    static_assert(kCount % 4 == 0, "1, 2 or a multiple of 4 words");
    for (int i = 0; i < kCount; i += 4)
      store_global16(static_cast<uint32_t*>(p) + i,
                     Words4{words[i], words[i + 1], words[i + 2], words[i + 3]});
  }
}
HIPMLA_DEVICE Words4 load_lds16(const void* p) { return *static_cast<const Words4*>(p); }
HIPMLA_DEVICE void store_lds16(void* p, Words4 x) { *static_cast<Words4*>(p) = x; }
template <typename T>
HIPMLA_DEVICE T load_uniform(const T* p) {
  return *p;
}

template <typename T>
HIPMLA_DEVICE const T& reread_params(const T& params) {
  return params;
}

HIPMLA_DEVICE char* dynamic_lds() {
  HIP_DYNAMIC_SHARED(char, lds);
  return lds;
}

HIPMLA_DEVICE float exp2_fast(float x) { return std::exp2(x); }
HIPMLA_DEVICE float log2_fast(float x) { return std::log2(x); }
HIPMLA_DEVICE float reciprocal_fast(float x) { return 1.0f / x; }
HIPMLA_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  return hip_cpu::perm_b32(high, low, selector);
}
template <DataType kFp8>
HIPMLA_DEVICE void fp8_to_f32(float (&out)[4], uint32_t word) {
  fp8_bits_to_f32<kFp8>(out, word);
}
HIPMLA_DEVICE uint16_t f16_bits(float x) { return hip_cpu::f32_to_f16(x); }
HIPMLA_DEVICE float f16_to_f32(uint16_t bits) { return hip_cpu::f16_to_f32(bits); }

HIPMLA_DEVICE void copy_to_lds16(void* lds, const void* source, bool exists) {
  hip_cpu::async_copy16(lds, exists ? source : nullptr);
}
HIPMLA_DEVICE void commit_copies() { hip_cpu::async_commit(); }
template <int kPending>
HIPMLA_DEVICE void wait_copies() {
  hip_cpu::async_wait(kPending);
}

#if defined(HIPMLA_CPU_SM90)

// Matrix operations D += A B, in one rendezvous: d is 4 values, a stays where it is until run().
template <DataType kType, int kMax>
struct MatrixOps {
  hip_cpu::MmaOperands ops[kMax];
  int count = 0;

  HIPMLA_DEVICE void add(float* d, const Words4& a, uint32_t b0, uint32_t b1) {
    ops[count++] = {d, &a, {b0, b1}};
  }
  HIPMLA_DEVICE void run() {
    if constexpr (kType == DataType::kBf16) {
      hip_cpu::mma_m16n8k16_bf16(ops, count);
    } else {
      static_assert(kType == DataType::kF16, "no matrix operation for this type");
      hip_cpu::mma_m16n8k16_f16(ops, count);
    }
  }
};

// kCount times four 8 x 8 matrices of 16-bit values, `bytes` apart; `row` is the row of the first four that this lane names.
template <bool kTransposed, int kCount>
HIPMLA_DEVICE void load_matrices(Words4 (&out)[kCount], const char* row, int bytes) {
  hip_cpu::load_matrices(out, row, bytes, kCount, kTransposed);
}

#else

template <DataType kType>
HIPMLA_DEVICE void mfma_batch(const hip_cpu::MfmaOperands* ops, int count) {
  if constexpr (kType == DataType::kBf16) {
    hip_cpu::mfma_f32_16x16x16_bf16(ops, count);
  } else {
    static_assert(kType == DataType::kF16, "no matrix operation for this type");
    hip_cpu::mfma_f32_16x16x16_f16(ops, count);
  }
}

// acc += sum_i kv[i] x rows[i]
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_chain(Floats4& acc, const Words2 (&kv)[kCount],
                             const Words2 (&rows)[kCount]) {
  hip_cpu::MfmaOperands ops[kCount];
  for (int i = 0; i < kCount; ++i) ops[i] = {reinterpret_cast<float*>(&acc), &kv[i], &rows[i]};
  mfma_batch<kType>(ops, kCount);
}
// acc[i] += kv[i] x rows
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_spread(Floats4* acc, const Words2 (&kv)[kCount], const Words2& rows) {
  hip_cpu::MfmaOperands ops[kCount];
  for (int i = 0; i < kCount; ++i) ops[i] = {reinterpret_cast<float*>(&acc[i]), &kv[i], &rows};
  mfma_batch<kType>(ops, kCount);
}

HIPMLA_DEVICE void schedule_fence() {}
HIPMLA_DEVICE int not_before_here(int x) { return x; }
HIPMLA_DEVICE void keep_in_accumulator(Floats4&) {}

#endif

}  // namespace hipmla::device

#include "kernels/platform/halves.h"

#if defined(HIPMLA_CPU_SM90)
#include "kernels/platform/mma.h"
#else
#include "kernels/platform/cdna.h"
#endif
