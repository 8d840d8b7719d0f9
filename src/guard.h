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

// Runs `call`, which returns a hipError_t of its own, and makes a Status of it; `what` returns the text that says what
// failed. An error that the caller left in the runtime stays there. One of ours does not, or somebody's next launch would
// seem to have failed: the Status has it.
template <typename Call, typename What>
Status device_call(Call&& call, What&& what) {
  const bool was_clean = hipPeekAtLastError() == hipSuccess;
  const hipError_t error = call();
  if (error == hipSuccess) return Status();
  if (was_clean) (void)hipGetLastError();
  return Status(StatusCode::kDeviceError,
                concat(what(), ": ", hipGetErrorName(error), ", ", hipGetErrorString(error)));
}

}  // namespace hipmla::internal
