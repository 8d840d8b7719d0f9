// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/params.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/work_list.h"

namespace hipmla::internal {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
constexpr double kLn2 = 0.69314718055994530942;

const int32_t* indices(const TensorView& view) { return static_cast<const int32_t*>(view.data); }

void set_inputs(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t, MlaParams* p) {
  p->q = t.q.data;
  p->q_stride_token = t.q.stride[0];
  p->q_stride_head = t.q.stride[1];
  p->kv = t.kv_buffer.data;
  p->kv_stride_page = t.kv_buffer.stride[0];
  p->kv_stride_token = t.kv_buffer.stride[1];
  p->kv_token_scales = static_cast<const float*>(t.kv_token_scales.data);
  p->token_scale_stride_page = t.kv_token_scales.stride[0];
  p->token_scale_stride_token = t.kv_token_scales.stride[1];
  if (plan.shape.topk > 0) {
    p->topk_indices = indices(t.topk_indices);
    p->topk = plan.shape.topk;
    const int64_t most_pages = INT32_MAX / plan.shape.page_size;
    p->num_slots = t.kv_buffer.shape[0] > most_pages
                       ? INT32_MAX
                       : static_cast<int32_t>(t.kv_buffer.shape[0] * plan.shape.page_size);
    return;
  }
  p->qo_indptr = indices(t.qo_indptr);
  p->kv_indptr = indices(t.kv_indptr);
  p->kv_indices = indices(t.kv_indices);
  p->kv_last_page_lens = indices(t.kv_last_page_lens);
  p->kv_global_lens = indices(t.kv_global_lens);
  p->kv_shard_begins = indices(t.kv_shard_begins);
}

void set_outputs(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t, std::byte* workspace,
                 MlaParams* p) {
  p->o = t.o.data;
  p->o_type = plan.shape.o_type;
  p->o_stride_token = t.o.stride[0];
  p->o_stride_head = t.o.stride[1];
  p->lse = static_cast<float*>(t.final_lse.data);
  p->lse_stride_token = t.final_lse.stride[0];
  p->lse_stride_head = t.final_lse.stride[1];
  p->lse_factor = plan.options.lse_base2 ? 1.0f : static_cast<float>(kLn2);
  if (plan.options.return_partials) {
    p->partial_o = static_cast<float*>(t.partial_o.data);
    p->partial_lse = static_cast<float*>(t.partial_lse.data);
    p->fill_partials = plan.num_partials;
  } else {
    p->partial_o = reinterpret_cast<float*>(workspace + plan.layout.partial_o);
    p->partial_lse = reinterpret_cast<float*>(workspace + plan.layout.partial_lse);
  }
  p->partial_stride = plan.partial_stride;
}

void set_scores(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t, MlaParams* p) {
  p->scale_log2 = scale_log2(t);
  p->output_scale = t.kv_scale.host;
  p->q_scale = t.q_scale.device;
  p->kv_scale = t.kv_scale.device;
  p->soft_cap_log2 = soft_cap_log2(t);
  p->sink = static_cast<const float*>(t.sink.data);
  const MaskRule mask = mask_rule(plan.shape, plan.options);
  p->causal = mask.causal ? 1 : 0;
  p->window = mask.window;
  const bool is_round_robin = plan.options.kv_shard == KvShard::kRoundRobin;
  p->shard_first = is_round_robin ? plan.options.cp_rank : 0;
  p->shard_stride = make_fast_divisor(static_cast<uint32_t>(plan.options.cp_world_size));
}

}  // namespace

float scale_log2(const MlaDecodeTensors& t) {
  return static_cast<float>(kLog2E * t.softmax_scale * t.q_scale.host * t.kv_scale.host);
}

float soft_cap_log2(const MlaDecodeTensors& t) {
  return static_cast<float>(kLog2E * t.logits_soft_cap);
}

MlaParams make_params(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& tensors,
                      const Workspace& workspace) {
  auto* base = static_cast<std::byte*>(workspace.data);
  MlaParams p = {};
  set_inputs(plan, tensors, &p);
  set_outputs(plan, tensors, base, &p);
  set_scores(plan, tensors, &p);
  p.items = reinterpret_cast<const WorkItem*>(base + plan.layout.items);
  p.slot_item_begin = reinterpret_cast<const int32_t*>(base + plan.layout.slot_item_begin);
  p.reduce_items = reinterpret_cast<const ReduceItem*>(base + plan.layout.reduce_items);
  p.num_heads = make_fast_divisor(static_cast<uint32_t>(plan.shape.num_heads));
  p.page_size = make_fast_divisor(static_cast<uint32_t>(plan.shape.page_size));
  return p;
}

}  // namespace hipmla::internal
