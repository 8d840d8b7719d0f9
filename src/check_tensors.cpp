// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "src/check.h"
#include "src/fold.h"
#include "src/params.h"
#include "src/text.h"

namespace hipmla::internal {
namespace {

// The tensors that a plan's call reads and writes.
class ExpectedTensors {
 public:
  ExpectedTensors(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t);
  ExpectedTensors(const ExpectedTensors&) = delete;
  ExpectedTensors& operator=(const ExpectedTensors&) = delete;

  const TensorCheck* begin() const { return checks_.data(); }
  const TensorCheck* end() const { return checks_.data() + size_; }

  static constexpr size_t kCapacity = 18;

 private:
  void add_queries_and_kv(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t);
  void add_index_arrays(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t);
  void add_factors(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t);
  void add_outputs(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t);
  void add(const TensorCheck& check) { checks_[size_++] = check; }
  void add_indices(const char* name, const TensorView& view, SizeCheck size) {
    add({name, &view, DataType::kI32, false, 1, {size}, 4, 1, false, false});
  }

  TensorView q_scale_;
  TensorView kv_scale_;
  std::array<TensorCheck, kCapacity> checks_;
  size_t size_ = 0;
};

TensorView scalar_view(const float* value) {
  return dense_view(const_cast<float*>(value), DataType::kF32, 1);  // only looked at
}

ExpectedTensors::ExpectedTensors(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t)
    : q_scale_(scalar_view(t.q_scale.device)), kv_scale_(scalar_view(t.kv_scale.device)) {
  add_queries_and_kv(plan, t);
  add_index_arrays(plan, t);
  add_factors(plan, t);
  add_outputs(plan, t);
}

void ExpectedTensors::add_queries_and_kv(const MlaDecodePlan::Impl& plan,
                                         const MlaDecodeTensors& t) {
  const MlaDecodeShape& s = plan.shape;
  const bool is_packed = s.kv_layout == KvLayout::kPacked;
  const SizeCheck q[] = {planned(s.total_q), planned(s.num_heads), fixed(s.head_dim_qk)};
  add({"q", &t.q, s.q_type, true, 3, {q[0], q[1], q[2]}, kVectorBytes, 1, false, false});
  const SizeCheck kv[] = {at_least(plan.num_pages() > 0 ? 1 : 0), planned(s.page_size), fixed(1),
                          fixed(is_packed ? kPackedTokenBytes : s.head_dim_qk)};
  add({"kv_buffer",
       &t.kv_buffer,
       s.kv_type,
       true,
       4,
       {kv[0], kv[1], kv[2], kv[3]},
       kVectorBytes,
       1,
       false,
       false});
}

void ExpectedTensors::add_index_arrays(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t) {
  const MlaDecodeShape& s = plan.shape;
  const SizeCheck batch = planned(s.batch_size);
  const SizeCheck indptr = planned(int64_t{s.batch_size} + 1);
  if (s.topk > 0) {
    const SizeCheck sizes[] = {planned(s.total_q), planned(s.topk)};
    add({"topk_indices",
         &t.topk_indices,
         DataType::kI32,
         false,
         2,
         {sizes[0], sizes[1]},
         4,
         2,
         false,
         false});
    return;
  }
  add_indices("qo_indptr", t.qo_indptr, indptr);
  add_indices("kv_indptr", t.kv_indptr, indptr);
  add_indices("kv_indices", t.kv_indices, at_least(plan.num_pages()));
  add_indices("kv_last_page_lens", t.kv_last_page_lens, batch);
  if (plan.options.kv_shard != KvShard::kWhole) {
    add_indices("kv_global_lens", t.kv_global_lens, batch);
  }
  if (plan.options.kv_shard == KvShard::kContiguous) {
    add_indices("kv_shard_begins", t.kv_shard_begins, batch);
  }
}

void ExpectedTensors::add_factors(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t) {
  const MlaDecodeShape& s = plan.shape;
  const auto f32 = DataType::kF32;
  add({"q_scale.device", &q_scale_, f32, false, 1, {fixed(1)}, 4, 1, false, true});
  add({"kv_scale.device", &kv_scale_, f32, false, 1, {fixed(1)}, 4, 1, false, true});
  const SizeCheck scales[] = {fixed(t.kv_buffer.shape[0]), planned(s.page_size)};
  add({"kv_token_scales",
       &t.kv_token_scales,
       f32,
       false,
       2,
       {scales[0], scales[1]},
       4,
       0,
       false,
       true});
  add({"sink", &t.sink, f32, false, 1, {planned(s.num_heads)}, 4, 1, false, true});
}

void ExpectedTensors::add_outputs(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t) {
  const MlaDecodeShape& s = plan.shape;
  const auto o_shape = unfold_shape(s.total_q, s.num_heads, s.head_dim_v);
  const SizeCheck parts = planned(plan.num_partials);
  const SizeCheck tokens = planned(o_shape[0]);
  const SizeCheck heads = planned(o_shape[1]);
  const SizeCheck v = fixed(o_shape[2]);
  const auto f32 = DataType::kF32;
  const int64_t vec = kVectorBytes;
  add({"o", &t.o, s.o_type, true, 3, {tokens, heads, v}, vec, 1, true, false});
  add({"final_lse", &t.final_lse, f32, false, 2, {tokens, heads}, 4, 0, true, true});
  if (!plan.options.return_partials) return;
  add({"partial_o", &t.partial_o, f32, false, 4, {parts, tokens, heads, v}, vec, 4, true, false});
  add({"partial_lse", &t.partial_lse, f32, false, 3, {parts, tokens, heads}, 4, 3, true, false});
}

// Tensors that are given though the plan's options do not want them.
Status check_presence(const MlaDecodePlan::Impl& plan, PlanOrigin origin,
                      const MlaDecodeTensors& t) {
  const MlaDecodeOptions& options = plan.options;
  const bool is_sharded = options.kv_shard != KvShard::kWhole;
  const bool is_contiguous = options.kv_shard == KvShard::kContiguous;
  const struct {
    const char* name;
    const TensorView* view;
    bool is_wanted;
    const char* without;
  } tensors[] = {
      {"partial_o", &t.partial_o, options.return_partials, "return_partials"},
      {"partial_lse", &t.partial_lse, options.return_partials, "return_partials"},
      {"kv_global_lens", &t.kv_global_lens, is_sharded, "a kv_shard other than kWhole"},
      {"kv_shard_begins", &t.kv_shard_begins, is_contiguous, "kv_shard kContiguous"},
      {"topk_indices", &t.topk_indices, plan.shape.topk > 0, "topk"},
  };
  for (const auto& tensor : tensors) {
    if (tensor.view->data == nullptr || tensor.is_wanted) continue;
    return origin == PlanOrigin::kCaller
               ? Status(
                     StatusCode::kStalePlan,
                     concat(tensor.name, " is given; the plan was built without ", tensor.without))
               : invalid_argument(tensor.name, " is given; must be null without ", tensor.without);
  }
  return Status();
}

Status check_numbers(const MlaDecodePlan::Impl& plan, const MlaDecodeTensors& t) {
  const std::pair<const char*, float> numbers[] = {{"softmax_scale", t.softmax_scale},
                                                   {"q_scale.host", t.q_scale.host},
                                                   {"kv_scale.host", t.kv_scale.host},
                                                   {"logits_soft_cap", t.logits_soft_cap}};
  for (const auto& [name, value] : numbers) {
    if (!std::isfinite(value)) return invalid_argument(name, " is ", value, "; must be finite");
  }
  if (t.logits_soft_cap < 0.0f) {
    return invalid_argument("logits_soft_cap is ", t.logits_soft_cap, "; must not be negative");
  }
  if (!std::isfinite(soft_cap_log2(t))) {
    return invalid_argument("logits_soft_cap is ", t.logits_soft_cap, "; too large for f32");
  }
  if (!std::isfinite(scale_log2(t))) {
    return invalid_argument("softmax_scale * q_scale.host * kv_scale.host is ", t.softmax_scale,
                            " * ", t.q_scale.host, " * ", t.kv_scale.host, "; too large for f32");
  }
  const bool is_packed = plan.shape.kv_layout == KvLayout::kPacked;
  if (is_packed && (t.kv_scale.device != nullptr || t.kv_scale.host != 1.0f)) {
    return invalid_argument("kv_scale is given; a packed cache has its own scales");
  }
  if (t.kv_token_scales.data != nullptr && (is_packed || !is_fp8(plan.shape.kv_type))) {
    return invalid_argument("kv_token_scales is given; kv_buffer is ",
                            data_type_name(plan.shape.kv_type), ", ",
                            kv_layout_name(plan.shape.kv_layout), ", not dense fp8");
  }
  return Status();
}

}  // namespace

Status check_workspace(const MlaDecodePlan::Impl& plan, const Workspace& workspace) {
  const size_t needed = plan.layout.total_bytes;
  if (workspace.bytes < needed) {
    return Status(StatusCode::kWorkspaceTooSmall,
                  concat("the workspace has ", workspace.bytes, " bytes; the plan needs ", needed));
  }
  if (needed == 0) return Status();
  if (workspace.data == nullptr) return invalid_argument("workspace.data is null");
  if (reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    return invalid_argument("workspace.data is not aligned to ", kWorkspaceAlignment, " bytes");
  }
  return Status();
}

Status check_tensors(const MlaDecodePlan::Impl& plan, PlanOrigin origin,
                     const MlaDecodeTensors& tensors, const Workspace& workspace) {
  if (Status status = check_presence(plan, origin, tensors); !status.ok()) return status;
  if (Status status = check_numbers(plan, tensors); !status.ok()) return status;
  std::array<MemoryRange, ExpectedTensors::kCapacity + 1> ranges;
  size_t num_ranges = 0;
  const bool has_work = plan.num_items > 0;
  for (const TensorCheck& check : ExpectedTensors(plan, tensors)) {
    if (check.is_optional && check.view->data == nullptr) continue;
    if (Status status = check_type_and_shape(check, origin); !status.ok()) return status;
    // An empty tensor, or one that no kernel will look at, may be null.
    if (!has_work || !has_elements(*check.view)) continue;
    if (Status status = check_memory(check, &ranges[num_ranges]); !status.ok()) return status;
    ++num_ranges;
  }
  if (plan.layout.total_bytes > 0) {
    const auto begin = reinterpret_cast<uintptr_t>(workspace.data);
    ranges[num_ranges++] = {"workspace", begin, begin + plan.layout.total_bytes, true};
  }
  for (size_t a = 0; a < num_ranges; ++a) {
    for (size_t b = a + 1; b < num_ranges; ++b) {
      if ((ranges[a].is_written || ranges[b].is_written) && overlap(ranges[a], ranges[b])) {
        return invalid_argument(ranges[a].name, " and ", ranges[b].name, " overlap");
      }
    }
  }
  return Status();
}

}  // namespace hipmla::internal
