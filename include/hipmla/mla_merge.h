// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "hipmla/export.h"
#include "hipmla/mla_decode.h"
#include "hipmla/status.h"
#include "hipmla/types.h"

namespace hipmla {

constexpr int32_t kMaxMergeShards = 64;

/// Merges the attention states of KV shards into that of the whole:
///
///   lse = ln sum_s exp(lse_s)      o = sum_s exp(lse_s - lse) * o_s
///
/// - o_shards    [num_shards] views [total_q, num_heads, 512] of bf16, f16 or f32, all with the same type and
///               strides; last dimension dense, other strides multiples of 16 bytes, pointers aligned to 16 bytes
/// - lse_shards  [num_shards] views [total_q, num_heads] f32, natural log, all with the same strides
/// - o           [total_q, num_heads, 512] of bf16, f16 or f32, written; may be one of o_shards
/// - lse         [total_q, num_heads] f32, written; data == nullptr: not wanted; may be one of lse_shards
///
/// A shard whose lse is -inf adds nothing, whatever its o holds; where all are, o = 0 and lse = -inf.
/// 1 <= num_shards <= kMaxMergeShards. Queued on `stream`; nothing is allocated. Returns kInvalidArgument or
/// kUnsupported with the values in the text, and has then written nothing.
HIPMLA_API Status mla_merge_states(const TensorView* o_shards, const TensorView* lse_shards,
                                   int32_t num_shards, const TensorView& o, const TensorView& lse,
                                   Stream stream);

}  // namespace hipmla
