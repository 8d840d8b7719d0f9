// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Device and pinned memory, and copies.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "hip_cpu/control.h"
#include "runtime.h"

using hip_cpu::internal::enqueue;
using hip_cpu::internal::report;
using hip_cpu::internal::report_pending_fault;
using hip_cpu::internal::wait_for_null_stream;
using hip_cpu::internal::wait_for_stream;

namespace {

constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xFF;
// Of an allocation over DeviceConfig::poison_limit_bytes, this much is filled at each end.
constexpr size_t kPoisonedEndBytes = size_t{1} << 20;

struct Allocation {
  size_t bytes = 0;
  hipMemoryType type = hipMemoryTypeUnregistered;
};

// The allocations of hipMalloc and hipHostMalloc by address.
class AllocationTable {
 public:
  static AllocationTable& instance() {
    static auto* table = new AllocationTable;
    return *table;
  }

  hipError_t allocate(void** pointer, size_t bytes, hipMemoryType type) {
    if (pointer == nullptr) return hipErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return hipSuccess;
    const hip_cpu::DeviceConfig config = hip_cpu::get_device_config();
    if (type == hipMemoryTypeDevice && !take_device_bytes(bytes, config.total_global_bytes)) {
      return hipErrorOutOfMemory;
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, bytes) != 0) {
      if (type == hipMemoryTypeDevice) return_device_bytes(bytes);
      return hipErrorOutOfMemory;
    }
    if (type == hipMemoryTypeDevice) poison(memory, bytes, config.poison_limit_bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    allocations_[reinterpret_cast<uintptr_t>(memory)] = {bytes, type};
    *pointer = memory;
    return hipSuccess;
  }

  // Forgets an allocation without freeing it. False if no allocation of that type begins there.
  bool remove(void* pointer, hipMemoryType type) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == allocations_.end() || found->second.type != type) return false;
    if (type == hipMemoryTypeDevice) device_bytes_ -= found->second.bytes;
    allocations_.erase(found);
    return true;
  }

  // The allocation that holds `pointer`, and the bytes from there to its end. Unregistered memory
  // has no end.
  Allocation find(const void* pointer, size_t* bytes_left) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    *bytes_left = SIZE_MAX;
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = allocations_.upper_bound(address);
    if (next == allocations_.begin()) return {};
    --next;
    const uintptr_t end = next->first + next->second.bytes;
    if (address >= end) return {};
    *bytes_left = end - address;
    return next->second;
  }

  size_t device_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return device_bytes_;
  }

 private:
  bool take_device_bytes(size_t bytes, size_t limit) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes > limit || device_bytes_ > limit - bytes) return false;
    device_bytes_ += bytes;
    return true;
  }

  void return_device_bytes(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    device_bytes_ -= bytes;
  }

  static void poison(void* memory, size_t bytes, size_t limit) {
    if (bytes <= limit || bytes <= 2 * kPoisonedEndBytes) {
      std::memset(memory, kPoison, bytes);
      return;
    }
    std::memset(memory, kPoison, kPoisonedEndBytes);
    std::memset(static_cast<char*>(memory) + bytes - kPoisonedEndBytes, kPoison, kPoisonedEndBytes);
  }

  std::mutex mutex_;
  std::map<uintptr_t, Allocation> allocations_;
  size_t device_bytes_ = 0;
};

bool is_device(const Allocation& allocation) { return allocation.type == hipMemoryTypeDevice; }

struct Copy {
  bool from_pageable;
  bool to_pageable;
};

// Checks that both ranges stay in their allocations and that `kind` fits them.
hipError_t check_copy(const void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                      Copy* copy) {
  if (to == nullptr || from == nullptr) return hipErrorInvalidValue;
  AllocationTable& table = AllocationTable::instance();
  size_t to_left, from_left;
  const Allocation target = table.find(to, &to_left);
  const Allocation source = table.find(from, &from_left);
  if (bytes > to_left || bytes > from_left) return hipErrorInvalidValue;
  const bool to_device = is_device(target), from_device = is_device(source);
  bool fits = true;
  switch (kind) {
    case hipMemcpyHostToHost:
      fits = !to_device && !from_device;
      break;
    case hipMemcpyHostToDevice:
      fits = to_device && !from_device;
      break;
    case hipMemcpyDeviceToHost:
      fits = !to_device && from_device;
      break;
    case hipMemcpyDeviceToDevice:
      fits = to_device && from_device;
      break;
    case hipMemcpyDefault:
      break;
    default:
      return hipErrorInvalidMemcpyDirection;
  }
  if (!fits) return hipErrorInvalidValue;
  copy->from_pageable = source.type == hipMemoryTypeUnregistered;
  copy->to_pageable = target.type == hipMemoryTypeUnregistered;
  return hipSuccess;
}

hipError_t check_fill(const void* to, size_t bytes) {
  size_t left;
  if (to == nullptr) return hipErrorInvalidValue;
  const Allocation target = AllocationTable::instance().find(to, &left);
  if (target.type == hipMemoryTypeUnregistered || bytes > left) return hipErrorInvalidValue;
  return hipSuccess;
}

}  // namespace

// ---- allocation

hipError_t hipMalloc(void** pointer, size_t bytes) {
  return report(AllocationTable::instance().allocate(pointer, bytes, hipMemoryTypeDevice));
}

hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  const hipError_t error = enqueue(stream, nullptr);
  return error != hipSuccess ? report(error) : hipMalloc(pointer, bytes);
}

hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned /*flags*/) {
  return report(AllocationTable::instance().allocate(pointer, bytes, hipMemoryTypeHost));
}

hipError_t hipFree(void* pointer) {
  if (pointer == nullptr) return hipSuccess;
  hip_cpu::internal::wait_for_all_streams();
  if (!AllocationTable::instance().remove(pointer, hipMemoryTypeDevice)) {
    return report(hipErrorInvalidValue);
  }
  std::free(pointer);
  return hipSuccess;
}

hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  if (pointer == nullptr) return hipSuccess;
  // Other streams may not use the memory any more, so it may be forgotten at once.
  if (!AllocationTable::instance().remove(pointer, hipMemoryTypeDevice)) {
    return report(hipErrorInvalidValue);
  }
  return report(enqueue(stream, [pointer] { std::free(pointer); }));
}

hipError_t hipHostFree(void* pointer) {
  if (pointer == nullptr) return hipSuccess;
  hip_cpu::internal::wait_for_all_streams();
  if (!AllocationTable::instance().remove(pointer, hipMemoryTypeHost)) {
    return report(hipErrorInvalidValue);
  }
  std::free(pointer);
  return hipSuccess;
}

hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const size_t total = hip_cpu::get_device_config().total_global_bytes;
  if (free_bytes != nullptr) {
    *free_bytes = total - std::min(total, AllocationTable::instance().device_bytes());
  }
  if (total_bytes != nullptr) *total_bytes = total;
  return hipSuccess;
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer) {
  if (attributes == nullptr || pointer == nullptr) return report(hipErrorInvalidValue);
  size_t left;
  const Allocation allocation = AllocationTable::instance().find(pointer, &left);
  if (allocation.type == hipMemoryTypeUnregistered) return report(hipErrorInvalidValue);
  void* address = const_cast<void*>(pointer);
  *attributes = {};
  attributes->type = allocation.type;
  attributes->devicePointer = address;
  attributes->hostPointer = is_device(allocation) ? nullptr : address;
  return hipSuccess;
}

// ---- copies

hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  if (bytes == 0) return hipSuccess;
  Copy copy;
  const hipError_t error = check_copy(to, from, bytes, kind, &copy);
  if (error != hipSuccess) return report(error);
  wait_for_null_stream();
  std::memmove(to, from, bytes);
  return report_pending_fault();
}

hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream) {
  if (bytes == 0) return hipSuccess;
  Copy copy;
  hipError_t error = check_copy(to, from, bytes, kind, &copy);
  if (error != hipSuccess) return report(error);
  if (copy.from_pageable) {
    std::shared_ptr<char[]> snapshot(new char[bytes]);
    std::memcpy(snapshot.get(), from, bytes);
    error = enqueue(stream, [=] { std::memcpy(to, snapshot.get(), bytes); });
  } else {
    error = enqueue(stream, [=] { std::memmove(to, from, bytes); });
  }
  if (error == hipSuccess && copy.to_pageable) error = wait_for_stream(stream);
  return report(error);
}

hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  if (bytes == 0) return hipSuccess;
  const hipError_t error = check_fill(to, bytes);
  if (error != hipSuccess) return report(error);
  return report(enqueue(stream, [=] { std::memset(to, value, bytes); }));
}

hipError_t hipMemset(void* to, int value, size_t bytes) {
  return hipMemsetAsync(to, value, bytes, nullptr);
}
