// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What a workgroup works on: constants of a row of kStage1Configs, the role of each wave, a sequence and its packed rows.

#include <limits>

#include "kernels/mla/params.h"
#include "kernels/mla/stage1_configs.h"
#include "kernels/platform/platform.h"

namespace hipmla::device {

using internal::FastDivisor;
using internal::MlaParams;
using internal::Stage1Config;
using internal::WorkItem;

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr float kTokenIsThere = 0.0f;
constexpr float kNoToken = -kInfinity;  // of a sparse list
// Of a tile that not all rows see whole, a token that holds NaN or infinity: zeros in LDS, so that it does not reach rows
// that may not see it, and NaN for the others.
constexpr float kPoisonedToken = std::numeric_limits<float>::quiet_NaN();

constexpr int kLoadBytes = 16;     // one load of one lane
constexpr int kLanesPerToken = 8;  // neighbouring lanes load 128 bytes: a cache line
constexpr int kTokensPerLoad = kWaveSize / kLanesPerToken;

// Constants of a row of kStage1Configs.
template <int kRow>
struct Tile {
  static constexpr Stage1Config kConfig = internal::kStage1Configs[kRow];
  static constexpr DataType kType = kConfig.compute_type();
  // A kernel is empty in the code of processors that its row does not name.
  static constexpr bool kExists =
      kCompiledArch == Arch::kUnknown || (kConfig.archs & internal::arch_bit(kCompiledArch)) != 0;
  static constexpr int kThreads = kConfig.num_waves * kWaveSize;
  static constexpr int kTokens = kConfig.tile_kv;
  static constexpr int kRowsPerWave = kConfig.rows_per_wave;
  static constexpr int kRowBlocks = kConfig.row_blocks();
  static constexpr int kRowWaves = kConfig.row_waves();
  static constexpr int kSplitWaves = kConfig.split_waves();
  static constexpr int kTokenGroups = kConfig.token_groups();
  static constexpr int kTokenBlocks = kConfig.token_blocks();
  static constexpr int kWaveTokenBlocks = kConfig.token_blocks_per_wave();
  static constexpr int kDimGroups = kConfig.dim_groups();
  static constexpr int kQkChunks = kConfig.qk_chunks_per_wave();
  static constexpr int kQLdsChunks = kConfig.q_lds_chunks;
  static constexpr int kVChunks = kConfig.v_chunks_per_wave();
  // The output tile lives in accumulation registers; scheduling is fenced so that nothing else needs more than 256.
  static constexpr bool kInAccumulators = kHasAccumulatorFile && kConfig.waves_per_simd() == 1;
  static constexpr int kRowBytes = kConfig.kv_row_bytes();
  // LDS, in this order: KV tiles, scores, chunks of Q, flags.
  static constexpr int kSlots = kConfig.kv_slots;
  static constexpr int kTileBytes = kConfig.kv_tile_bytes();
  static constexpr int kScoresAt = kSlots * kTileBytes;
  static constexpr int kQChunksAt = kScoresAt + kConfig.score_bytes();
  static constexpr int kFlagsAt = kQChunksAt + kConfig.q_bytes();
  static constexpr int kFlagTiles = kConfig.flag_tiles();
  static constexpr int kElementBytes = static_cast<int>(element_bytes(kType));  // in LDS
  static constexpr int kLoadTokens =
      kConfig.num_waves * kTokensPerLoad;  // by one load of the block
  static constexpr int kLoadGroups = kTokens / kLoadTokens;
};

// What a wave does for its rows.
template <int kRow>
struct WaveRole {
  using T = Tile<kRow>;
  int lane;
  int row_wave;     // which rows
  int split;        // which part of the output dims
  int token_group;  // which tokens of the scores
  int dim_group;    // which dims of the scores

  HIPMLA_DEVICE WaveRole() {
    const int wave = wave_id();
    lane = lane_id();
    row_wave = wave / T::kSplitWaves;
    split = wave % T::kSplitWaves;
    token_group = split % T::kTokenGroups;
    dim_group = split / T::kTokenGroups;
  }
  // Of this lane in row block `block`, from the item's first row.
  HIPMLA_DEVICE int row(int block, int slot) const {
    return row_wave * T::kRowsPerWave + block * internal::kBlockRows + acc_row(lane, slot);
  }
};

// LDS of a workgroup.
template <int kRow>
struct Lds {
  using T = Tile<kRow>;
  char* base;
  HIPMLA_DEVICE char* kv_tile(int slot) const {
    return base + slot * T::kTileBytes;
  }  // [tile_kv][kRowBytes]
  HIPMLA_DEVICE char* scores() const { return base + T::kScoresAt; }
  HIPMLA_DEVICE char* q_chunks() const { return base + T::kQChunksAt; }
  // What the mask adds to the scores of each token of a tile: kTokenIsThere, kNoToken or kPoisonedToken. [tile_kv], for
  // kFlagTiles tiles. Written for tiles that are masked: those of sparse calls and those that not all rows see whole.
  HIPMLA_DEVICE float* flags(int tile) const {
    return reinterpret_cast<float*>(base + T::kFlagsAt) + tile * T::kTokens;
  }
};

HIPMLA_DEVICE int divide(int n, FastDivisor d) {
  const uint32_t high =
      static_cast<uint32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.multiplier >> 32);
  return static_cast<int>((high + static_cast<uint32_t>(n)) >> d.shift);
}

HIPMLA_DEVICE int ceil_divide(int n, FastDivisor d) {
  return divide(n + static_cast<int>(d.divisor) - 1, d);
}

// Whether queries have lists of tokens instead of pages.
HIPMLA_DEVICE bool is_sparse(const MlaParams& params) { return params.topk_indices != nullptr; }

// Local KV positions [begin, end) that a row sees.
struct VisibleRange {
  int begin;
  int end;
  HIPMLA_DEVICE bool covers(int first, int count) const {
    return first >= begin && first + count <= end;
  }
};

// The item's sequence, as device memory has it. Lengths here bound every access, whatever the work list says.
// In a sparse call a sequence is one query token, and its positions are those of its list of token slots.
struct Sequence {
  int first_q;  // row of q of its first query
  int num_q;
  const int32_t* places;  // of its KV: page ids, or token slots of a sparse call
  int kv_len;             // local tokens
  int global_len;         // tokens over all shards
  int shard_first;        // global position of local position 0

  HIPMLA_DEVICE Sequence(const MlaParams& params, int batch) {
    if (is_sparse(params)) {
      first_q = batch;
      num_q = 1;
      places = params.topk_indices + static_cast<int64_t>(batch) * params.topk;
      // A slot that names no token still reads token 0; where there is none, nothing is read.
      kv_len = global_len = params.num_slots > 0 ? params.topk : 0;
      shard_first = 0;
      return;
    }
    first_q = load_uniform(params.qo_indptr + batch);
    num_q = load_uniform(params.qo_indptr + batch + 1) - first_q;
    const int page_begin = load_uniform(params.kv_indptr + batch);
    const int pages = load_uniform(params.kv_indptr + batch + 1) - page_begin;
    places = params.kv_indices + page_begin;
    kv_len = pages <= 0 ? 0
                        : (pages - 1) * static_cast<int>(params.page_size.divisor) +
                              load_uniform(params.kv_last_page_lens + batch);
    global_len = params.kv_global_lens ? load_uniform(params.kv_global_lens + batch) : kv_len;
    shard_first =
        params.kv_shard_begins ? load_uniform(params.kv_shard_begins + batch) : params.shard_first;
  }
  HIPMLA_DEVICE int num_rows(const MlaParams& params) const {
    return num_q * static_cast<int>(params.num_heads.divisor);
  }
  // The first local position at or after a global one.
  HIPMLA_DEVICE int local(const MlaParams& params, int global) const {
    return global <= shard_first ? 0 : ceil_divide(global - shard_first, params.shard_stride);
  }
  HIPMLA_DEVICE VisibleRange visible(const MlaParams& params, int query) const {
    const int own_end = global_len - num_q + query + 1;  // just after the query's own position
    const int end = local(params, params.causal ? own_end : global_len);
    return {local(params, own_end > params.window ? own_end - params.window : 0),
            end < kv_len ? end : kv_len};
  }
};

// A packed row: its query, its head, and where its tensors are.
struct PackedRow {
  int query;
  int head;
  HIPMLA_DEVICE PackedRow(const MlaParams& params, int row) {
    query = divide(row, params.num_heads);
    head = row - query * static_cast<int>(params.num_heads.divisor);
  }
  HIPMLA_DEVICE int64_t offset(int first_q, int64_t stride_token, int64_t stride_head) const {
    return (static_cast<int64_t>(first_q) + query) * stride_token + head * stride_head;
  }
};

}  // namespace hipmla::device
