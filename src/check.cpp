// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/check.h"

#include <array>
#include <cstdint>
#include <vector>

#include "src/fold.h"
#include "src/select.h"
#include "src/text.h"
#include "src/work_list.h"

namespace hipmla::internal {
namespace {

constexpr const char* kv_shard_name(KvShard kv_shard) {
  switch (kv_shard) {
    case KvShard::kWhole:
      return "kWhole";
    case KvShard::kRoundRobin:
      return "kRoundRobin";
    case KvShard::kContiguous:
      return "kContiguous";
  }
  return "unknown";
}

Status check_ranges(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                    const DeviceInfo& device) {
  const struct {
    const char* name;
    int64_t value;
    int64_t min;
  } fields[] = {
      {"num_heads", shape.num_heads, 1},
      {"head_dim_qk", shape.head_dim_qk, 1},
      {"head_dim_v", shape.head_dim_v, 1},
      {"page_size", shape.page_size, 1},
      {"batch_size", shape.batch_size, 0},
      {"max_seqlen_q", shape.max_seqlen_q, 1},
      {"total_q", shape.total_q, 0},
      {"topk", shape.topk, 0},
      {"num_kv_splits", options.num_kv_splits, 0},
      {"sliding_window", options.sliding_window, 0},
      {"cp_world_size", options.cp_world_size, 1},
      {"cp_rank", options.cp_rank, 0},
      {"device.num_compute_units", device.num_compute_units, 1},
      {"device.lds_bytes", device.lds_bytes, 0},
  };
  for (const auto& field : fields) {
    if (field.value < field.min) {
      return invalid_argument(field.name, " is ", field.value, "; must be at least ", field.min);
    }
  }
  if (device.num_compute_units > kMaxComputeUnits) {
    return invalid_argument("device.num_compute_units is ", device.num_compute_units,
                            "; must be at most ", kMaxComputeUnits);
  }
  const int64_t most_q = int64_t{shape.batch_size} * shape.max_seqlen_q;
  if (shape.total_q > most_q) {
    return invalid_argument("total_q is ", shape.total_q, "; batch_size ", shape.batch_size,
                            " with max_seqlen_q ", shape.max_seqlen_q, " has at most ", most_q);
  }
  return Status();
}

Status check_enums(const MlaDecodeShape& shape, const MlaDecodeOptions& options) {
  const struct {
    const char* name;
    DataType type;
  } types[] = {{"q_type", shape.q_type}, {"kv_type", shape.kv_type}, {"o_type", shape.o_type}};
  for (const auto& type : types) {
    if (element_bytes(type.type) == 0) {
      return invalid_argument(type.name, " is ", static_cast<int32_t>(type.type),
                              ", which is no DataType");
    }
  }
  if (shape.kv_layout < KvLayout::kDense || shape.kv_layout > KvLayout::kPacked) {
    return invalid_argument("kv_layout is ", static_cast<int32_t>(shape.kv_layout),
                            ", which is no KvLayout");
  }
  if (options.schedule < Schedule::kAuto || options.schedule > Schedule::kSplitKv) {
    return invalid_argument("schedule is ", static_cast<int32_t>(options.schedule),
                            ", which is no Schedule");
  }
  if (options.kv_shard < KvShard::kWhole || options.kv_shard > KvShard::kContiguous) {
    return invalid_argument("kv_shard is ", static_cast<int32_t>(options.kv_shard),
                            ", which is no KvShard");
  }
  return Status();
}

// Options that contradict each other.
Status check_options(const MlaDecodeShape& shape, const MlaDecodeOptions& options) {
  if (options.num_kv_splits != 0 && options.schedule != Schedule::kSplitKv) {
    return invalid_argument("num_kv_splits is ", options.num_kv_splits,
                            "; must be 0 unless schedule is kSplitKv");
  }
  if (options.cp_world_size != 1 && options.kv_shard != KvShard::kRoundRobin) {
    return invalid_argument("cp_world_size is ", options.cp_world_size,
                            "; must be 1 unless kv_shard is kRoundRobin");
  }
  if (options.cp_rank >= options.cp_world_size) {
    return invalid_argument("cp_rank is ", options.cp_rank, "; must be less than cp_world_size ",
                            options.cp_world_size);
  }
  if (shape.topk > 0 && options.kv_shard != KvShard::kWhole) {
    return invalid_argument("kv_shard is ", kv_shard_name(options.kv_shard), " with topk ",
                            shape.topk, "; must be kWhole");
  }
  if (shape.topk > 0 && options.sliding_window != 0) {
    return invalid_argument("sliding_window is ", options.sliding_window, " with topk ", shape.topk,
                            "; must be 0");
  }
  return Status();
}

Status check_queries(const MlaDecodeShape& shape, const MlaDecodeLengths& lengths) {
  const int32_t batch_size = shape.batch_size;
  const int32_t* qo = lengths.qo_indptr;
  if (qo == nullptr) return invalid_argument("lengths.qo_indptr is null");
  if (qo[0] != 0) return invalid_argument("lengths.qo_indptr[0] is ", qo[0], "; must be 0");
  for (int32_t b = 0; b < batch_size; ++b) {
    if (qo[b + 1] < qo[b]) {
      return invalid_argument("sequence ", b, ": lengths.qo_indptr falls from ", qo[b], " to ",
                              qo[b + 1]);
    }
    const int32_t queries = qo[b + 1] - qo[b];
    if (queries > shape.max_seqlen_q) {
      return invalid_argument("sequence ", b, " has ", queries, " queries; max_seqlen_q is ",
                              shape.max_seqlen_q);
    }
  }
  if (qo[batch_size] != shape.total_q) {
    return invalid_argument("lengths.qo_indptr[", batch_size, "] is ", qo[batch_size],
                            "; total_q is ", shape.total_q);
  }
  return Status();
}

// Sets `*kv_len` to the tokens of sequence `b` that the pages hold.
Status check_pages(const MlaDecodeShape& shape, const MlaDecodeLengths& lengths, int32_t b,
                   int64_t* kv_len) {
  const int32_t* kv = lengths.kv_indptr;
  if (kv[b + 1] < kv[b]) {
    return invalid_argument("sequence ", b, ": lengths.kv_indptr falls from ", kv[b], " to ",
                            kv[b + 1]);
  }
  const int32_t pages = kv[b + 1] - kv[b];
  *kv_len = 0;
  if (pages == 0) return Status();
  if (lengths.kv_last_page_lens == nullptr) {
    return invalid_argument("lengths.kv_last_page_lens is null; sequence ", b, " has ", pages,
                            " pages");
  }
  const int32_t last_page_len = lengths.kv_last_page_lens[b];
  if (last_page_len < 1 || last_page_len > shape.page_size) {
    return invalid_argument("sequence ", b, ": lengths.kv_last_page_lens is ", last_page_len,
                            "; must be 1..", shape.page_size);
  }
  *kv_len = kv_length(pages, shape.page_size, last_page_len);
  if (*kv_len > kMaxKvLen) {
    return invalid_argument("sequence ", b, " has ", *kv_len, " tokens; at most ", kMaxKvLen,
                            " are supported");
  }
  return Status();
}

// The `kv_len` local tokens of sequence `b` against those of all shards.
Status check_shard(const MlaDecodeOptions& options, const MlaDecodeLengths& lengths, int32_t b,
                   int64_t kv_len) {
  const int32_t global_len = lengths.kv_global_lens[b];
  if (global_len < 0 || global_len > kMaxKvLen) {
    return invalid_argument("sequence ", b, ": lengths.kv_global_lens is ", global_len,
                            "; must be 0..", kMaxKvLen);
  }
  if (options.kv_shard == KvShard::kRoundRobin) {
    const int32_t expected = round_robin_len(global_len, options.cp_rank, options.cp_world_size);
    if (kv_len == expected) return Status();
    return invalid_argument("sequence ", b, " has ", kv_len, " tokens; rank ", options.cp_rank,
                            " of ", options.cp_world_size, " has ", expected,
                            " of lengths.kv_global_lens ", global_len);
  }
  const int32_t shard_begin = lengths.kv_shard_begins[b];
  if (shard_begin < 0) {
    return invalid_argument("sequence ", b, ": lengths.kv_shard_begins is ", shard_begin,
                            "; must be at least 0");
  }
  if (shard_begin + kv_len > global_len) {
    return invalid_argument("sequence ", b, " has ", kv_len,
                            " tokens from lengths.kv_shard_begins ", shard_begin,
                            " on; lengths.kv_global_lens is ", global_len);
  }
  return Status();
}

// Which of the arrays that describe shards `kv_shard` wants: each is given then, and only then.
struct ShardArray {
  const char* name;
  const int32_t* data;
  bool is_wanted;
};
std::array<ShardArray, 2> shard_arrays(KvShard kv_shard, const MlaDecodeLengths& lengths) {
  return {{{"kv_global_lens", lengths.kv_global_lens, kv_shard != KvShard::kWhole},
           {"kv_shard_begins", lengths.kv_shard_begins, kv_shard == KvShard::kContiguous}}};
}

}  // namespace

Status check_request(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const DeviceInfo& device, int* config_index) {
  if (Status status = check_ranges(shape, options, device); !status.ok()) return status;
  if (Status status = check_enums(shape, options); !status.ok()) return status;
  if (Status status = check_options(shape, options); !status.ok()) return status;
  int index = -1;
  if (Status status = select_stage1_config(shape, options, device, &index); !status.ok()) {
    return status;
  }
  const Stage1Config& config = kStage1Configs[index];
  const WorkSize most = bound_work(shape, options, config, device.num_compute_units);
  if (most.num_items > kMaxWorkItems) {
    return unsupported("batch_size ", shape.batch_size, ", total_q ", shape.total_q, ", num_heads ",
                       shape.num_heads, " and num_kv_splits ", options.num_kv_splits,
                       " make up to ", most.num_items, " work items; at most ", kMaxWorkItems,
                       " are supported");
  }
  const int64_t merged_rows = most.num_reduce_items * config.tile_rows;
  if (merged_rows > kMaxMergedRows) {
    return unsupported("batch_size ", shape.batch_size, ", total_q ", shape.total_q,
                       " and num_heads ", shape.num_heads, " make up to ", merged_rows,
                       " rows to merge; at most ", kMaxMergedRows, " are supported");
  }
  *config_index = index;
  return Status();
}

Status check_lengths(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const MlaDecodeLengths& lengths) {
  if (lengths.batch_size != shape.batch_size) {
    return invalid_argument("lengths.batch_size is ", lengths.batch_size, "; the shape has ",
                            shape.batch_size);
  }
  if (shape.batch_size == 0) return Status();  // nothing is read
  if (Status status = check_queries(shape, lengths); !status.ok()) return status;
  if (shape.topk > 0) return Status();  // the rest is not read

  if (lengths.kv_indptr == nullptr) return invalid_argument("lengths.kv_indptr is null");
  if (lengths.kv_indptr[0] != 0) {
    return invalid_argument("lengths.kv_indptr[0] is ", lengths.kv_indptr[0], "; must be 0");
  }
  for (const ShardArray& array : shard_arrays(options.kv_shard, lengths)) {
    if (array.is_wanted != (array.data != nullptr)) {
      return invalid_argument("lengths.", array.name, array.is_wanted ? " is null" : " is given",
                              "; kv_shard is ", kv_shard_name(options.kv_shard));
    }
  }
  for (int32_t b = 0; b < shape.batch_size; ++b) {
    int64_t kv_len = 0;
    if (Status status = check_pages(shape, lengths, b, &kv_len); !status.ok()) return status;
    if (options.kv_shard == KvShard::kWhole) continue;
    if (Status status = check_shard(options, lengths, b, kv_len); !status.ok()) return status;
  }
  return Status();
}

Status check_same_lengths(const MlaDecodePlan::Impl& plan, const MlaDecodeLengths& lengths) {
  const int32_t batch_size = plan.shape.batch_size;
  if (lengths.batch_size != batch_size) {
    return Status(StatusCode::kStalePlan, concat("lengths.batch_size is ", lengths.batch_size,
                                                 "; the plan was built for ", batch_size));
  }
  if (batch_size == 0) return Status();
  const auto compare = [](const char* name, const int32_t* values,
                          const std::vector<int32_t>& planned) {
    if (values == nullptr) return invalid_argument("lengths.", name, " is null");
    for (size_t i = 0; i < planned.size(); ++i) {
      if (values[i] == planned[i]) continue;
      return Status(StatusCode::kStalePlan, concat("lengths.", name, "[", i, "] is ", values[i],
                                                   "; the plan was built for ", planned[i]));
    }
    return Status();
  };
  if (Status status = compare("qo_indptr", lengths.qo_indptr, plan.qo_indptr); !status.ok()) {
    return status;
  }
  if (plan.shape.topk > 0) return Status();  // the rest is not read
  if (Status status = compare("kv_indptr", lengths.kv_indptr, plan.kv_indptr); !status.ok()) {
    return status;
  }
  if (lengths.kv_last_page_lens == nullptr && plan.num_pages() > 0) {
    return invalid_argument("lengths.kv_last_page_lens is null");
  }
  for (int32_t b = 0; b < batch_size; ++b) {
    const auto i = static_cast<size_t>(b);
    if (plan.kv_indptr[i + 1] == plan.kv_indptr[i]) continue;
    if (lengths.kv_last_page_lens[b] == plan.kv_last_page_lens[i]) continue;
    return Status(StatusCode::kStalePlan,
                  concat("lengths.kv_last_page_lens[", b, "] is ", lengths.kv_last_page_lens[b],
                         "; the plan was built for ", plan.kv_last_page_lens[i]));
  }
  const std::vector<int32_t>* planned[] = {&plan.kv_global_lens, &plan.kv_shard_begins};
  size_t i = 0;
  for (const ShardArray& array : shard_arrays(plan.options.kv_shard, lengths)) {
    const std::vector<int32_t>& planned_values = *planned[i++];
    if (array.is_wanted) {
      Status status = compare(array.name, array.data, planned_values);
      if (!status.ok()) return status;
    } else if (array.data != nullptr) {
      return Status(StatusCode::kStalePlan,
                    concat("lengths.", array.name, " is given; the plan was built with kv_shard ",
                           kv_shard_name(plan.options.kv_shard)));
    }
  }
  return Status();
}

}  // namespace hipmla::internal
