// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The one table of stage-1 kernels. A row here is a kernel; what has no row does not exist. Launchers, the
// selector, the plan, the tests and README's support matrix all read this table.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hipmla/types.h"

namespace hipmla::internal {

constexpr int kQkDim = 576;  // latent + rotary: what a score sums over
constexpr int kVDim = 512;   // latent: what an output row holds
constexpr int kPackedTokenBytes = kVDim + 4 * 4 + (kQkDim - kVDim) * 2;  // fp8, f32 scales, bf16
constexpr int kBlockRows = 16;    // rows of one matrix operation
constexpr int kBlockTokens = 16;  // tokens of one matrix operation
constexpr int kChunkDims =
    32;  // dims of K that one 16-byte LDS read per lane feeds (two matrix operations)
constexpr int kChunksPerBatch = 3;  // K chunks that are read ahead of their matrix operations
constexpr int kVChunkDims = 128;    // dims of V that one transposing read serves

constexpr uint32_t arch_bit(Arch arch) { return 1u << static_cast<int>(arch); }
constexpr uint32_t kAllCdna =
    arch_bit(Arch::kGfx90a) | arch_bit(Arch::kGfx942) | arch_bit(Arch::kGfx950);

constexpr Arch kArchs[] = {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950, Arch::kSm80, Arch::kSm90};
constexpr uint32_t kNvidia = arch_bit(Arch::kSm80) | arch_bit(Arch::kSm90);
constexpr int wave_size_of(uint32_t archs) { return archs & kNvidia ? 32 : 64; }

struct Stage1Config {
  Schedule schedule;  // kPersistent or kSplitKv
  DataType q_type;
  DataType kv_type;
  KvLayout kv_layout;
  int tile_rows;      // packed rows (query x head) that one workgroup owns
  int rows_per_wave;  // 16 or 32; 32 halve the LDS reads per matrix operation
  int tile_kv;        // tokens that one softmax step covers
  int num_waves;
  int kv_slots;  // KV tiles in LDS: 1, filled by way of registers, or a ring that asynchronous copies fill
  int q_lds_chunks;  // chunks of Q of a wave that live in LDS, because registers are full
  uint32_t archs;    // arch_bit of each architecture that the row is built for

  constexpr int row_blocks() const { return rows_per_wave / kBlockRows; }
  // Waves along the rows; the rest of the waves shares the work on the same rows:
  constexpr int row_waves() const { return tile_rows / rows_per_wave; }
  constexpr int split_waves() const { return num_waves / row_waves(); }
  // scores: over blocks of tokens, then over dims; output: over dims.
  constexpr int token_blocks() const { return tile_kv / kBlockTokens; }
  constexpr int token_groups() const {
    return split_waves() < token_blocks() ? split_waves() : token_blocks();
  }
  constexpr int token_blocks_per_wave() const { return token_blocks() / token_groups(); }
  constexpr int dim_groups() const { return split_waves() / token_groups(); }
  constexpr int qk_chunks_per_wave() const { return kQkDim / kChunkDims / dim_groups(); }
  constexpr int v_chunks_per_wave() const { return kVDim / kVChunkDims / split_waves(); }

  // AMD: LDS allows one workgroup on a compute unit, so a wave may use all 512 registers of its SIMD. 16 rows do with 256,
  // and then matrix operations accumulate in ordinary registers, which a rescale reaches without copies.
  constexpr int waves_per_simd() const { return tile_rows == 16 ? 2 : 1; }

  // Type of the matrix operations and of KV in LDS. Where q is fp8, bf16 holds q and KV without loss.
  constexpr DataType compute_type() const { return is_fp8(q_type) ? DataType::kBf16 : q_type; }
  // Bytes of one cached token in memory.
  constexpr int token_bytes() const {
    return kv_layout == KvLayout::kPacked ? kPackedTokenBytes
                                          : kQkDim * static_cast<int>(element_bytes(kv_type));
  }

  // LDS, in this order: the KV tile; the scores that waves on the same rows exchange; chunks of Q; flags.
  // A row of the tile is padded by 16 bytes, so that 8 neighbouring tokens start in different banks.
  constexpr int kv_row_bytes() const {
    return kQkDim * static_cast<int>(element_bytes(compute_type())) + 16;
  }
  constexpr int kv_tile_bytes() const { return tile_kv * kv_row_bytes(); }
  constexpr int score_bytes() const {
    return split_waves() == 1 ? 0 : dim_groups() * tile_rows * tile_kv * 4;
  }
  constexpr int q_bytes() const {
    return q_lds_chunks * dim_groups() * tile_rows * kChunkDims *
           static_cast<int>(element_bytes(compute_type()));
  }
  // Of a sparse call: whether each token exists, for the tiles under way.
  constexpr int flag_tiles() const { return kv_slots < 2 ? 2 : kv_slots; }
  constexpr int flag_bytes() const { return flag_tiles() * tile_kv * 4; }
  constexpr int lds_bytes() const {
    return kv_slots * kv_tile_bytes() + score_bytes() + q_bytes() + flag_bytes();
  }
};

// 128 rows are not built for gfx90a, where registers do not suffice for them.
constexpr uint32_t kCdna3 = arch_bit(Arch::kGfx942) | arch_bit(Arch::kGfx950);
// 128 rows leave no registers to convert an fp8 format that the processor has no instruction for, nor fp8 queries, and 64
// not for both; the tile below serves those.
// clang-format off
#define HIPMLA_ROW(schedule, q, kv, layout, tile_rows, archs) \
  {Schedule::schedule, DataType::q, DataType::kv, KvLayout::layout, tile_rows,                   \
   (tile_rows) == 16 ? 16 : 32, 32, 4, 1, (tile_rows) == 128 ? kChunksPerBatch : 0, archs}
#define HIPMLA_ROW_128(schedule, q, kv, layout, archs) \
  HIPMLA_ROW(schedule, q, kv, layout, 128, archs)
#define HIPMLA_ROWS_TO_32(schedule, q, kv, layout, archs) \
  HIPMLA_ROW(schedule, q, kv, layout, 16, archs),         \
  HIPMLA_ROW(schedule, q, kv, layout, 32, archs)
#define HIPMLA_ROWS_TO_64(schedule, q, kv, layout, archs) \
  HIPMLA_ROWS_TO_32(schedule, q, kv, layout, archs),      \
  HIPMLA_ROW(schedule, q, kv, layout, 64, archs)
#define HIPMLA_ROWS_TO_128(schedule, q, kv, layout, archs) \
  HIPMLA_ROWS_TO_64(schedule, q, kv, layout, archs),       \
  HIPMLA_ROW_128(schedule, q, kv, layout, (archs) & kCdna3)
#define HIPMLA_NVIDIA_ROWS(schedule, type)                                                                            \
  {Schedule::schedule, DataType::type, DataType::type, KvLayout::kDense, 16, 16, 32, 4, 4, 0, kNvidia},               \
  {Schedule::schedule, DataType::type, DataType::type, KvLayout::kDense, 32, 16, 32, 8, 3, 0, kNvidia},               \
  {Schedule::schedule, DataType::type, DataType::type, KvLayout::kDense, 64, 32, 32, 8, 3, 9, arch_bit(Arch::kSm90)}
constexpr Stage1Config kStage1Configs[] = {
    HIPMLA_ROWS_TO_128(kPersistent, kBf16,        kBf16,        kDense,  kAllCdna),
    HIPMLA_ROWS_TO_128(kPersistent, kF16,         kF16,         kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kPersistent, kBf16,        kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kPersistent, kBf16,        kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW_128(kPersistent, kBf16,        kFp8E4m3Fnuz, kDense,  arch_bit(Arch::kGfx942)),
    HIPMLA_ROWS_TO_64(kPersistent, kF16,         kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kPersistent, kF16,         kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW_128(kPersistent, kF16,         kFp8E4m3Fnuz, kDense,  arch_bit(Arch::kGfx942)),
    HIPMLA_ROWS_TO_32(kPersistent, kFp8E4m3Fn,   kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROW(kPersistent, kFp8E4m3Fn,   kFp8E4m3Fn,   kDense, 64, arch_bit(Arch::kGfx950)),
    HIPMLA_ROWS_TO_32(kPersistent, kFp8E4m3Fnuz, kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW(kPersistent, kFp8E4m3Fnuz, kFp8E4m3Fnuz, kDense, 64, kCdna3),
    HIPMLA_ROWS_TO_128(kPersistent, kBf16,        kFp8E4m3Fn,   kPacked, kAllCdna),
    HIPMLA_ROWS_TO_128(kPersistent, kBf16,        kFp8E4m3Fnuz, kPacked, kAllCdna),
    HIPMLA_ROWS_TO_128(kSplitKv,    kBf16,        kBf16,        kDense,  kAllCdna),
    HIPMLA_ROWS_TO_128(kSplitKv,    kF16,         kF16,         kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kSplitKv,    kBf16,        kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kSplitKv,    kBf16,        kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW_128(kSplitKv,    kBf16,        kFp8E4m3Fnuz, kDense,  arch_bit(Arch::kGfx942)),
    HIPMLA_ROWS_TO_64(kSplitKv,    kF16,         kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROWS_TO_64(kSplitKv,    kF16,         kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW_128(kSplitKv,    kF16,         kFp8E4m3Fnuz, kDense,  arch_bit(Arch::kGfx942)),
    HIPMLA_ROWS_TO_32(kSplitKv, kFp8E4m3Fn,   kFp8E4m3Fn,   kDense,  kAllCdna),
    HIPMLA_ROW(kSplitKv, kFp8E4m3Fn,   kFp8E4m3Fn,   kDense, 64, arch_bit(Arch::kGfx950)),
    HIPMLA_ROWS_TO_32(kSplitKv,    kFp8E4m3Fnuz, kFp8E4m3Fnuz, kDense,  kAllCdna),
    HIPMLA_ROW(kSplitKv,    kFp8E4m3Fnuz, kFp8E4m3Fnuz, kDense, 64, kCdna3),
    HIPMLA_ROWS_TO_128(kSplitKv,    kBf16,        kFp8E4m3Fn,   kPacked, kAllCdna),
    HIPMLA_ROWS_TO_128(kSplitKv,    kBf16,        kFp8E4m3Fnuz, kPacked, kAllCdna),
    HIPMLA_NVIDIA_ROWS(kPersistent, kBf16),
    HIPMLA_NVIDIA_ROWS(kPersistent, kF16),
    HIPMLA_NVIDIA_ROWS(kSplitKv, kBf16),
    HIPMLA_NVIDIA_ROWS(kSplitKv, kF16),
};
#undef HIPMLA_NVIDIA_ROWS
#undef HIPMLA_ROWS_TO_128
#undef HIPMLA_ROWS_TO_64
#undef HIPMLA_ROWS_TO_32
#undef HIPMLA_ROW_128
#undef HIPMLA_ROW
// clang-format on
constexpr int kNumStage1Configs = sizeof(kStage1Configs) / sizeof(kStage1Configs[0]);

// What one workgroup may use.
constexpr int64_t lds_bytes_of(Arch arch) {
  switch (arch) {
    case Arch::kGfx950:
      return 160 * 1024;
    case Arch::kSm80:
      return 163 * 1024;
    case Arch::kSm90:
      return 227 * 1024;
    default:
      return 64 * 1024;
  }
}

constexpr bool stage1_config_is_sound(const Stage1Config& c) {
  const int lanes_per_token = 8;  // each lane loads 16 bytes of each 128
  const bool rows =
      c.tile_rows == 16 || c.tile_rows == 32 || c.tile_rows == 64 || c.tile_rows == 128;
  const bool split = rows && c.row_waves() * c.split_waves() == c.num_waves &&
                     c.token_groups() * c.dim_groups() == c.split_waves() &&
                     c.token_groups() * c.token_blocks_per_wave() == c.token_blocks();
  const bool dims = split && c.qk_chunks_per_wave() * c.dim_groups() * kChunkDims == kQkDim &&
                    c.v_chunks_per_wave() * c.split_waves() * kVChunkDims == kVDim &&
                    c.qk_chunks_per_wave() % kChunksPerBatch == 0;
  const bool loads = c.tile_kv % (c.num_waves * wave_size_of(c.archs) / lanes_per_token) == 0;
  const bool pipe = c.kv_slots == 1 || !is_fp8(c.kv_type);  // copies cannot convert
  bool lds = true;
  for (Arch arch : kArchs)
    lds = lds && (!(c.archs & arch_bit(arch)) || c.lds_bytes() <= lds_bytes_of(arch));
  const bool types =
      c.kv_layout == KvLayout::kPacked
          ? is_fp8(c.kv_type) && c.q_type == DataType::kBf16  // its rotary part is bf16
          : c.q_type == c.kv_type || (is_fp8(c.kv_type) && !is_fp8(c.q_type));
  return c.schedule != Schedule::kAuto && types && dims && loads && pipe && lds &&
         !((c.archs & kNvidia) && (c.archs & kAllCdna));
}

template <int kRow>
struct CheckedStage1Row {
  static_assert(stage1_config_is_sound(kStage1Configs[kRow]),
                "a row of kStage1Configs cannot work");
  static constexpr bool value = true;
};
template <size_t... kRows>
constexpr bool check_stage1_rows(std::index_sequence<kRows...>) {
  return (CheckedStage1Row<kRows>::value && ...);
}
static_assert(check_stage1_rows(std::make_index_sequence<kNumStage1Configs>{}));

}  // namespace hipmla::internal
