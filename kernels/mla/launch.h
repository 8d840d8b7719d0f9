// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// How host code starts a kernel. No device code here.

#include <hip/hip_runtime_api.h>

#include "kernels/mla/params.h"

namespace hipmla::internal {

// Queues row `config_index` of kStage1Configs (persistent rows: num_workgroups slots; split rows: one workgroup
// for each item). num_workgroups > 0. hipErrorInvalidValue for a row of the other schedule.
hipError_t launch_stage1_persistent(int config_index, const MlaParams& params, int num_workgroups,
                                    hipStream_t stream);
hipError_t launch_stage1_split_kv(int config_index, const MlaParams& params, int num_workgroups,
                                  hipStream_t stream);

// Queues the merge of `num_reduce_items` > 0 row groups of at most `tile_rows` rows each.
hipError_t launch_stage2(const MlaParams& params, int num_reduce_items, int tile_rows,
                         hipStream_t stream);

// Queues the merge of shard states, num_rows > 0.
hipError_t launch_merge_states(const MergeParams& params, hipStream_t stream);

}  // namespace hipmla::internal
