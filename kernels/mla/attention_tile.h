// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Attention of one work item: rows [row_begin, row_end) of a sequence over KV positions [kv_begin, kv_end).
//
//   t(r, p) = scale_log2 * sum_d q[r, d] kv[p, d]        p < limit(r): the causal limit, else masked
//   o[r, :] = sum_p 2^(t - m) kv[p, 0:512] / l           m = running maximum of t, l = sum_p 2^(t - m)
//   lse[r]  = ln2 * (m + log2 l)
//
// Who owns what. The workgroup owns `tile_rows` rows and reads each KV token from memory once, a tile of tile_kv tokens
// at a time, into LDS. A wave owns 16 or 32 of the rows. Where fewer waves suffice for the rows, split_waves() waves share
// the same rows: for the scores they split the tile's tokens (and then the 576 dims), for the output the 512 dims.
//
//             tile_rows 16 or 32            tile_rows 64                 tile_rows 128
//   scores    wave = (16 tokens, 288 dims)  wave = 32 rows x 16 tokens   wave = 32 rows x 32 tokens
//   output    wave = 128 dims               wave = 32 rows x 256 dims    wave = 32 rows x 512 dims
//   exchange  scores through LDS            scores through LDS           none
//
// Causal mask, two queries of a sequence with kv_len 6 and three heads, packed rows (x sees, . masked):
//
//   row  query head   kv 0 1 2 3 4 5
//   0-2    0   0-2       x x x x x .     limit = kv_len - 2 + 0 + 1
//   3-5    1   0-2       x x x x x x     limit = kv_len - 2 + 1 + 1
//
// LDS bytes         KV tile 32 x (1152 + 16)   scores between waves   part of Q       sum
//   tile_rows 16                     37376     2 x 16 x 32 x 4                   =  41472
//   tile_rows 32                     37376     2 x 32 x 32 x 4                   =  45568
//   tile_rows 64                     37376     1 x 64 x 32 x 4                   =  45568
//   tile_rows 128                    37376                          128 x 96 x 2 =  61952
//
// Pipeline of tile t (one LDS tile; the next tile is under way in registers, its page ids one tile further ahead):
//
//   step        loads                         computes
//   barrier                                   the waves have left tile t - 1
//   commit      registers -> LDS, tile t
//   prefetch    memory -> registers, t + 1
//               page ids, t + 2
//   barrier                                   tile t is visible
//   scores      K fragments from LDS          S^T = K Q^T
//   exchange    scores through LDS, barrier   (only if waves share rows)
//   softmax                                   mask, rescale if a maximum grew, P = 2^(t - m)
//   output      V fragments from LDS          O^T += V^T P^T

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
constexpr float kInfinity = __builtin_huge_valf();
// Start of a running maximum: below every score, yet finite, so that a tile in which all is masked gives
// 2^(-inf - m) = 0 and not NaN.
constexpr float kLowest = -1e30f;
// A maximum is raised only if a score exceeds it by more than this, in powers of two. Until then P <= 2^8 and sums
// over 2^31 tokens stay far inside f32, and the output tile, up to 256 registers, need not be rescaled.
constexpr float kRescaleThreshold = 8.0f;

constexpr int kLoadBytes = 16;     // one load of one lane
constexpr int kLanesPerToken = 8;  // neighbouring lanes load 128 bytes: a cache line
constexpr int kTokensPerLoad = kWaveSize / kLanesPerToken;

// Constants of a row of kStage1Configs.
template <int kRow>
struct Tile {
  static constexpr Stage1Config kConfig = internal::kStage1Configs[kRow];
  static constexpr DataType kType = kConfig.kv_type;
  static constexpr int kThreads = kConfig.num_waves * kWaveSize;
  static constexpr int kTokens = kConfig.tile_kv;
  static constexpr int kRowsPerWave = kConfig.rows_per_wave();
  static constexpr int kRowBlocks = kConfig.row_blocks();
  static constexpr int kRowWaves = kConfig.row_waves();
  static constexpr int kSplitWaves = kConfig.split_waves();
  static constexpr int kTokenGroups = kConfig.token_groups();
  static constexpr int kTokenBlocks = kConfig.token_blocks();
  static constexpr int kWaveTokenBlocks = kConfig.token_blocks_per_wave();
  static constexpr int kDimGroups = kConfig.dim_groups();
  static constexpr int kQkChunks = kConfig.qk_chunks_per_wave();
  static constexpr int kQLdsChunks = kConfig.q_chunks_in_lds();
  static constexpr int kVChunks = kConfig.v_chunks_per_wave();
  // The output tile lives in accumulation registers; scheduling is fenced so that nothing else needs more than 256.
  static constexpr bool kInAccumulators = kConfig.waves_per_simd() == 1;
  static constexpr int kRowBytes = kConfig.kv_row_bytes();
  static constexpr int kElementBytes = static_cast<int>(element_bytes(kConfig.kv_type));
  static constexpr int kLoadsPerToken =
      internal::kQkDim * kElementBytes / (kLanesPerToken * kLoadBytes);
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

HIPMLA_DEVICE int divide(int n, FastDivisor d) {
  const uint32_t high =
      static_cast<uint32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.multiplier >> 32);
  return static_cast<int>((high + static_cast<uint32_t>(n)) >> d.shift);
}

// The item's sequence, as device memory has it. Lengths here bound every access, whatever the work list says.
struct Sequence {
  int first_q;  // row of q of its first query
  int num_q;
  int page_begin;  // into kv_indices
  int kv_len;

  HIPMLA_DEVICE Sequence(const MlaParams& params, int batch) {
    first_q = load_uniform(params.qo_indptr + batch);
    num_q = load_uniform(params.qo_indptr + batch + 1) - first_q;
    page_begin = load_uniform(params.kv_indptr + batch);
    const int pages = load_uniform(params.kv_indptr + batch + 1) - page_begin;
    kv_len = pages <= 0 ? 0
                        : (pages - 1) * static_cast<int>(params.page_size.divisor) +
                              load_uniform(params.kv_last_page_lens + batch);
  }
  HIPMLA_DEVICE int num_rows(const MlaParams& params) const {
    return num_q * static_cast<int>(params.num_heads.divisor);
  }
  // Positions that query `query` may see.
  HIPMLA_DEVICE int visible(int query, bool causal) const {
    return causal ? kv_len - num_q + query + 1 : kv_len;
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

// Q of a wave for the whole item, as fragments of 32 dims a chunk: in registers, but for the last kQLdsChunks chunks.
// Those are in LDS, where each lane finds what itself wrote.
template <int kRow>
struct QueryTile {
  using T = Tile<kRow>;
  static constexpr int kRegisterChunks = T::kQkChunks - T::kQLdsChunks;
  Fragment fragments[T::kRowBlocks][kRegisterChunks][2];
  char* lds;  // [row_waves][row_blocks][kQLdsChunks] of kRowFragmentsBytes
  int limit[T::kRowBlocks][kLaneRows];  // this lane's rows see positions below it

  HIPMLA_DEVICE char* lds_chunk(const WaveRole<kRow>& role, int block, int chunk) const {
    const int index =
        (role.row_wave * T::kRowBlocks + block) * T::kQLdsChunks + chunk - kRegisterChunks;
    return lds + index * kRowFragmentsBytes;
  }
  HIPMLA_DEVICE void put(const Fragment (&in)[2], const WaveRole<kRow>& role, int block,
                         int chunk) {
    if (chunk < kRegisterChunks) {
      fragments[block][chunk][0] = in[0];
      fragments[block][chunk][1] = in[1];
    } else {
      store_row_fragments(lds_chunk(role, block, chunk), in, role.lane);
    }
  }
  // kChunksPerBatch chunks of a row block, from `chunk` on.
  HIPMLA_DEVICE void get(Fragment (&out)[2 * internal::kChunksPerBatch], const WaveRole<kRow>& role,
                         int block, int chunk) const {
#pragma unroll
    for (int i = 0; i < internal::kChunksPerBatch; ++i) {
      Fragment pair[2];
      if (chunk < kRegisterChunks) {
        pair[0] = fragments[block][chunk + i][0];
        pair[1] = fragments[block][chunk + i][1];
      } else {
        reload_row_fragments(pair, lds_chunk(role, block, chunk + i), role.lane);
      }
      out[2 * i] = pair[0];
      out[2 * i + 1] = pair[1];
    }
  }
};

// Rows past the item's end repeat its last row: they are computed and never stored.
template <int kRow>
HIPMLA_DEVICE void load_q_tile(QueryTile<kRow>& q, const MlaParams& params,
                               const WaveRole<kRow>& role, const Sequence& sequence, int row_begin,
                               int row_end, int kv_end) {
  using T = Tile<kRow>;
  const int first_dim = role.dim_group * T::kQkChunks * internal::kChunkDims;
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block) {
    const char* rows[kLaneRows];
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      const int row = row_begin + role.row(block, slot);
      const PackedRow packed(params, row < row_end ? row : row_end - 1);
      const int visible = sequence.visible(packed.query, params.causal != 0);
      q.limit[block][slot] = visible < kv_end ? visible : kv_end;
      rows[slot] = static_cast<const char*>(params.q) +
                   T::kElementBytes * (packed.offset(sequence.first_q, params.q_stride_token,
                                                     params.q_stride_head) +
                                       first_dim);
    }
#pragma unroll
    for (int chunk = 0; chunk < T::kQkChunks; ++chunk) {
      Fragment pair[2];
      load_row_fragments(pair, rows, role.lane);
      q.put(pair, role, block, chunk);
#pragma unroll
      for (int slot = 0; slot < kLaneRows; ++slot)
        rows[slot] += internal::kChunkDims * T::kElementBytes;
    }
  }
}

// A KV tile on its way from memory to LDS. Eight lanes share a token; a lane has one token of each load group, so one
// page look-up serves nine loads. Positions past the end repeat the last one: finite values that the mask removes.
template <int kRow>
struct KvPipe {
  using T = Tile<kRow>;
  Words4 data[T::kLoadGroups][T::kLoadsPerToken];
  int page[T::kLoadGroups];

  const int32_t* pages;  // of the sequence
  int kv_end;
  int token;  // of this lane in a load group
  int column_bytes;

  HIPMLA_DEVICE KvPipe(const MlaParams& params, const WaveRole<kRow>& role,
                       const Sequence& sequence, int item_kv_end)
      : pages(params.kv_indices + sequence.page_begin), kv_end(item_kv_end) {
    token = wave_id() * kTokensPerLoad + role.lane / kLanesPerToken;
    column_bytes = role.lane % kLanesPerToken * kLoadBytes;
  }

  HIPMLA_DEVICE int position(int tile_begin, int group) const {
    const int p = tile_begin + group * T::kLoadTokens + token;
    return p < kv_end ? p : kv_end - 1;
  }

  // Starts the loads of the page ids of the tile at `tile_begin`.
  HIPMLA_DEVICE void look_up(const MlaParams& params, int tile_begin) {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group)
      page[group] = pages[divide(position(tile_begin, group), params.page_size)];
  }

  // Starts the loads of that tile; the page ids must have been looked up.
  HIPMLA_DEVICE void prefetch(const MlaParams& params, int tile_begin) {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group) {
      const int p = position(tile_begin, group);
      const int in_page =
          p - divide(p, params.page_size) * static_cast<int>(params.page_size.divisor);
      const char* source = static_cast<const char*>(params.kv) + column_bytes +
                           T::kElementBytes * (page[group] * params.kv_stride_page +
                                               in_page * params.kv_stride_token);
#pragma unroll
      for (int i = 0; i < T::kLoadsPerToken; ++i)
        data[group][i] = load_global16(source + i * kLanesPerToken * kLoadBytes);
    }
  }

  // Writes the loaded tile to `tile` [tile_kv][kRowBytes] in LDS.
  HIPMLA_DEVICE void commit(char* tile) const {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group) {
      char* target = tile + (group * T::kLoadTokens + token) * T::kRowBytes + column_bytes;
#pragma unroll
      for (int i = 0; i < T::kLoadsPerToken; ++i)
        store_lds16(target + i * kLanesPerToken * kLoadBytes, data[group][i]);
    }
  }
};

// This wave's share of the scores.
//   tile    [tile_kv][kRowBytes] in LDS
//   scores  [row_blocks][wave_token_blocks] out: q.k over the wave's dims, unscaled
template <int kRow, int kBlocks>
HIPMLA_DEVICE void compute_scores(AccTile (&scores)[Tile<kRow>::kRowBlocks][kBlocks],
                                  const QueryTile<kRow>& q, const WaveRole<kRow>& role,
                                  const char* tile) {
  using T = Tile<kRow>;
  const char* first = tile + role.token_group * kBlocks * internal::kBlockTokens * T::kRowBytes +
                      role.dim_group * T::kQkChunks * internal::kChunkDims * T::kElementBytes;
#pragma unroll
  for (int tokens = 0; tokens < kBlocks; ++tokens) {
#pragma unroll
    for (int block = 0; block < T::kRowBlocks; ++block) scores[block][tokens] = AccTile{};
#pragma unroll
    for (int chunk = 0; chunk < T::kQkChunks; chunk += internal::kChunksPerBatch) {
      Fragment k[2 * internal::kChunksPerBatch];
#pragma unroll
      for (int i = 0; i < internal::kChunksPerBatch; ++i) {
        Fragment pair[2];
        load_k_fragments(pair,
                         first + tokens * internal::kBlockTokens * T::kRowBytes +
                             (chunk + i) * internal::kChunkDims * T::kElementBytes,
                         T::kRowBytes, role.lane);
        k[2 * i] = pair[0];
        k[2 * i + 1] = pair[1];
      }
#pragma unroll
      for (int block = 0; block < T::kRowBlocks; ++block) {
        Fragment rows[2 * internal::kChunksPerBatch];
        q.get(rows, role, block, chunk);
        mma_chain<T::kType>(scores[block][tokens], k, rows);
      }
      if constexpr (T::kInAccumulators) schedule_fence();
    }
  }
}

// Gives every wave the scores of all tokens of the tile for its rows. A score stays with its lane number, so that LDS
// is written and read in order of lanes.
//   mine  [row_blocks][wave_token_blocks]    all  [row_blocks][token_blocks] out
//   lds   [dim_groups][row_waves][row_blocks][token_blocks][lanes] AccTile
template <int kRow>
HIPMLA_DEVICE void exchange_scores(
    AccTile (&all)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
    const AccTile (&mine)[Tile<kRow>::kRowBlocks][Tile<kRow>::kWaveTokenBlocks],
    const WaveRole<kRow>& role, char* lds) {
  using T = Tile<kRow>;
  const auto slot = [&](int dim_group, int block, int tokens) {
    const int index =
        ((dim_group * T::kRowWaves + role.row_wave) * T::kRowBlocks + block) * T::kTokenBlocks +
        tokens;
    return lds + (index * kWaveSize + role.lane) * static_cast<int>(sizeof(AccTile));
  };
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int tokens = 0; tokens < T::kWaveTokenBlocks; ++tokens)
      *reinterpret_cast<AccTile*>(
          slot(role.dim_group, block, role.token_group * T::kWaveTokenBlocks + tokens)) =
          mine[block][tokens];
  block_barrier();
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int tokens = 0; tokens < T::kTokenBlocks; ++tokens) {
      AccTile sum = *reinterpret_cast<const AccTile*>(slot(0, block, tokens));
#pragma unroll
      for (int group = 1; group < T::kDimGroups; ++group)
        sum += *reinterpret_cast<const AccTile*>(slot(group, block, tokens));
      all[block][tokens] = sum;
    }
}

// The output of a wave's rows and their running softmax. max and sum are of this lane's rows; sum counts only the
// tokens of this lane until the end.
template <int kRow>
struct OutputTile {
  using T = Tile<kRow>;
  AccTile acc[T::kRowBlocks][8 * T::kVChunks];
  float max[T::kRowBlocks][kLaneRows];
  float sum[T::kRowBlocks][kLaneRows];

  HIPMLA_DEVICE OutputTile() {
#pragma unroll
    for (int block = 0; block < T::kRowBlocks; ++block) {
#pragma unroll
      for (int slot = 0; slot < kLaneRows; ++slot) {
        max[block][slot] = kLowest;
        sum[block][slot] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 8 * T::kVChunks; ++i) acc[block][i] = AccTile{};
    }
  }

  // Raises the maximum of the rows whose scores grew past the threshold. `tile_max`: over this lane's scores.
  HIPMLA_DEVICE void raise_max(const float (&tile_max)[T::kRowBlocks][kLaneRows]) {
    bool grew = false;
#pragma unroll
    for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
      for (int slot = 0; slot < kLaneRows; ++slot)
        grew = grew || tile_max[block][slot] > max[block][slot] + kRescaleThreshold;
    // Rare after the first tiles. Saying so keeps the output tile out of the copies between the two paths.
    if (__builtin_expect(!any_lane(grew), 1)) return;
#pragma unroll
    for (int block = 0; block < T::kRowBlocks; ++block) {
      float factor[kLaneRows];
#pragma unroll
      for (int slot = 0; slot < kLaneRows; ++slot) {
        float& row = max[block][slot];
        const float seen = row_max(tile_max[block][slot]);
        const float raised = seen > row + kRescaleThreshold ? seen : row;
        factor[slot] = exp2_fast(row - raised);
        row = raised;
        sum[block][slot] *= factor[slot];
      }
#pragma unroll
      for (int i = 0; i < 8 * T::kVChunks; ++i) {
        if constexpr (T::kInAccumulators) keep_in_accumulator(acc[block][i]);
#pragma unroll
        for (int r = 0; r < kAccElements; ++r) acc[block][i][r] *= factor[acc_slot(r)];
        if constexpr (T::kInAccumulators) {
          keep_in_accumulator(acc[block][i]);
          schedule_fence();
        }
      }
    }
  }
};

// Scales the scores of one tile and sets those that a row may not see to -inf; their maxima over this lane.
template <int kRow>
HIPMLA_DEVICE void mask_scores(AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                               float (&tile_max)[Tile<kRow>::kRowBlocks][kLaneRows],
                               const QueryTile<kRow>& q, float scale_log2, int tile_begin,
                               int lane) {
  using T = Tile<kRow>;
  bool masked = false;
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      masked = masked || q.limit[block][slot] < tile_begin + T::kTokens;
      tile_max[block][slot] = -kInfinity;
    }
  masked = any_lane(masked);
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int tokens = 0; tokens < T::kTokenBlocks; ++tokens) {
      AccTile& s = scores[block][tokens];
#pragma unroll
      for (int r = 0; r < kAccElements; ++r) s[r] *= scale_log2;
      if (masked) {
        const int first = tile_begin + tokens * internal::kBlockTokens;
#pragma unroll
        for (int r = 0; r < kAccElements; ++r)
          s[r] = first + acc_col(lane, r) < q.limit[block][acc_slot(r)] ? s[r] : -kInfinity;
      }
#pragma unroll
      for (int r = 0; r < kAccElements; ++r) {
        float& max = tile_max[block][acc_slot(r)];
        max = __builtin_fmaxf(max, s[r]);
      }
    }
}

// Folds the scores of one tile into the running softmax.
//   scores  [row_blocks][token_blocks]  in: q.k, unscaled; consumed
//   p       [row_blocks][token_blocks]  out: 2^(t - max) as fragments, 0 where masked
template <int kRow>
HIPMLA_DEVICE void softmax_tile(Fragment (&p)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                                AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                                OutputTile<kRow>& out, const QueryTile<kRow>& q, float scale_log2,
                                int tile_begin, int lane) {
  using T = Tile<kRow>;
  float tile_max[T::kRowBlocks][kLaneRows];
  mask_scores<kRow>(scores, tile_max, q, scale_log2, tile_begin, lane);
  out.raise_max(tile_max);
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int tokens = 0; tokens < T::kTokenBlocks; ++tokens) {
      AccTile& s = scores[block][tokens];
#pragma unroll
      for (int r = 0; r < kAccElements; ++r) {
        s[r] = exp2_fast(s[r] - out.max[block][acc_slot(r)]);
        out.sum[block][acc_slot(r)] += s[r];
      }
      p[block][tokens] = pack_probabilities<T::kType>(s);
    }
}

// O^T += V^T P^T over one tile.
//   tile [tile_kv][kRowBytes] in LDS; V is the first 512 dims of each token
template <int kRow>
HIPMLA_DEVICE void accumulate_output(
    OutputTile<kRow>& out, const Fragment (&p)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
    const WaveRole<kRow>& role, const char* tile) {
  using T = Tile<kRow>;
#pragma unroll
  for (int tokens = 0; tokens < T::kTokenBlocks; ++tokens)
#pragma unroll
    for (int chunk = 0; chunk < T::kVChunks; ++chunk) {
      Fragment v[8];
      load_v_fragments(
          v,
          tile + tokens * internal::kBlockTokens * T::kRowBytes +
              (role.split * T::kVChunks + chunk) * internal::kVChunkDims * T::kElementBytes,
          T::kRowBytes, role.lane);
#pragma unroll
      for (int block = 0; block < T::kRowBlocks; ++block)
        mma_spread<T::kType>(&out.acc[block][8 * chunk], v, p[block][tokens]);
      if constexpr (T::kInAccumulators) schedule_fence();
    }
}

// Scores, softmax and output of one KV tile.
template <int kRow>
HIPMLA_DEVICE void attend_kv_tile(OutputTile<kRow>& out, const QueryTile<kRow>& q,
                                  const MlaParams& params, const WaveRole<kRow>& role, char* lds,
                                  int tile_begin) {
  using T = Tile<kRow>;
  AccTile scores[T::kRowBlocks][T::kTokenBlocks];
  if constexpr (T::kSplitWaves == 1) {
    compute_scores(scores, q, role, lds);
  } else {
    AccTile mine[T::kRowBlocks][T::kWaveTokenBlocks];
    compute_scores(mine, q, role, lds);
    exchange_scores<kRow>(scores, mine, role, lds + T::kConfig.kv_tile_bytes());
  }
  Fragment p[T::kRowBlocks][T::kTokenBlocks];
  softmax_tile<kRow>(p, scores, out, q, params.scale_log2, tile_begin, role.lane);
  if constexpr (T::kInAccumulators) schedule_fence();
  accumulate_output<kRow>(out, p, role, lds);
}

// Writes neighbouring elements of an output row, the first at `target`.
template <DataType kOut, int kCount>
HIPMLA_DEVICE void store_run(char* target, const float (&x)[kCount]) {
  if constexpr (kOut == DataType::kF32) {
    uint32_t words[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = bits_of(x[i]);
    store_global_words(target, words);
  } else {
    uint32_t words[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) words[i] = pack_nearest<kOut>(x[2 * i], x[2 * i + 1]);
    store_global_words(target, words);
  }
}

// A wave's part of its rows in one row block, normalised.
//   rows    [kLaneRows] this lane's rows of the output at their first dim; null: not to be written
//   acc     [8 v_chunks]
//   factor  [kLaneRows] 1 / sum
template <DataType kOut, int kRow>
HIPMLA_DEVICE void store_row_block(char* const (&rows)[kLaneRows],
                                   AccTile (&acc)[8 * Tile<kRow>::kVChunks],
                                   const float (&factor)[kLaneRows], const WaveRole<kRow>& role) {
  using T = Tile<kRow>;
#pragma unroll
  for (int chunk = 0; chunk < T::kVChunks; ++chunk)
#pragma unroll
    for (int r = 0; r < kOutputRuns; ++r) {
      const int slot = output_run_slot(r);
      float run[kRunElements];
      output_run(run, &acc[8 * chunk], r, factor[slot]);
      const int dim =
          (role.split * T::kVChunks + chunk) * internal::kVChunkDims + output_run_dim(role.lane, r);
      if (rows[slot])
        store_run<kOut>(rows[slot] + dim * static_cast<int>(element_bytes(kOut)), run);
      if constexpr (T::kInAccumulators) schedule_fence();
    }
}

// Normalises and writes the rows as kOut.
//   o    first element of the tensor; offset(row): elements to a row, counted from the item's first
//   lse  likewise, or null
template <DataType kOut, int kRow, typename Offset, typename LseOffset>
HIPMLA_DEVICE void store_rows(OutputTile<kRow>& out, const WaveRole<kRow>& role, int num_rows,
                              void* o, Offset offset, float* lse, LseOffset lse_offset) {
  using T = Tile<kRow>;
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block) {
    char* rows[kLaneRows];
    float factor[kLaneRows];
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      const float sum = row_sum(out.sum[block][slot]);
      factor[slot] = sum == 0.0f ? 0.0f : reciprocal_fast(sum);  // NaN stays NaN
      const int row = role.row(block, slot);
      rows[slot] = nullptr;
      if (row >= num_rows) continue;
      rows[slot] = static_cast<char*>(o) + offset(row) * static_cast<int64_t>(element_bytes(kOut));
      if (lse && role.split == 0 && leads_row(role.lane))
        store_global(lse + lse_offset(row),
                     sum == 0.0f ? -kInfinity : kLn2 * (out.max[block][slot] + log2_fast(sum)));
    }
    store_row_block<kOut>(rows, out.acc[block], factor, role);
  }
}

// Writes o and lse of an item that holds all the KV of its rows.
template <int kRow>
HIPMLA_DEVICE void store_final(OutputTile<kRow>& out, const MlaParams& params,
                               const WaveRole<kRow>& role, const Sequence& sequence, int row_begin,
                               int num_rows) {
  const auto offset = [&](int64_t stride_token, int64_t stride_head) {
    return [&params, &sequence, row_begin, stride_token, stride_head](int row) {
      return PackedRow(params, row_begin + row).offset(sequence.first_q, stride_token, stride_head);
    };
  };
  const auto o = offset(params.o_stride_token, params.o_stride_head);
  const auto lse = offset(params.lse_stride_token, params.lse_stride_head);
  if (params.o_type == DataType::kF32)
    store_rows<DataType::kF32>(out, role, num_rows, params.o, o, params.lse, lse);
  else if (params.o_type == DataType::kF16)
    store_rows<DataType::kF16>(out, role, num_rows, params.o, o, params.lse, lse);
  else
    store_rows<DataType::kBf16>(out, role, num_rows, params.o, o, params.lse, lse);
}

// Writes the state of an item that holds a part of the KV, for stage 2.
template <int kRow>
HIPMLA_DEVICE void store_partial(OutputTile<kRow>& out, const MlaParams& params,
                                 const WaveRole<kRow>& role, int64_t partial_row, int num_rows) {
  store_rows<DataType::kF32>(
      out, role, num_rows, params.partial_o,
      [partial_row](int row) { return (partial_row + row) * internal::kVDim; }, params.partial_lse,
      [partial_row](int row) { return partial_row + row; });
}

// One work item by the whole workgroup. `lds` has kConfig.lds_bytes() bytes.
template <int kRow>
HIPMLA_DEVICE void attend_work_item(const MlaParams& params, const WorkItem* item, char* lds) {
  using T = Tile<kRow>;
  const WaveRole<kRow> role;
  const Sequence sequence(params, load_uniform(&item->batch));
  const int rows = sequence.num_rows(params);
  const int row_begin = load_uniform(&item->row_begin);
  const int item_row_end = load_uniform(&item->row_end);
  const int row_end = item_row_end < rows ? item_row_end : rows;
  if (row_begin >= row_end) return;
  const int kv_begin = load_uniform(&item->kv_begin);
  const int item_kv_end = load_uniform(&item->kv_end);
  const int kv_end = item_kv_end < sequence.kv_len ? item_kv_end : sequence.kv_len;

  OutputTile<kRow> out;
  if (kv_begin < kv_end) {
    KvPipe<kRow> pipe(params, role, sequence, kv_end);
    pipe.look_up(params, kv_begin);
    QueryTile<kRow> q;
    q.lds = lds + T::kConfig.kv_tile_bytes() + T::kConfig.score_bytes();
    load_q_tile(q, params, role, sequence, row_begin, row_end, kv_end);
    pipe.prefetch(params, kv_begin);
    pipe.look_up(params, kv_begin + T::kTokens);
    for (int tile_begin = kv_begin; tile_begin < kv_end; tile_begin += T::kTokens) {
      block_barrier();
      pipe.commit(lds);
      if constexpr (T::kInAccumulators) schedule_fence();
      pipe.prefetch(params, tile_begin + T::kTokens);
      pipe.look_up(params, tile_begin + 2 * T::kTokens);
      block_barrier();
      attend_kv_tile(out, q, params, role, lds, tile_begin);
    }
  }
  const int64_t partial_row = load_uniform(&item->partial_row);
  if (partial_row < 0)
    store_final(out, params, role, sequence, row_begin, row_end - row_begin);
  else
    store_partial(out, params, role, partial_row, row_end - row_begin);
}

}  // namespace hipmla::device
