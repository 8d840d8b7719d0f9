// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/select.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "src/device_arch.h"
#include "src/text.h"

namespace hipmla::internal {
namespace {

// False for values that are no Arch, too.
bool runs_on(const Stage1Config& config, Arch arch) {
  return std::find(std::begin(kKnownArchs), std::end(kKnownArchs), arch) != std::end(kKnownArchs) &&
         (config.archs & arch_bit(arch)) != 0;
}

// Adds `entry` to a list unless it is there.
void add_to_list(std::string* list, const std::string& separator, const std::string& entry) {
  if ((separator + *list + separator).find(separator + entry + separator) != std::string::npos) {
    return;
  }
  if (!list->empty()) *list += separator;
  *list += entry;
}

std::string supported_archs() {
  std::string list;
  for (const Stage1Config& config : kStage1Configs) {
    for (Arch arch : kKnownArchs) {
      if (runs_on(config, arch)) add_to_list(&list, ", ", arch_name(arch));
    }
  }
  return list;
}

std::string combination(DataType q_type, DataType kv_type, KvLayout kv_layout) {
  return concat("q_type ", data_type_name(q_type), " with kv_type ", data_type_name(kv_type), ", ",
                kv_layout_name(kv_layout));
}

// How near a kernel is to a shape that it does not serve. The cache counts first: a caller changes
// the type of q more easily.
int nearness(const Stage1Config& config, const MlaDecodeShape& shape) {
  return (config.kv_type == shape.kv_type ? 4 : 0) + (config.kv_layout == shape.kv_layout ? 2 : 0) +
         (config.q_type == shape.q_type ? 1 : 0);
}

std::string nearest_combinations(const MlaDecodeShape& shape, Schedule schedule, Arch arch) {
  int nearest = 0;
  std::string list;
  for (const Stage1Config& config : kStage1Configs) {
    if (config.schedule != schedule || !runs_on(config, arch)) continue;
    const int near = nearness(config, shape);
    if (near > nearest) list.clear();
    nearest = std::max(nearest, near);
    if (near == nearest) {
      add_to_list(&list, " or ", combination(config.q_type, config.kv_type, config.kv_layout));
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
      {"topk", shape.topk, kMaxTopk},
      {"num_kv_splits", options.num_kv_splits, kMaxKvSplits},
      {"cp_world_size", options.cp_world_size, kMaxCpWorldSize},
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
  if (shape.o_type == DataType::kI32 || is_fp8(shape.o_type)) {
    return unsupported("o_type is ", data_type_name(shape.o_type),
                       "; bf16, f16 and f32 are supported");
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
  const int32_t rows = rows_that_share_kv(shape);
  bool arch_found = false;
  int64_t least_lds = 0;  // of the rows that match in all but LDS
  int best = -1;
  for (int i = 0; i < kNumStage1Configs; ++i) {
    const Stage1Config& config = kStage1Configs[i];
    if (!runs_on(config, device.arch) || config.schedule != schedule) continue;
    arch_found = true;
    if (config.q_type != shape.q_type || config.kv_type != shape.kv_type ||
        config.kv_layout != shape.kv_layout) {
      continue;
    }
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
  const std::string wanted = combination(shape.q_type, shape.kv_type, shape.kv_layout);
  if (least_lds == 0) {
    return unsupported(wanted, ": no kernel; use ",
                       nearest_combinations(shape, schedule, device.arch));
  }
  return unsupported("the device has ", device.lds_bytes, " bytes of LDS; the smallest kernel for ",
                     wanted, " needs ", least_lds);
}

}  // namespace hipmla::internal
