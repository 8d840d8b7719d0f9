// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/select.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "src/device_arch.h"
#include "src/fold.h"
#include "src/text.h"

namespace hipmla::internal {
namespace {

// False for values that are no Arch, too.
bool runs_on(const Stage1Config& config, Arch arch) {
  return std::find(std::begin(kKnownArchs), std::end(kKnownArchs), arch) != std::end(kKnownArchs) &&
         (config.archs & arch_bit(arch)) != 0;
}

// Adds `entry` to a comma-separated list unless it is there.
void add_to_list(std::string* list, const std::string& entry) {
  if ((", " + *list + ", ").find(", " + entry + ", ") != std::string::npos) return;
  if (!list->empty()) *list += ", ";
  *list += entry;
}

std::string supported_archs() {
  std::string list;
  for (const Stage1Config& config : kStage1Configs) {
    for (Arch arch : kKnownArchs) {
      if (runs_on(config, arch)) add_to_list(&list, arch_name(arch));
    }
  }
  return list;
}

std::string type_pair(DataType q_type, DataType kv_type) {
  return concat(data_type_name(q_type), "/", data_type_name(kv_type));
}

std::string supported_type_pairs(Schedule schedule, Arch arch) {
  std::string list;
  for (const Stage1Config& config : kStage1Configs) {
    if (config.schedule == schedule && runs_on(config, arch)) {
      add_to_list(&list, type_pair(config.q_type, config.kv_type));
    }
  }
  return list;
}

Status check_limits(const MlaDecodeShape& shape, const MlaDecodeOptions& options) {
  const struct {
    const char* name;
    int64_t value;
    int64_t max;
  } limits[] = {
      {"num_heads", shape.num_heads, kMaxNumHeads},
      {"page_size", shape.page_size, kMaxPageSize},
      {"max_seqlen_q", shape.max_seqlen_q, kMaxSeqlenQ},
      {"total_q", shape.total_q, INT32_MAX},
      {"num_kv_splits", options.num_kv_splits, kMaxKvSplits},
  };
  for (const auto& limit : limits) {
    if (limit.value > limit.max) {
      return unsupported(limit.name, " is ", limit.value, "; at most ", limit.max, " is supported");
    }
  }
  if (shape.head_dim_qk != kQkDim) {
    return unsupported("head_dim_qk is ", shape.head_dim_qk, "; ", kQkDim, " is supported");
  }
  if (shape.head_dim_v != kVDim) {
    return unsupported("head_dim_v is ", shape.head_dim_v, "; ", kVDim, " is supported");
  }
  if (shape.o_type == DataType::kI32) {
    return unsupported("o_type is i32; bf16, f16 and f32 are supported");
  }
  return Status();
}

}  // namespace

Schedule choose_schedule(Schedule requested) {
  return requested == Schedule::kAuto ? Schedule::kPersistent : requested;
}

Status select_stage1_config(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                            const DeviceInfo& device, int* config_index) {
  if (Status status = check_limits(shape, options); !status.ok()) return status;

  const Schedule schedule = choose_schedule(options.schedule);
  const int32_t rows = rows_of_sequence(shape.max_seqlen_q, shape.num_heads);
  bool arch_found = false;
  int64_t least_lds = 0;  // of the rows that match in all but LDS
  int best = -1;
  for (int i = 0; i < kNumStage1Configs; ++i) {
    const Stage1Config& config = kStage1Configs[i];
    if (!runs_on(config, device.arch) || config.schedule != schedule) continue;
    arch_found = true;
    if (config.q_type != shape.q_type || config.kv_type != shape.kv_type) continue;
    if (least_lds == 0 || config.lds_bytes() < least_lds) least_lds = config.lds_bytes();
    if (config.lds_bytes() > device.lds_bytes) continue;
    if (best < 0) {
      best = i;
      continue;
    }
    const int best_tile = kStage1Configs[best].tile_rows;
    const bool better = best_tile >= rows ? config.tile_rows >= rows && config.tile_rows < best_tile
                                          : config.tile_rows > best_tile;
    if (better) best = i;
  }
  if (best >= 0) {
    *config_index = best;
    return Status();
  }
  if (!arch_found) {
    return unsupported("no kernel is built for architecture ", arch_name(device.arch),
                       "; there are kernels for ", supported_archs());
  }
  if (least_lds == 0) {
    return unsupported("q_type ", data_type_name(shape.q_type), " with kv_type ",
                       data_type_name(shape.kv_type), ": no kernel; use ",
                       supported_type_pairs(schedule, device.arch));
  }
  return unsupported("the device has ", device.lds_bytes, " bytes of LDS; the smallest kernel for ",
                     type_pair(shape.q_type, shape.kv_type), " needs ", least_lds);
}

}  // namespace hipmla::internal
