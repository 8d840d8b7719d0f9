// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Everything that can be wrong with a request, found before anything is queued.

#include "hipmla/device.h"
#include "hipmla/mla_decode.h"
#include "hipmla/status.h"
#include "src/plan.h"

namespace hipmla::internal {

// The one answer to "can this run": fields that make sense (else kInvalidArgument), a kernel that
// serves them and launches of a size that the device takes (else kUnsupported). Every entry point
// starts here.
Status check_request(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const DeviceInfo& device, int* config_index);

// Host lengths against a shape that has passed check_request; names the first offending sequence.
Status check_lengths(const MlaDecodeShape& shape, const MlaDecodeLengths& lengths);

// kStalePlan with the first difference if `lengths` are not those that `plan` was built for.
Status check_same_lengths(const MlaDecodePlan::Impl& plan, const MlaDecodeLengths& lengths);

// Who says what the tensors must look like, and thus what it is called if they do not.
enum class PlanOrigin {
  kCaller,  // a plan that may be for something else: kStalePlan
  kTensors  // a plan made from these very tensors, which contradict each other: kInvalidArgument
};

// Tensors against the plan: dtypes, shapes, strides, alignment, null pointers, overlaps with what
// is written. The workspace must have been checked.
Status check_tensors(const MlaDecodePlan::Impl& plan, PlanOrigin origin,
                     const MlaDecodeTensors& tensors, const Workspace& workspace);

// Size and alignment of the workspace.
Status check_workspace(const MlaDecodePlan::Impl& plan, const Workspace& workspace);

}  // namespace hipmla::internal
