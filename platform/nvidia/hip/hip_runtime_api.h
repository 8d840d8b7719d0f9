// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The HIP names that hipmla, its tests and its tools use, on the CUDA runtime. Meanings are those of HIP.

#include <cuda_runtime_api.h>

#include <cstdio>

struct ihipStream_t;
typedef ihipStream_t* hipStream_t;
using hipEvent_t = cudaEvent_t;
using hipError_t = cudaError_t;
using hipMemcpyKind = cudaMemcpyKind;

constexpr hipError_t hipSuccess = cudaSuccess;
constexpr hipError_t hipErrorInvalidValue = cudaErrorInvalidValue;
constexpr hipError_t hipErrorNotReady = cudaErrorNotReady;
constexpr hipError_t hipErrorOutOfMemory = cudaErrorMemoryAllocation;
constexpr hipError_t hipErrorInvalidDevice = cudaErrorInvalidDevice;
constexpr hipError_t hipErrorLaunchFailure = cudaErrorLaunchFailure;
constexpr hipError_t hipErrorInvalidConfiguration = cudaErrorInvalidConfiguration;
constexpr hipMemcpyKind hipMemcpyHostToHost = cudaMemcpyHostToHost;
constexpr hipMemcpyKind hipMemcpyHostToDevice = cudaMemcpyHostToDevice;
constexpr hipMemcpyKind hipMemcpyDeviceToHost = cudaMemcpyDeviceToHost;
constexpr hipMemcpyKind hipMemcpyDeviceToDevice = cudaMemcpyDeviceToDevice;
constexpr hipMemcpyKind hipMemcpyDefault = cudaMemcpyDefault;
constexpr unsigned hipStreamDefault = cudaStreamDefault;
constexpr unsigned hipStreamNonBlocking = cudaStreamNonBlocking;
constexpr unsigned hipEventDisableTiming = cudaEventDisableTiming;

struct hipDeviceProp_t {
  char name[256];
  char gcnArchName[256];  // "sm_90"
  int multiProcessorCount;
  size_t sharedMemPerBlock;  // what a block may opt in to
  size_t totalGlobalMem;
  int warpSize;
  int major;
  int minor;
  int l2CacheSize;
};

inline cudaStream_t hip_stream(hipStream_t stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }
inline const char* hipGetErrorName(hipError_t error) { return cudaGetErrorName(error); }
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline hipError_t hipPeekAtLastError() { return cudaPeekAtLastError(); }
inline hipError_t hipDeviceSynchronize() { return cudaDeviceSynchronize(); }
inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
inline hipError_t hipGetDeviceCount(int* count) { return cudaGetDeviceCount(count); }
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* out, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  std::snprintf(out->name, sizeof out->name, "%s", p.name);
  std::snprintf(out->gcnArchName, sizeof out->gcnArchName, "sm_%d%d", p.major, p.minor);
  out->multiProcessorCount = p.multiProcessorCount;
  out->sharedMemPerBlock = p.sharedMemPerBlockOptin;
  out->totalGlobalMem = p.totalGlobalMem;
  out->warpSize = p.warpSize;
  out->major = p.major;
  out->minor = p.minor;
  out->l2CacheSize = p.l2CacheSize;
  return cudaSuccess;
}
template <typename T>
hipError_t hipMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
inline hipError_t hipFree(void* p) { return cudaFree(p); }
inline hipError_t hipHostMalloc(void** p, size_t bytes, unsigned flags = 0) {
  return cudaHostAlloc(p, bytes, flags);
}
inline hipError_t hipHostFree(void* p) { return cudaFreeHost(p); }
inline hipError_t hipMemGetInfo(size_t* free, size_t* total) { return cudaMemGetInfo(free, total); }
inline hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  return cudaMemcpy(to, from, bytes, kind);
}
inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                                 hipStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, hip_stream(stream));
}
inline hipError_t hipMemset(void* p, int value, size_t bytes) {
  return cudaMemset(p, value, bytes);
}
inline hipError_t hipMemsetAsync(void* p, int value, size_t bytes, hipStream_t stream) {
  return cudaMemsetAsync(p, value, bytes, hip_stream(stream));
}
inline hipError_t hipStreamCreate(hipStream_t* stream) {
  return cudaStreamCreate(reinterpret_cast<cudaStream_t*>(stream));
}
inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), flags);
}
inline hipError_t hipStreamDestroy(hipStream_t stream) {
  return cudaStreamDestroy(hip_stream(stream));
}
inline hipError_t hipStreamSynchronize(hipStream_t stream) {
  return cudaStreamSynchronize(hip_stream(stream));
}
inline hipError_t hipStreamQuery(hipStream_t stream) { return cudaStreamQuery(hip_stream(stream)); }
inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags = 0) {
  return cudaStreamWaitEvent(hip_stream(stream), event, flags);
}
inline hipError_t hipEventCreate(hipEvent_t* event) { return cudaEventCreate(event); }
inline hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline hipError_t hipEventDestroy(hipEvent_t event) { return cudaEventDestroy(event); }
inline hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr) {
  return cudaEventRecord(event, hip_stream(stream));
}
inline hipError_t hipEventSynchronize(hipEvent_t event) { return cudaEventSynchronize(event); }
inline hipError_t hipEventQuery(hipEvent_t event) { return cudaEventQuery(event); }
inline hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t begin, hipEvent_t end) {
  return cudaEventElapsedTime(milliseconds, begin, end);
}
