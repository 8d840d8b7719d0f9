// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/decode_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

void add_problem(std::string* problems, const std::string& text) {
  if (!text.empty()) *problems += (problems->empty() ? "" : "\n") + text;
}

std::string status_text(const Status& status) {
  return std::string(status_code_name(status.code())) + " \"" + status.text() + "\"";
}

// Elements that a strided [tokens, heads, size] tensor spans.
int64_t span(int64_t tokens, int64_t heads, int64_t size, const int64_t (&stride)[2]) {
  return tokens == 0 ? 0 : (tokens - 1) * stride[0] + (heads - 1) * stride[1] + size;
}

bool is_poison(const std::vector<uint8_t>& raw, size_t offset, size_t bytes) {
  for (size_t i = offset; i < offset + bytes; ++i)
    if (raw[i] != (i % 2 == 0 ? kPoison16 & 0xff : kPoison16 >> 8)) return false;
  return true;
}

// Copies a strided [tokens, heads, size] tensor to dense floats; all else in `raw` must still be
// poison.
std::string gather(const std::string& name, const std::vector<uint8_t>& raw, DataType type,
                   int64_t tokens, int64_t heads, int64_t size, const int64_t (&stride)[2],
                   std::vector<float>* out) {
  const size_t element = element_bytes(type);
  size_t expected_next = 0;  // end of the row before, in bytes
  std::string problem;
  out->resize(static_cast<size_t>(tokens * heads * size));
  for (int64_t row = 0; row < tokens * heads; ++row) {
    const int64_t first = row / heads * stride[0] + row % heads * stride[1];
    const size_t begin = static_cast<size_t>(first) * element;
    if (problem.empty() && !is_poison(raw, expected_next, begin - expected_next))
      problem = name + ": padding before row " + std::to_string(row) + " was written to";
    expected_next = begin + static_cast<size_t>(size) * element;
    for (int64_t i = 0; i < size; ++i)
      (*out)[static_cast<size_t>(row * size + i)] = load_element(raw.data(), type, first + i);
  }
  return problem;
}

MlaDecodeShape shape_of_call(const Batch& batch) {
  MlaDecodeShape shape = batch.shape();
  // The call that plans inside knows the lengths themselves.
  shape.max_seqlen_q = 1;
  for (int32_t n : batch.spec.q_lens) shape.max_seqlen_q = std::max(shape.max_seqlen_q, n);
  return shape;
}

}  // namespace

struct DeviceBatch::Outputs {
  DeviceBuffer o, lse, partial_o, partial_lse, workspace;

  Outputs(const Batch& batch, int64_t num_partials, size_t workspace_bytes)
      : o("o",
          element_bytes(batch.spec.o_type) *
              static_cast<size_t>(
                  span(batch.total_q, batch.spec.num_heads, kHeadDimV, batch.o_stride)),
          16),
        lse("final_lse",
            4 * static_cast<size_t>(span(batch.total_q, batch.spec.num_heads, 1, batch.lse_stride)),
            4),
        partial_o("partial_o",
                  4 * static_cast<size_t>(num_partials * batch.total_q * batch.spec.num_heads *
                                          kHeadDimV),
                  16),
        partial_lse("partial_lse",
                    4 * static_cast<size_t>(num_partials * batch.total_q * batch.spec.num_heads),
                    4),
        workspace("workspace", workspace_bytes, kWorkspaceAlignment) {}

  void attach(const Batch& batch, const DecodeRun& run, int64_t num_partials,
              MlaDecodeTensors* tensors) const {
    tensors->o =
        dense_view(o.data(), batch.spec.o_type, batch.total_q, batch.spec.num_heads, kHeadDimV);
    tensors->o.stride[0] = batch.o_stride[0];
    tensors->o.stride[1] = batch.o_stride[1];
    if (run.with_lse) {
      tensors->final_lse =
          dense_view(lse.data(), DataType::kF32, batch.total_q, batch.spec.num_heads);
      tensors->final_lse.stride[0] = batch.lse_stride[0];
      tensors->final_lse.stride[1] = batch.lse_stride[1];
    }
    if (run.options.return_partials) {
      tensors->partial_o = dense_view(partial_o.data(), DataType::kF32, num_partials, batch.total_q,
                                      batch.spec.num_heads, kHeadDimV);
      tensors->partial_lse = dense_view(partial_lse.data(), DataType::kF32, num_partials,
                                        batch.total_q, batch.spec.num_heads);
    }
  }

  std::string check_guards() const {
    std::string problems;
    for (const DeviceBuffer* buffer : {&o, &lse, &partial_o, &partial_lse, &workspace})
      add_problem(&problems, buffer->check_guards());
    return problems;
  }
  std::string check_untouched() const {
    std::string problems;
    for (const DeviceBuffer* buffer : {&o, &lse, &partial_o, &partial_lse, &workspace})
      add_problem(&problems, buffer->check_untouched());
    return problems;
  }
};

std::string DecodeRun::description() const {
  std::string text = options.schedule == Schedule::kPersistent ? "persistent"
                     : options.schedule == Schedule::kSplitKv  ? "split"
                                                               : "auto";
  if (options.num_kv_splits > 0) text += " " + std::to_string(options.num_kv_splits);
  if (options.return_partials) text += " partials";
  if (!with_lse) text += " no_lse";
  if (one_call) text += " one_call";
  if (change_options) text += " changed_options";
  if (device) text += " planned_for_" + std::to_string(device->num_compute_units) + "_cus";
  return text;
}

DecodeRun persistent_run() {
  DecodeRun run;
  run.options.schedule = Schedule::kPersistent;
  return run;
}

DecodeRun split_run(int32_t num_kv_splits) {
  DecodeRun run;
  run.options.schedule = Schedule::kSplitKv;
  run.options.num_kv_splits = num_kv_splits;
  return run;
}

DeviceBatch::DeviceBatch(const Batch& batch, const DeviceInfo& device)
    : batch_(batch), device_(device) {
  const auto add = [&](const char* name, const void* host, size_t bytes, size_t alignment) {
    inputs_.push_back({DeviceBuffer(name, bytes, alignment), host});
    inputs_.back().buffer.upload(host, bytes);
  };
  const auto add_list = [&](const char* name, const auto& list) {
    if (!list.empty()) add(name, list.data(), list.size() * 4, 4);
  };
  add("q", batch.q.data(), batch.q.size(), 16);
  add("kv_buffer", batch.kv.data(), batch.kv.size(), 16);
  add_list("kv_token_scales", batch.kv_token_scales);
  add_list("sink", batch.sink);
  if (batch.spec.q_scale_device != 0.0f) add("q_scale", &batch.spec.q_scale_device, 4, 4);
  if (batch.spec.kv_scale_device != 0.0f) add("kv_scale", &batch.spec.kv_scale_device, 4, 4);
  if (batch.spec.topk > 0) {
    add("topk_indices", batch.topk_indices.data(), batch.topk_indices.size() * 4, 4);
    return;
  }
  const std::pair<const char*, const std::vector<int32_t>*> arrays[] = {
      {"qo_indptr", &batch.qo_indptr},
      {"kv_indptr", &batch.kv_indptr},
      {"kv_indices", &batch.kv_indices},
      {"kv_last_page_lens", &batch.kv_last_page_lens}};
  for (const auto& [name, list] : arrays) add(name, list->data(), list->size() * 4, 4);
  if (batch.spec.kv_shard != KvShard::kWhole)
    add("kv_global_lens", batch.kv_global_lens.data(), batch.kv_global_lens.size() * 4, 4);
  if (batch.spec.kv_shard == KvShard::kContiguous)
    add("kv_shard_begins", batch.kv_shard_begins.data(), batch.kv_shard_begins.size() * 4, 4);
}

void* DeviceBatch::find(const char* name) const {
  for (const Input& input : inputs_)
    if (input.buffer.name() == name) return input.buffer.data();
  return nullptr;
}

TensorView DeviceBatch::indices(const char* name) const {
  for (const Input& input : inputs_)
    if (input.buffer.name() == name)
      return dense_view(input.buffer.data(), DataType::kI32,
                        static_cast<int64_t>(input.buffer.bytes() / 4));
  return {};
}

MlaDecodeTensors DeviceBatch::tensors() const {
  const MlaHostInputs host = batch_.host_inputs();
  const BatchSpec& spec = batch_.spec;
  MlaDecodeTensors tensors;
  tensors.q = host.q;
  tensors.q.data = find("q");
  tensors.kv_buffer = host.kv_buffer;
  tensors.kv_buffer.data = batch_.kv.empty() ? nullptr : find("kv_buffer");
  tensors.qo_indptr = indices("qo_indptr");
  tensors.kv_indptr = indices("kv_indptr");
  tensors.kv_indices = indices("kv_indices");
  tensors.kv_last_page_lens = indices("kv_last_page_lens");
  tensors.kv_global_lens = indices("kv_global_lens");
  tensors.kv_shard_begins = indices("kv_shard_begins");
  if (spec.topk > 0)
    tensors.topk_indices =
        dense_view(find("topk_indices"), DataType::kI32, batch_.total_q, spec.topk);
  tensors.softmax_scale = spec.softmax_scale;
  tensors.q_scale = {static_cast<const float*>(find("q_scale")), spec.q_scale_host};
  tensors.kv_scale = {static_cast<const float*>(find("kv_scale")), spec.kv_scale_host};
  if (!batch_.kv_token_scales.empty()) {
    tensors.kv_token_scales = host.kv_token_scales;
    tensors.kv_token_scales.data = find("kv_token_scales");
  }
  tensors.logits_soft_cap = spec.logits_soft_cap;
  if (!batch_.sink.empty()) tensors.sink = dense_view(find("sink"), DataType::kF32, spec.num_heads);
  tensors.lengths = batch_.lengths();
  return tensors;
}

std::string DeviceBatch::check_inputs() const {
  std::string problems;
  for (const Input& input : inputs_) {
    add_problem(&problems, input.buffer.check_guards());
    add_problem(&problems, input.buffer.check_unchanged(input.host, input.buffer.bytes()));
  }
  return problems;
}

void DeviceBatch::collect(const Outputs& outputs, DecodeResult* result) const {
  const BatchSpec& spec = batch_.spec;
  add_problem(&result->problems, outputs.check_guards());
  add_problem(&result->problems, check_inputs());
  add_problem(&result->problems, gather("o", outputs.o.download(), spec.o_type, batch_.total_q,
                                        spec.num_heads, kHeadDimV, batch_.o_stride, &result->o));
  if (!result->lse.empty())
    add_problem(&result->problems,
                gather("final_lse", outputs.lse.download(), DataType::kF32, batch_.total_q,
                       spec.num_heads, 1, batch_.lse_stride, &result->lse));
  else
    add_problem(&result->problems, outputs.lse.check_untouched());
  result->partial_o.resize(outputs.partial_o.bytes() / 4);
  outputs.partial_o.download(result->partial_o.data(), outputs.partial_o.bytes());
  result->partial_lse.resize(outputs.partial_lse.bytes() / 4);
  outputs.partial_lse.download(result->partial_lse.data(), outputs.partial_lse.bytes());
}

void DeviceBatch::launch(const DecodeRun& run, const DeviceInfo& device, const MlaDecodePlan& plan,
                         size_t announced_bytes, DecodeResult* result) const {
  result->num_partials = plan.num_partials();
  result->schedule = plan.schedule();
  result->plan = plan.description();
  if (plan.workspace_bytes() > announced_bytes)
    add_problem(&result->problems, "the plan needs " + std::to_string(plan.workspace_bytes()) +
                                       " bytes of workspace, " + std::to_string(announced_bytes) +
                                       " were announced");
  if (plan.num_partials() < 1) add_problem(&result->problems, "the plan has no partials");
  if (plan.schedule() == Schedule::kAuto)
    add_problem(&result->problems, "the plan has no schedule");
  if (run.options.schedule != Schedule::kAuto && plan.schedule() != run.options.schedule)
    add_problem(&result->problems, "the plan has another schedule than was asked for");

  const int64_t num_partials = run.options.return_partials ? plan.num_partials() : 0;
  // The call that plans inside may choose to need less, never more than was announced.
  const size_t workspace_bytes = run.one_call ? announced_bytes : plan.workspace_bytes();
  const Outputs outputs(batch_, num_partials, workspace_bytes);
  MlaDecodeTensors tensors = this->tensors();
  outputs.attach(batch_, run, num_partials, &tensors);
  const Workspace workspace{outputs.workspace.data(), workspace_bytes};
  const DeviceStream stream;
  const auto start = std::chrono::steady_clock::now();
  if (run.one_call) {
    result->status = mla_decode_fwd(tensors, run.options, device, workspace, stream.get());
  } else {
    result->status = mla_decode_upload_plan(plan, workspace, stream.get());
    if (result->status.ok())
      result->status = mla_decode_fwd(plan, tensors, workspace, stream.get());
  }
  stream.synchronize();
  result->milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (!result->status.ok()) {
    add_problem(&result->problems,
                "the plan was made, but the call said " + status_text(result->status));
    return;
  }
  result->lse.resize(run.with_lse ? 1 : 0);
  collect(outputs, result);
}

// The support query said no: every other entry point must say the same, and nothing may be written.
void DeviceBatch::refuse(const DecodeRun& run, const DeviceInfo& device,
                         DecodeResult* result) const {
  const Outputs outputs(batch_, 1, 1 << 20);
  MlaDecodeTensors tensors = this->tensors();
  outputs.attach(batch_, run, 1, &tensors);
  const DeviceStream stream;
  const Status call = mla_decode_fwd(tensors, run.options, device,
                                     {outputs.workspace.data(), size_t{1} << 20}, stream.get());
  stream.synchronize();
  if (call != result->status)
    add_problem(&result->problems, "mla_decode_check_support says " + status_text(result->status) +
                                       ", mla_decode_fwd " + status_text(call));
  add_problem(&result->problems, outputs.check_guards());
  add_problem(&result->problems, outputs.check_untouched());
  add_problem(&result->problems, check_inputs());
}

DecodeResult DeviceBatch::run(const DecodeRun& requested) const {
  DecodeRun run = requested;
  batch_.set_options(&run.options);
  if (run.change_options) run.change_options(&run.options);
  DecodeResult result;
  const DeviceInfo& device = run.device ? *run.device : device_;
  const MlaDecodeShape shape = run.one_call ? shape_of_call(batch_) : batch_.shape();
  result.status = mla_decode_check_support(shape, run.options, device);
  size_t announced_bytes = 0;
  const Status size = mla_decode_workspace_size(shape, run.options, device, &announced_bytes);
  MlaDecodePlan plan;
  const Status planned = mla_decode_plan(shape, run.options, device, batch_.lengths(), &plan);
  if (size != result.status)
    add_problem(&result.problems, "mla_decode_check_support says " + status_text(result.status) +
                                      ", mla_decode_workspace_size " + status_text(size));
  if (planned != result.status)
    add_problem(&result.problems, "mla_decode_check_support says " + status_text(result.status) +
                                      ", mla_decode_plan " + status_text(planned));
  if (!result.status.ok())
    refuse(run, device, &result);
  else if (planned.ok() && size.ok())
    launch(run, device, plan, announced_bytes, &result);
  return result;
}

}  // namespace hipmla::test
