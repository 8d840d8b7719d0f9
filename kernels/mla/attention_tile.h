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
// A row is the same to the bit whatever the tokens hold that it may not see. P is 0 there, which removes what is finite, but
// 0 * NaN is NaN. So tiles that not all rows see whole, those at the edge of a mask, are searched for values that are
// not finite on their way to LDS (kv_pipe.h); a token with such values becomes zeros there, and the mask makes NaN of its
// scores for the rows that see it.
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

#include "kernels/mla/kv_pipe.h"

namespace hipmla::device {

// Start of a running maximum: below every score, yet finite, so that a tile in which all is masked gives
// 2^(-inf - m) = 0 and not NaN.
constexpr float kLowest = -1e30f;
// A maximum is raised only if a score exceeds it by more than this, in powers of two. Until then P <= 2^8 and sums
// over 2^31 tokens stay far inside f32, and the output tile, up to 256 registers, need not be rescaled.
constexpr float kRescaleThreshold = 8.0f;

// Q of a wave for the whole item, as fragments of 32 dims a chunk: in registers, but for the last kQLdsChunks chunks.
// Those are in LDS, where a lane finds what itself wrote, or a wave of another token group the same.
template <int kRow>
struct QueryTile {
  using T = Tile<kRow>;
  static constexpr int kRegisterChunks = T::kQkChunks - T::kQLdsChunks;
  // At least one, for compilers that know no empty array.
  Fragment fragments[T::kRowBlocks][kRegisterChunks > 0 ? kRegisterChunks : 1][2];
  char* lds;  // [row_waves][dim_groups][row_blocks][kQLdsChunks] of kRowFragmentsBytes

  HIPMLA_DEVICE char* lds_chunk(const WaveRole<kRow>& role, int block, int chunk) const {
    const int wave = role.row_wave * T::kDimGroups + role.dim_group;
    const int index = (wave * T::kRowBlocks + block) * T::kQLdsChunks + chunk - kRegisterChunks;
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
                               int row_end) {
  using T = Tile<kRow>;
  constexpr int kBytes = static_cast<int>(element_bytes(T::kConfig.q_type));
  const int first_dim = role.dim_group * T::kQkChunks * internal::kChunkDims;
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block) {
    const char* rows[kLaneRows];
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      const int row = row_begin + role.row(block, slot);
      const PackedRow packed(params, row < row_end ? row : row_end - 1);
      rows[slot] =
          static_cast<const char*>(params.q) +
          kBytes * (packed.offset(sequence.first_q, params.q_stride_token, params.q_stride_head) +
                    first_dim);
    }
    RowWords<T::kConfig.q_type> words[T::kQkChunks];
#pragma unroll
    for (int chunk = 0; chunk < T::kQkChunks; ++chunk) {
      words[chunk] = load_row_words<T::kConfig.q_type>(rows, role.lane);
#pragma unroll
      for (int slot = 0; slot < kLaneRows; ++slot) rows[slot] += internal::kChunkDims * kBytes;
    }
#pragma unroll
    for (int chunk = 0; chunk < T::kQkChunks; ++chunk) {
      Fragment pair[2];
      make_row_fragments<T::kConfig.q_type, T::kType>(pair, words[chunk]);
      q.put(pair, role, block, chunk);
    }
  }
}

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

  HIPMLA_DEVICE void clear() {
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

// Calls f(score, row block, first token of the token block, accumulator element) for each of this lane's scores.
template <int kRow, typename F>
HIPMLA_DEVICE void for_each_score(
    AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks], F f) {
#pragma unroll
  for (int block = 0; block < Tile<kRow>::kRowBlocks; ++block)
#pragma unroll
    for (int tokens = 0; tokens < Tile<kRow>::kTokenBlocks; ++tokens)
#pragma unroll
      for (int r = 0; r < kAccElements; ++r) {
        float s = scores[block][tokens][r];
        f(s, block, tokens * internal::kBlockTokens, r);
        scores[block][tokens][r] = s;
      }
}

// cap * tanh(t / cap), by way of 2^x.
HIPMLA_DEVICE float soft_cap(float t, float cap, float inverse_cap) {
  const float power = exp2_fast(2.0f * kLog2E * inverse_cap * t);
  return cap - 2.0f * cap * reciprocal_fast(1.0f + power);
}

// The item as its waves need it in every tile.
struct ItemView {
  const MlaParams& params;
  const Sequence& sequence;
  int row_begin;
  int row_end;
  int kv_end;
  VisibleRange seen_by_all;  // positions that all rows of the item see
  float scale_log2;
};

// Sets the scores that a row may not see to -inf, and those of poisoned tokens to NaN.
//   flags  [tile_kv] of the tile
template <int kRow>
HIPMLA_DEVICE void mask_scores(AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                               const ItemView& item, const WaveRole<kRow>& role, int tile_begin,
                               const float* flags) {
  VisibleRange visible[Tile<kRow>::kRowBlocks][kLaneRows];
#pragma unroll
  for (int block = 0; block < Tile<kRow>::kRowBlocks; ++block)
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      const int row = item.row_begin + role.row(block, slot);
      const PackedRow packed(item.params, row < item.row_end ? row : item.row_end - 1);
      VisibleRange& range = visible[block][slot];
      range = item.sequence.visible(item.params, packed.query);
      if (range.end > item.kv_end) range.end = item.kv_end;
    }
  const int lane = not_before_here(role.lane);
  for_each_score<kRow>(scores, [&](float& s, int block, int first, int r) {
    const int token = first + acc_col(lane, r);
    const int position = tile_begin + token;
    const VisibleRange range = visible[block][acc_slot(r)];
    s += flags[token];
    s = position < range.end && position >= range.begin ? s : -kInfinity;
    if (r == kAccElements - 1) schedule_fence();  // registers
  });
}

// Scores in powers of two: scaled, capped, masked.
template <int kRow>
HIPMLA_DEVICE void finish_scores(
    AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks], const ItemView& item,
    const WaveRole<kRow>& role, int tile_begin, const float* flags) {
  const MlaParams& params = item.params;
  const float scale_log2 = item.scale_log2;
  for_each_score<kRow>(scores, [&](float& s, int, int, int) { s *= scale_log2; });
  if (params.soft_cap_log2 > 0.0f) {
    const float cap = params.soft_cap_log2;
    const float inverse_cap = reciprocal_fast(cap);
    for_each_score<kRow>(scores,
                         [&](float& s, int, int, int) { s = soft_cap(s, cap, inverse_cap); });
  }
  if (!item.seen_by_all.covers(tile_begin, Tile<kRow>::kTokens) || is_sparse(params))
    mask_scores<kRow>(scores, item, role, tile_begin, flags);
}

// Folds the scores of one tile into the running softmax.
//   scores  [row_blocks][token_blocks]  in: in powers of two, -inf where masked; consumed
//   p       [row_blocks][token_blocks]  out: 2^(t - max) as fragments, 0 where masked
template <int kRow>
HIPMLA_DEVICE void softmax_tile(Fragment (&p)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                                AccTile (&scores)[Tile<kRow>::kRowBlocks][Tile<kRow>::kTokenBlocks],
                                OutputTile<kRow>& out) {
  using T = Tile<kRow>;
  float tile_max[T::kRowBlocks][kLaneRows];
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block)
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) tile_max[block][slot] = -kInfinity;
  for_each_score<kRow>(scores, [&](float& s, int block, int, int r) {
    float& max = tile_max[block][acc_slot(r)];
    max = max_of(max, s);
  });
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
                                  const ItemView& item, const WaveRole<kRow>& role, Lds<kRow> lds,
                                  KvTile tile, int tile_begin) {
  using T = Tile<kRow>;
  AccTile scores[T::kRowBlocks][T::kTokenBlocks];
  if constexpr (T::kSplitWaves == 1) {
    compute_scores(scores, q, role, tile.rows);
  } else {
    AccTile mine[T::kRowBlocks][T::kWaveTokenBlocks];
    compute_scores(mine, q, role, tile.rows);
    exchange_scores<kRow>(scores, mine, role, lds.scores());
  }
  finish_scores<kRow>(scores, item, role, tile_begin, tile.flags);
  Fragment p[T::kRowBlocks][T::kTokenBlocks];
  softmax_tile<kRow>(p, scores, out);
  accumulate_output<kRow>(out, p, role, tile.rows);
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

// Where an item that holds all the KV of its rows writes them, by row of the item.
struct FinalTarget {
  const MlaParams& params;
  const Sequence& sequence;
  int row_begin;

  HIPMLA_DEVICE PackedRow packed(int row) const { return {params, row_begin + row}; }
  HIPMLA_DEVICE void* o() const { return params.o; }
  HIPMLA_DEVICE int64_t o_offset(int row) const {
    return packed(row).offset(sequence.first_q, params.o_stride_token, params.o_stride_head);
  }
  HIPMLA_DEVICE float* lse(int row) const {
    return params.lse ? params.lse + packed(row).offset(sequence.first_q, params.lse_stride_token,
                                                        params.lse_stride_head)
                      : nullptr;
  }
  HIPMLA_DEVICE float lse_factor() const { return params.lse_factor; }
  // What the row's sink adds to a sum of 2^(t - max).
  HIPMLA_DEVICE float sink(int row, float max) const {
    return params.sink ? exp2_fast(kLog2E * params.sink[packed(row).head] - max) : 0.0f;
  }
};

// Where an item that holds a part of the KV writes its state, for stage 2.
struct PartialTarget {
  const MlaParams& params;
  int64_t partial_row;

  HIPMLA_DEVICE void* o() const { return params.partial_o; }
  HIPMLA_DEVICE int64_t o_offset(int row) const { return (partial_row + row) * internal::kVDim; }
  HIPMLA_DEVICE float* lse(int row) const { return params.partial_lse + partial_row + row; }
  HIPMLA_DEVICE float lse_factor() const { return kLn2; }
  HIPMLA_DEVICE float sink(int, float) const { return 0.0f; }
};

// Normalises and writes the item's rows as kOut.
template <DataType kOut, int kRow, typename Target>
HIPMLA_DEVICE void store_rows(OutputTile<kRow>& out, const WaveRole<kRow>& role, int num_rows,
                              float output_scale, const Target& target) {
  using T = Tile<kRow>;
#pragma unroll
  for (int block = 0; block < T::kRowBlocks; ++block) {
    char* rows[kLaneRows];
    float factor[kLaneRows];
#pragma unroll
    for (int slot = 0; slot < kLaneRows; ++slot) {
      const float sum = row_sum(out.sum[block][slot]);
      const float max = out.max[block][slot];
      const int row = role.row(block, slot);
      rows[slot] = nullptr;
      factor[slot] = 0.0f;
      if (row >= num_rows) continue;
      if (sum != 0.0f)  // NaN stays NaN
        factor[slot] = output_scale * reciprocal_fast(sum + target.sink(row, max));
      rows[slot] = static_cast<char*>(target.o()) +
                   target.o_offset(row) * static_cast<int64_t>(element_bytes(kOut));
      if (role.split != 0 || !leads_row(role.lane)) continue;
      if (float* lse = target.lse(row))
        store_global(lse, sum == 0.0f ? -kInfinity : target.lse_factor() * (max + log2_fast(sum)));
    }
    store_row_block<kOut>(rows, out.acc[block], factor, role);
  }
}

template <int kRow>
HIPMLA_DEVICE void store_final(OutputTile<kRow>& out, const WaveRole<kRow>& role, int num_rows,
                               float output_scale, const FinalTarget& target) {
  const DataType type = target.params.o_type;
  if (type == DataType::kF32)
    store_rows<DataType::kF32>(out, role, num_rows, output_scale, target);
  else if (type == DataType::kF16)
    store_rows<DataType::kF16>(out, role, num_rows, output_scale, target);
  else
    store_rows<DataType::kBf16>(out, role, num_rows, output_scale, target);
}

// All KV tiles of an item.
template <int kRow>
HIPMLA_DEVICE void attend_item_kv(OutputTile<kRow>& out, const ItemView& item,
                                  const WaveRole<kRow>& role, Lds<kRow> lds, int kv_begin) {
  constexpr int kTokens = Tile<kRow>::kTokens;
  const MlaParams& params = item.params;
  KvPipe<kRow> pipe(role, item.sequence, item.kv_end, item.seen_by_all, lds);
  pipe.look_up(params, kv_begin);
  QueryTile<kRow> q;
  q.lds = lds.q_chunks();
  load_q_tile(q, params, role, item.sequence, item.row_begin, item.row_end);
  pipe.start(params, kv_begin);
  schedule_fence();
  out.clear();  // not earlier: the output tile and Q in two forms do not fit the registers
  for (int tile_begin = kv_begin; tile_begin < item.kv_end; tile_begin += kTokens) {
    const KvTile tile = pipe.next(params, tile_begin);
    attend_kv_tile(out, q, item, role, lds, tile, tile_begin);
  }
}

// What all rows of an item see of its KV. Later queries see no less at the end and no more at the begin.
HIPMLA_DEVICE VisibleRange seen_by_rows(const MlaParams& params, const Sequence& sequence,
                                        int row_begin, int row_end, int kv_end) {
  const VisibleRange first = sequence.visible(params, PackedRow(params, row_begin).query);
  const VisibleRange last = sequence.visible(params, PackedRow(params, row_end - 1).query);
  return {last.begin, first.end < kv_end ? first.end : kv_end};
}

// One work item by the whole workgroup. `lds` has kConfig.lds_bytes() bytes.
template <int kRow>
HIPMLA_DEVICE void attend_work_item(const MlaParams& params, const WorkItem* item, char* lds) {
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
  const float kv_scale = params.kv_scale ? load_uniform(params.kv_scale) : 1.0f;
  const float q_scale = params.q_scale ? load_uniform(params.q_scale) : 1.0f;
  const ItemView view{params,
                      sequence,
                      row_begin,
                      row_end,
                      kv_end,
                      seen_by_rows(params, sequence, row_begin, row_end, kv_end),
                      params.scale_log2 * q_scale * kv_scale};

  OutputTile<kRow> out;
  if (kv_begin < kv_end)
    attend_item_kv(out, view, role, Lds<kRow>{lds}, kv_begin);
  else
    out.clear();
  const float output_scale = params.output_scale * kv_scale;
  const int num_rows = row_end - row_begin;
  const int64_t partial_row = load_uniform(&item->partial_row);
  if (partial_row < 0)
    store_final(out, role, num_rows, output_scale, {params, sequence, row_begin});
  else
    store_rows<DataType::kF32>(out, role, num_rows, output_scale,
                               PartialTarget{params, partial_row});
}

}  // namespace hipmla::device
