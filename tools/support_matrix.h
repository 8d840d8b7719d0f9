// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// README's support matrix, made from the one table of kernels. tools/support_matrix prints it; a test compares.

#include <string>
#include <vector>

#include "hipmla/types.h"
#include "kernels/mla/stage1_configs.h"

namespace hipmla::tools {

inline const char* schedule_name(Schedule schedule) {
  return schedule == Schedule::kPersistent ? "persistent"
         : schedule == Schedule::kSplitKv  ? "split-KV"
                                           : "auto";
}

// Markdown, one line for each pair of types, ending in a newline.
inline std::string support_matrix() {
  using internal::kStage1Configs;
  using internal::Stage1Config;
  const struct {
    Arch arch;
    const char* name;
  } kArchs[] = {{Arch::kGfx90a, "gfx90a"}, {Arch::kGfx942, "gfx942"}, {Arch::kGfx950, "gfx950"}};

  std::string text = "| q | KV cache | output |";
  std::string rule = "| --- | --- | --- |";
  for (const auto& arch : kArchs) {
    text += std::string(" ") + arch.name + " |";
    rule += " --- |";
  }
  text += " row tiles | schedules |\n" + rule + " --- | --- |\n";

  const auto append = [](std::string& list, const std::string& item) {
    const std::string padded = ", " + list + ",";
    if (padded.find(", " + item + ",") != std::string::npos) return;
    list += (list.empty() ? "" : ", ") + item;
  };
  std::vector<std::pair<DataType, DataType>> done;
  for (const Stage1Config& first : kStage1Configs) {
    bool seen = false;
    for (const auto& pair : done)
      seen = seen || pair == std::make_pair(first.q_type, first.kv_type);
    if (seen) continue;
    done.emplace_back(first.q_type, first.kv_type);
    std::string tiles, schedules;
    uint32_t archs = 0;
    for (const Stage1Config& config : kStage1Configs) {
      if (config.q_type != first.q_type || config.kv_type != first.kv_type) continue;
      append(tiles, std::to_string(config.tile_rows));
      append(schedules, schedule_name(config.schedule));
      archs |= config.archs;
    }
    text += std::string("| ") + data_type_name(first.q_type) + " | " +
            data_type_name(first.kv_type) + " | bf16, f16, f32 |";
    for (const auto& arch : kArchs)
      text += archs & internal::arch_bit(arch.arch) ? " yes |" : " no |";
    text += " " + tiles + " | " + schedules + " |\n";
  }
  return text;
}

}  // namespace hipmla::tools
