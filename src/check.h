// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Everything that can be wrong with a request, found before anything is queued.

#include "hipmla/device.h"
#include "hipmla/mla_decode.h"
#include "hipmla/status.h"
#include "src/plan.h"
#include "src/tensor_check.h"

namespace hipmla::internal {

// The one answer to "can this run": fields that make sense (else kInvalidArgument), a kernel that
// serves them and launches of a size that the device takes (else kUnsupported). Every entry point
// starts here.
Status check_request(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const DeviceInfo& device, int* config_index);

// Host lengths against a request that has passed check_request; names the first offending sequence.
Status check_lengths(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const MlaDecodeLengths& lengths);

// kStalePlan with the first difference if `lengths` are not those that `plan` was built for.
Status check_same_lengths(const MlaDecodePlan::Impl& plan, const MlaDecodeLengths& lengths);

// Tensors against the plan: dtypes, shapes, strides, alignment, null pointers, overlaps with what
// is written; and the numbers that come with them. The workspace must have been checked.
Status check_tensors(const MlaDecodePlan::Impl& plan, PlanOrigin origin,
                     const MlaDecodeTensors& tensors, const Workspace& workspace);

// Size and alignment of the workspace.
Status check_workspace(const MlaDecodePlan::Impl& plan, const Workspace& workspace);

}  // namespace hipmla::internal
