// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What the parts of the runtime share.

#include <hip/hip_runtime_api.h>

#include <functional>
#include <string>

#include "block_runner.h"

namespace hip_cpu::internal {

// ---- errors (device.cpp)

// Keeps an error for hipGetLastError and returns it. hipSuccess and hipErrorNotReady are only
// returned.
hipError_t report(hipError_t error);

// Notes a kernel's fault; thread safe.
void record_fault(std::string fault);

// hipErrorLaunchFailure, reported, if a fault is pending; it no longer is then. Else hipSuccess.
hipError_t report_pending_fault();
bool fault_is_pending();

// ---- kernels (host_threads.cpp)

// Runs all blocks of a launch on this thread and its helpers; returns when all are done.
// `num_threads` >= 1.
void run_kernel(const KernelLaunch& launch, int num_threads);

// ---- streams (stream.cpp)

// Appends a task to `stream`. hipErrorInvalidHandle for a stream that does not exist.
hipError_t enqueue(hipStream_t stream, std::function<void()> task);

// Waits until the work that the null stream would wait for is done.
void wait_for_null_stream();

// Waits until `stream` has run all its tasks.
hipError_t wait_for_stream(hipStream_t stream);

// Waits for all streams.
void wait_for_all_streams();

}  // namespace hip_cpu::internal
