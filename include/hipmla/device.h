// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "hipmla/export.h"
#include "hipmla/status.h"
#include "hipmla/types.h"

namespace hipmla {

/// "gfx942" and so on, or "unknown".
HIPMLA_API const char* arch_name(Arch arch);

/// What planning needs to know of a device. Plain data: fill it by hand to ask about a device that is not here.
struct DeviceInfo {
  Arch arch = Arch::kUnknown;
  int32_t num_compute_units = 0;  ///< CUs (AMD); one persistent workgroup runs on each
  int64_t lds_bytes = 0;          ///< LDS that one workgroup may use
};

/// Asks the HIP runtime about device `device_id`. Call it once and keep the answer: it can take milliseconds.
///
/// Returns kDeviceError if the runtime fails, kUnsupported if no kernel is built for the architecture.
HIPMLA_API Status query_device(int device_id, DeviceInfo* info);

}  // namespace hipmla
