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

// Query `query` of `num_queries` sees KV positions [0, visible_kv_end).
constexpr int32_t visible_kv_end(int32_t kv_len, int32_t num_queries, int32_t query, bool causal) {
  return causal ? std::max(0, kv_len - num_queries + query + 1) : kv_len;
}

}  // namespace hipmla::internal
