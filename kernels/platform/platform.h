// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The vocabulary in which kernels are written. Each platform header defines the same names; kernels use only these.
//
//   threads   platform_has, kCompiledArch, kWaveSize, thread_id, lane_id, wave_id, block_id, block_barrier, any_lane,
//             any_of_8_lanes, shuffle_xor, wave_max, wave_sum
//   memory    Words4, load_global8, load_global16, store_global16, store_global_words, store_global, load_lds16, store_lds16,
//             load_uniform, reread_params, dynamic_lds, copy_to_lds16, commit_copies, wait_copies
//   numbers   max_of, exp2_fast, log2_fast, reciprocal_fast, permute_bytes, bits_of, float_of, pack_nearest, pack_exact,
//             pack_probabilities, fp8_to_f32
//   matrices  Fragment, AccTile, mma_chain, mma_spread, RowWords, load_row_words, make_row_fragments, store_row_fragments,
//             reload_row_fragments, load_k_fragments, load_v_fragments
//   lanes     kLaneRows, acc_slot, acc_row, acc_col, leads_row, row_max, row_sum, output_run, output_run_slot,
//             output_run_dim
//   compiler  kHasAccumulatorFile, keep_in_accumulator, schedule_fence, not_before_here
//   kernels   HIPMLA_DEVICE, HIPMLA_STAGE1_KERNEL, HIPMLA_KERNEL, launch_kernel (on the host)
//
// To add a target: write kernels/platform/<target>.h with these names, pass tests/vocabulary_test, then add rows
// for its architectures to kernels/mla/stage1_configs.h.

#include <hip/hip_runtime.h>

#if defined(HIPMLA_PLATFORM_AMD)
#include "kernels/platform/amd.h"
#elif defined(HIPMLA_PLATFORM_NVIDIA)
#include "kernels/platform/nvidia.h"
#elif defined(HIPMLA_PLATFORM_CPU)
#include "kernels/platform/cpu.h"
#else
#error "no platform: build with -DHIPMLA_PLATFORM=amd, nvidia or cpu"
#endif
