// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Stage 2 merges the partials of the rows that stage 1 split:
//
//   lse = ln sum_s exp(lse_s)      o = sum_s exp(lse_s - lse) o_s
//
// Grid: kRowsPerBlock rows a workgroup, one wave a row; the reduce item of a workgroup is block / (tile_rows / kRowsPerBlock).
// A lane owns kDimsPerLane neighbouring dims. The partial LSEs, 4 bytes each, are read first; then every partial row that
// counts is read once. A partial of weight 0 (lse_s = -inf) is not read. NaN stays in its row. No LDS.

#include "kernels/mla/attention_tile.h"
#include "kernels/mla/launch.h"

namespace hipmla::device {
namespace {

constexpr int kReduceThreads = 256;
constexpr int kRowsPerBlock = kReduceThreads / kWaveSize;
constexpr int kDimsPerLane = internal::kVDim / kWaveSize;
constexpr int kDimsPerLoad = 4;  // 16 bytes of f32
static_assert(kDimsPerLane % kDimsPerLoad == 0, "a lane loads 16 bytes at a time");

// exp of an LSE difference. -inf - finite gives 0.
HIPMLA_DEVICE float weight_of(float lse, float max) { return exp2_fast((lse - max) * kLog2E); }

struct MergedLse {
  float max;  // finite, or NaN
  float sum;  // of exp(lse_s - max)
};

// By the whole wave.
//   lse  [num_partials] at stride `stride`
HIPMLA_DEVICE MergedLse merge_lse(const float* lse, int num_partials, int64_t stride) {
  float max = -kInfinity;
  for (int s = lane_id(); s < num_partials; s += kWaveSize)
    max = __builtin_fmaxf(max, lse[s * stride]);
  max = wave_max(max);
  if (max == -kInfinity) max = 0.0f;
  float sum = 0.0f;
  for (int s = lane_id(); s < num_partials; s += kWaveSize) sum += weight_of(lse[s * stride], max);
  return {max, wave_sum(sum)};
}

// Parts that a row does not have, where the caller asked to see the partials.
HIPMLA_DEVICE void fill_partials(const MlaParams& params, int64_t row, int first) {
  const float zeros[kDimsPerLane] = {};
  for (int s = first; s < params.fill_partials; ++s) {
    const int64_t place = row + s * params.partial_stride;
    store_run<DataType::kF32>(reinterpret_cast<char*>(params.partial_o + place * internal::kVDim +
                                                      lane_id() * kDimsPerLane),
                              zeros);
    if (lane_id() == 0) store_global(params.partial_lse + place, -kInfinity);
  }
}

HIPMLA_KERNEL(kReduceThreads)
void stage2_reduce(MlaParams params, int blocks_per_item) {
  const internal::ReduceItem* item = params.reduce_items + block_id() / blocks_per_item;
  const Sequence sequence(params, load_uniform(&item->batch));
  const int row =
      load_uniform(&item->row_begin) + block_id() % blocks_per_item * kRowsPerBlock + wave_id();
  if (row >= load_uniform(&item->row_end) || row >= sequence.num_rows(params)) return;
  const int num_partials = load_uniform(&item->num_partials);
  const int64_t place = load_uniform(&item->partial_row) + row - load_uniform(&item->row_begin);

  const float* lse = params.partial_lse + place;
  const MergedLse merged = merge_lse(lse, num_partials, params.partial_stride);
  const float scale = merged.sum == 0.0f ? 0.0f : reciprocal_fast(merged.sum);
  float o[kDimsPerLane] = {};
  for (int s = 0; s < num_partials; ++s) {
    const float weight =
        scale * weight_of(load_uniform(lse + s * params.partial_stride), merged.max);
    if (weight == 0.0f) continue;
    const float* partial = params.partial_o +
                           (place + s * params.partial_stride) * internal::kVDim +
                           lane_id() * kDimsPerLane;
#pragma unroll
    for (int part = 0; part < kDimsPerLane; part += kDimsPerLoad) {
      const Words4 words = load_global16(partial + part);
#pragma unroll
      for (int i = 0; i < kDimsPerLoad; ++i) o[part + i] += weight * float_of(words[i]);
    }
  }

  const PackedRow packed(params, row);
  const int64_t offset =
      packed.offset(sequence.first_q, params.o_stride_token, params.o_stride_head) +
      lane_id() * kDimsPerLane;
  char* target =
      static_cast<char*>(params.o) + offset * static_cast<int64_t>(element_bytes(params.o_type));
  if (params.o_type == DataType::kF32)
    store_run<DataType::kF32>(target, o);
  else if (params.o_type == DataType::kF16)
    store_run<DataType::kF16>(target, o);
  else
    store_run<DataType::kBf16>(target, o);
  if (params.lse && lane_id() == 0)
    store_global(params.lse + packed.offset(sequence.first_q, params.lse_stride_token,
                                            params.lse_stride_head),
                 merged.sum == 0.0f ? -kInfinity : merged.max + kLn2 * log2_fast(merged.sum));
  fill_partials(params, place, num_partials);
}

}  // namespace
}  // namespace hipmla::device

namespace hipmla::internal {

hipError_t launch_stage2(const MlaParams& params, int num_reduce_items, int tile_rows,
                         hipStream_t stream) {
  const int blocks_per_item = (tile_rows + device::kRowsPerBlock - 1) / device::kRowsPerBlock;
  hipLaunchKernelGGL(device::stage2_reduce, dim3(num_reduce_items * blocks_per_item),
                     dim3(device::kReduceThreads), 0, stream, params, blocks_per_item);
  return hipGetLastError();
}

}  // namespace hipmla::internal
