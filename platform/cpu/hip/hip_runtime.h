// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// HIP on the CPU: compiles HIP kernels as plain C++17 and runs them on the host. See
/// hip_cpu/device.h for how.
///
/// Static `__shared__` variables are thread_local (a block stays on one OS thread): they are not
/// poisoned and do not count against the LDS limit; dynamic LDS (HIP_DYNAMIC_SHARED) is and does.
/// `__noinline__` is not defined: standard headers use that token as an attribute.

#include <hip/hip_runtime_api.h>

#include <cassert>
#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hip_cpu/device.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define HIP_DYNAMIC_SHARED(type, var) \
  type* const var = static_cast<type*>(::hip_cpu::dynamic_lds());

#define threadIdx (::hip_cpu::thread_index())
#define blockIdx (::hip_cpu::block_index())
#define blockDim (::hip_cpu::block_size())
#define gridDim (::hip_cpu::grid_size())

constexpr int warpSize = hip_cpu::kWaveSize;

// ---- vector types

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- kernel launch

namespace hip_cpu::internal {

// Queues a kernel: every thread calls `invoke(arguments)`; `destroy(arguments)` runs once, also if
// nothing is queued.
hipError_t launch(void (*invoke)(const void*), void* arguments, void (*destroy)(void*), dim3 grid,
                  dim3 block, size_t lds_bytes, hipStream_t stream);
hipError_t launch_null_kernel();

template <typename... Params>
struct BoundKernel {
  void (*kernel)(Params...);
  std::tuple<std::decay_t<Params>...> arguments;

  static void invoke(const void* self) {
    const auto* bound = static_cast<const BoundKernel*>(self);
    std::apply(bound->kernel, bound->arguments);
  }
  static void destroy(void* self) { delete static_cast<BoundKernel*>(self); }
};

}  // namespace hip_cpu::internal

namespace hip_cpu {

/// Launches `kernel` with copies of `args`. A block may have 1 to 1024 threads (else
/// hipErrorInvalidConfiguration), and no more LDS than the device has (else hipErrorInvalidValue).
template <typename... Params, typename... Args>
hipError_t launch_kernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t lds_bytes,
                         hipStream_t stream, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "wrong number of kernel arguments");
  static_assert((!std::is_reference_v<Params> && ...), "kernels take their arguments by value");
  using Bound = internal::BoundKernel<Params...>;
  if (kernel == nullptr) return internal::launch_null_kernel();
  auto* bound =
      new Bound{kernel, std::tuple<std::decay_t<Params>...>(static_cast<Params>(args)...)};
  return internal::launch(&Bound::invoke, bound, &Bound::destroy, grid, block, lds_bytes, stream);
}

}  // namespace hip_cpu

/// As hip_cpu::launch_kernel; errors come from hipGetLastError, as with HIP.
template <typename... Params, typename... Args>
void hipLaunchKernelGGL(void (*kernel)(Params...), dim3 grid, dim3 block, size_t lds_bytes,
                        hipStream_t stream, Args&&... args) {
  (void)hip_cpu::launch_kernel(kernel, grid, block, lds_bytes, stream, std::forward<Args>(args)...);
}

template <typename... Params>
hipError_t hipFuncSetAttribute(void (*kernel)(Params...), hipFuncAttribute attribute, int value) {
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// ---- wave

namespace hip_cpu::internal {

template <typename T>
inline T shuffle(T value, int source_lane, const void* site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                "shuffles move 4 or 8 bytes");
  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle_bits(bits, source_lane, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace hip_cpu::internal

// `width` is a power of two: the wave is cut into groups of `width` lanes, each with its own lane
// numbers.
template <typename T>
inline T __shfl(T value, int source_lane, int width = warpSize, const void* site = HIP_CPU_SITE) {
  const int group = hip_cpu::lane_id() & ~(width - 1);
  return hip_cpu::internal::shuffle(value, group + (source_lane & (width - 1)), site);
}

template <typename T>
inline T __shfl_xor(T value, int mask, int width = warpSize, const void* site = HIP_CPU_SITE) {
  const int self = hip_cpu::lane_id();
  const int source = self ^ mask;
  const int group_end = (self & ~(width - 1)) + width;
  return hip_cpu::internal::shuffle(value, source < group_end ? source : self, site);
}

template <typename T>
inline T __shfl_up(T value, unsigned delta, int width = warpSize, const void* site = HIP_CPU_SITE) {
  const int self = hip_cpu::lane_id();
  const int source = self - static_cast<int>(delta);
  return hip_cpu::internal::shuffle(value, source >= (self & ~(width - 1)) ? source : self, site);
}

template <typename T>
inline T __shfl_down(T value, unsigned delta, int width = warpSize,
                     const void* site = HIP_CPU_SITE) {
  const int self = hip_cpu::lane_id();
  const int in_group = (self & (width - 1)) + static_cast<int>(delta);
  return hip_cpu::internal::shuffle(value, in_group < width ? self + static_cast<int>(delta) : self,
                                    site);
}

inline uint64_t __ballot(int predicate, const void* site = HIP_CPU_SITE) {
  return hip_cpu::ballot(predicate, site);
}
inline int __any(int predicate, const void* site = HIP_CPU_SITE) {
  return hip_cpu::ballot(predicate, site) != 0;
}
inline int __all(int predicate, const void* site = HIP_CPU_SITE) {
  return hip_cpu::ballot(predicate, site) == hip_cpu::wave_lane_mask();
}

// ---- bits

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return hip_cpu::f32_bits(x); }
inline int __float_as_int(float x) { return static_cast<int>(hip_cpu::f32_bits(x)); }
inline float __uint_as_float(unsigned x) { return hip_cpu::f32_from_bits(x); }
inline float __int_as_float(int x) { return hip_cpu::f32_from_bits(static_cast<unsigned>(x)); }

// ---- memory order and atomics

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

namespace hip_cpu::internal {

// Replaces *address by combine(*address) and returns what was there.
template <typename T, typename Combine>
inline T atomic_update(T* address, Combine combine) {
  T seen;
  __atomic_load(address, &seen, __ATOMIC_RELAXED);
  T wanted = combine(seen);
  while (!__atomic_compare_exchange(address, &seen, &wanted, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
    wanted = combine(seen);
  }
  return seen;
}

template <typename T>
using Identity = std::common_type_t<T>;  // keeps an argument out of template deduction

template <typename T>
constexpr bool kAtomicInteger = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

}  // namespace hip_cpu::internal

template <typename T>
inline T atomicAdd(T* address, hip_cpu::internal::Identity<T> value) {
  if constexpr (hip_cpu::internal::kAtomicInteger<T>) {
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  } else {
    static_assert(std::is_floating_point_v<T>, "atomicAdd takes integers and floats");
    return hip_cpu::internal::atomic_update(address, [value](T seen) { return seen + value; });
  }
}
template <typename T>
inline T atomicSub(T* address, hip_cpu::internal::Identity<T> value) {
  static_assert(hip_cpu::internal::kAtomicInteger<T>, "atomicSub takes integers");
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicMax(T* address, hip_cpu::internal::Identity<T> value) {
  return hip_cpu::internal::atomic_update(address,
                                          [value](T seen) { return seen < value ? value : seen; });
}
template <typename T>
inline T atomicMin(T* address, hip_cpu::internal::Identity<T> value) {
  return hip_cpu::internal::atomic_update(address,
                                          [value](T seen) { return value < seen ? value : seen; });
}
template <typename T>
inline T atomicExch(T* address, hip_cpu::internal::Identity<T> value) {
  T previous;
  __atomic_exchange(address, &value, &previous, __ATOMIC_RELAXED);
  return previous;
}
template <typename T>
inline T atomicCAS(T* address, hip_cpu::internal::Identity<T> compare,
                   hip_cpu::internal::Identity<T> value) {
  static_assert(hip_cpu::internal::kAtomicInteger<T>, "atomicCAS takes integers");
  __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return compare;
}
template <typename T>
inline T atomicOr(T* address, hip_cpu::internal::Identity<T> value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicAnd(T* address, hip_cpu::internal::Identity<T> value) {
  return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}

// ---- math

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
