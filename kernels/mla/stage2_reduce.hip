// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Stage 2 merges the partials of the rows that stage 1 split; merge.h has the formula.
//
// Grid: kRowsPerBlock rows a workgroup, one wave a row; the reduce item of a workgroup is block / (tile_rows /
// kRowsPerBlock).

#include "kernels/mla/launch.h"
#include "kernels/mla/merge.h"

namespace hipmla::device {
namespace {

// Parts that a row does not have, where the caller asked to see the partials.
HIPMLA_DEVICE void fill_partials(const MlaParams& params, int64_t row, int first) {
  const float zeros[kDimsPerLane] = {};
  for (int s = first; s < params.fill_partials; ++s) {
    const int64_t place = row + s * params.partial_stride;
    store_dims(params.partial_o, DataType::kF32, place * internal::kVDim + lane_id() * kDimsPerLane,
               zeros);
    if (lane_id() == 0) store_global(params.partial_lse + place, -kInfinity);
  }
}

HIPMLA_KERNEL(kMergeThreads)
void stage2_reduce(MlaParams params, int blocks_per_item) {
  const internal::ReduceItem* item = params.reduce_items + block_id() / blocks_per_item;
  const Sequence sequence(params, load_uniform(&item->batch));
  const int row =
      load_uniform(&item->row_begin) + block_id() % blocks_per_item * kRowsPerBlock + wave_id();
  if (row >= load_uniform(&item->row_end) || row >= sequence.num_rows(params)) return;
  const int num_partials = load_uniform(&item->num_partials);
  const int64_t place = load_uniform(&item->partial_row) + row - load_uniform(&item->row_begin);

  const float* lse = params.partial_lse + place;
  const MergedLse merged =
      merge_lse(num_partials, [&](int s) { return lse[s * params.partial_stride]; });
  const PackedRow packed(params, row);
  const float sink =
      params.sink ? weight_of(load_uniform(params.sink + packed.head), merged.max) : 0.0f;
  const float scale = merged.inverse(sink);
  float o[kDimsPerLane] = {};
  for (int s = 0; s < num_partials; ++s) {
    const float weight =
        scale * weight_of(load_uniform(lse + s * params.partial_stride), merged.max);
    if (weight == 0.0f) continue;
    accumulate_state<DataType::kF32>(o, weight,
                                     params.partial_o +
                                         (place + s * params.partial_stride) * internal::kVDim +
                                         lane_id() * kDimsPerLane);
  }
  store_dims(params.o, params.o_type,
             packed.offset(sequence.first_q, params.o_stride_token, params.o_stride_head) +
                 lane_id() * kDimsPerLane,
             o);
  if (params.lse && lane_id() == 0)
    store_global(params.lse + packed.offset(sequence.first_q, params.lse_stride_token,
                                            params.lse_stride_head),
                 merged.lse(params.lse_factor));
  fill_partials(params, place, num_partials);
}

}  // namespace
}  // namespace hipmla::device

namespace hipmla::internal {

hipError_t launch_stage2(const MlaParams& params, int num_reduce_items, int tile_rows,
                         hipStream_t stream) {
  const int blocks_per_item = (tile_rows + device::kRowsPerBlock - 1) / device::kRowsPerBlock;
  return device::launch_kernel(device::stage2_reduce, dim3(num_reduce_items * blocks_per_item),
                               dim3(device::kMergeThreads), 0, stream, params, blocks_per_item);
}

}  // namespace hipmla::internal
