// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// KV on its way from memory to LDS, where every format becomes 16-bit elements of the compute type.
//
// Eight lanes share a token, so that one page look-up serves all loads of a lane, each 16 bytes of a 128-byte line.
// Lane column c = lane % 8 loads, in order:
//
//   bf16, f16   9 loads   bytes 16 (c + 8 i)                                     to LDS as they are
//   fp8         4 loads   bytes 16 (c + 8 i), 16 dims each                       two LDS writes after conversion
//               1 load    bytes 512 + 16 (c mod 4): lanes 4-7 repeat lanes 0-3   (same data to the same place)
//   packed      4 loads   as fp8; load i holds dims of scale i
//               1 load    bytes 512..527: the four scales, same for all eight lanes
//               1 load    bytes 528 + 16 c: the rotary part, bf16, as it is

#include "kernels/mla/rows.h"

namespace hipmla::device {

// 16 fp8 values times a factor, as 16 values of kType. kScaled = false: the factor is 1 and the conversion exact.
template <DataType kFp8, DataType kType, bool kScaled>
HIPMLA_DEVICE void convert_fp8(Words4 (&out)[2], Words4 in, float factor) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    float x[4];
    fp8_to_f32<kFp8>(x, in[word]);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair)
      out[word / 2][word % 2 * 2 + pair] =
          kScaled ? pack_nearest<kType>(factor * x[2 * pair], factor * x[2 * pair + 1])
                  : pack_exact<kType>(x[2 * pair], x[2 * pair + 1]);
    schedule_fence();  // one conversion at a time: the registers for more are not there
  }
}

// Loads and conversions of one token by eight lanes; one specialisation for each format.
template <int kRow>
struct TokenFormat {
  using T = Tile<kRow>;
  static constexpr DataType kKvType = T::kConfig.kv_type;
  static constexpr bool kIsFp8 = is_fp8(kKvType);
  static constexpr bool kIsPacked = T::kConfig.kv_layout == KvLayout::kPacked;
  static constexpr int kLineBytes = kLanesPerToken * kLoadBytes;
  static constexpr int kLatentLoads = internal::kVDim * (kIsFp8 ? 1 : 2) / kLineBytes;
  static constexpr int kLoads = kLatentLoads + (kIsPacked ? 2 : 1);
  static constexpr int kLatentRowBytes = internal::kVDim * T::kElementBytes;  // in LDS

  // Byte of the token that load `i` of lane column `column` begins at.
  HIPMLA_DEVICE static int source_byte(int i, int column) {
    if (i < kLatentLoads || !kIsFp8) return (column + kLanesPerToken * i) * kLoadBytes;
    if constexpr (kIsPacked)
      return internal::kVDim + (i == kLatentLoads ? 0 : (1 + column) * kLoadBytes);
    return internal::kVDim + column % (kLanesPerToken / 2) * kLoadBytes;
  }

  // Writes what was loaded to the token's row in LDS. `scaled`: factor is not known to be 1.
  template <bool kScaled>
  HIPMLA_DEVICE static void convert(char* row, const Words4 (&data)[kLoads], int column,
                                    float factor) {
#pragma unroll
    for (int i = 0; i < kLatentLoads + (kIsPacked ? 0 : 1); ++i) {
      const bool rotary = i == kLatentLoads;
      const int part = rotary ? column % (kLanesPerToken / 2) : column + kLanesPerToken * i;
      char* target = row + (rotary ? kLatentRowBytes : 0) + 2 * part * kLoadBytes;
      Words4 halves[2];
      convert_fp8<kKvType, T::kType, kScaled || kIsPacked>(
          halves, data[i], kIsPacked ? factor * float_of(data[kLatentLoads][i]) : factor);
      store_lds16(target, halves[0]);
      store_lds16(target + kLoadBytes, halves[1]);
    }
    if constexpr (kIsPacked)
      store_lds16(row + kLatentRowBytes + column * kLoadBytes, data[kLatentLoads + 1]);
  }
  // Calls f for 16 bytes at a time of the token's row in LDS: together its lanes get all, each what it has written.
  template <typename F>
  HIPMLA_DEVICE static void for_each_written(char* row, int column, F f) {
    constexpr int kPieces = kIsFp8 ? 2 : 1;  // of each load of the latent part
#pragma unroll
    for (int i = 0; i < kLatentLoads; ++i)
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        f(row + (kPieces * (column + kLanesPerToken * i) + piece) * kLoadBytes);
    // The rotary part has as many pieces as a token has lanes. Of a dense fp8 cache, two lanes write the same two pieces.
    const int piece = kIsFp8 && !kIsPacked
                          ? 2 * (column % (kLanesPerToken / 2)) + column / (kLanesPerToken / 2)
                          : column;
    f(row + kLatentRowBytes + piece * kLoadBytes);
  }
  HIPMLA_DEVICE static void copy(char* row, const Words4 (&data)[kLoads], int column) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      store_lds16(row + (column + kLanesPerToken * i) * kLoadBytes, data[i]);
  }
};

// Says that a condition seldom holds, which keeps what a sparse call needs out of the registers of the others: the kernels
// of 128 rows have none to spare (clang 22: 508 of 512 registers with, 8 spilled without). A macro, because the compiler
// forgets what it hears in an inlined function.
#define HIPMLA_RARELY(condition) __builtin_expect(condition, 0)

// A tile that is ready to be read.
struct KvTile {
  const char* rows;    // [tile_kv][kRowBytes] in LDS
  const float* flags;  // [tile_kv], if the tile is masked
};

// Where the tokens of this lane are. Positions past the end repeat the last one: finite values that the mask removes.
template <int kRow>
struct KvPlaces {
  using T = Tile<kRow>;
  int place[T::kLoadGroups];  // page id, or token slot of a sparse call

  const int32_t* places;
  int kv_end;
  int token;  // of this lane in a load group
  int column;

  HIPMLA_DEVICE KvPlaces(const WaveRole<kRow>& role, const Sequence& sequence, int item_kv_end)
      : places(sequence.places), kv_end(item_kv_end) {
    token = wave_id() * kTokensPerLoad + role.lane / kLanesPerToken;
    column = role.lane % kLanesPerToken;
  }

  HIPMLA_DEVICE int position(int tile_begin, int group) const {
    const int p = tile_begin + group * T::kLoadTokens + token;
    return p < kv_end ? p : kv_end - 1;
  }

  // Starts the loads of the places of the tile at `tile_begin`.
  HIPMLA_DEVICE void look_up(const MlaParams& params, int tile_begin) {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group) {
      const int p = position(tile_begin, group);
      place[group] = places[is_sparse(params) ? p : divide(p, params.page_size)];
    }
  }

  // A token of that tile, whose places were looked up.
  struct Token {
    const char* data;
    int64_t scale;  // element of kv_token_scales
    bool exists;
  };
  //   flags  [tile_kv] in LDS of the tile, written by a sparse call
  HIPMLA_DEVICE Token find(const MlaParams& params, int tile_begin, int group, float* flags) const {
    constexpr int kBytes = static_cast<int>(element_bytes(T::kConfig.kv_type));
    int p = position(tile_begin, group);
    int page = place[group];
    Token out;
    out.exists = true;
    if (HIPMLA_RARELY(is_sparse(params))) {
      out.exists = static_cast<uint32_t>(page) < static_cast<uint32_t>(params.num_slots);
      if (column == 0)
        flags[group * T::kLoadTokens + token] = out.exists ? kTokenIsThere : kNoToken;
      p = out.exists ? page : 0;
      page = divide(p, params.page_size);
    }
    const int in_page =
        p - divide(p, params.page_size) * static_cast<int>(params.page_size.divisor);
    out.data = static_cast<const char*>(params.kv) +
               kBytes * (page * params.kv_stride_page + in_page * params.kv_stride_token);
    if constexpr (is_fp8(T::kConfig.kv_type))
      out.scale = page * params.token_scale_stride_page + in_page * params.token_scale_stride_token;
    return out;
  }
};

// Searches a tile that is to be masked for tokens that are not finite; see kPoisonedToken. For the lanes that wrote it,
// before the others see it.
//   tile   [tile_kv][kRowBytes] in LDS
//   flags  [tile_kv] in LDS, written
template <int kRow>
HIPMLA_DEVICE void hide_poison(char* tile, float* flags) {
  using T = Tile<kRow>;
  using Format = TokenFormat<kRow>;
  static_assert(kLanesPerToken == 8, "any_of_8_lanes: of a token");
  const int thread = not_before_here(thread_id());
  const int column = thread % kLanesPerToken;
#pragma unroll
  for (int group = 0; group < T::kLoadGroups; ++group) {
    const int in_tile = group * T::kLoadTokens + thread / kLanesPerToken;
    char* row = tile + in_tile * T::kRowBytes;
    uint32_t found = 0;
    Format::for_each_written(row, column, [&](const char* piece) {
      found |= non_finite_halves<T::kType>(load_lds16(piece));
      schedule_fence();  // one read at a time: the registers for more are not there
    });
    const bool is_poisoned = any_of_8_lanes(found != 0);
    if (is_poisoned)
      Format::for_each_written(row, column, [](char* piece) { store_lds16(piece, Words4{}); });
    if (column == 0) flags[in_tile] = is_poisoned ? kPoisonedToken : kTokenIsThere;
  }
}

// One tile in LDS; the next one is under way in registers, where it is converted.
template <int kRow>
struct RegisterKvPipe {
  using T = Tile<kRow>;
  using Format = TokenFormat<kRow>;
  KvPlaces<kRow> where;
  VisibleRange seen_by_all;
  Lds<kRow> lds;
  Words4 data[T::kLoadGroups][Format::kLoads];
  float token_scale[T::kLoadGroups] = {};
  int parity = 0;

  HIPMLA_DEVICE RegisterKvPipe(const WaveRole<kRow>& role, const Sequence& sequence, int kv_end,
                               VisibleRange item_seen_by_all, Lds<kRow> item_lds)
      : where(role, sequence, kv_end), seen_by_all(item_seen_by_all), lds(item_lds) {}

  // Starts the item. What can be done before the other waves have left the last item comes first.
  HIPMLA_DEVICE void look_up(const MlaParams& params, int kv_begin) {
    where.look_up(params, kv_begin);
  }
  HIPMLA_DEVICE void start(const MlaParams& params, int kv_begin) {
    block_barrier();  // the last item's flags are no longer read
    prefetch(params, kv_begin, lds.flags(0));
    where.look_up(params, kv_begin + T::kTokens);
  }

  // Makes the tile at `tile_begin` ready, and the next one start.
  HIPMLA_DEVICE KvTile next(const MlaParams& params, int tile_begin) {
    block_barrier();
    float* flags = lds.flags(parity);
    commit(params, lds.kv_tile(0), flags);
    if (HIPMLA_RARELY(!seen_by_all.covers(tile_begin, T::kTokens) && !is_sparse(params)))
      hide_poison<kRow>(lds.kv_tile(0), flags);
    parity = 1 - parity;
    prefetch(params, tile_begin + T::kTokens, lds.flags(parity));
    where.look_up(params, tile_begin + 2 * T::kTokens);
    block_barrier();
    return {lds.kv_tile(0), flags};
  }

 private:
  HIPMLA_DEVICE void prefetch(const MlaParams& params, int tile_begin, float* flags) {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group) {
      const auto source = where.find(params, tile_begin, group, flags);
#pragma unroll
      for (int i = 0; i < Format::kLoads; ++i)
        data[group][i] = load_global16(source.data + Format::source_byte(i, where.column));
      if constexpr (Format::kIsFp8 && !Format::kIsPacked)
        if (params.kv_token_scales) token_scale[group] = params.kv_token_scales[source.scale];
    }
  }

  // A slot of a sparse list that names no token becomes zeros.
  HIPMLA_DEVICE void commit(const MlaParams& params, char* tile, const float* flags) {
#pragma unroll
    for (int group = 0; group < T::kLoadGroups; ++group) {
      const int in_tile = group * T::kLoadTokens + where.token;
      char* row = tile + in_tile * T::kRowBytes;
      if (HIPMLA_RARELY(is_sparse(params)) && flags[in_tile] != kTokenIsThere) {
#pragma unroll
        for (int i = 0; i < Format::kLoads; ++i) data[group][i] = Words4{};
        token_scale[group] = 1.0f;
      }
      if constexpr (!Format::kIsFp8)
        Format::copy(row, data[group], where.column);
      else if (!Format::kIsPacked && params.kv_token_scales)
        Format::template convert<true>(row, data[group], where.column, token_scale[group]);
      else
        Format::template convert<false>(row, data[group], where.column, 1.0f);
    }
  }
};

// A ring of kSlots tiles in LDS that asynchronous copies fill, kSlots - 1 tiles ahead; one barrier a tile. For formats
// that need no conversion.
template <int kRow>
struct RingKvPipe {
  using T = Tile<kRow>;
  using Format = TokenFormat<kRow>;
  static constexpr int kAhead = T::kSlots - 1;
  KvPlaces<kRow> where;
  VisibleRange seen_by_all;
  Lds<kRow> lds;
  int slot = 0;

  HIPMLA_DEVICE RingKvPipe(const WaveRole<kRow>& role, const Sequence& sequence, int kv_end,
                           VisibleRange item_seen_by_all, Lds<kRow> item_lds)
      : where(role, sequence, kv_end), seen_by_all(item_seen_by_all), lds(item_lds) {}

  HIPMLA_DEVICE void look_up(const MlaParams& params, int kv_begin) {
    where.look_up(params, kv_begin);
  }
  HIPMLA_DEVICE void start(const MlaParams& params, int kv_begin) {
    block_barrier();  // the last item's tiles are no longer read
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      copy(params, kv_begin + i * T::kTokens, i);
      where.look_up(params, kv_begin + (i + 1) * T::kTokens);
    }
  }

  HIPMLA_DEVICE KvTile next(const MlaParams& params, int tile_begin) {
    wait_copies<kAhead - 1>();
    if (HIPMLA_RARELY(!seen_by_all.covers(tile_begin, T::kTokens) && !is_sparse(params)))
      hide_poison<kRow>(lds.kv_tile(slot), lds.flags(slot));
    block_barrier();  // the tile is there for all, and all have left the tile before it
    const KvTile tile = {lds.kv_tile(slot), lds.flags(slot)};
    const int free_slot = slot == 0 ? kAhead : slot - 1;
    copy(params, tile_begin + kAhead * T::kTokens, free_slot);
    where.look_up(params, tile_begin + (kAhead + 1) * T::kTokens);
    slot = slot == kAhead ? 0 : slot + 1;
    return tile;
  }

 private:
  HIPMLA_DEVICE void copy(const MlaParams& params, int tile_begin, int to) {
    if (tile_begin < where.kv_end) {
#pragma unroll
      for (int group = 0; group < T::kLoadGroups; ++group) {
        const auto source = where.find(params, tile_begin, group, lds.flags(to));
        char* row = lds.kv_tile(to) + (group * T::kLoadTokens + where.token) * T::kRowBytes;
#pragma unroll
        for (int i = 0; i < Format::kLoads; ++i)
          copy_to_lds16(row + (where.column + kLanesPerToken * i) * kLoadBytes,
                        source.data + Format::source_byte(i, where.column), source.exists);
      }
    }
    commit_copies();
  }
};

template <int kRow, bool kIsRing = (Tile<kRow>::kSlots > 1)>
struct KvPipeOf {
  using Type = RegisterKvPipe<kRow>;
};
template <int kRow>
struct KvPipeOf<kRow, true> {
  using Type = RingKvPipe<kRow>;
};
template <int kRow>
using KvPipe = typename KvPipeOf<kRow>::Type;

}  // namespace hipmla::device
