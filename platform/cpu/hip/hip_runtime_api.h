// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// Host side of HIP on the CPU: the subset of the HIP runtime API that this runtime implements,
/// with HIP's names, values and semantics. The one device is an emulated gfx942, or
/// sm_90 where HIPMLA_CPU_SM90 is defined.
///
/// What differs from a GPU, on purpose: fresh device memory is filled with 0xFF (NaN); device
/// memory is ordinary host memory, one heap allocation each, so address checkers see it; copies
/// that leave an allocation, or whose direction does not fit their pointers, are refused; a failed
/// kernel does not end the context.

#include <cstddef>
#include <cstdint>

struct dim3 {
  uint32_t x, y, z;
  constexpr dim3(uint32_t x_size = 1, uint32_t y_size = 1, uint32_t z_size = 1)  // NOLINT
      : x(x_size), y(y_size), z(z_size) {}
};

enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorMemoryAllocation = 2,
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorNoBinaryForGpu = 209,
  hipErrorInvalidHandle = 400,
  hipErrorInvalidResourceHandle = 400,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchOutOfResources = 701,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999,
};

typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;

enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
};

enum hipMemoryType {
  hipMemoryTypeUnregistered = 0,
  hipMemoryTypeHost = 1,
  hipMemoryTypeDevice = 2,
  hipMemoryTypeManaged = 3,
};

struct hipPointerAttribute_t {
  hipMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned allocationFlags;
};

enum hipFuncAttribute {
  hipFuncAttributeMaxDynamicSharedMemorySize = 8,
  hipFuncAttributePreferredSharedMemoryCarveout = 9,
};

enum hipDeviceAttribute_t {
  hipDeviceAttributeClockRate,
  hipDeviceAttributeComputeCapabilityMajor,
  hipDeviceAttributeComputeCapabilityMinor,
  hipDeviceAttributeL2CacheSize,
  hipDeviceAttributeMaxBlockDimX,
  hipDeviceAttributeMaxBlockDimY,
  hipDeviceAttributeMaxBlockDimZ,
  hipDeviceAttributeMaxRegistersPerBlock,
  hipDeviceAttributeMaxSharedMemoryPerBlock,
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
  hipDeviceAttributeMaxThreadsPerBlock,
  hipDeviceAttributeMaxThreadsPerMultiProcessor,
  hipDeviceAttributeMultiprocessorCount,
  hipDeviceAttributeWarpSize,
};

struct hipDeviceProp_t {
  char name[256];
  char gcnArchName[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  size_t maxSharedMemoryPerMultiProcessor;
  int regsPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int maxThreadsPerMultiProcessor;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;  // kHz
  int major;
  int minor;
  int multiProcessorCount;
  int l2CacheSize;
  int concurrentKernels;
  int canMapHostMemory;
};

enum : unsigned {
  hipStreamDefault = 0,
  hipStreamNonBlocking = 1,
  hipEventDefault = 0,
  hipEventBlockingSync = 1,
  hipEventDisableTiming = 2,
  hipHostMallocDefault = 0,
  hipHostMallocPortable = 1,
  hipHostMallocMapped = 2,
};

typedef void (*hipHostFn_t)(void* user_data);

// Errors. The last error is kept per thread; hipGetLastError clears it. A kernel's fault is
// reported once, by the next call that synchronises or by hipGetLastError (hipPeekAtLastError only looks),
// whichever comes first.
const char* hipGetErrorName(hipError_t error);
const char* hipGetErrorString(hipError_t error);
hipError_t hipGetLastError();
hipError_t hipPeekAtLastError();

// Device.
hipError_t hipInit(unsigned flags);
hipError_t hipRuntimeGetVersion(int* version);
hipError_t hipDriverGetVersion(int* version);
hipError_t hipGetDeviceCount(int* count);
hipError_t hipGetDevice(int* device);
hipError_t hipSetDevice(int device);
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceSynchronize();

// Memory. Device memory is 256-byte aligned. hipFree waits for all queued work, as on a GPU.
hipError_t hipMalloc(void** pointer, size_t bytes);
hipError_t hipFree(void* pointer);
hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream);
hipError_t hipFreeAsync(void* pointer, hipStream_t stream);
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags = hipHostMallocDefault);
hipError_t hipHostFree(void* pointer);
hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind);
// Pageable sources are read during the call; a copy to pageable memory returns when it is complete.
// Memory of hipHostMalloc is read and written when the stream gets there.
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream = nullptr);
hipError_t hipMemset(void* to, int value, size_t bytes);
hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream = nullptr);
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer);

// Streams. The null stream waits for, and is waited for by, every stream made without
// hipStreamNonBlocking.
hipError_t hipStreamCreate(hipStream_t* stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags = 0);
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* user_data);

// Events. Times are wall clock times.
hipError_t hipEventCreate(hipEvent_t* event);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr);
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);
hipError_t hipEventDestroy(hipEvent_t event);

// Kernels. Launches are in hip_runtime.h.
hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute attribute, int value);

namespace hip_cpu::internal {
hipError_t max_active_blocks(int* num_blocks, bool has_kernel, int block_size, size_t lds_bytes);
}  // namespace hip_cpu::internal

template <typename Kernel>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, Kernel kernel,
                                                        int block_size, size_t dynamic_lds_bytes) {
  return hip_cpu::internal::max_active_blocks(num_blocks, kernel != nullptr, block_size,
                                              dynamic_lds_bytes);
}

template <typename T>
hipError_t hipMalloc(T** pointer, size_t bytes) {
  return hipMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <typename T>
hipError_t hipMallocAsync(T** pointer, size_t bytes, hipStream_t stream) {
  return hipMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
template <typename T>
hipError_t hipHostMalloc(T** pointer, size_t bytes, unsigned flags = hipHostMallocDefault) {
  return hipHostMalloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
