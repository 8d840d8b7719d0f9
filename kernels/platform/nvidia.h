// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// NVIDIA (sm_80 and later): warps of 32, mma.sync m16n8k16, ldmatrix, cp.async.
//
// mma.m16n8k16 computes D[m][n] += sum_k A[m][k] B[k][n]. With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments
// for mma.m16n8k16"):
//
//   A   a0 = (g, 2t..2t+1)   a1 = (g + 8, 2t..)   a2 = (g, 2t + 8..)   a3 = (g + 8, 2t + 8..)     (m, k)
//   B   b0 = (2t..2t+1, g)   b1 = (2t + 8.., g)                                                    (k, n)
//   D   d0, d1 = (g, 2t), (g, 2t + 1)   d2, d3 = (g + 8, 2t), (g + 8, 2t + 1)                      (m, n)
//
// Scores:  S[row][token] = Q K^T   A = Q, B = K^T.
// Output:  O[row][dim]   = P V     A = P, B = V. S in the D layout, rounded, is P in the A layout: no shuffle.
//
// A tile of 16 x 16 is two such operations side by side. A lane has values of rows g and g + 8.

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

constexpr int kWaveSize = 32;
// Whether a kernel for `arch` can be written in this vocabulary.
constexpr bool platform_has(Arch arch) { return arch == Arch::kSm80 || arch == Arch::kSm90; }
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

using Fragment = Words4;      // 16 x 16 values of 16 bits
struct alignas(16) AccTile {  // 16 x 16 of f32: columns 0-7 in 0-3, columns 8-15 in 4-7
  float values[8];
  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ float operator[](int i) const { return values[i]; }
  __device__ __forceinline__ AccTile& operator+=(const AccTile& other) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] += other.values[i];
    return *this;
  }
};

constexpr int kAccElements = 8;
constexpr int kLaneRows = 2;

HIPMLA_DEVICE constexpr int acc_slot(int r) { return r % 4 / 2; }
HIPMLA_DEVICE int acc_row(int lane, int slot) { return lane / 4 + 8 * slot; }
HIPMLA_DEVICE int acc_col(int lane, int r) { return 8 * (r / 4) + 2 * (lane % 4) + r % 2; }
HIPMLA_DEVICE bool leads_row(int lane) { return lane % 4 == 0; }
HIPMLA_DEVICE float row_max(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}
HIPMLA_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

template <DataType kType>
HIPMLA_DEVICE void mma_16x8x16(float* d, const Fragment& a, uint32_t b0, uint32_t b1) {
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
template <DataType kType>
HIPMLA_DEVICE void mma_tile(AccTile& acc, const Fragment& kv, const Fragment& rows) {
  mma_16x8x16<kType>(acc.values, rows, kv[0], kv[1]);
  mma_16x8x16<kType>(acc.values + 4, rows, kv[2], kv[3]);
}
// acc += sum_i kv[i] x rows[i]
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_chain(AccTile& acc, const Fragment (&kv)[kCount],
                             const Fragment (&rows)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) mma_tile<kType>(acc, kv[i], rows[i]);
}
// acc[i] += kv[i] x rows
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_spread(AccTile* acc, const Fragment (&kv)[kCount], const Fragment& rows) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) mma_tile<kType>(acc[i], kv[i], rows);
}

// 16 rows x 32 dims of kQ, as this lane loads them: words in the order of A's registers, two fragments.
template <DataType kQ>
struct RowWords {
  uint32_t words[8];
};
template <DataType kQ>
HIPMLA_DEVICE RowWords<kQ> load_row_words(const char* const (&rows)[kLaneRows], int lane) {
  RowWords<kQ> out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int dim = 16 * (i / 4) + 8 * (i % 4 / 2) + 2 * (lane % 4);
    const char* source = rows[i % 2] + dim * static_cast<int>(element_bytes(kQ));
    if constexpr (is_fp8(kQ))
      out.words[i] = *reinterpret_cast<const uint16_t*>(source);
    else
      out.words[i] = *reinterpret_cast<const uint32_t*>(source);
  }
  return out;
}
template <DataType kQ, DataType kType>
HIPMLA_DEVICE void make_row_fragments(Fragment (&out)[2], const RowWords<kQ>& in) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (is_fp8(kQ)) {
      float x[4];
      fp8_to_f32<kQ>(x, in.words[i]);
      out[i / 4][i % 4] = pack_exact<kType>(x[0], x[1]);
    } else {
      out[i / 4][i % 4] = in.words[i];
    }
  }
}
// The same two fragments, put aside in LDS: [2][lanes] of 16 bytes.
constexpr int kRowFragmentsBytes = 2 * 16 * kWaveSize;
HIPMLA_DEVICE void store_row_fragments(char* lds, const Fragment (&in)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) store_lds16(lds + (i * kWaveSize + lane) * 16, in[i]);
}
HIPMLA_DEVICE void reload_row_fragments(Fragment (&out)[2], const char* lds, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = load_lds16(lds + (i * kWaveSize + lane) * 16);
}

template <bool kTransposed>
HIPMLA_DEVICE Fragment load_matrices(const char* row) {
  Fragment out;
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

// Two fragments: 16 tokens x 32 dims. Matrices of ldmatrix, in order: tokens 0-7 at dims 0-7 and 8-15, tokens 8-15 likewise.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_k_fragments(Fragment (&out)[2], const char* tokens, int row_bytes,
                                    int lane) {
  const char* row = tokens + (lane / 16 * 8 + lane % 8) * row_bytes + lane / 8 % 2 * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = load_matrices<false>(row + 32 * i);
}

// Eight fragments of V, 16 tokens x 128 dims; fragment e has dims 16 e .. 16 e + 15. Matrices of ldmatrix, transposed:
// dims 0-7 at tokens 0-7 and 8-15, dims 8-15 likewise.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_v_fragments(Fragment (&out)[8], const char* tokens, int row_bytes,
                                    int lane) {
  const char* row = tokens + (lane / 8 % 2 * 8 + lane % 8) * row_bytes + lane / 16 * 16;
#pragma unroll
  for (int e = 0; e < 8; ++e) out[e] = load_matrices<true>(row + 32 * e);
}

// The output of mma_spread over such fragments: run r is kRunElements neighbouring dims of one of the lane's rows.
constexpr int kOutputRuns = 32;
constexpr int kRunElements = 2;
HIPMLA_DEVICE constexpr int output_run_slot(int r) { return r % 2; }
HIPMLA_DEVICE int output_run_dim(int lane, int r) { return 8 * (r / 2) + 2 * (lane % 4); }
HIPMLA_DEVICE void output_run(float (&out)[kRunElements], const AccTile* acc, int r, float factor) {
#pragma unroll
  for (int i = 0; i < kRunElements; ++i)
    out[i] = acc[r / 4][r / 2 % 2 * 4 + r % 2 * 2 + i] * factor;
}

// Probabilities of one accumulator tile as an A fragment.
template <DataType kType>
HIPMLA_DEVICE Fragment pack_probabilities(const AccTile& p) {
  return Fragment{{pack_nearest<kType>(p[0], p[1]), pack_nearest<kType>(p[2], p[3]),
                   pack_nearest<kType>(p[4], p[5]), pack_nearest<kType>(p[6], p[7])}};
}

constexpr bool kHasAccumulatorFile = false;
HIPMLA_DEVICE void schedule_fence() {}
HIPMLA_DEVICE void keep_in_accumulator(AccTile&) {}

}  // namespace hipmla::device
