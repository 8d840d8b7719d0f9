// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Launcher arrays made from kStage1Configs. Included by the stage1_*.hip files.

#include <utility>

#include "kernels/mla/attention_tile.h"
#include "kernels/mla/launch.h"

namespace hipmla::internal {

using Stage1Launcher = hipError_t (*)(const MlaParams&, int num_workgroups, hipStream_t);

// Whether this platform builds a row.
constexpr bool platform_has_row(const Stage1Config& config) {
  for (Arch arch : kArchs)
    if ((config.archs & arch_bit(arch)) != 0 && device::platform_has(arch)) return true;
  return false;
}

// Kernels<kRow>::launch for each row of `kSchedule` that the platform builds, null for the others.
template <Schedule kSchedule, template <int> class Kernels, size_t... kRows>
constexpr auto make_stage1_launchers(std::index_sequence<kRows...>) {
  struct Table {
    Stage1Launcher rows[kNumStage1Configs];
  };
  constexpr auto pick = [](auto row) -> Stage1Launcher {
    constexpr int kRow = decltype(row)::value;
    if constexpr (kStage1Configs[kRow].schedule == kSchedule &&
                  platform_has_row(kStage1Configs[kRow]))
      return &Kernels<kRow>::launch;
    return nullptr;
  };
  return Table{{pick(std::integral_constant<int, static_cast<int>(kRows)>{})...}};
}

// Queues row `config_index`, if it is a row of `kSchedule`.
template <Schedule kSchedule, template <int> class Kernels>
hipError_t launch_stage1_row(int config_index, const MlaParams& params, int num_workgroups,
                             hipStream_t stream) {
  static constexpr auto kLaunchers =
      make_stage1_launchers<kSchedule, Kernels>(std::make_index_sequence<kNumStage1Configs>{});
  if (config_index < 0 || config_index >= kNumStage1Configs || num_workgroups <= 0 ||
      !kLaunchers.rows[config_index])
    return hipErrorInvalidValue;
  return kLaunchers.rows[config_index](params, num_workgroups, stream);
}

}  // namespace hipmla::internal
