// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Kernel launches in HIP's form, for files that nvcc compiles.

#include <cuda_runtime.h>
#include <hip/hip_runtime_api.h>

#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]

// More than 48 KiB of shared memory must be asked for, each time: a launch keeps no state of its own.
#define hipLaunchKernelGGL(kernel, grid, block, shared_bytes, stream, ...)                       \
  do {                                                                                           \
    if ((shared_bytes) > 48 * 1024)                                                              \
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (shared_bytes)); \
    kernel<<<(grid), (block), (shared_bytes), hip_stream(stream)>>>(__VA_ARGS__);                \
  } while (false)
