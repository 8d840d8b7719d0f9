// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The one table of stage-1 kernels. A row here is a kernel; what has no row does not exist. Launchers, the
// selector, the plan, the tests and README's support matrix all read this table.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "hipmla/types.h"

namespace hipmla::internal {

constexpr int kQkDim = 576;       // latent + rotary: what a score sums over
constexpr int kVDim = 512;        // latent: what an output row holds
constexpr int kBlockRows = 16;    // rows of one matrix operation
constexpr int kBlockTokens = 16;  // tokens of one matrix operation
constexpr int kChunkDims =
    32;  // dims of K that one 16-byte LDS read per lane feeds (two matrix operations)
constexpr int kChunksPerBatch = 3;  // K chunks that are read ahead of their matrix operations
constexpr int kVChunkDims = 128;    // dims of V that one transposing read serves

constexpr uint32_t arch_bit(Arch arch) { return 1u << static_cast<int>(arch); }
constexpr uint32_t kAllCdna =
    arch_bit(Arch::kGfx90a) | arch_bit(Arch::kGfx942) | arch_bit(Arch::kGfx950);

struct Stage1Config {
  Schedule schedule;  // kPersistent or kSplitKv
  DataType q_type;
  DataType kv_type;
  int tile_rows;  // packed rows (query x head) that one workgroup owns
  int tile_kv;    // tokens that one softmax step covers
  int num_waves;
  uint32_t archs;  // arch_bit of each architecture that the row is built for

  // A wave owns 16 or 32 rows: 32 halve the LDS reads per matrix operation.
  constexpr int rows_per_wave() const { return tile_rows >= 32 ? 32 : 16; }
  constexpr int row_blocks() const { return rows_per_wave() / kBlockRows; }
  // Waves along the rows; the rest of the waves shares the work on the same rows:
  constexpr int row_waves() const { return tile_rows / rows_per_wave(); }
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

  // A wave may use 512 registers if it has its SIMD to itself, else 256. Up to 32 rows need fewer than 256, and then
  // matrix operations accumulate in ordinary registers, which a rescale reaches without copies.
  constexpr int waves_per_simd() const { return tile_rows <= 32 ? 2 : 1; }

  // Chunks of Q that live in LDS, because the output tile and the rest of Q fill the registers.
  constexpr int q_chunks_in_lds() const { return split_waves() == 1 ? kChunksPerBatch : 0; }

  // LDS: the KV tile; the scores that waves on the same rows exchange; chunks of Q.
  // A row of the tile is padded by 16 bytes, so that 8 neighbouring tokens start in different banks.
  constexpr int kv_row_bytes() const {
    return kQkDim * static_cast<int>(element_bytes(kv_type)) + 16;
  }
  constexpr int kv_tile_bytes() const { return tile_kv * kv_row_bytes(); }
  constexpr int score_bytes() const {
    return split_waves() == 1 ? 0 : dim_groups() * tile_rows * tile_kv * 4;
  }
  constexpr int q_bytes() const { return q_chunks_in_lds() * tile_rows * kChunkDims * 2; }
  constexpr int lds_bytes() const { return kv_tile_bytes() + score_bytes() + q_bytes(); }
};

// clang-format off
constexpr Stage1Config kStage1Configs[] = {
    // schedule              q                kv              rows  kv waves  archs
    {Schedule::kPersistent, DataType::kBf16, DataType::kBf16,  16, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kBf16, DataType::kBf16,  32, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kBf16, DataType::kBf16,  64, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kBf16, DataType::kBf16, 128, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kF16,  DataType::kF16,   16, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kF16,  DataType::kF16,   32, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kF16,  DataType::kF16,   64, 32, 4, kAllCdna},
    {Schedule::kPersistent, DataType::kF16,  DataType::kF16,  128, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kBf16, DataType::kBf16,  16, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kBf16, DataType::kBf16,  32, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kBf16, DataType::kBf16,  64, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kBf16, DataType::kBf16, 128, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kF16,  DataType::kF16,   16, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kF16,  DataType::kF16,   32, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kF16,  DataType::kF16,   64, 32, 4, kAllCdna},
    {Schedule::kSplitKv,    DataType::kF16,  DataType::kF16,  128, 32, 4, kAllCdna},
};
// clang-format on
constexpr int kNumStage1Configs = sizeof(kStage1Configs) / sizeof(kStage1Configs[0]);

constexpr int64_t lds_bytes_of(Arch arch) { return arch == Arch::kGfx950 ? 160 * 1024 : 64 * 1024; }

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
  const bool loads = c.tile_kv % (c.num_waves * 64 / lanes_per_token) == 0;
  bool lds = true;
  for (Arch arch : {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950})
    lds = lds && (!(c.archs & arch_bit(arch)) || c.lds_bytes() <= lds_bytes_of(arch));
  return c.schedule != Schedule::kAuto && c.q_type == c.kv_type && dims && loads && lds;
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
