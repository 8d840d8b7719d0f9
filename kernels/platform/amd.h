// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// AMD primitives (gfx90a, gfx942, gfx950): compiler builtins and rocPRIM. Layouts are in cdna.h.

#include <cstdint>
#include <rocprim/block/block_scan.hpp>
#include <rocprim/warp/warp_reduce.hpp>

#include "hipmla/types.h"

#define HIPMLA_DEVICE __device__ __forceinline__

// The register budget follows from the waves that are to share a SIMD: 512 for one, 256 for two.
#define HIPMLA_STAGE1_KERNEL(num_threads, waves_per_simd)                          \
  __global__ __attribute__((amdgpu_flat_work_group_size(num_threads, num_threads), \
                            amdgpu_waves_per_eu(waves_per_simd, waves_per_simd)))
#define HIPMLA_KERNEL(num_threads) __global__ __launch_bounds__(num_threads)

namespace hipmla::device {

// Queues a kernel and returns what became of that: unlike hipGetLastError, neither an error that somebody left earlier, nor
// does it take such an error away.
template <typename... Params>
hipError_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t lds_bytes,
                         hipStream_t stream, std::common_type_t<Params>... args) {
  void* arguments[] = {&args...};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, lds_bytes,
                         stream);
}

constexpr int kWaveSize = 64;

// The processor that this pass of the compiler is for; unknown in the host pass.
#if defined(__gfx90a__)
constexpr Arch kCompiledArch = Arch::kGfx90a;
#elif defined(__gfx942__)
constexpr Arch kCompiledArch = Arch::kGfx942;
#elif defined(__gfx950__)
constexpr Arch kCompiledArch = Arch::kGfx950;
#else
constexpr Arch kCompiledArch = Arch::kUnknown;
#endif

typedef uint32_t Words2 __attribute__((vector_size(8), may_alias));
typedef uint32_t Words4 __attribute__((vector_size(16), may_alias));
typedef float Floats4 __attribute__((vector_size(16), may_alias));

HIPMLA_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
HIPMLA_DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
HIPMLA_DEVICE float max_of(float a, float b) { return __builtin_fmaxf(a, b); }

}  // namespace hipmla::device

#include "kernels/platform/numbers.h"

namespace hipmla::device {

HIPMLA_DEVICE int thread_id() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
HIPMLA_DEVICE int block_id() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
HIPMLA_DEVICE int lane_id() {
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)));
}
// Uniform over the wave, and known as such to the compiler.
HIPMLA_DEVICE int wave_id() { return __builtin_amdgcn_readfirstlane(thread_id() / kWaveSize); }

// Orders LDS accesses of the whole block. Global loads under way stay under way.
HIPMLA_DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

HIPMLA_DEVICE bool any_lane(bool condition) { return __builtin_amdgcn_ballot_w64(condition) != 0; }
// x, but so that what is computed from it is computed here: the compiler takes it out of no loop, where it would hold
// registers all the time.
HIPMLA_DEVICE int not_before_here(int x) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(x));
#endif
  return x;
}

// Whether it holds in any of the 8 lanes 8 n .. 8 n + 7 that this one belongs to.
HIPMLA_DEVICE bool any_of_8_lanes(bool condition) {
  return (__builtin_amdgcn_ballot_w64(condition) >> (not_before_here(lane_id()) & ~7) & 0xff) != 0;
}
HIPMLA_DEVICE float shuffle_xor(float x, int mask) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_ds_bpermute((lane_id() ^ mask) * 4, __builtin_bit_cast(int, x)));
}

// Reduction over the wave; every lane gets the result.
template <typename Op>
HIPMLA_DEVICE float wave_reduce(float x, Op op) {
  using Reduce = rocprim::warp_reduce<float, kWaveSize, true>;
  typename Reduce::storage_type storage;
  Reduce().reduce(x, x, storage, op);
  return x;
}
HIPMLA_DEVICE float wave_max(float x) {
  return wave_reduce(x, [](float a, float b) { return max_of(a, b); });
}
HIPMLA_DEVICE float wave_sum(float x) {
  return wave_reduce(x, [](float a, float b) { return a + b; });
}

#define HIPMLA_GLOBAL_MEMORY __attribute__((address_space(1)))
#define HIPMLA_CONSTANT_MEMORY __attribute__((address_space(4)))
HIPMLA_DEVICE Words4 load_global16(const void* p) { return *(const HIPMLA_GLOBAL_MEMORY Words4*)p; }
HIPMLA_DEVICE Words2 load_global8(const void* p) { return *(const HIPMLA_GLOBAL_MEMORY Words2*)p; }
HIPMLA_DEVICE void store_global16(void* p, Words4 x) { *(HIPMLA_GLOBAL_MEMORY Words4*)p = x; }
HIPMLA_DEVICE void store_global(float* p, float x) { *(HIPMLA_GLOBAL_MEMORY float*)p = x; }
// 4 or 8 neighbouring words, by 16-byte stores.
template <int kCount>
HIPMLA_DEVICE void store_global_words(void* p, const uint32_t (&words)[kCount]) {
  static_assert(kCount % 4 == 0, "16 bytes at a time");
#pragma unroll
  for (int i = 0; i < kCount; i += 4)
    store_global16(static_cast<uint32_t*>(p) + i,
                   Words4{words[i], words[i + 1], words[i + 2], words[i + 3]});
}
HIPMLA_DEVICE Words4 load_lds16(const void* p) { return *static_cast<const Words4*>(p); }
HIPMLA_DEVICE void store_lds16(void* p, Words4 x) { *static_cast<Words4*>(p) = x; }
// A value that all lanes read at one address and no one writes while the kernel runs: a scalar load.
template <typename T>
HIPMLA_DEVICE T load_uniform(const T* p) {
  return *(const HIPMLA_CONSTANT_MEMORY T*)p;
}
#undef HIPMLA_GLOBAL_MEMORY
#undef HIPMLA_CONSTANT_MEMORY

// The kernel's first argument, in a way that makes the compiler read it anew from here on: in a loop it would else keep
// all of it in scalar registers, and spill them.
template <typename T>
HIPMLA_DEVICE const T& reread_params([[maybe_unused]] const T& params) {
#if defined(__HIP_DEVICE_COMPILE__)
  auto* p = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(p));
  return *(const T*)p;
#else
  return params;
#endif
}

HIPMLA_DEVICE char* dynamic_lds() {
  HIP_DYNAMIC_SHARED(char, lds);
  return lds;
}

HIPMLA_DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
HIPMLA_DEVICE float log2_fast(float x) { return __builtin_amdgcn_logf(x); }
HIPMLA_DEVICE float reciprocal_fast(float x) { return __builtin_amdgcn_rcpf(x); }

// Bytes of {high, low} picked by the selector: 0-3 from low, 4-7 from high (v_perm_b32).
HIPMLA_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

// The four fp8 values of a word. gfx942 has instructions for FNUZ, gfx950 for FN.
template <DataType kFp8>
HIPMLA_DEVICE void fp8_to_f32(float (&out)[4], uint32_t word) {
  constexpr bool kNative = (kCompiledArch == Arch::kGfx942 && kFp8 == DataType::kFp8E4m3Fnuz) ||
                           (kCompiledArch == Arch::kGfx950 && kFp8 == DataType::kFp8E4m3Fn);
  if constexpr (kNative) {
#if defined(__gfx942__) || defined(__gfx950__)
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), true);
    out[0] = low[0];
    out[1] = low[1];
    out[2] = high[0];
    out[3] = high[1];
#endif
  } else {
    fp8_bits_to_f32<kFp8>(out, word);
  }
}

HIPMLA_DEVICE uint16_t f16_bits(float x) {
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x));
}

HIPMLA_DEVICE float f16_to_f32(uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}

// Copies to LDS that are done when they return; a block_barrier makes them visible as if they had been waited for.
HIPMLA_DEVICE void copy_to_lds16(void* lds, const void* source, bool exists) {
  store_lds16(lds, exists ? load_global16(source) : Words4{});
}
HIPMLA_DEVICE void commit_copies() {}
template <int kPending>
HIPMLA_DEVICE void wait_copies() {}

template <DataType kType>
HIPMLA_DEVICE Floats4 mfma_16x16x16(Words2 a, Words2 b, Floats4 c) {
  if constexpr (kType == DataType::kBf16) {
    typedef short Shorts4 __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Shorts4, a),
                                                     __builtin_bit_cast(Shorts4, b), c, 0, 0, 0);
  } else {
    static_assert(kType == DataType::kF16, "no matrix operation for this type");
    typedef _Float16 Halves4 __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Halves4, a),
                                                 __builtin_bit_cast(Halves4, b), c, 0, 0, 0);
  }
}

// acc += sum_i kv[i] x rows[i]
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_chain(Floats4& acc, const Words2 (&kv)[kCount],
                             const Words2 (&rows)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) acc = mfma_16x16x16<kType>(kv[i], rows[i], acc);
}
// acc[i] += kv[i] x rows
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_spread(Floats4* acc, const Words2 (&kv)[kCount], const Words2& rows) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) acc[i] = mfma_16x16x16<kType>(kv[i], rows, acc[i]);
}

// The compiler moves no instruction across it.
HIPMLA_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

// Makes the compiler hold x in an accumulation register here. Up to clang 19 the compiler else copies the whole output
// tile of kernels with more than 256 registers between the two register files around every rescale, and spills; from
// clang 20 on it places the tile better without the hint.
HIPMLA_DEVICE void keep_in_accumulator([[maybe_unused]] Floats4& x) {
#if defined(__HIP_DEVICE_COMPILE__) && __clang_major__ < 20
  asm volatile("" : "+a"(x));
#endif
}

}  // namespace hipmla::device

#include "kernels/platform/cdna.h"
