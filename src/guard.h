// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The border of the library: nothing is thrown across it, and the runtime's errors become a Status.

#include <hip/hip_runtime_api.h>

#include <string>

#include "hipmla/status.h"
#include "src/text.h"

namespace hipmla::internal {

// Runs the body of an entry point. The library throws nothing itself; what arrives here is a failed
// allocation.
template <typename Body>
Status guard(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    // Short enough for a string's own buffer: it must not allocate either.
    return Status(StatusCode::kDeviceError, "no host memory");
  }
}

// Also takes the error out of the runtime, which would otherwise report it again for somebody's
// next launch.
inline Status device_error(const std::string& what, hipError_t error) {
  (void)hipGetLastError();
  return Status(StatusCode::kDeviceError,
                concat(what, ": ", hipGetErrorName(error), ", ", hipGetErrorString(error)));
}

}  // namespace hipmla::internal
