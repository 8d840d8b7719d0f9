// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The work list of one decode step: which workgroup attends which rows to which KV range, and what
// is merged. Pure host arithmetic on lengths; the same input gives the same list.
//
// A unit is one row tile of one sequence, in order of (sequence, row tile), together with the KV
// range that its rows see between them. With topk, each query token is a sequence of one query and
// topk tokens. Tiles of KV count from the begin of a unit's range. Schedules differ only in how
// units are cut into parts along KV:
//
//   persistent   all tiles of all units form one line; slots take consecutive spans of it
//   split-KV     each unit is cut into even parts, each its own workgroup
//
// A unit of one part is written by its item; otherwise its parts leave partials and one ReduceItem
// merges them.

#include <cstdint>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/params.h"
#include "kernels/mla/stage1_configs.h"

namespace hipmla::internal {

struct WorkList {
  std::vector<WorkItem> items;           // in order of unit and part, so grouped by slot
  std::vector<int32_t> slot_item_begin;  // persistent: [slots that have work + 1]; else empty
  std::vector<ReduceItem> reduce_items;  // in order of unit
  int64_t partial_rows = 0;    // of the workspace; 0 if the caller gives memory for partials
  int64_t partial_stride = 0;  // rows between two partials of a row
  int32_t num_partials = 1;    // most parts of any unit

  // Workgroups of stage 1.
  int num_workgroups() const {
    return static_cast<int>(slot_item_begin.empty() ? items.size() : slot_item_begin.size() - 1);
  }
};

// What a work list takes, in elements.
struct WorkSize {
  int64_t num_items = 0;
  int64_t num_slot_begins = 0;
  int64_t num_reduce_items = 0;
  int64_t partial_rows = 0;
};

// Cost of starting and ending an item, as KV tokens. An estimate for gfx942, not a measurement:
// four dependent reads come before the first score (item, indptr, page id, key; 0.8 us each), then
// the load of Q and the store of the rows; a tile of 32 tokens takes 2.1 us at a CU's share of the
// memory rate (36 KiB at 8.3 bytes per cycle, 2.1 GHz). Three such tiles.
constexpr int kItemOverheadTokens = 96;
// The same in KV tiles of `config`.
constexpr int32_t item_overhead_tiles(const Stage1Config& config) {
  return (kItemOverheadTokens + config.tile_kv - 1) / config.tile_kv;
}

// Most parts that a unit of the longest KV is cut into by split-KV when the caller gives no
// number, 1..256. `total_tiles` and `max_tiles` count KV tiles of all units and of the longest.
int32_t choose_num_splits(int64_t num_units, int64_t total_tiles, int32_t max_tiles, int num_slots,
                          int32_t overhead_tiles);

// The mask that the kernels apply to a request.
struct MaskRule {
  bool causal;
  int32_t window;  // INT32_MAX: none
};
inline MaskRule mask_rule(const MlaDecodeShape& shape, const MlaDecodeOptions& options) {
  return {shape.topk == 0 && options.causal,
          options.sliding_window > 0 ? options.sliding_window : INT32_MAX};
}

// Builds the list for `config`, whose schedule decides how. `lengths` and `num_slots` > 0 must have
// been checked.
//
// Persistent: with C the cost of all units (tiles + overhead each) and every cut costing one
// overhead more, no slot costs more than max(ceil(C / num_slots) + overhead, 2 * overhead) tiles,
// and no more than num_slots - 1 units are cut, into at most 2 * (num_slots - 1) parts together.
// Split-KV with a chosen number: units that are cut have at most 4 * num_slots parts together.
WorkList build_work_list(const MlaDecodeLengths& lengths, const MlaDecodeShape& shape,
                         const MlaDecodeOptions& options, const Stage1Config& config,
                         int num_slots);

// What `list` takes.
WorkSize size_of_work(const WorkList& list);

// At least what any list takes that is built for lengths within `shape`. Never falls when
// batch_size, total_q or max_seqlen_q grow, so that one answer serves all smaller steps. `config`
// must be the one that is selected for `shape`.
WorkSize bound_work(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                    const Stage1Config& config, int num_slots);

}  // namespace hipmla::internal
