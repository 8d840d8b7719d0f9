// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// README's support matrix, made from the one table of kernels. tools/support_matrix prints it; a
// test compares.

#include <algorithm>
#include <string>

#include "hipmla/device.h"
#include "hipmla/types.h"
#include "kernels/mla/stage1_configs.h"

namespace hipmla::tools {

// Markdown, one line for each q type, cache type and layout; a cell lists the row tiles that both schedules have
// kernels for. Ends in a newline.
inline std::string support_matrix() {
  using internal::kStage1Configs;
  using internal::Stage1Config;
  const auto same_line = [](const Stage1Config& a, const Stage1Config& b) {
    return a.q_type == b.q_type && a.kv_type == b.kv_type && a.kv_layout == b.kv_layout;
  };
  const auto has = [&](const Stage1Config& line, Schedule schedule, int tile_rows, Arch arch) {
    for (const Stage1Config& config : kStage1Configs)
      if (same_line(config, line) && config.schedule == schedule && config.tile_rows == tile_rows &&
          (config.archs & internal::arch_bit(arch)) != 0)
        return true;
    return false;
  };

  std::string text = "| q | KV cache |";
  std::string rule = "| --- | --- |";
  for (Arch arch : internal::kArchs) {
    text += std::string(" ") + arch_name(arch) + " |";
    rule += " --- |";
  }
  text += "\n" + rule + "\n";

  for (const Stage1Config& line : kStage1Configs) {
    const Stage1Config* first = kStage1Configs;
    while (!same_line(*first, line)) ++first;
    if (first != &line) continue;
    text += std::string("| ") + data_type_name(line.q_type) + " | " + data_type_name(line.kv_type) +
            (line.kv_layout == KvLayout::kPacked ? ", packed 656" : "") + " |";
    for (Arch arch : internal::kArchs) {
      std::string tiles;
      for (int tile_rows : {16, 32, 64, 128})
        if (has(line, Schedule::kPersistent, tile_rows, arch) &&
            has(line, Schedule::kSplitKv, tile_rows, arch))
          tiles += (tiles.empty() ? "" : ", ") + std::to_string(tile_rows);
      text += " " + (tiles.empty() ? "no" : tiles) + " |";
    }
    text += "\n";
  }
  return text;
}

}  // namespace hipmla::tools
