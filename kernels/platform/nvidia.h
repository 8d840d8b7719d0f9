// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// NVIDIA primitives (sm_80 and later): warps of 32, mma.sync, ldmatrix, cp.async. Layouts are in mma.h.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "hipmla/types.h"

#define HIPMLA_DEVICE __device__ __forceinline__
#define HIPMLA_STAGE1_KERNEL(num_threads, waves_per_simd) \
  __global__ __launch_bounds__(num_threads, 1)
#define HIPMLA_KERNEL(num_threads) __global__ __launch_bounds__(num_threads)

namespace hipmla::device {

// Queues a kernel and returns what became of that: unlike hipGetLastError, neither an error that somebody left earlier, nor
// does it take such an error away.
template <typename... Params>
hipError_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t lds_bytes,
                         hipStream_t stream, std::common_type_t<Params>... args) {
  // More than 48 KiB of shared memory must be asked for, each time: a launch keeps no state of its own.
  if (lds_bytes > 48 * 1024) {
    const hipError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(lds_bytes));
    if (error != hipSuccess) return error;
  }
  void* arguments[] = {&args...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, lds_bytes,
                          hip_stream(stream));
}

constexpr int kWaveSize = 32;
#if !defined(__CUDA_ARCH__)
constexpr Arch kCompiledArch = Arch::kUnknown;
#elif __CUDA_ARCH__ >= 900
constexpr Arch kCompiledArch = Arch::kSm90;
#else
constexpr Arch kCompiledArch = Arch::kSm80;
#endif

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
  __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
  __device__ __forceinline__ Vector& operator+=(const Vector& other) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += other.values[i];
    return *this;
  }
};
using Words2 = Vector<uint32_t, 2>;
using Words4 = Vector<uint32_t, 4>;

HIPMLA_DEVICE int thread_id() { return static_cast<int>(threadIdx.x); }
HIPMLA_DEVICE int block_id() { return static_cast<int>(blockIdx.x); }
HIPMLA_DEVICE int lane_id() { return static_cast<int>(threadIdx.x) % kWaveSize; }
HIPMLA_DEVICE int wave_id() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWaveSize, 0);
}
HIPMLA_DEVICE void block_barrier() { __syncthreads(); }
HIPMLA_DEVICE bool any_lane(bool condition) { return __any_sync(~0u, condition); }
HIPMLA_DEVICE bool any_of_8_lanes(bool condition) {
  return (__ballot_sync(~0u, condition) >> (lane_id() & ~7) & 0xff) != 0;
}
HIPMLA_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
HIPMLA_DEVICE float max_of(float a, float b) { return fmaxf(a, b); }
HIPMLA_DEVICE float wave_max(float x) {
#pragma unroll
  for (int mask = kWaveSize / 2; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
HIPMLA_DEVICE float wave_sum(float x) {
#pragma unroll
  for (int mask = kWaveSize / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

HIPMLA_DEVICE Words2 load_global8(const void* p) { return *static_cast<const Words2*>(p); }
HIPMLA_DEVICE Words4 load_global16(const void* p) { return *static_cast<const Words4*>(p); }
HIPMLA_DEVICE void store_global16(void* p, Words4 x) { *static_cast<Words4*>(p) = x; }
HIPMLA_DEVICE void store_global(float* p, float x) { *p = x; }
template <int kCount>
HIPMLA_DEVICE void store_global_words(void* p, const uint32_t (&words)[kCount]) {
  if constexpr (kCount == 1) {
    *static_cast<uint32_t*>(p) = words[0];
  } else if constexpr (kCount == 2) {
    *static_cast<Words2*>(p) = Words2{{words[0], words[1]}};
  } else {
    static_assert(kCount % 4 == 0, "1, 2 or a multiple of 4 words");
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      store_global16(static_cast<uint32_t*>(p) + i,
                     Words4{{words[i], words[i + 1], words[i + 2], words[i + 3]}});
  }
}
HIPMLA_DEVICE Words4 load_lds16(const void* p) { return *static_cast<const Words4*>(p); }
HIPMLA_DEVICE void store_lds16(void* p, Words4 x) { *static_cast<Words4*>(p) = x; }
template <typename T>
HIPMLA_DEVICE T load_uniform(const T* p) {
  return __ldg(p);
}
HIPMLA_DEVICE int64_t load_uniform(const int64_t* p) {
  return __ldg(reinterpret_cast<const long long*>(p));
}

template <typename T>
HIPMLA_DEVICE const T& reread_params(const T& params) {
  return params;
}

HIPMLA_DEVICE char* dynamic_lds() {
  HIP_DYNAMIC_SHARED(char, lds);
  return lds;
}
HIPMLA_DEVICE uint32_t lds_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Starts a copy of 16 bytes from memory to LDS; zeros if not `exists`.
HIPMLA_DEVICE void copy_to_lds16(void* lds, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(lds_address(lds)), "l"(source),
               "r"(exists ? 16 : 0));
}
// Closes a group of copies; waits until at most kPending groups are under way.
HIPMLA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
HIPMLA_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

HIPMLA_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
HIPMLA_DEVICE float log2_fast(float x) { return __log2f(x); }
HIPMLA_DEVICE float reciprocal_fast(float x) { return __frcp_rn(x); }
// Bytes of {high, low} picked by the selector's bytes: 0-3 from low, 4-7 from high.
HIPMLA_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  const uint32_t s = selector;
  return __byte_perm(low, high,
                     (s & 0x7) | (s >> 4 & 0x70) | (s >> 8 & 0x700) | (s >> 12 & 0x7000));
}
HIPMLA_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
HIPMLA_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }

// Two values rounded to nearest even, the first in the low half.
template <DataType kType>
HIPMLA_DEVICE uint32_t pack_nearest(float first, float second) {
  uint32_t word;
  if constexpr (kType == DataType::kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
template <DataType kType>
HIPMLA_DEVICE uint32_t pack_exact(float first, float second) {
  return pack_nearest<kType>(first, second);
}
template <DataType kType>
HIPMLA_DEVICE float half_to_f32(uint32_t bits) {
  if constexpr (kType == DataType::kBf16)
    return float_of(bits << 16);
  else
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

}  // namespace hipmla::device

#include "kernels/platform/numbers.h"

namespace hipmla::device {

template <DataType kFp8>
HIPMLA_DEVICE void fp8_to_f32(float (&out)[4], uint32_t word) {
  if constexpr (kFp8 == DataType::kFp8E4m3Fn) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(
          static_cast<__nv_fp8x2_storage_t>(word >> (16 * pair)), __NV_E4M3);
      const float2 values = __half22float2(__half2(raw));
      out[2 * pair] = values.x;
      out[2 * pair + 1] = values.y;
    }
  } else {
    fp8_bits_to_f32<kFp8>(out, word);
  }
}

// ---- matrices ----

template <DataType kType>
HIPMLA_DEVICE void mma_16x8x16(float* d, const Words4& a, uint32_t b0, uint32_t b1) {
  if constexpr (kType == DataType::kBf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Matrix operations D += A B: d is 4 values.
template <DataType kType, int kMax>
struct MatrixOps {
  HIPMLA_DEVICE void add(float* d, const Words4& a, uint32_t b0, uint32_t b1) {
    mma_16x8x16<kType>(d, a, b0, b1);
  }
  HIPMLA_DEVICE void run() {}
};

template <bool kTransposed>
HIPMLA_DEVICE Words4 load_matrices4(const char* row) {
  Words4 out;
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(lds_address(row)));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(lds_address(row)));
  return out;
}
// kCount times four 8 x 8 matrices of 16-bit values, `bytes` apart; `row` is the row of the first four that this lane names.
template <bool kTransposed, int kCount>
HIPMLA_DEVICE void load_matrices(Words4 (&out)[kCount], const char* row, int bytes) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = load_matrices4<kTransposed>(row + i * bytes);
}

}  // namespace hipmla::device

#include "kernels/platform/mma.h"
