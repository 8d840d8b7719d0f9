// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What a call hands to the kernels.

#include "hipmla/mla_decode.h"
#include "kernels/mla/params.h"
#include "src/plan.h"

namespace hipmla::internal {

// The factors of MlaParams, from numbers that need not be checked: infinite if they do not fit f32.
float scale_log2(const MlaDecodeTensors& tensors);
float soft_cap_log2(const MlaDecodeTensors& tensors);

// Expects tensors and a workspace that were checked against `plan`.
MlaParams make_params(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& tensors,
                      const Workspace& workspace);

}  // namespace hipmla::internal
