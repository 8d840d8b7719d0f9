// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "hipmla/mla_decode.h"

#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/mla/launch.h"
#include "kernels/mla/params.h"
#include "kernels/mla/stage1_configs.h"
#include "src/check.h"
#include "src/fingerprint.h"
#include "src/guard.h"
#include "src/params.h"
#include "src/plan.h"
#include "src/text.h"
#include "src/work_list.h"
#include "src/workspace.h"

namespace hipmla {
namespace {

using internal::check_lengths;
using internal::check_request;
using internal::check_same_lengths;
using internal::check_tensors;
using internal::check_workspace;
using internal::guard;
using internal::invalid_argument;
using internal::PlanOrigin;
using Impl = MlaDecodePlan::Impl;

Status no_plan() {
  return Status(StatusCode::kStalePlan, "the plan is empty; build it with mla_decode_plan");
}

// ---- building a plan ----

// What the plan depends on. Expects `plan->shape` and `plan->options`.
void copy_lengths(const MlaDecodeLengths& lengths, Impl* plan) {
  const auto batch_size = static_cast<size_t>(lengths.batch_size);
  if (batch_size == 0) return;
  plan->qo_indptr.assign(lengths.qo_indptr, lengths.qo_indptr + batch_size + 1);
  if (plan->shape.topk > 0) return;
  const KvShard kv_shard = plan->options.kv_shard;
  if (kv_shard != KvShard::kWhole) {
    plan->kv_global_lens.assign(lengths.kv_global_lens, lengths.kv_global_lens + batch_size);
  }
  if (kv_shard == KvShard::kContiguous) {
    plan->kv_shard_begins.assign(lengths.kv_shard_begins, lengths.kv_shard_begins + batch_size);
  }
  plan->kv_indptr.assign(lengths.kv_indptr, lengths.kv_indptr + batch_size + 1);
  plan->kv_last_page_lens.resize(batch_size);
  for (size_t b = 0; b < batch_size; ++b) {
    if (plan->kv_indptr[b + 1] > plan->kv_indptr[b]) {
      plan->kv_last_page_lens[b] = lengths.kv_last_page_lens[b];
    }
  }
}

template <typename T>
void store_list(const std::vector<T>& from, size_t offset, std::vector<std::byte>* to) {
  if (!from.empty()) std::memcpy(to->data() + offset, from.data(), from.size() * sizeof(T));
}

void copy_work_list(const internal::WorkList& work, Impl* plan) {
  plan->layout = internal::layout_workspace(internal::size_of_work(work));
  plan->list.resize(plan->layout.list_bytes);
  store_list(work.items, plan->layout.items, &plan->list);
  store_list(work.slot_item_begin, plan->layout.slot_item_begin, &plan->list);
  store_list(work.reduce_items, plan->layout.reduce_items, &plan->list);
  plan->num_items = static_cast<int>(work.items.size());
  plan->num_workgroups = work.num_workgroups();
  plan->num_reduce_items = static_cast<int>(work.reduce_items.size());
  plan->num_partials = work.num_partials;
  plan->partial_stride = work.partial_stride;
}

// Expects a request and lengths that were checked.
std::shared_ptr<const Impl> make_plan(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                                      const DeviceInfo& device, const MlaDecodeLengths& lengths,
                                      int config_index) {
  auto plan = std::make_shared<Impl>();
  plan->shape = shape;
  plan->options = options;
  plan->device = device;
  plan->config_index = config_index;
  copy_lengths(lengths, plan.get());
  copy_work_list(
      internal::build_work_list(lengths, shape, options, plan->config(), device.num_compute_units),
      plan.get());
  plan->fingerprint = internal::fingerprint_of(*plan);
  return plan;
}

std::string describe(const Impl& plan) {
  const MlaDecodeShape& shape = plan.shape;
  const MlaDecodeOptions& options = plan.options;
  const internal::Stage1Config& config = plan.config();
  using internal::concat;
  std::string text = concat(config.schedule == Schedule::kPersistent ? "persistent " : "split-KV ",
                            data_type_name(config.q_type), "/", data_type_name(config.kv_type),
                            config.kv_layout == KvLayout::kPacked ? " packed" : "", ", tile of ",
                            config.tile_rows, " rows x ", config.tile_kv, " tokens, ",
                            shape.batch_size, " sequences, ", shape.num_heads, " heads, ");
  if (shape.topk > 0) text += concat("top ", shape.topk, " tokens, ");
  if (options.sliding_window > 0) text += concat("window of ", options.sliding_window, " tokens, ");
  if (options.kv_shard == KvShard::kRoundRobin) {
    text += concat("rank ", options.cp_rank, " of ", options.cp_world_size, ", ");
  } else if (options.kv_shard == KvShard::kContiguous) {
    text += "contiguous shards, ";
  }
  return text + concat(plan.num_workgroups, " workgroups, ", plan.num_items, " work items, up to ",
                       plan.num_partials, " parts, ", plan.num_reduce_items, " row tiles to merge");
}

// ---- running ----

// Expects a workspace that was checked.
Status upload(const Impl& plan, const Workspace& workspace, Stream stream) {
  if (plan.list.empty()) return Status();
  return internal::device_call(
      [&] {
        return hipMemcpyAsync(workspace.data, plan.list.data(), plan.list.size(),
                              hipMemcpyHostToDevice, stream);
      },
      [&] { return internal::concat("upload of the plan (", describe(plan), ")"); });
}

// Expects everything to have been checked.
Status launch(const Impl& plan, const MlaDecodeTensors& tensors, const Workspace& workspace,
              Stream stream) {
  if (plan.num_items == 0) return Status();
  const internal::MlaParams params = internal::make_params(plan, tensors, workspace);
  const auto launch_stage1 = plan.config().schedule == Schedule::kPersistent
                                 ? internal::launch_stage1_persistent
                                 : internal::launch_stage1_split_kv;
  Status status = internal::device_call(
      [&] { return launch_stage1(plan.config_index, params, plan.num_workgroups, stream); },
      [&] { return internal::concat("launch of stage 1 (", describe(plan), ")"); });
  if (!status.ok() || plan.num_reduce_items == 0) return status;
  return internal::device_call(
      [&] {
        return internal::launch_stage2(params, plan.num_reduce_items, plan.config().tile_rows,
                                       stream);
      },
      [&] { return internal::concat("launch of stage 2 (", describe(plan), ")"); });
}

// ---- the call that plans inside ----

int32_t saturate(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, std::numeric_limits<int32_t>::min(),
                                                  std::numeric_limits<int32_t>::max()));
}

Status check_ndim(const char* name, const TensorView& view, int32_t ndim) {
  if (view.ndim == ndim) return Status();
  return invalid_argument(name, " has ", view.ndim, " dimensions; must have ", ndim);
}

// The shape that tensors and lengths speak of. Reads qo_indptr; what else is wrong shows in the
// checks of the shape.
Status derive_shape(const MlaDecodeTensors& tensors, MlaDecodeShape* shape) {
  if (Status status = check_ndim("q", tensors.q, 3); !status.ok()) return status;
  if (Status status = check_ndim("kv_buffer", tensors.kv_buffer, 4); !status.ok()) return status;
  if (Status status = check_ndim("o", tensors.o, 3); !status.ok()) return status;
  const TensorView& topk_indices = tensors.topk_indices;
  if (topk_indices.data != nullptr || topk_indices.ndim != 0) {
    if (Status status = check_ndim("topk_indices", topk_indices, 2); !status.ok()) return status;
    shape->topk = saturate(topk_indices.shape[1]);
  }
  shape->q_type = tensors.q.dtype;
  shape->kv_type = tensors.kv_buffer.dtype;
  shape->o_type = tensors.o.dtype;
  const bool is_packed =
      is_fp8(shape->kv_type) && tensors.kv_buffer.shape[3] == internal::kPackedTokenBytes;
  shape->kv_layout = is_packed ? KvLayout::kPacked : KvLayout::kDense;
  shape->num_heads = saturate(tensors.q.shape[1]);
  shape->head_dim_qk = saturate(tensors.q.shape[2]);
  shape->head_dim_v = saturate(tensors.o.shape[2]);
  shape->page_size = saturate(tensors.kv_buffer.shape[1]);
  shape->total_q = tensors.q.shape[0];

  const MlaDecodeLengths& lengths = tensors.lengths;
  shape->batch_size = lengths.batch_size;
  if (lengths.batch_size == 0 && shape->total_q != 0) {
    return invalid_argument("lengths are not given; q has ", shape->total_q, " tokens");
  }
  int64_t max_seqlen_q = 1;
  if (lengths.batch_size > 0) {
    if (lengths.qo_indptr == nullptr) return invalid_argument("lengths.qo_indptr is null");
    const int32_t total_q = lengths.qo_indptr[lengths.batch_size];
    if (total_q != shape->total_q) {
      return invalid_argument("lengths.qo_indptr[", lengths.batch_size, "] is ", total_q,
                              "; q has ", shape->total_q, " tokens");
    }
    for (int32_t b = 0; b < lengths.batch_size; ++b) {
      max_seqlen_q =
          std::max(max_seqlen_q, int64_t{lengths.qo_indptr[b + 1]} - lengths.qo_indptr[b]);
    }
  }
  shape->max_seqlen_q = saturate(max_seqlen_q);
  return Status();
}

}  // namespace

MlaDecodePlan::MlaDecodePlan() = default;
MlaDecodePlan::~MlaDecodePlan() = default;
MlaDecodePlan::MlaDecodePlan(const MlaDecodePlan&) = default;
MlaDecodePlan::MlaDecodePlan(MlaDecodePlan&&) noexcept = default;
MlaDecodePlan& MlaDecodePlan::operator=(const MlaDecodePlan&) = default;
MlaDecodePlan& MlaDecodePlan::operator=(MlaDecodePlan&&) noexcept = default;

size_t MlaDecodePlan::workspace_bytes() const { return impl_ ? impl_->layout.total_bytes : 0; }

Schedule MlaDecodePlan::schedule() const {
  return impl_ ? impl_->config().schedule : Schedule::kAuto;
}

int32_t MlaDecodePlan::num_partials() const { return impl_ ? impl_->num_partials : 0; }

uint64_t MlaDecodePlan::fingerprint() const { return impl_ ? impl_->fingerprint : 0; }

std::string MlaDecodePlan::description() const { return impl_ ? describe(*impl_) : "empty"; }

Status mla_decode_check_support(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                                const DeviceInfo& device) {
  return guard([&] {
    int config_index = -1;
    return check_request(shape, options, device, &config_index);
  });
}

Status mla_decode_workspace_size(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                                 const DeviceInfo& device, size_t* bytes) {
  return guard([&]() -> Status {
    if (bytes == nullptr) return invalid_argument("bytes is null");
    int config_index = -1;
    if (Status status = check_request(shape, options, device, &config_index); !status.ok()) {
      return status;
    }
    *bytes = internal::layout_workspace(internal::bound_work(shape, options,
                                                             internal::kStage1Configs[config_index],
                                                             device.num_compute_units))
                 .total_bytes;
    return Status();
  });
}

Status mla_decode_plan(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                       const DeviceInfo& device, const MlaDecodeLengths& lengths,
                       MlaDecodePlan* plan) {
  return guard([&]() -> Status {
    if (plan == nullptr) return invalid_argument("plan is null");
    int config_index = -1;
    if (Status status = check_request(shape, options, device, &config_index); !status.ok()) {
      return status;
    }
    if (Status status = check_lengths(shape, options, lengths); !status.ok()) return status;
    plan->impl_ = make_plan(shape, options, device, lengths, config_index);
    return Status();
  });
}

Status mla_decode_upload_plan(const MlaDecodePlan& plan, const Workspace& workspace,
                              Stream stream) {
  return guard([&]() -> Status {
    if (plan.impl() == nullptr) return no_plan();
    if (Status status = check_workspace(*plan.impl(), workspace); !status.ok()) return status;
    return upload(*plan.impl(), workspace, stream);
  });
}

Status mla_decode_fwd(const MlaDecodePlan& plan, const MlaDecodeTensors& tensors,
                      const Workspace& workspace, Stream stream) {
  return guard([&]() -> Status {
    const Impl* impl = plan.impl();
    if (impl == nullptr) return no_plan();
    const MlaDecodeLengths& lengths = tensors.lengths;
    if (lengths.batch_size != 0 || lengths.qo_indptr != nullptr || lengths.kv_indptr != nullptr ||
        lengths.kv_global_lens != nullptr || lengths.kv_shard_begins != nullptr) {
      if (Status status = check_same_lengths(*impl, lengths); !status.ok()) return status;
    }
    if (Status status = check_workspace(*impl, workspace); !status.ok()) return status;
    if (Status status = check_tensors(*impl, PlanOrigin::kCaller, tensors, workspace);
        !status.ok()) {
      return status;
    }
    return launch(*impl, tensors, workspace, stream);
  });
}

Status mla_decode_fwd(const MlaDecodeTensors& tensors, const MlaDecodeOptions& options,
                      const DeviceInfo& device, const Workspace& workspace, Stream stream) {
  return guard([&]() -> Status {
    MlaDecodeShape shape;
    if (Status status = derive_shape(tensors, &shape); !status.ok()) return status;
    int config_index = -1;
    if (Status status = check_request(shape, options, device, &config_index); !status.ok()) {
      return status;
    }
    if (Status status = check_lengths(shape, options, tensors.lengths); !status.ok()) return status;
    const std::shared_ptr<const Impl> plan =
        make_plan(shape, options, device, tensors.lengths, config_index);
    if (Status status = check_workspace(*plan, workspace); !status.ok()) return status;
    if (Status status = check_tensors(*plan, PlanOrigin::kTensors, tensors, workspace);
        !status.ok()) {
      return status;
    }
    // The plan dies with this call. That is safe: its list is pageable memory, which hipMemcpyAsync
    // has read by the time it returns.
    if (Status status = upload(*plan, workspace, stream); !status.ok()) return status;
    return launch(*plan, tensors, workspace, stream);
  });
}

}  // namespace hipmla
