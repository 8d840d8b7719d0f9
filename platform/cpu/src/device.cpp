// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The device's properties and settings, errors, and kernel launch.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "hip/hip_runtime.h"
#include "hip_cpu/control.h"
#include "runtime.h"

namespace {

// Of an MI300X; the L2 cache is that of one XCD.
constexpr int kClockKhz = 2100000;
constexpr int kL2CacheBytes = 4 << 20;
constexpr int kRegistersPerBlock = 65536;
constexpr int kMaxThreadsPerComputeUnit = 2048;
constexpr int kMaxGridDim = 0x7FFFFFFF;
constexpr int kVersion = 60000000;
#if defined(HIPMLA_CPU_SM90)
constexpr const char* kArchName = "sm_90";
constexpr const char* kArchFullName = "sm_90";
constexpr int kArchMinor = 0;
#else
constexpr const char* kArchName = "gfx942";
constexpr const char* kArchFullName = "gfx942:sramecc+:xnack-";
constexpr int kArchMinor = 4;
#endif

struct State {
  std::mutex mutex;
  hip_cpu::DeviceConfig config;
  std::string last_fault;
  bool fault_pending = false;

  static State& instance() {
    static auto* state = new State;
    return *state;
  }
};

thread_local hipError_t last_error = hipSuccess;

}  // namespace

namespace hip_cpu {

DeviceConfig get_device_config() {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.config;
}

void set_device_config(const DeviceConfig& config) {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.config = config;
}

std::string last_fault() {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.last_fault;
}

void clear_fault() {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.last_fault.clear();
  state.fault_pending = false;
}

namespace internal {

hipError_t report(hipError_t error) {
  if (error != hipSuccess && error != hipErrorNotReady) last_error = error;
  return error;
}

void record_fault(std::string fault) {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  state.last_fault = std::move(fault);
  state.fault_pending = true;
}

bool fault_is_pending() {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.fault_pending;
}

hipError_t report_pending_fault() {
  State& state = State::instance();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.fault_pending) return hipSuccess;
  state.fault_pending = false;
  return report(hipErrorLaunchFailure);
}

namespace {

hipError_t check_launch(const dim3& grid, const dim3& block, size_t lds_bytes,
                        const DeviceConfig& config) {
  for (uint32_t size : {grid.x, grid.y, grid.z, block.x, block.y, block.z}) {
    if (size == 0 || size > static_cast<uint32_t>(kMaxGridDim)) return hipErrorInvalidConfiguration;
  }
  if (block.x > kMaxBlockThreads || block.y > kMaxBlockThreads || block.z > kMaxBlockThreads ||
      uint64_t{block.x} * block.y * block.z > kMaxBlockThreads) {
    return hipErrorInvalidConfiguration;
  }
  // The hardware counts the threads of each dimension in 32 bits.
  if (uint64_t{grid.x} * block.x > UINT32_MAX || uint64_t{grid.y} * block.y > UINT32_MAX ||
      uint64_t{grid.z} * block.z > UINT32_MAX) {
    return hipErrorInvalidConfiguration;
  }
  return lds_bytes > config.lds_bytes ? hipErrorInvalidValue : hipSuccess;
}

}  // namespace

hipError_t launch(void (*invoke)(const void*), void* arguments, void (*destroy)(void*), dim3 grid,
                  dim3 block, size_t lds_bytes, hipStream_t stream) {
  const std::shared_ptr<void> owned(arguments, destroy);
  const DeviceConfig config = get_device_config();
  const hipError_t error = check_launch(grid, block, lds_bytes, config);
  if (error != hipSuccess) return report(error);
  const KernelLaunch kernel{
      invoke, arguments, grid, block, lds_bytes, config.schedule_seed, config.stack_bytes};
  const int num_threads = config.num_host_threads > 0
                              ? config.num_host_threads
                              : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return report(enqueue(stream, [owned, kernel, num_threads] { run_kernel(kernel, num_threads); }));
}

hipError_t launch_null_kernel() { return report(hipErrorInvalidDeviceFunction); }

hipError_t max_active_blocks(int* num_blocks, bool has_kernel, int block_size, size_t lds_bytes) {
  if (num_blocks == nullptr || block_size <= 0 || block_size > kMaxBlockThreads) {
    return report(hipErrorInvalidValue);
  }
  if (!has_kernel) return report(hipErrorInvalidDeviceFunction);
  const int num_waves = (block_size + kWaveSize - 1) / kWaveSize;
  *num_blocks = kMaxThreadsPerComputeUnit / (num_waves * kWaveSize);
  if (lds_bytes > 0) {
    const size_t by_lds = get_device_config().lds_bytes / lds_bytes;
    *num_blocks = static_cast<int>(std::min(static_cast<size_t>(*num_blocks), by_lds));
  }
  return hipSuccess;
}

}  // namespace internal
}  // namespace hip_cpu

using hip_cpu::internal::report;
using hip_cpu::internal::report_pending_fault;

// ---- errors

hipError_t hipGetLastError() {
  (void)report_pending_fault();
  return std::exchange(last_error, hipSuccess);
}

// Leaves a pending fault to the call that would report it.
hipError_t hipPeekAtLastError() {
  return hip_cpu::internal::fault_is_pending() ? hipErrorLaunchFailure : last_error;
}

const char* hipGetErrorName(hipError_t error) {
  switch (error) {
    case hipSuccess:
      return "hipSuccess";
    case hipErrorInvalidValue:
      return "hipErrorInvalidValue";
    case hipErrorOutOfMemory:
      return "hipErrorOutOfMemory";
    case hipErrorNotInitialized:
      return "hipErrorNotInitialized";
    case hipErrorInvalidConfiguration:
      return "hipErrorInvalidConfiguration";
    case hipErrorInvalidMemcpyDirection:
      return "hipErrorInvalidMemcpyDirection";
    case hipErrorInvalidDeviceFunction:
      return "hipErrorInvalidDeviceFunction";
    case hipErrorNoDevice:
      return "hipErrorNoDevice";
    case hipErrorInvalidDevice:
      return "hipErrorInvalidDevice";
    case hipErrorNoBinaryForGpu:
      return "hipErrorNoBinaryForGpu";
    case hipErrorInvalidHandle:
      return "hipErrorInvalidHandle";
    case hipErrorNotFound:
      return "hipErrorNotFound";
    case hipErrorNotReady:
      return "hipErrorNotReady";
    case hipErrorIllegalAddress:
      return "hipErrorIllegalAddress";
    case hipErrorLaunchOutOfResources:
      return "hipErrorLaunchOutOfResources";
    case hipErrorLaunchFailure:
      return "hipErrorLaunchFailure";
    case hipErrorNotSupported:
      return "hipErrorNotSupported";
    case hipErrorUnknown:
      break;
  }
  return "hipErrorUnknown";
}

const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipSuccess:
      return "no error";
    case hipErrorInvalidValue:
      return "invalid argument";
    case hipErrorOutOfMemory:
      return "out of memory";
    case hipErrorNotInitialized:
      return "initialization error";
    case hipErrorInvalidConfiguration:
      return "invalid configuration argument";
    case hipErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case hipErrorInvalidDeviceFunction:
      return "invalid device function";
    case hipErrorNoDevice:
      return "no ROCm-capable device is detected";
    case hipErrorInvalidDevice:
      return "invalid device ordinal";
    case hipErrorNoBinaryForGpu:
      return "no kernel image is available for execution on the device";
    case hipErrorInvalidHandle:
      return "invalid resource handle";
    case hipErrorNotFound:
      return "named symbol not found";
    case hipErrorNotReady:
      return "device not ready";
    case hipErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case hipErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case hipErrorLaunchFailure:
      return "unspecified launch failure";
    case hipErrorNotSupported:
      return "operation not supported";
    case hipErrorUnknown:
      break;
  }
  return "unknown error";
}

// ---- device

hipError_t hipInit(unsigned flags) {
  return flags == 0 ? hipSuccess : report(hipErrorInvalidValue);
}

hipError_t hipRuntimeGetVersion(int* version) {
  if (version == nullptr) return report(hipErrorInvalidValue);
  *version = kVersion;
  return hipSuccess;
}

hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

hipError_t hipGetDeviceCount(int* count) {
  if (count == nullptr) return report(hipErrorInvalidValue);
  *count = 1;
  return hipSuccess;
}

hipError_t hipGetDevice(int* device) {
  if (device == nullptr) return report(hipErrorInvalidValue);
  *device = 0;
  return hipSuccess;
}

hipError_t hipSetDevice(int device) {
  return device == 0 ? hipSuccess : report(hipErrorInvalidDevice);
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  if (properties == nullptr) return report(hipErrorInvalidValue);
  if (device != 0) return report(hipErrorInvalidDevice);
  const hip_cpu::DeviceConfig config = hip_cpu::get_device_config();
  hipDeviceProp_t p{};
  std::snprintf(p.name, sizeof(p.name), "CPU emulation of %s", kArchName);
  std::snprintf(p.gcnArchName, sizeof(p.gcnArchName), "%s", kArchFullName);
  p.totalGlobalMem = config.total_global_bytes;
  p.sharedMemPerBlock = config.lds_bytes;
  p.maxSharedMemoryPerMultiProcessor = config.lds_bytes;
  p.regsPerBlock = kRegistersPerBlock;
  p.warpSize = hip_cpu::kWaveSize;
  p.maxThreadsPerBlock = hip_cpu::internal::kMaxBlockThreads;
  p.maxThreadsPerMultiProcessor = kMaxThreadsPerComputeUnit;
  for (int i = 0; i < 3; ++i) {
    p.maxThreadsDim[i] = hip_cpu::internal::kMaxBlockThreads;
    p.maxGridSize[i] = kMaxGridDim;
  }
  p.clockRate = kClockKhz;
  p.major = 9;
  p.minor = kArchMinor;
  p.multiProcessorCount = config.num_compute_units;
  p.l2CacheSize = kL2CacheBytes;
  p.concurrentKernels = 1;
  p.canMapHostMemory = 1;
  *properties = p;
  return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  if (value == nullptr) return report(hipErrorInvalidValue);
  hipDeviceProp_t p;
  const hipError_t error = hipGetDeviceProperties(&p, device);
  if (error != hipSuccess) return error;
  switch (attribute) {
    case hipDeviceAttributeClockRate:
      *value = p.clockRate;
      return hipSuccess;
    case hipDeviceAttributeComputeCapabilityMajor:
      *value = p.major;
      return hipSuccess;
    case hipDeviceAttributeComputeCapabilityMinor:
      *value = p.minor;
      return hipSuccess;
    case hipDeviceAttributeL2CacheSize:
      *value = p.l2CacheSize;
      return hipSuccess;
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
      *value = p.maxThreadsDim[0];
      return hipSuccess;
    case hipDeviceAttributeMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      return hipSuccess;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerBlock);
      return hipSuccess;
    case hipDeviceAttributeMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      return hipSuccess;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      return hipSuccess;
    case hipDeviceAttributeMultiprocessorCount:
      *value = p.multiProcessorCount;
      return hipSuccess;
    case hipDeviceAttributeWarpSize:
      *value = p.warpSize;
      return hipSuccess;
  }
  return report(hipErrorInvalidValue);
}

hipError_t hipFuncSetAttribute(const void* function, hipFuncAttribute attribute, int value) {
  if (function == nullptr) return report(hipErrorInvalidDeviceFunction);
  if (attribute == hipFuncAttributeMaxDynamicSharedMemorySize &&
      (value < 0 || static_cast<size_t>(value) > hip_cpu::get_device_config().lds_bytes)) {
    return report(hipErrorInvalidValue);
  }
  return hipSuccess;
}
