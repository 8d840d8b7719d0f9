// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Stage 1, persistent: workgroup s walks items [slot_item_begin[s], slot_item_begin[s + 1]) of the work list, its even
// share of all KV tiles. Grid: the list's slots, at most one for each compute unit. The algorithm is in attention_tile.h.

#include "kernels/mla/stage1_launch.h"

namespace hipmla::internal {
namespace {

template <int kRow>
HIPMLA_STAGE1_KERNEL(device::Tile<kRow>::kThreads, kStage1Configs[kRow].waves_per_simd())
void stage1_persistent(MlaParams params) {
  char* lds = device::dynamic_lds();
  const int32_t* slot = params.slot_item_begin + device::block_id();
  const int end = device::load_uniform(slot + 1);
  for (int item = device::load_uniform(slot); item < end; ++item) {
    if constexpr (device::Tile<kRow>::kExists) {
      const MlaParams& item_params = device::reread_params(params);
      device::attend_work_item<kRow>(item_params, item_params.items + item, lds);
    }
  }
}

template <int kRow>
struct Kernels {
  static hipError_t launch(const MlaParams& params, int num_slots, hipStream_t stream) {
    return device::launch_kernel(stage1_persistent<kRow>, dim3(num_slots),
                                 dim3(device::Tile<kRow>::kThreads),
                                 kStage1Configs[kRow].lds_bytes(), stream, params);
  }
};

}  // namespace

hipError_t launch_stage1_persistent(int config_index, const MlaParams& params, int num_workgroups,
                                    hipStream_t stream) {
  return launch_stage1_row<Schedule::kPersistent, Kernels>(config_index, params, num_workgroups,
                                                           stream);
}

}  // namespace hipmla::internal
