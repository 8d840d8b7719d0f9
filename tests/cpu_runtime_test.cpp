// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The CPU platform's HIP runtime: memory, streams, launches, device functions, and what it does to
// wrong kernels.

#include <gtest/gtest.h>
#include <hip/hip_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hip_cpu/control.h"

namespace {

#define HIP_OK(call) ASSERT_EQ((call), hipSuccess)

// Changes the device's settings for one scope.
class ScopedConfig {
 public:
  explicit ScopedConfig(const hip_cpu::DeviceConfig& config) { hip_cpu::set_device_config(config); }
  ~ScopedConfig() { hip_cpu::set_device_config(saved_); }

 private:
  const hip_cpu::DeviceConfig saved_ = hip_cpu::get_device_config();
};

// Device memory for one scope.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size) {
    EXPECT_EQ(hipMalloc(&data_, size * sizeof(T)), hipSuccess);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { EXPECT_EQ(hipFree(data_), hipSuccess); }

  T* data() const { return data_; }
  size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> read() const {
    std::vector<T> host(size_);
    EXPECT_EQ(hipMemcpy(host.data(), data_, bytes(), hipMemcpyDeviceToHost), hipSuccess);
    return host;
  }
  void write(const std::vector<T>& host) const {
    EXPECT_EQ(hipMemcpy(data_, host.data(), bytes(), hipMemcpyHostToDevice), hipSuccess);
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// A task that holds up its stream until it is opened.
class Gate {
 public:
  explicit Gate(hipStream_t stream) {
    EXPECT_EQ(hipLaunchHostFunc(stream, &wait, this), hipSuccess);
  }
  ~Gate() {
    open();
    while (!passed_) std::this_thread::yield();
  }
  void open() { open_ = true; }

 private:
  static void wait(void* self) {
    while (!static_cast<Gate*>(self)->open_) std::this_thread::yield();
    static_cast<Gate*>(self)->passed_ = true;
  }
  std::atomic<bool> open_{false};
  std::atomic<bool> passed_{false};
};

class CpuRuntime : public ::testing::Test {
 protected:
  void SetUp() override { clear_errors(); }
  void TearDown() override {
    (void)hipDeviceSynchronize();
    clear_errors();
  }
  static void clear_errors() {
    hip_cpu::clear_fault();
    (void)hipGetLastError();
  }
};

__global__ void set_values(int* values, int value, int count) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] = value;
}

__global__ void increment(int* value) { *value += 1; }

// ---- memory

TEST_F(CpuRuntime, FreshDeviceMemoryIsPoisonAndAligned) {
  Buffer<uint8_t> buffer(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  for (uint8_t byte : buffer.read()) ASSERT_EQ(byte, 0xFF);
}

TEST_F(CpuRuntime, HugeAllocationIsPoisonedAtBothEnds) {
  hip_cpu::DeviceConfig config;
  config.poison_limit_bytes = 1 << 20;
  ScopedConfig scope(config);
  Buffer<uint8_t> buffer(8 << 20);
  const std::vector<uint8_t> bytes = buffer.read();
  EXPECT_EQ(bytes.front(), 0xFF);
  EXPECT_EQ(bytes[(1 << 20) - 1], 0xFF);
  EXPECT_EQ(bytes[bytes.size() - (1 << 20)], 0xFF);
  EXPECT_EQ(bytes.back(), 0xFF);
}

TEST_F(CpuRuntime, MemoryIsCounted) {
  size_t free_before, free_during, free_after, total;
  HIP_OK(hipMemGetInfo(&free_before, &total));
  EXPECT_EQ(total, hip_cpu::get_device_config().total_global_bytes);
  void* p;
  HIP_OK(hipMalloc(&p, 4096));
  HIP_OK(hipMemGetInfo(&free_during, &total));
  HIP_OK(hipFree(p));
  HIP_OK(hipMemGetInfo(&free_after, &total));
  EXPECT_EQ(free_before - free_during, 4096u);
  EXPECT_EQ(free_after, free_before);
}

TEST_F(CpuRuntime, OutOfMemory) {
  hip_cpu::DeviceConfig config;
  config.total_global_bytes = 1 << 20;
  ScopedConfig scope(config);
  void* p = &p;
  EXPECT_EQ(hipMalloc(&p, (1 << 20) + 1), hipErrorOutOfMemory);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
  HIP_OK(hipMalloc(&p, 1 << 20));
  HIP_OK(hipFree(p));
}

TEST_F(CpuRuntime, FreeRefusesWhatMallocDidNotMake) {
  int local = 0;
  EXPECT_EQ(hipFree(&local), hipErrorInvalidValue);
  EXPECT_EQ(hipFree(nullptr), hipSuccess);
  Buffer<int> buffer(4);
  EXPECT_EQ(hipFree(buffer.data() + 1), hipErrorInvalidValue);
  EXPECT_EQ(hipHostFree(buffer.data()), hipErrorInvalidValue);
}

TEST_F(CpuRuntime, CopiesAndFills) {
  std::vector<int> host{1, 2, 3, 4};
  Buffer<int> a(4), b(4);
  a.write(host);
  HIP_OK(hipMemcpy(b.data(), a.data(), a.bytes(), hipMemcpyDeviceToDevice));
  EXPECT_EQ(b.read(), host);
  HIP_OK(hipMemset(b.data() + 1, 0x01, 2 * sizeof(int)));
  EXPECT_EQ(b.read(), (std::vector<int>{1, 0x01010101, 0x01010101, 4}));
  HIP_OK(hipMemcpy(b.data(), a.data(), a.bytes(), hipMemcpyDefault));
  EXPECT_EQ(b.read(), host);
}

TEST_F(CpuRuntime, WrongCopiesAreRefused) {
  Buffer<int> buffer(4);
  std::vector<int> host(8);
  EXPECT_EQ(hipMemcpy(buffer.data(), host.data(), 20, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(buffer.data(), host.data(), 16, hipMemcpyDeviceToHost), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(host.data(), host.data() + 4, 16, hipMemcpyHostToDevice),
            hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(nullptr, host.data(), 16, hipMemcpyDefault), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset(buffer.data() + 2, 0, 12), hipErrorInvalidValue);
  EXPECT_EQ(hipMemset(host.data(), 0, 4), hipErrorInvalidValue);
}

TEST_F(CpuRuntime, PointerAttributes) {
  Buffer<int> buffer(4);
  void* pinned;
  HIP_OK(hipHostMalloc(&pinned, 16));
  hipPointerAttribute_t attributes;
  HIP_OK(hipPointerGetAttributes(&attributes, buffer.data() + 1));
  EXPECT_EQ(attributes.type, hipMemoryTypeDevice);
  EXPECT_EQ(attributes.devicePointer, buffer.data() + 1);
  EXPECT_EQ(attributes.device, 0);
  HIP_OK(hipPointerGetAttributes(&attributes, pinned));
  EXPECT_EQ(attributes.type, hipMemoryTypeHost);
  int local;
  EXPECT_EQ(hipPointerGetAttributes(&attributes, &local), hipErrorInvalidValue);
  HIP_OK(hipHostFree(pinned));
}

// ---- streams and events

TEST_F(CpuRuntime, PageableSourceIsReadDuringTheCall) {
  hipStream_t stream;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  Buffer<int> buffer(1);
  {
    Gate gate(stream);
    int pageable = 7;
    HIP_OK(hipMemcpyAsync(buffer.data(), &pageable, sizeof(int), hipMemcpyHostToDevice, stream));
    pageable = 8;
    gate.open();
    HIP_OK(hipStreamSynchronize(stream));
  }
  EXPECT_EQ(buffer.read()[0], 7);
  HIP_OK(hipStreamDestroy(stream));
}

TEST_F(CpuRuntime, PinnedSourceIsReadWhenTheStreamGetsThere) {
  hipStream_t stream;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  Buffer<int> buffer(1);
  int* pinned;
  HIP_OK(hipHostMalloc(&pinned, sizeof(int)));
  {
    Gate gate(stream);
    *pinned = 7;
    HIP_OK(hipMemcpyAsync(buffer.data(), pinned, sizeof(int), hipMemcpyHostToDevice, stream));
    *pinned = 8;
    gate.open();
    HIP_OK(hipStreamSynchronize(stream));
  }
  EXPECT_EQ(buffer.read()[0], 8);
  HIP_OK(hipStreamDestroy(stream));
  HIP_OK(hipHostFree(pinned));
}

TEST_F(CpuRuntime, StreamRunsInOrderAndLater) {
  hipStream_t stream;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  Buffer<int> buffer(1);
  {
    Gate gate(stream);
    HIP_OK(hipMemsetAsync(buffer.data(), 0, sizeof(int), stream));
    for (int i = 0; i < 10; ++i) hipLaunchKernelGGL(increment, 1, 1, 0, stream, buffer.data());
    HIP_OK(hipGetLastError());
    EXPECT_EQ(hipStreamQuery(stream), hipErrorNotReady);
    EXPECT_EQ(hipGetLastError(), hipSuccess);  // not ready is no error
    gate.open();
    HIP_OK(hipStreamSynchronize(stream));
  }
  EXPECT_EQ(hipStreamQuery(stream), hipSuccess);
  EXPECT_EQ(buffer.read()[0], 10);
  HIP_OK(hipStreamDestroy(stream));
}

TEST_F(CpuRuntime, NullStreamOrdersBlockingStreams) {
  hipStream_t first, second;
  HIP_OK(hipStreamCreate(&first));
  HIP_OK(hipStreamCreate(&second));
  Buffer<int> buffer(1);
  {
    Gate gate(first);
    hipLaunchKernelGGL(set_values, 1, 1, 0, first, buffer.data(), 1, 1);
    hipLaunchKernelGGL(increment, 1, 1, 0, nullptr, buffer.data());
    hipLaunchKernelGGL(increment, 1, 1, 0, second, buffer.data());
    EXPECT_EQ(hipStreamQuery(second), hipErrorNotReady);
    EXPECT_EQ(hipStreamQuery(nullptr), hipErrorNotReady);
    gate.open();
    HIP_OK(hipStreamSynchronize(second));
  }
  EXPECT_EQ(buffer.read()[0], 3);
  HIP_OK(hipStreamDestroy(first));
  HIP_OK(hipStreamDestroy(second));
}

TEST_F(CpuRuntime, NonBlockingStreamDoesNotWaitForTheNullStream) {
  hipStream_t stream;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  Buffer<int> buffer(1);
  {
    Gate gate(nullptr);
    hipLaunchKernelGGL(set_values, 1, 1, 0, stream, buffer.data(), 5, 1);
    HIP_OK(hipStreamSynchronize(stream));
    EXPECT_EQ(*buffer.data(), 5);
    EXPECT_EQ(hipStreamQuery(nullptr), hipErrorNotReady);
    gate.open();
    HIP_OK(hipDeviceSynchronize());
  }
  HIP_OK(hipStreamDestroy(stream));
}

TEST_F(CpuRuntime, EventsOrderStreams) {
  hipStream_t first, second;
  HIP_OK(hipStreamCreateWithFlags(&first, hipStreamNonBlocking));
  HIP_OK(hipStreamCreateWithFlags(&second, hipStreamNonBlocking));
  hipEvent_t event;
  HIP_OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  EXPECT_EQ(hipEventQuery(event), hipSuccess);  // never recorded
  Buffer<int> buffer(1);
  {
    Gate gate(first);
    hipLaunchKernelGGL(set_values, 1, 1, 0, first, buffer.data(), 1, 1);
    HIP_OK(hipEventRecord(event, first));
    EXPECT_EQ(hipEventQuery(event), hipErrorNotReady);
    HIP_OK(hipStreamWaitEvent(second, event));
    hipLaunchKernelGGL(increment, 1, 1, 0, second, buffer.data());
    EXPECT_EQ(hipStreamQuery(second), hipErrorNotReady);
    gate.open();
    HIP_OK(hipStreamSynchronize(second));
  }
  HIP_OK(hipEventSynchronize(event));
  EXPECT_EQ(hipEventQuery(event), hipSuccess);
  EXPECT_EQ(buffer.read()[0], 2);
  HIP_OK(hipEventDestroy(event));
  HIP_OK(hipStreamDestroy(first));
  HIP_OK(hipStreamDestroy(second));
}

TEST_F(CpuRuntime, EventTimes) {
  hipEvent_t start, stop, timeless;
  HIP_OK(hipEventCreate(&start));
  HIP_OK(hipEventCreate(&stop));
  HIP_OK(hipEventCreateWithFlags(&timeless, hipEventDisableTiming));
  float milliseconds = -1;
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipErrorInvalidHandle);
  HIP_OK(hipEventRecord(start));
  HIP_OK(hipLaunchHostFunc(
      nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  HIP_OK(hipEventRecord(stop));
  HIP_OK(hipEventSynchronize(stop));
  HIP_OK(hipEventElapsedTime(&milliseconds, start, stop));
  EXPECT_GE(milliseconds, 19.0f);
  HIP_OK(hipEventRecord(timeless));
  HIP_OK(hipEventSynchronize(timeless));
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, timeless), hipErrorInvalidHandle);
  for (hipEvent_t event : {start, stop, timeless}) HIP_OK(hipEventDestroy(event));
}

TEST_F(CpuRuntime, StaleHandlesAreRefused) {
  hipStream_t stream;
  HIP_OK(hipStreamCreate(&stream));
  HIP_OK(hipStreamDestroy(stream));
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamDestroy(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamDestroy(nullptr), hipErrorInvalidHandle);
  hipEvent_t event;
  HIP_OK(hipEventCreate(&event));
  HIP_OK(hipEventDestroy(event));
  EXPECT_EQ(hipEventRecord(event), hipErrorInvalidHandle);
}

TEST_F(CpuRuntime, AsyncAllocation) {
  hipStream_t stream;
  HIP_OK(hipStreamCreate(&stream));
  int* p;
  HIP_OK(hipMallocAsync(&p, 64 * sizeof(int), stream));
  hipLaunchKernelGGL(set_values, 1, 64, 0, stream, p, 3, 64);
  std::vector<int> host(64);
  HIP_OK(hipMemcpyAsync(host.data(), p, 256, hipMemcpyDeviceToHost, stream));  // pageable: waits
  HIP_OK(hipFreeAsync(p, stream));
  EXPECT_EQ(host, std::vector<int>(64, 3));
  HIP_OK(hipStreamDestroy(stream));
}

// ---- device

TEST_F(CpuRuntime, DeviceProperties) {
  int count, device, value;
  HIP_OK(hipGetDeviceCount(&count));
  EXPECT_EQ(count, 1);
  HIP_OK(hipGetDevice(&device));
  EXPECT_EQ(device, 0);
  EXPECT_EQ(hipSetDevice(1), hipErrorInvalidDevice);
  hipDeviceProp_t properties;
  HIP_OK(hipGetDeviceProperties(&properties, 0));
  EXPECT_STREQ(properties.gcnArchName, "gfx942:sramecc+:xnack-");
  EXPECT_EQ(properties.multiProcessorCount, 304);
  EXPECT_EQ(properties.warpSize, 64);
  EXPECT_EQ(properties.sharedMemPerBlock, 65536u);
  EXPECT_EQ(properties.maxThreadsPerBlock, 1024);
  HIP_OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, 0));
  EXPECT_EQ(value, 304);
  HIP_OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxSharedMemoryPerBlock, 0));
  EXPECT_EQ(value, 65536);
  EXPECT_EQ(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 3), hipErrorInvalidDevice);

  hip_cpu::DeviceConfig config;
  config.num_compute_units = 7;
  ScopedConfig scope(config);
  HIP_OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, 0));
  EXPECT_EQ(value, 7);
}

TEST_F(CpuRuntime, Occupancy) {
  int blocks;
  HIP_OK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, increment, 256, 0));
  EXPECT_EQ(blocks, 8);
  HIP_OK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, increment, 256, 30000));
  EXPECT_EQ(blocks, 2);
  HIP_OK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, increment, 256, 70000));
  EXPECT_EQ(blocks, 0);
}

TEST_F(CpuRuntime, ErrorNames) {
  EXPECT_STREQ(hipGetErrorName(hipErrorInvalidValue), "hipErrorInvalidValue");
  EXPECT_STREQ(hipGetErrorString(hipErrorOutOfMemory), "out of memory");
  EXPECT_STREQ(hipGetErrorName(static_cast<hipError_t>(998)), "hipErrorUnknown");
}

// ---- launches

__global__ void count_threads(int* counts) {
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  EXPECT_EQ(thread, static_cast<uint32_t>(hip_cpu::wave_id() * warpSize + hip_cpu::lane_id()));
  atomicAdd(&counts[block * (blockDim.x * blockDim.y * blockDim.z) + thread], 1);
}

TEST_F(CpuRuntime, EveryThreadOfA3dGridRunsOnce) {
  const dim3 grid(5, 3, 2), block(7, 5, 3);
  Buffer<int> counts(5 * 3 * 2 * 7 * 5 * 3);
  HIP_OK(hipMemset(counts.data(), 0, counts.bytes()));
  hipLaunchKernelGGL(count_threads, grid, block, 0, nullptr, counts.data());
  HIP_OK(hipGetLastError());
  for (int count : counts.read()) ASSERT_EQ(count, 1);
}

struct LargeParams {
  int values[100];
};

template <typename T, int kFactor>
__global__ void scale_param(LargeParams params, T* out) {
  out[threadIdx.x] = static_cast<T>(params.values[threadIdx.x] * kFactor);
}

TEST_F(CpuRuntime, ArgumentsAreCopiedAtLaunch) {
  hipStream_t stream;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  Buffer<float> out(100);
  {
    Gate gate(stream);
    LargeParams params;
    for (int i = 0; i < 100; ++i) params.values[i] = i;
    hipLaunchKernelGGL((scale_param<float, 3>), 1, 100, 0, stream, params, out.data());
    std::memset(&params, 0, sizeof(params));
    gate.open();
    HIP_OK(hipStreamSynchronize(stream));
  }
  const std::vector<float> result = out.read();
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(result[static_cast<size_t>(i)], static_cast<float>(3 * i));
  HIP_OK(hipStreamDestroy(stream));
}

TEST_F(CpuRuntime, WrongLaunchesAreRefused) {
  Buffer<int> buffer(1);
  const auto error_of = [&](dim3 grid, dim3 block, size_t lds_bytes) {
    hipLaunchKernelGGL(set_values, grid, block, lds_bytes, nullptr, buffer.data(), 1, 1);
    return hipGetLastError();
  };
  EXPECT_EQ(error_of(1, 1025, 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, dim3(32, 33), 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 0, 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error_of(0, 1, 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error_of(dim3(1, 0), 1, 0), hipErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1, 65537), hipErrorInvalidValue);
  void (*no_kernel)(int*) = nullptr;
  hipLaunchKernelGGL(no_kernel, 1, 1, 0, nullptr, buffer.data());
  EXPECT_EQ(hipGetLastError(), hipErrorInvalidDeviceFunction);
  EXPECT_EQ(buffer.read()[0], -1);  // nothing ran
  EXPECT_EQ(error_of(1, 1024, 65536), hipSuccess);
  EXPECT_EQ(buffer.read()[0], 1);
}

TEST_F(CpuRuntime, FuncSetAttributeKnowsTheLdsLimit) {
  EXPECT_EQ(hipFuncSetAttribute(set_values, hipFuncAttributeMaxDynamicSharedMemorySize, 65536),
            hipSuccess);
  EXPECT_EQ(hipFuncSetAttribute(reinterpret_cast<const void*>(set_values),
                                hipFuncAttributeMaxDynamicSharedMemorySize, 65537),
            hipErrorInvalidValue);
}

__global__ void copy_lds(uint8_t* out, int bytes) {
  HIP_DYNAMIC_SHARED(uint8_t, lds);
  assert(reinterpret_cast<uintptr_t>(lds) % 128 == 0);
  for (auto i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) {
    out[blockIdx.x * static_cast<uint32_t>(bytes) + static_cast<uint32_t>(i)] = lds[i];
    lds[i] = 0;
  }
}

TEST_F(CpuRuntime, LdsIsPoisonInEveryBlock) {
  constexpr int kBytes = 1001, kBlocks = 20;
  Buffer<uint8_t> out(kBytes * kBlocks);
  HIP_OK(hipMemset(out.data(), 0, out.bytes()));
  hipLaunchKernelGGL(copy_lds, kBlocks, 64, kBytes, nullptr, out.data(), kBytes);
  for (uint8_t byte : out.read()) ASSERT_EQ(byte, 0xFF);
}

__global__ void reverse_in_static_lds(int* values) {
  __shared__ int lds[256];
  lds[threadIdx.x] = values[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  values[blockIdx.x * 256 + threadIdx.x] = lds[255 - threadIdx.x];
}

TEST_F(CpuRuntime, StaticLds) {
  constexpr int kBlocks = 50;
  std::vector<int> host(256 * kBlocks);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int>(i);
  Buffer<int> values(host.size());
  values.write(host);
  hipLaunchKernelGGL(reverse_in_static_lds, kBlocks, 256, 0, nullptr, values.data());
  const std::vector<int> result = values.read();
  for (size_t i = 0; i < host.size(); ++i) {
    ASSERT_EQ(result[i], static_cast<int>(i / 256 * 256 + 255 - i % 256));
  }
}

// Large frames: a fiber's stack must hold a kernel's registers.
__global__ void use_many_registers(float* out) {
  volatile float registers[4096];
  for (int i = 0; i < 4096; ++i)
    registers[i] = static_cast<float>(i) + static_cast<float>(threadIdx.x);
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 4096; ++i) sum += registers[i] - static_cast<float>(i);
  out[threadIdx.x] = sum;
}

TEST_F(CpuRuntime, LargeFrames) {
  Buffer<float> out(1024);
  hipLaunchKernelGGL(use_many_registers, 1, 1024, 0, nullptr, out.data());
  const std::vector<float> result = out.read();
  for (size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], static_cast<float>(4096 * i));
}

TEST_F(CpuRuntime, StackSizeCanBeChosen) {
  hip_cpu::DeviceConfig config;
  config.stack_bytes = 1 << 20;
  ScopedConfig scope(config);
  Buffer<float> out(64);
  hipLaunchKernelGGL(use_many_registers, 1, 64, 0, nullptr, out.data());
  EXPECT_EQ(out.read()[1], 4096.0f);
}

__global__ void note_host_thread(uint64_t* threads) {
  if (threadIdx.x == 0) {
    threads[blockIdx.x] = std::hash<std::thread::id>()(std::this_thread::get_id());
  }
  std::this_thread::yield();
}

TEST_F(CpuRuntime, OneHostThreadRunsAllBlocksIfAsked) {
  hip_cpu::DeviceConfig config;
  config.num_host_threads = 1;
  ScopedConfig scope(config);
  Buffer<uint64_t> threads(100);
  hipLaunchKernelGGL(note_host_thread, 100, 64, 0, nullptr, threads.data());
  const std::vector<uint64_t> result = threads.read();
  EXPECT_EQ(std::set<uint64_t>(result.begin(), result.end()).size(), 1u);
}

__global__ void wait_for_other_block(int* arrived) {
  atomicAdd(arrived, 1);
  while (atomicAdd(arrived, 0) < 3) std::this_thread::yield();
}

TEST_F(CpuRuntime, BlocksRunInParallel) {
  hip_cpu::DeviceConfig config;
  config.num_host_threads = 3;
  ScopedConfig scope(config);
  Buffer<int> arrived(1);
  HIP_OK(hipMemset(arrived.data(), 0, sizeof(int)));
  hipLaunchKernelGGL(wait_for_other_block, 3, 1, 0, nullptr, arrived.data());
  HIP_OK(hipDeviceSynchronize());
}

TEST_F(CpuRuntime, ManyHostThreadsMayLaunch) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      hipStream_t stream;
      HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
      Buffer<int> buffer(1000);
      for (int i = 0; i < 20; ++i) {
        hipLaunchKernelGGL(set_values, 8, 128, 0, stream, buffer.data(), t * 100 + i, 1000);
        HIP_OK(hipStreamSynchronize(stream));
        ASSERT_EQ(buffer.read(), std::vector<int>(1000, t * 100 + i));
      }
      HIP_OK(hipStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- device functions

struct WaveResults {
  int shfl, shfl_half, shfl_xor, shfl_up, shfl_down;
  unsigned shfl_unsigned;
  float shfl_float;
  int64_t shfl_int64;
  double shfl_double;
  uint64_t ballot;
  int any_none, any_one, all_but_one, all;
};

__global__ void wave_functions(WaveResults* out) {
  const int lane = hip_cpu::lane_id();
  WaveResults& r = out[threadIdx.x];
  r.shfl = __shfl(lane * 10, (lane + 1) % 64);
  r.shfl_half = __shfl(lane, 3, 32);
  r.shfl_xor = __shfl_xor(lane, 5);
  r.shfl_up = __shfl_up(lane, 2);
  r.shfl_down = __shfl_down(lane, 3);
  r.shfl_unsigned = __shfl(0x80000000u + static_cast<unsigned>(lane), 9);
  r.shfl_float = __shfl_xor(static_cast<float>(lane) + 0.5f, 32);
  r.shfl_int64 = __shfl((int64_t{1} << 40) + lane, 63 - lane);
  r.shfl_double = __shfl_up(1.0 / (lane + 1), 1);
  r.ballot = __ballot(lane % 3 == 0);
  r.any_none = __any(lane > 100);
  r.any_one = __any(lane == 17);
  r.all_but_one = __all(lane != 17);
  r.all = __all(lane < 100);
}

TEST_F(CpuRuntime, WaveFunctions) {
  Buffer<WaveResults> out(128);
  hipLaunchKernelGGL(wave_functions, 1, 128, 0, nullptr, out.data());
  HIP_OK(hipGetLastError());
  uint64_t thirds = 0;
  for (int i = 0; i < 64; i += 3) thirds |= uint64_t{1} << i;
  const std::vector<WaveResults> results = out.read();
  for (int thread = 0; thread < 128; ++thread) {
    const int lane = thread % 64;
    const WaveResults& r = results[static_cast<size_t>(thread)];
    EXPECT_EQ(r.shfl, (lane + 1) % 64 * 10);
    EXPECT_EQ(r.shfl_half, lane < 32 ? 3 : 35);
    EXPECT_EQ(r.shfl_xor, lane ^ 5);
    EXPECT_EQ(r.shfl_up, lane < 2 ? lane : lane - 2);
    EXPECT_EQ(r.shfl_down, lane > 60 ? lane : lane + 3);
    EXPECT_EQ(r.shfl_unsigned, 0x80000009u);
    EXPECT_EQ(r.shfl_float, static_cast<float>(lane ^ 32) + 0.5f);
    EXPECT_EQ(r.shfl_int64, (int64_t{1} << 40) + 63 - lane);
    EXPECT_EQ(r.shfl_double, 1.0 / (lane == 0 ? 1 : lane));
    EXPECT_EQ(r.ballot, thirds);
    EXPECT_EQ(r.any_none, 0);
    EXPECT_EQ(r.any_one, 1);
    EXPECT_EQ(r.all_but_one, 0);
    EXPECT_EQ(r.all, 1);
  }
}

__global__ void short_wave(uint64_t* ballots, int* all, int* from_missing) {
  ballots[threadIdx.x] = __ballot(1);
  all[threadIdx.x] = __all(1);
  from_missing[threadIdx.x] = __shfl(7, 50);
}

TEST_F(CpuRuntime, LastWaveMayBeShort) {
  Buffer<uint64_t> ballots(74);
  Buffer<int> all(74), from_missing(74);
  hipLaunchKernelGGL(short_wave, 1, 74, 0, nullptr, ballots.data(), all.data(),
                     from_missing.data());
  EXPECT_EQ(ballots.read()[0], ~uint64_t{0});
  EXPECT_EQ(ballots.read()[73], 0x3FFu);
  EXPECT_EQ(all.read(), std::vector<int>(74, 1));
  EXPECT_EQ(from_missing.read()[0], 7);
  EXPECT_EQ(from_missing.read()[73], 0);  // what a disabled lane gives on the hardware
}

__global__ void lane_sum(int* out) {
  struct Operand {
    int value, sum;
  } operand{hip_cpu::lane_id(), 0};
  int factor = 2;
  hip_cpu::wave_collective(
      [](void* const* lanes, void* context) {
        int sum = 0;
        for (int i = 0; i < hip_cpu::kWaveSize; ++i) {
          if (lanes[i] != nullptr) sum += static_cast<Operand*>(lanes[i])->value;
        }
        for (int i = 0; i < hip_cpu::kWaveSize; ++i) {
          if (lanes[i] != nullptr) {
            static_cast<Operand*>(lanes[i])->sum = sum * *static_cast<int*>(context);
          }
        }
      },
      &operand, &factor, HIP_CPU_SITE);
  out[threadIdx.x] = operand.sum;
}

TEST_F(CpuRuntime, WaveCollective) {
  Buffer<int> out(70);
  hipLaunchKernelGGL(lane_sum, 1, 70, 0, nullptr, out.data());
  const std::vector<int> result = out.read();
  EXPECT_EQ(result[0], 2016 * 2);
  EXPECT_EQ(result[63], 2016 * 2);
  EXPECT_EQ(result[64], 15 * 2);
}

struct AtomicResults {
  int add, max, min, exchanged, compared, sub;
  unsigned add_unsigned, bits_or, bits_and;
  unsigned long long add_long;
  float add_float;
  double add_double;
};

__global__ void atomics(AtomicResults* r) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&r->add, 1);
  atomicSub(&r->sub, 1);
  atomicAdd(&r->add_unsigned, 2u);
  atomicAdd(&r->add_long, 1ull << 32);
  atomicAdd(&r->add_float, 0.5f);
  atomicAdd(&r->add_double, 0.25);
  atomicMax(&r->max, i);
  atomicMin(&r->min, -i);
  atomicOr(&r->bits_or, 1u << (i % 32));
  atomicAnd(&r->bits_and, ~(1u << (i % 16)));
  if (i == 5) r->exchanged = atomicExch(&r->exchanged, 9) + 1;
  int seen = atomicCAS(&r->compared, 0, 0);
  for (int expected;
       (expected = seen), (seen = atomicCAS(&r->compared, expected, expected + 1)) != expected;) {
  }
  __threadfence();
  __threadfence_block();
}

TEST_F(CpuRuntime, Atomics) {
  Buffer<AtomicResults> out(1);
  HIP_OK(hipMemset(out.data(), 0, out.bytes()));
  std::vector<AtomicResults> start = out.read();
  start[0].bits_and = 0xFFFFFFFFu;
  out.write(start);
  hipLaunchKernelGGL(atomics, 8, 128, 0, nullptr, out.data());
  const AtomicResults r = out.read()[0];
  EXPECT_EQ(r.add, 1024);
  EXPECT_EQ(r.sub, -1024);
  EXPECT_EQ(r.add_unsigned, 2048u);
  EXPECT_EQ(r.add_long, 1024ull << 32);
  EXPECT_EQ(r.add_float, 512.0f);
  EXPECT_EQ(r.add_double, 256.0);
  EXPECT_EQ(r.max, 1023);
  EXPECT_EQ(r.min, -1023);
  EXPECT_EQ(r.bits_or, 0xFFFFFFFFu);
  EXPECT_EQ(r.bits_and, 0xFFFF0000u);
  EXPECT_EQ(r.exchanged, 1);
  EXPECT_EQ(r.compared, 1024);
}

TEST_F(CpuRuntime, BitFunctionsAndVectors) {
  EXPECT_EQ(__popc(0xF0F0u), 8);
  EXPECT_EQ(__popcll(~0ull), 64);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__ffsll(1ll << 40), 41);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__float_as_uint(1.0f), 0x3F800000u);
  EXPECT_EQ(__uint_as_float(0x40000000u), 2.0f);
  EXPECT_EQ(rsqrtf(4.0f), 0.5f);
  EXPECT_EQ(min(3, 2), 2);
  EXPECT_EQ(max(3.0f, 2.0f), 3.0f);
  const float4 v = make_float4(1, 2, 3, 4);
  EXPECT_EQ(v.x + v.y + v.z + v.w, 10.0f);
  EXPECT_EQ(alignof(float4), 16u);
  EXPECT_EQ(sizeof(uint2), 8u);
  const dim3 size(3);
  EXPECT_EQ(size.x * size.y * size.z, 3u);
}

// ---- sync points

// Sums over the block, with a barrier between any two steps.
__global__ void block_sum(int* out) {
  HIP_DYNAMIC_SHARED(int, lds);
  const uint32_t t = threadIdx.x;
  lds[t] = static_cast<int>(t + blockIdx.x);
  __syncthreads();
  for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) lds[t] += lds[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = lds[0];
}

TEST_F(CpuRuntime, CorrectKernelsDoNotDependOnTheSeed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    hip_cpu::DeviceConfig config;
    config.schedule_seed = seed;
    ScopedConfig scope(config);
    Buffer<int> out(16);
    hipLaunchKernelGGL(block_sum, 16, 256, 1024, nullptr, out.data());
    const std::vector<int> result = out.read();
    for (int i = 0; i < 16; ++i) ASSERT_EQ(result[static_cast<size_t>(i)], 255 * 128 + 256 * i);
  }
}

// Wrong: a neighbour's value is read without a barrier.
__global__ void race_in_lds(int* out) {
  HIP_DYNAMIC_SHARED(int, lds);
  lds[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = lds[(threadIdx.x + 1) % blockDim.x];
}

// Wrong: another wave's value is read after a wave barrier.
__global__ void race_between_waves(int* out) {
  HIP_DYNAMIC_SHARED(int, lds);
  hip_cpu::wave_barrier();
  lds[threadIdx.x] = static_cast<int>(threadIdx.x);
  hip_cpu::wave_barrier();
  out[threadIdx.x] = lds[(threadIdx.x + 64) % blockDim.x];
}

std::vector<int> run_with_seed(void (*kernel)(int*), uint64_t seed) {
  hip_cpu::DeviceConfig config;
  config.schedule_seed = seed;
  ScopedConfig scope(config);
  Buffer<int> out(256);
  hipLaunchKernelGGL(kernel, 1, 256, 1024, nullptr, out.data());
  return out.read();
}

TEST_F(CpuRuntime, RacesShowAndDependOnTheSeedOnly) {
  for (auto kernel : {race_in_lds, race_between_waves}) {
    std::set<std::vector<int>> results;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const std::vector<int> result = run_with_seed(kernel, seed);
      EXPECT_EQ(result, run_with_seed(kernel, seed));
      EXPECT_TRUE(std::count(result.begin(), result.end(), -1) > 0) << "seed " << seed;
      results.insert(result);
    }
    EXPECT_GE(results.size(), 5u);
  }
}

__global__ void record_order(int* order, int* counter) {
  order[atomicAdd(counter, 1)] = static_cast<int>(threadIdx.x);
}

TEST_F(CpuRuntime, OrderOfLanesIsAPermutationOfTheSeed) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    hip_cpu::DeviceConfig config;
    config.schedule_seed = seed;
    ScopedConfig scope(config);
    Buffer<int> order(100), counter(1);
    HIP_OK(hipMemset(counter.data(), 0, sizeof(int)));
    hipLaunchKernelGGL(record_order, 1, 100, 0, nullptr, order.data(), counter.data());
    std::vector<int> result = order.read();
    orders.insert(result);
    std::sort(result.begin(), result.end());
    for (int i = 0; i < 100; ++i) ASSERT_EQ(result[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(orders.size(), 8u);
}

// ---- faults

__global__ void barrier_without_exited_thread() {
  if (threadIdx.x == 70) return;
  __syncthreads();
}

__global__ void barrier_without_a_wave() {
  if (threadIdx.x < 64) __syncthreads();
}

__global__ void barrier_against_collective() {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else if (threadIdx.x < 96) {
    hip_cpu::wave_barrier();
  } else {
    __syncthreads();
  }
}

__global__ void two_barriers_in_one_wave() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void collective_without_exited_lane(int* out) {
  if (threadIdx.x == 3) return;
  out[threadIdx.x] = __shfl_xor(static_cast<int>(threadIdx.x), 1);
}

__global__ void two_collectives(int* out) {
  if (threadIdx.x < 32) {
    out[threadIdx.x] = __shfl(1, 0);
  } else {
    out[threadIdx.x] = __shfl(2, 0);
  }
}

class CpuRuntimeFault : public CpuRuntime {
 protected:
  // Launches, expects a fault from the next sync, and then a healthy device. Returns the fault's
  // text.
  template <typename... Params, typename... Args>
  static std::string fault_of(void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
    hipLaunchKernelGGL(kernel, grid, block, 0, nullptr, args...);
    EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
    EXPECT_EQ(hipGetLastError(), hipErrorLaunchFailure);
    EXPECT_EQ(hipGetLastError(), hipSuccess);
    EXPECT_EQ(hipDeviceSynchronize(), hipSuccess);
    Buffer<int> out(4);
    hipLaunchKernelGGL(block_sum, 4, 256, 1024, nullptr, out.data());
    EXPECT_EQ(out.read()[3], 255 * 128 + 256 * 3);
    const std::string text = hip_cpu::last_fault();
    hip_cpu::clear_fault();
    EXPECT_EQ(hip_cpu::last_fault(), "");
    return text;
  }
};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
}

TEST_F(CpuRuntimeFault, BarrierWithoutExitedThread) {
  expect_parts(fault_of(barrier_without_exited_thread, 3, 128),
               {"block (", ",0,0)", "63 threads, first (64,0,0), at the block barrier",
                "cpu_runtime_test.cpp:", "1 thread, (70,0,0), exited"});
}

TEST_F(CpuRuntimeFault, BarrierWithoutAWave) {
  expect_parts(
      fault_of(barrier_without_a_wave, 1, 128),
      {"block (0,0,0)", "not all threads reach the block barrier",
       "64 threads, first (0,0,0), at the block barrier", "64 threads, first (64,0,0), exited"});
}

TEST_F(CpuRuntimeFault, BarrierAgainstCollective) {
  expect_parts(fault_of(barrier_against_collective, 1, 128),
               {"wave 1", "32 threads, first (64,0,0), in a wave collective",
                "32 threads, first (96,0,0), at the block barrier"});
}

TEST_F(CpuRuntimeFault, TwoBarriersInOneWave) {
  expect_parts(fault_of(two_barriers_in_one_wave, 1, 64),
               {"32 threads, first (0,0,0), at the block barrier",
                "32 threads, first (1,0,0), at the block barrier"});
}

TEST_F(CpuRuntimeFault, CollectiveWithoutExitedLane) {
  Buffer<int> out(64);
  expect_parts(fault_of(collective_without_exited_lane, 1, 64, out.data()),
               {"63 threads, first (0,0,0), in a wave collective", "1 thread, (3,0,0), exited"});
}

TEST_F(CpuRuntimeFault, TwoCollectivesInOneWave) {
  Buffer<int> out(64);
  expect_parts(fault_of(two_collectives, 1, 64, out.data()),
               {"32 threads, first (0,0,0), in a wave collective",
                "32 threads, first (32,0,0), in a wave collective"});
}

__global__ void fail_in_one_block(int* ran) {
  atomicAdd(ran, 1);
  if (blockIdx.x == 2) hip_cpu::fail("wrong on purpose");
}

TEST_F(CpuRuntimeFault, OtherBlocksAreSkipped) {
  hip_cpu::DeviceConfig config;
  config.num_host_threads = 1;
  ScopedConfig scope(config);
  Buffer<int> ran(1);
  HIP_OK(hipMemset(ran.data(), 0, sizeof(int)));
  const std::string text = fault_of(fail_in_one_block, 100, 1, ran.data());
  EXPECT_EQ(text, "block (2,0,0), thread (0,0,0): wrong on purpose");
  EXPECT_EQ(ran.read()[0], 3);
}

TEST_F(CpuRuntimeFault, IsReportedByGetLastErrorToo) {
  hipStream_t stream;
  HIP_OK(hipStreamCreate(&stream));
  hipLaunchKernelGGL(barrier_without_a_wave, 1, 128, 0, stream);
  HIP_OK(hipStreamDestroy(stream));
  EXPECT_EQ(hipPeekAtLastError(), hipErrorLaunchFailure);
  EXPECT_EQ(hipGetLastError(), hipErrorLaunchFailure);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
}

TEST_F(CpuRuntimeFault, ManyFaultsInARow) {
  for (int i = 0; i < 50; ++i) (void)fault_of(barrier_without_a_wave, 4, 1024);
}

}  // namespace
