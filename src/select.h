// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Which kernel serves a request, or why none does.

#include <cstdint>

#include "hipmla/device.h"
#include "hipmla/mla_decode.h"
#include "hipmla/status.h"
#include "kernels/mla/stage1_configs.h"
#include "src/fold.h"

namespace hipmla::internal {

// What the kernels and the plan were made for. Lower limits are 1 (num_kv_splits
// and topk: 0).
constexpr int32_t kMaxNumHeads = 512;
constexpr int32_t kMaxPageSize = 4096;
constexpr int32_t kMaxSeqlenQ = 1024;
constexpr int32_t kMaxKvSplits = 256;
constexpr int32_t kMaxTopk = 65536;
constexpr int32_t kMaxCpWorldSize = 1024;
// Positions are int32, and a kernel may step one page past the end before it stops.
constexpr int32_t kMaxKvLen = INT32_MAX - kMaxPageSize;
// A launch has fewer than 2^32 threads: 256 for each item of stage 1, a wave for each row of
// stage 2.
constexpr int64_t kMaxWorkItems = (int64_t{1} << 24) - 1;
constexpr int64_t kMaxMergedRows = (int64_t{1} << 26) - 1;
constexpr int32_t kMaxComputeUnits = 1 << 16;

// The most packed rows that share one KV range: those of a sequence; with topk, those of a query
// token.
inline int32_t rows_that_share_kv(const MlaDecodeShape& shape) {
  return rows_of_sequence(shape.topk > 0 ? 1 : shape.max_seqlen_q, shape.num_heads);
}

// Resolves kAuto; other values stay. Persistent: its load is even by construction for every mix of
// lengths, where an even cut of each sequence is so only for equal ones.
Schedule choose_schedule(Schedule requested);

// The one selector: sets `*config_index` to the row of kStage1Configs that runs `shape` on
// `device`, or says why no row does. Expects fields that make sense (check_request sees to that);
// every kUnsupported for a single field comes from here.
//
// Of the rows that match, the one with the smallest row tile that holds all packed rows that share
// KV, so that KV is read once and no wave is idle; where none does, the largest.
Status select_stage1_config(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                            const DeviceInfo& device, int* config_index);

}  // namespace hipmla::internal
