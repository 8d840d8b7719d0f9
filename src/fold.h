// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Head folding: the map between a caller's (query, head) and the packed rows that kernels work on,
// and what a packed row may see. Index arithmetic only; no tensor is copied or re-pointed.

#include <algorithm>
#include <array>
#include <cstdint>

namespace hipmla::internal {

struct QueryHead {
  int32_t query;  // within its sequence
  int32_t head;
};

// Packed row of a (query, head) of a sequence.
constexpr int32_t fold_rows(QueryHead place, int32_t num_heads) {
  return place.query * num_heads + place.head;
}

// The (query, head) that packed row `row` of a sequence stands for; inverse of fold_rows.
constexpr QueryHead unfold_row(int32_t row, int32_t num_heads) {
  return {row / num_heads, row % num_heads};
}

// Packed rows of a sequence with `num_queries` queries.
constexpr int32_t rows_of_sequence(int32_t num_queries, int32_t num_heads) {
  return num_queries * num_heads;
}

// Row tiles that cover `num_rows` packed rows.
constexpr int32_t num_row_tiles(int32_t num_rows, int32_t tile_rows) {
  return (num_rows + tile_rows - 1) / tile_rows;
}

// The caller's shape of any per-row result: packed rows of all sequences, one after the other, are
// exactly the rows of a dense (total_q, num_heads, dim).
constexpr std::array<int64_t, 3> unfold_shape(int64_t total_q, int32_t num_heads, int32_t dim) {
  return {total_q, num_heads, dim};
}

// Tokens of a sequence that owns `pages` pages; `last_page_len` is not looked at without a page.
constexpr int64_t kv_length(int32_t pages, int32_t page_size, int32_t last_page_len) {
  return pages == 0 ? 0 : int64_t{pages - 1} * page_size + last_page_len;
}

// Where a sequence's cached tokens are: local position p is global position first + p * stride.
// Without shards, local and global are the same.
struct KvPlacement {
  int32_t local_len;   // tokens that this call holds
  int32_t global_len;  // tokens of the whole sequence
  int32_t first;       // >= 0
  int32_t stride;      // >= 1
};

constexpr KvPlacement whole_kv(int32_t kv_len) { return {kv_len, kv_len, 0, 1}; }

// Local positions [0, n) are all that have a global position below `global_end`.
constexpr int32_t local_positions_below(const KvPlacement& kv, int64_t global_end) {
  if (global_end <= kv.first) return 0;
  const int64_t count = (global_end - kv.first + kv.stride - 1) / kv.stride;
  return static_cast<int32_t>(std::min<int64_t>(count, kv.local_len));
}

// Tokens of a sequence of `global_len` that rank `rank` of `world_size` holds: positions p with
// p mod world_size == rank.
constexpr int32_t round_robin_len(int32_t global_len, int32_t rank, int32_t world_size) {
  return local_positions_below({INT32_MAX, global_len, rank, world_size}, global_len);
}

struct KvRange {
  int32_t begin;
  int32_t end;  // == begin: empty
};

// Local positions that query `query` of `num_queries` sees. With e its own global position + 1:
// none from e on if causal, none before e - window. `window` >= 1; INT32_MAX: no window.
//
// Neither end falls from one query to the next, and ranges of neighbours leave no gap: together,
// queries [i, j) see exactly from the begin of i to the end of j - 1.
constexpr KvRange visible_kv(const KvPlacement& kv, int32_t num_queries, int32_t query, bool causal,
                             int32_t window) {
  const int64_t own_end = int64_t{kv.global_len} - num_queries + query + 1;
  return {local_positions_below(kv, own_end - window),
          local_positions_below(kv, causal ? own_end : kv.global_len)};
}

}  // namespace hipmla::internal
