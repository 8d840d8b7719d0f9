// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Merging attention states of one row by a wave: what stage 2 and mla_merge_states share.
//
//   lse = ln sum_s exp(lse_s)      o = sum_s exp(lse_s - lse) o_s
//
// The LSEs, 4 bytes each, are read first; then every state that counts is read once. A state of weight 0
// (lse_s = -inf) is not read. NaN stays in its row. A lane owns kDimsPerLane neighbouring dims. No LDS.

#include "kernels/mla/attention_tile.h"

namespace hipmla::device {

constexpr int kMergeThreads = 256;
constexpr int kRowsPerBlock = kMergeThreads / kWaveSize;
constexpr int kDimsPerLane = internal::kVDim / kWaveSize;
static_assert(kDimsPerLane % 8 == 0, "a lane loads and stores 16 bytes at a time");

// exp of an LSE difference. -inf - finite gives 0.
HIPMLA_DEVICE float weight_of(float lse, float max) { return exp2_fast((lse - max) * kLog2E); }

struct MergedLse {
  float max;  // finite, or NaN
  float sum;  // of exp(lse_s - max)

  // With another term in the denominator of the weights, as exp(lse - max). 0 where no state counts.
  HIPMLA_DEVICE float inverse(float extra) const {
    return sum == 0.0f ? 0.0f : reciprocal_fast(sum + extra);
  }
  // `factor` turns a base-2 logarithm into the result's.
  HIPMLA_DEVICE float lse(float factor) const {
    return sum == 0.0f ? -kInfinity : factor * (kLog2E * max + log2_fast(sum));
  }
};

// By the whole wave; lse_at(s) is the LSE of state s.
template <typename LseAt>
HIPMLA_DEVICE MergedLse merge_lse(int num_states, LseAt lse_at) {
  float max = -kInfinity;
  for (int s = lane_id(); s < num_states; s += kWaveSize) max = max_of(max, lse_at(s));
  max = wave_max(max);
  if (max == -kInfinity) max = 0.0f;
  float sum = 0.0f;
  for (int s = lane_id(); s < num_states; s += kWaveSize) sum += weight_of(lse_at(s), max);
  return {max, wave_sum(sum)};
}

// o += weight * state, for this lane's dims.
//   state  of kType, at this lane's first dim
template <DataType kType>
HIPMLA_DEVICE void accumulate_state(float (&o)[kDimsPerLane], float weight, const void* state) {
  constexpr int kBytes = static_cast<int>(element_bytes(kType));
  constexpr int kPerLoad = 16 / kBytes;
#pragma unroll
  for (int first = 0; first < kDimsPerLane; first += kPerLoad) {
    const Words4 words = load_global16(static_cast<const char*>(state) + first * kBytes);
#pragma unroll
    for (int i = 0; i < kPerLoad; ++i) {
      float x;
      if constexpr (kType == DataType::kF32)
        x = float_of(words[i]);
      else
        x = half_to_f32<kType>(i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16);
      o[first + i] += weight * x;
    }
  }
}
HIPMLA_DEVICE void accumulate_state(float (&o)[kDimsPerLane], float weight, const void* tensor,
                                    DataType type, int64_t offset) {
  const char* state =
      static_cast<const char*>(tensor) + offset * static_cast<int64_t>(element_bytes(type));
  if (type == DataType::kF32)
    accumulate_state<DataType::kF32>(o, weight, state);
  else if (type == DataType::kF16)
    accumulate_state<DataType::kF16>(o, weight, state);
  else
    accumulate_state<DataType::kBf16>(o, weight, state);
}

// Writes this lane's dims of a row at element `offset` of a tensor of `type`.
HIPMLA_DEVICE void store_dims(void* tensor, DataType type, int64_t offset,
                              const float (&o)[kDimsPerLane]) {
  char* target = static_cast<char*>(tensor) + offset * static_cast<int64_t>(element_bytes(type));
  if (type == DataType::kF32)
    store_run<DataType::kF32>(target, o);
  else if (type == DataType::kF16)
    store_run<DataType::kF16>(target, o);
  else
    store_run<DataType::kBf16>(target, o);
}

}  // namespace hipmla::device
