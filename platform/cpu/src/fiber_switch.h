// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

namespace hip_cpu::internal {

// Where a fiber stopped.
using FiberContext = void*;

// A fiber that calls `entry` when it is switched to for the first time. `entry` must not return,
// and be the same for all fibers.
FiberContext make_fiber(char* stack_top, size_t stack_bytes, void (*entry)());

// Stops here, notes where in `*stopped`, and goes on at `next`. Returns when another fiber switches
// to `*stopped`. The floating point environment is not switched.
void switch_fiber(FiberContext* stopped, FiberContext next);

}  // namespace hip_cpu::internal
