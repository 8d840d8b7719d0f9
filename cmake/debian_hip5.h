// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Included before every kernel source that is compiled with Debian's HIP 5.2 (debian_hip5.cmake): what its headers
// expect from a compiler of their time.

#if __clang_major__ >= 20

#define __AMDGCN_WAVEFRONT_SIZE 64

#define HIPMLA_HIP5_DEVICE inline __attribute__((device, always_inline))

typedef _Float16 HipmlaHip5Half2 __attribute__((ext_vector_type(2)));

HIPMLA_HIP5_DEVICE _Float16 __llvm_amdgcn_rcp_f16(_Float16 x) {
  return static_cast<_Float16>(__builtin_amdgcn_rcph(x));
}
HIPMLA_HIP5_DEVICE HipmlaHip5Half2 __llvm_amdgcn_rcp_2f16(HipmlaHip5Half2 x) {
  return HipmlaHip5Half2{__llvm_amdgcn_rcp_f16(x.x), __llvm_amdgcn_rcp_f16(x.y)};
}

#define HIPMLA_HIP5_FENCE(scope)                              \
  switch (order) {                                            \
    case __ATOMIC_ACQUIRE:                                    \
      return __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, scope); \
    case __ATOMIC_RELEASE:                                    \
      return __builtin_amdgcn_fence(__ATOMIC_RELEASE, scope); \
    case __ATOMIC_ACQ_REL:                                    \
      return __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, scope); \
    case __ATOMIC_SEQ_CST:                                    \
      return __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, scope); \
    default:                                                  \
      return;                                                 \
  }

// The headers declare __atomic_work_item_fence with types of their own, so the definition has another C++ name.
HIPMLA_HIP5_DEVICE void hipmla_hip5_fence(unsigned flags, unsigned order,
                                          unsigned scope) __asm__("__atomic_work_item_fence");
HIPMLA_HIP5_DEVICE void hipmla_hip5_fence(unsigned /*flags*/, unsigned order, unsigned scope) {
  switch (scope) {
    case __OPENCL_MEMORY_SCOPE_WORK_ITEM:
      return;
    case __OPENCL_MEMORY_SCOPE_SUB_GROUP:
      HIPMLA_HIP5_FENCE("wavefront")
    case __OPENCL_MEMORY_SCOPE_WORK_GROUP:
      HIPMLA_HIP5_FENCE("workgroup")
    case __OPENCL_MEMORY_SCOPE_DEVICE:
      HIPMLA_HIP5_FENCE("agent")
    default:
      HIPMLA_HIP5_FENCE("")
  }
}

#undef HIPMLA_HIP5_FENCE
#undef HIPMLA_HIP5_DEVICE

#endif
