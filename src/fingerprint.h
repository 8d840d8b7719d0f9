// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "src/plan.h"

namespace hipmla::internal {

// Hash of all that `plan` was built for: shape, options, device, kernel, lengths.
uint64_t fingerprint_of(const MlaDecodePlan::Impl& plan);

}  // namespace hipmla::internal
