// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// Settings of the emulated device, for tests and tools. Not part of HIP.

#include <cstddef>
#include <cstdint>
#include <string>

namespace hip_cpu {

#if defined(HIPMLA_CPU_SM90)
constexpr int kDefaultComputeUnits = 132;  // an H200
constexpr size_t kDefaultLdsBytes = 227 * 1024;
#else
constexpr int kDefaultComputeUnits = 304;  // an MI300X
constexpr size_t kDefaultLdsBytes = 64 * 1024;
#endif

struct DeviceConfig {
  int num_compute_units = kDefaultComputeUnits;  ///< what the device reports
  size_t lds_bytes = kDefaultLdsBytes;           ///< dynamic LDS that one block may ask for
  size_t total_global_bytes = 192ull << 30;      ///< hipMalloc beyond it is hipErrorOutOfMemory
  uint64_t schedule_seed = 1;  ///< order in which lanes and waves run between sync points
  int num_host_threads = 0;    ///< threads that run blocks; 0: all cores; 1: blocks run in order
  size_t stack_bytes = 0;      ///< of one device thread; 0: 128 KiB, 256 KiB with ASan
  /// Fresh allocations up to this size are filled with 0xFF throughout; of larger ones only the
  /// first and the last 1 MiB are, so that huge caches do not need physical memory.
  size_t poison_limit_bytes = size_t{1} << 30;
};

DeviceConfig get_device_config();

/// Takes effect for the calls that follow; kernels that are queued already keep the settings they
/// were launched with.
void set_device_config(const DeviceConfig& config);

/// What the last faulting kernel did wrong: block, thread and what waits for what. Empty if there
/// was no fault. Complete once the call that reported hipErrorLaunchFailure has returned.
std::string last_fault();

/// Forgets the last fault, also one that no call has reported yet.
void clear_fault();

}  // namespace hip_cpu
