// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/check.h"

#include <cstdint>

#include "src/fold.h"
#include "src/select.h"
#include "src/text.h"
#include "src/work_list.h"

namespace hipmla::internal {
namespace {

Status check_fields(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
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
      {"num_kv_splits", options.num_kv_splits, 0},
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
  if (options.schedule < Schedule::kAuto || options.schedule > Schedule::kSplitKv) {
    return invalid_argument("schedule is ", static_cast<int32_t>(options.schedule),
                            ", which is no Schedule");
  }
  if (options.num_kv_splits != 0 && options.schedule != Schedule::kSplitKv) {
    return invalid_argument("num_kv_splits is ", options.num_kv_splits,
                            "; must be 0 unless schedule is kSplitKv");
  }
  const int64_t most_q = int64_t{shape.batch_size} * shape.max_seqlen_q;
  if (shape.total_q > most_q) {
    return invalid_argument("total_q is ", shape.total_q, "; batch_size ", shape.batch_size,
                            " with max_seqlen_q ", shape.max_seqlen_q, " has at most ", most_q);
  }
  return Status();
}

}  // namespace

Status check_request(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                     const DeviceInfo& device, int* config_index) {
  if (Status status = check_fields(shape, options, device); !status.ok()) return status;
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

Status check_lengths(const MlaDecodeShape& shape, const MlaDecodeLengths& lengths) {
  if (lengths.batch_size != shape.batch_size) {
    return invalid_argument("lengths.batch_size is ", lengths.batch_size, "; the shape has ",
                            shape.batch_size);
  }
  const int32_t batch_size = shape.batch_size;
  const int32_t* qo = lengths.qo_indptr;
  const int32_t* kv = lengths.kv_indptr;
  if (batch_size == 0) return Status();  // nothing is read
  if (qo == nullptr) return invalid_argument("lengths.qo_indptr is null");
  if (kv == nullptr) return invalid_argument("lengths.kv_indptr is null");
  if (qo[0] != 0) return invalid_argument("lengths.qo_indptr[0] is ", qo[0], "; must be 0");
  if (kv[0] != 0) return invalid_argument("lengths.kv_indptr[0] is ", kv[0], "; must be 0");
  for (int32_t b = 0; b < batch_size; ++b) {
    if (qo[b + 1] < qo[b]) {
      return invalid_argument("sequence ", b, ": lengths.qo_indptr falls from ", qo[b], " to ",
                              qo[b + 1]);
    }
    if (kv[b + 1] < kv[b]) {
      return invalid_argument("sequence ", b, ": lengths.kv_indptr falls from ", kv[b], " to ",
                              kv[b + 1]);
    }
    const int32_t queries = qo[b + 1] - qo[b];
    if (queries > shape.max_seqlen_q) {
      return invalid_argument("sequence ", b, " has ", queries, " queries; max_seqlen_q is ",
                              shape.max_seqlen_q);
    }
    const int32_t pages = kv[b + 1] - kv[b];
    if (pages == 0) continue;
    if (lengths.kv_last_page_lens == nullptr) {
      return invalid_argument("lengths.kv_last_page_lens is null; sequence ", b, " has ", pages,
                              " pages");
    }
    const int32_t last_page_len = lengths.kv_last_page_lens[b];
    if (last_page_len < 1 || last_page_len > shape.page_size) {
      return invalid_argument("sequence ", b, ": lengths.kv_last_page_lens is ", last_page_len,
                              "; must be 1..", shape.page_size);
    }
    const int64_t kv_len = kv_length(pages, shape.page_size, last_page_len);
    if (kv_len > kMaxKvLen) {
      return invalid_argument("sequence ", b, " has ", kv_len, " tokens; at most ", kMaxKvLen,
                              " are supported");
    }
  }
  if (qo[batch_size] != shape.total_q) {
    return invalid_argument("lengths.qo_indptr[", batch_size, "] is ", qo[batch_size],
                            "; total_q is ", shape.total_q);
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
  const auto differs = [](const char* name, int32_t index, int32_t value, int32_t planned_value) {
    return Status(StatusCode::kStalePlan, concat("lengths.", name, "[", index, "] is ", value,
                                                 "; the plan was built for ", planned_value));
  };
  if (lengths.qo_indptr == nullptr) return invalid_argument("lengths.qo_indptr is null");
  if (lengths.kv_indptr == nullptr) return invalid_argument("lengths.kv_indptr is null");
  if (lengths.kv_last_page_lens == nullptr && plan.num_pages() > 0) {
    return invalid_argument("lengths.kv_last_page_lens is null");
  }
  for (int32_t b = 0; b <= batch_size; ++b) {
    const auto i = static_cast<size_t>(b);
    if (lengths.qo_indptr[b] != plan.qo_indptr[i]) {
      return differs("qo_indptr", b, lengths.qo_indptr[b], plan.qo_indptr[i]);
    }
    if (lengths.kv_indptr[b] != plan.kv_indptr[i]) {
      return differs("kv_indptr", b, lengths.kv_indptr[b], plan.kv_indptr[i]);
    }
  }
  for (int32_t b = 0; b < batch_size; ++b) {
    const auto i = static_cast<size_t>(b);
    if (plan.kv_indptr[i + 1] == plan.kv_indptr[i]) continue;
    if (lengths.kv_last_page_lens[b] != plan.kv_last_page_lens[i]) {
      return differs("kv_last_page_lens", b, lengths.kv_last_page_lens[b],
                     plan.kv_last_page_lens[i]);
    }
  }
  return Status();
}

}  // namespace hipmla::internal
