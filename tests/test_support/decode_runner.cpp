// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/decode_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>

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
    : batch_(batch),
      device_(device),
      q_("q", batch.q.size() * 2, 16),
      kv_("kv_buffer", batch.kv.size() * 2, 16),
      qo_indptr_("qo_indptr", batch.qo_indptr.size() * 4, 4),
      kv_indptr_("kv_indptr", batch.kv_indptr.size() * 4, 4),
      kv_indices_("kv_indices", batch.kv_indices.size() * 4, 4),
      kv_last_page_lens_("kv_last_page_lens", batch.kv_last_page_lens.size() * 4, 4) {
  q_.upload(batch.q.data(), q_.bytes());
  kv_.upload(batch.kv.data(), kv_.bytes());
  qo_indptr_.upload(batch.qo_indptr.data(), qo_indptr_.bytes());
  kv_indptr_.upload(batch.kv_indptr.data(), kv_indptr_.bytes());
  kv_indices_.upload(batch.kv_indices.data(), kv_indices_.bytes());
  kv_last_page_lens_.upload(batch.kv_last_page_lens.data(), kv_last_page_lens_.bytes());
}

MlaDecodeTensors DeviceBatch::tensors() const {
  const MlaHostInputs host = batch_.host_inputs();
  const auto indices = [](const DeviceBuffer& buffer) {
    return dense_view(buffer.data(), DataType::kI32, static_cast<int64_t>(buffer.bytes() / 4));
  };
  MlaDecodeTensors tensors;
  tensors.q = host.q;
  tensors.q.data = q_.data();
  tensors.kv_buffer = host.kv_buffer;
  tensors.kv_buffer.data = kv_.data();
  tensors.qo_indptr = indices(qo_indptr_);
  tensors.kv_indptr = indices(kv_indptr_);
  tensors.kv_indices = indices(kv_indices_);
  tensors.kv_last_page_lens = indices(kv_last_page_lens_);
  tensors.softmax_scale = batch_.spec.softmax_scale;
  tensors.lengths = batch_.lengths();
  return tensors;
}

std::string DeviceBatch::check_inputs() const {
  std::string problems;
  for (const DeviceBuffer* buffer :
       {&q_, &kv_, &qo_indptr_, &kv_indptr_, &kv_indices_, &kv_last_page_lens_})
    add_problem(&problems, buffer->check_guards());
  add_problem(&problems, q_.check_unchanged(batch_.q.data(), q_.bytes()));
  add_problem(&problems, kv_.check_unchanged(batch_.kv.data(), kv_.bytes()));
  add_problem(&problems, qo_indptr_.check_unchanged(batch_.qo_indptr.data(), qo_indptr_.bytes()));
  add_problem(&problems, kv_indptr_.check_unchanged(batch_.kv_indptr.data(), kv_indptr_.bytes()));
  add_problem(&problems,
              kv_indices_.check_unchanged(batch_.kv_indices.data(), kv_indices_.bytes()));
  add_problem(&problems, kv_last_page_lens_.check_unchanged(batch_.kv_last_page_lens.data(),
                                                            kv_last_page_lens_.bytes()));
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
  run.options.causal = batch_.spec.causal;
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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace hipmla::test
