// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Merges the states of KV shards, one wave a row of [total_q, num_heads]; merge.h has the formula.
//
// In place: a lane reads its dims of every shard before it writes them, and a wave has read all of a row's LSEs by then.

#include "kernels/mla/launch.h"
#include "kernels/mla/merge.h"

namespace hipmla::device {
namespace {

HIPMLA_KERNEL(kMergeThreads)
void merge_states(internal::MergeParams params) {
  const int64_t row = static_cast<int64_t>(block_id()) * kRowsPerBlock + wave_id();
  if (row >= params.num_rows) return;
  const int token = divide(static_cast<int>(row), params.num_heads);
  const int head = static_cast<int>(row) - token * static_cast<int>(params.num_heads.divisor);
  const auto offset = [&](int64_t stride_token, int64_t stride_head) {
    return token * stride_token + head * stride_head;
  };

  const int64_t lse_offset = offset(params.shard_lse_stride_token, params.shard_lse_stride_head);
  const auto lse_at = [&](int s) { return params.shards[s].lse[lse_offset]; };
  const MergedLse merged = merge_lse(params.num_shards, lse_at);
  const float scale = merged.inverse(0.0f);
  const int64_t first_dim = lane_id() * kDimsPerLane;
  const int64_t o_offset =
      offset(params.shard_o_stride_token, params.shard_o_stride_head) + first_dim;
  float o[kDimsPerLane] = {};
  for (int s = 0; s < params.num_shards; ++s) {
    const float weight = scale * weight_of(lse_at(s), merged.max);
    if (any_lane(weight != 0.0f))
      accumulate_state(o, weight, params.shards[s].o, params.shard_type, o_offset);
  }
  store_dims(params.o, params.o_type,
             offset(params.o_stride_token, params.o_stride_head) + first_dim, o);
  if (params.lse && lane_id() == 0)
    store_global(params.lse + offset(params.lse_stride_token, params.lse_stride_head),
                 merged.lse(kLn2));
}

}  // namespace
}  // namespace hipmla::device

namespace hipmla::internal {

hipError_t launch_merge_states(const MergeParams& params, hipStream_t stream) {
  const int64_t blocks = (params.num_rows + device::kRowsPerBlock - 1) / device::kRowsPerBlock;
  return device::launch_kernel(device::merge_states, dim3(static_cast<uint32_t>(blocks)),
                               dim3(device::kMergeThreads), 0, stream, params);
}

}  // namespace hipmla::internal
