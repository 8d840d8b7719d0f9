// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What the host hands to the kernels. Plain data; the host fills it, nothing here runs on a device.

#include <cstdint>

#include "hipmla/types.h"

namespace hipmla::internal {

// Division of 0 <= n < 2^31 by a run-time constant: (mulhi(n, multiplier) + n) >> shift.
// Granlund and Montgomery 1994, "Division by invariant integers using multiplication", section 4.
struct FastDivisor {
  uint32_t divisor;
  uint32_t multiplier;
  uint32_t shift;
};

constexpr FastDivisor make_fast_divisor(uint32_t divisor) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < divisor) ++shift;
  const uint64_t excess = (uint64_t{1} << shift) - divisor;
  return {divisor, static_cast<uint32_t>((excess << 32) / divisor + 1), shift};
}

// One piece of stage-1 work: KV positions [kv_begin, kv_end) of packed rows [row_begin, row_end) of a sequence.
// Packed row r of a sequence is query r / num_heads, head r % num_heads.
struct WorkItem {
  int32_t batch;
  int32_t row_begin;
  int32_t row_end;
  int32_t kv_begin;  // equal to kv_end: the rows see no key
  int32_t kv_end;
  int32_t reserved;  // 0
  int64_t
      partial_row;  // where row_begin goes in partial_o / partial_lse; -1: unsplit, writes o and lse itself
};

// Rows whose partials stage 2 merges. Partial s of row r is at partial_row + s * partial_stride + (r - row_begin).
struct ReduceItem {
  int32_t batch;
  int32_t row_begin;
  int32_t row_end;
  int32_t num_partials;
  int64_t partial_row;
};

// Strides are in elements. Index arrays and lists are in device memory.
struct MlaParams {
  const void* q;  // [total_q, num_heads, 576]
  int64_t q_stride_token;
  int64_t q_stride_head;

  const void* kv;  // [num_pages, page_size, 1, 576], or 656 bytes a token
  int64_t kv_stride_page;
  int64_t kv_stride_token;
  const float* kv_token_scales;  // [num_pages, page_size] or null
  int64_t token_scale_stride_page;
  int64_t token_scale_stride_token;

  const int32_t* qo_indptr;          // [batch + 1]
  const int32_t* kv_indptr;          // [batch + 1], pages
  const int32_t* kv_indices;         // [kv_indptr[batch]]
  const int32_t* kv_last_page_lens;  // [batch]
  const int32_t* kv_global_lens;     // [batch] or null: lengths are local lengths
  const int32_t* kv_shard_begins;    // [batch] or null: shard_first for all

  // Sparse: a "sequence" is one query token, a "page" one token slot of topk_indices. The arrays above are null.
  const int32_t* topk_indices;  // [total_q, topk] or null
  int32_t topk;
  int32_t
      num_slots;  // num_pages * page_size, saturated: an index outside [0, num_slots) names no token

  void* o;  // [total_q, num_heads, 512] of o_type
  int64_t o_stride_token;
  int64_t o_stride_head;

  float* lse;  // [total_q, num_heads] or null
  int64_t lse_stride_token;
  int64_t lse_stride_head;

  float* partial_o;        // [partial rows, 512]
  float* partial_lse;      // [partial rows], natural log
  int64_t partial_stride;  // rows between two partials of a row
  int32_t
      fill_partials;  // stage 2 sets partials [num_partials, fill_partials) of a row to (0, -inf)

  const WorkItem* items;  // [num_items]
  const int32_t*
      slot_item_begin;  // [num_slots + 1], persistent only: slot s runs items [begin[s], begin[s + 1])
  const ReduceItem* reduce_items;  // [num_reduce_items]

  FastDivisor num_heads;
  FastDivisor page_size;
  float scale_log2;      // softmax_scale * log2(e) * the host parts of q_scale and kv_scale
  float output_scale;    // the host part of kv_scale
  const float* q_scale;  // one value in device memory, or null: 1
  const float* kv_scale;
  float soft_cap_log2;  // logits_soft_cap * log2(e), or 0: none
  const float* sink;    // [num_heads] or null
  float lse_factor;     // of a base-2 logarithm to that of final_lse: ln 2, or 1
  int32_t causal;       // 0 or 1
  int32_t window;       // keys that a row sees at most, itself included; INT32_MAX: all
  int32_t
      shard_first;  // global position of local position p is shard_first (or kv_shard_begins[b]) + p * shard_stride
  FastDivisor shard_stride;
  DataType o_type;
};

// One shard's state for mla_merge_states.
struct ShardState {
  const void* o;
  const float* lse;
};

constexpr int kMaxShards = 64;

// Strides are in elements and the same for all shards.
struct MergeParams {
  ShardState shards[kMaxShards];
  int32_t num_shards;
  DataType shard_type;
  int64_t shard_o_stride_token;
  int64_t shard_o_stride_head;
  int64_t shard_lse_stride_token;
  int64_t shard_lse_stride_head;
  void* o;
  DataType o_type;
  int64_t o_stride_token;
  int64_t o_stride_head;
  float* lse;  // or null
  int64_t lse_stride_token;
  int64_t lse_stride_head;
  FastDivisor num_heads;
  int64_t num_rows;  // total_q * num_heads
};

}  // namespace hipmla::internal
