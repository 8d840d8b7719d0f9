// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Stage 1, split-KV: workgroup i does item i of the work list. The algorithm is in attention_tile.h.

#include "kernels/mla/stage1_launch.h"

namespace hipmla::internal {
namespace {

template <int kRow>
HIPMLA_STAGE1_KERNEL(device::Tile<kRow>::kThreads, kStage1Configs[kRow].waves_per_simd())
void stage1_split_kv(MlaParams params) {
  if constexpr (device::Tile<kRow>::kExists)
    device::attend_work_item<kRow>(params, params.items + device::block_id(),
                                   device::dynamic_lds());
}

template <int kRow>
struct Kernels {
  static hipError_t launch(const MlaParams& params, int num_items, hipStream_t stream) {
    return device::launch_kernel(stage1_split_kv<kRow>, dim3(num_items),
                                 dim3(device::Tile<kRow>::kThreads),
                                 kStage1Configs[kRow].lds_bytes(), stream, params);
  }
};

}  // namespace

hipError_t launch_stage1_split_kv(int config_index, const MlaParams& params, int num_workgroups,
                                  hipStream_t stream) {
  return launch_stage1_row<Schedule::kSplitKv, Kernels>(config_index, params, num_workgroups,
                                                        stream);
}

}  // namespace hipmla::internal
