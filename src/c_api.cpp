// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The C interface: converts structs and passes on. Nothing is decided here.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "hipmla/device.h"
#include "hipmla/hipmla.h"
#include "hipmla/mla_decode.h"
#include "hipmla/mla_merge.h"
#include "hipmla/status.h"
#include "hipmla/version.h"
#include "src/guard.h"
#include "src/text.h"

// NOLINTNEXTLINE(readability-identifier-naming): declared in C
struct hipmla_plan {
  hipmla::MlaDecodePlan plan;
};

namespace hipmla {
namespace {

using internal::guard;
using internal::invalid_argument;

template <typename C, typename Cpp>
constexpr bool equal(C c, Cpp cpp) {
  return static_cast<int64_t>(c) == static_cast<int64_t>(cpp);
}
static_assert(equal(HIPMLA_OK, StatusCode::kOk) &&
              equal(HIPMLA_INVALID_ARGUMENT, StatusCode::kInvalidArgument) &&
              equal(HIPMLA_UNSUPPORTED, StatusCode::kUnsupported) &&
              equal(HIPMLA_WORKSPACE_TOO_SMALL, StatusCode::kWorkspaceTooSmall) &&
              equal(HIPMLA_STALE_PLAN, StatusCode::kStalePlan) &&
              equal(HIPMLA_DEVICE_ERROR, StatusCode::kDeviceError));
static_assert(equal(HIPMLA_BF16, DataType::kBf16) && equal(HIPMLA_F16, DataType::kF16) &&
              equal(HIPMLA_F32, DataType::kF32) && equal(HIPMLA_I32, DataType::kI32) &&
              equal(HIPMLA_FP8_E4M3FN, DataType::kFp8E4m3Fn) &&
              equal(HIPMLA_FP8_E4M3FNUZ, DataType::kFp8E4m3Fnuz));
static_assert(equal(HIPMLA_ARCH_UNKNOWN, Arch::kUnknown) && equal(HIPMLA_GFX90A, Arch::kGfx90a) &&
              equal(HIPMLA_GFX942, Arch::kGfx942) && equal(HIPMLA_GFX950, Arch::kGfx950) &&
              equal(HIPMLA_SM80, Arch::kSm80) && equal(HIPMLA_SM90, Arch::kSm90));
static_assert(equal(HIPMLA_KV_DENSE, KvLayout::kDense) &&
              equal(HIPMLA_KV_PACKED, KvLayout::kPacked));
static_assert(equal(HIPMLA_SCHEDULE_AUTO, Schedule::kAuto) &&
              equal(HIPMLA_SCHEDULE_PERSISTENT, Schedule::kPersistent) &&
              equal(HIPMLA_SCHEDULE_SPLIT_KV, Schedule::kSplitKv));
static_assert(equal(HIPMLA_KV_WHOLE, KvShard::kWhole) &&
              equal(HIPMLA_KV_ROUND_ROBIN, KvShard::kRoundRobin) &&
              equal(HIPMLA_KV_CONTIGUOUS, KvShard::kContiguous));

// ---- structs that grow ----

// More is no struct of ours, but memory that nobody initialised.
constexpr size_t kMaxStructBytes = 1 << 16;

template <typename Struct>
Status check_size(const char* name, const Struct* from) {
  if (from == nullptr) return invalid_argument(name, " is null");
  const size_t size = from->struct_size;
  if (size < sizeof(size_t) || size > kMaxStructBytes) {
    return invalid_argument(name, ".struct_size is ", size, "; must be the size of the struct");
  }
  return Status();
}

// Copies what the caller's struct has over the defaults in `*to`.
template <typename Struct>
Status read_struct(const char* name, const Struct* from, Struct* to) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (Status status = check_size(name, from); !status.ok()) return status;
  const size_t size = from->struct_size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return internal::unsupported(name, " has ", size, " bytes and byte ", i, " is not 0; hipmla ",
                                   version(), " knows ", sizeof(Struct), " bytes");
    }
  }
  std::memcpy(to, from, std::min(size, sizeof(Struct)));
  return Status();
}

// Fills the caller's struct of `size` bytes.
template <typename Struct>
void write_struct(Struct from, Struct* to, size_t size) {
  if (to == nullptr) return;
  from.struct_size = size;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(Struct)));
}

Status check_reserved(const char* name, int32_t value) {
  if (value == 0) return Status();
  return invalid_argument(name, ".reserved is ", value, "; must be 0");
}

Status read_bool(const char* name, int32_t value, bool* to) {
  if (value != 0 && value != 1) return invalid_argument(name, " is ", value, "; must be 0 or 1");
  *to = value == 1;
  return Status();
}

// ---- defaults and results: C++ to C ----

hipmla_device_info_t to_c(const DeviceInfo& device) {
  hipmla_device_info_t c = {};
  c.arch = static_cast<int32_t>(device.arch);
  c.num_compute_units = device.num_compute_units;
  c.lds_bytes = device.lds_bytes;
  return c;
}

hipmla_shape_t to_c(const MlaDecodeShape& shape) {
  hipmla_shape_t c = {};
  c.q_type = static_cast<int32_t>(shape.q_type);
  c.kv_type = static_cast<int32_t>(shape.kv_type);
  c.o_type = static_cast<int32_t>(shape.o_type);
  c.kv_layout = static_cast<int32_t>(shape.kv_layout);
  c.num_heads = shape.num_heads;
  c.head_dim_qk = shape.head_dim_qk;
  c.head_dim_v = shape.head_dim_v;
  c.page_size = shape.page_size;
  c.batch_size = shape.batch_size;
  c.max_seqlen_q = shape.max_seqlen_q;
  c.total_q = shape.total_q;
  c.topk = shape.topk;
  return c;
}

hipmla_options_t to_c(const MlaDecodeOptions& options) {
  hipmla_options_t c = {};
  c.schedule = static_cast<int32_t>(options.schedule);
  c.num_kv_splits = options.num_kv_splits;
  c.causal = options.causal ? 1 : 0;
  c.sliding_window = options.sliding_window;
  c.lse_base2 = options.lse_base2 ? 1 : 0;
  c.return_partials = options.return_partials ? 1 : 0;
  c.kv_shard = static_cast<int32_t>(options.kv_shard);
  c.cp_world_size = options.cp_world_size;
  c.cp_rank = options.cp_rank;
  return c;
}

hipmla_tensors_t default_tensors() {
  hipmla_tensors_t c = {};
  c.q_scale.host = Scale().host;
  c.kv_scale.host = Scale().host;
  return c;
}

// ---- arguments: C to C++ ----

TensorView to_view(const hipmla_tensor_t& c) {
  TensorView view;
  view.data = c.data;
  view.dtype = static_cast<DataType>(c.dtype);
  view.ndim = c.ndim;
  std::copy(std::begin(c.shape), std::end(c.shape), view.shape);
  std::copy(std::begin(c.stride), std::end(c.stride), view.stride);
  return view;
}

Status convert(const hipmla_device_info_t* from, DeviceInfo* to) {
  hipmla_device_info_t c = to_c(DeviceInfo());
  if (Status status = read_struct("device", from, &c); !status.ok()) return status;
  to->arch = static_cast<Arch>(c.arch);
  to->num_compute_units = c.num_compute_units;
  to->lds_bytes = c.lds_bytes;
  return Status();
}

Status convert(const hipmla_shape_t* from, MlaDecodeShape* to) {
  hipmla_shape_t c = to_c(MlaDecodeShape());
  if (Status status = read_struct("shape", from, &c); !status.ok()) return status;
  to->q_type = static_cast<DataType>(c.q_type);
  to->kv_type = static_cast<DataType>(c.kv_type);
  to->o_type = static_cast<DataType>(c.o_type);
  to->kv_layout = static_cast<KvLayout>(c.kv_layout);
  to->num_heads = c.num_heads;
  to->head_dim_qk = c.head_dim_qk;
  to->head_dim_v = c.head_dim_v;
  to->page_size = c.page_size;
  to->batch_size = c.batch_size;
  to->max_seqlen_q = c.max_seqlen_q;
  to->total_q = c.total_q;
  to->topk = c.topk;
  return check_reserved("shape", c.reserved);
}

Status convert(const hipmla_options_t* from, MlaDecodeOptions* to) {
  if (from == nullptr) {
    *to = MlaDecodeOptions();
    return Status();
  }
  hipmla_options_t c = to_c(MlaDecodeOptions());
  if (Status status = read_struct("options", from, &c); !status.ok()) return status;
  to->schedule = static_cast<Schedule>(c.schedule);
  to->num_kv_splits = c.num_kv_splits;
  to->sliding_window = c.sliding_window;
  to->kv_shard = static_cast<KvShard>(c.kv_shard);
  to->cp_world_size = c.cp_world_size;
  to->cp_rank = c.cp_rank;
  Status status = read_bool("options.causal", c.causal, &to->causal);
  if (status.ok()) status = read_bool("options.lse_base2", c.lse_base2, &to->lse_base2);
  if (status.ok())
    status = read_bool("options.return_partials", c.return_partials, &to->return_partials);
  if (status.ok()) status = check_reserved("options", c.reserved);
  return status;
}

Status convert(const hipmla_lengths_t* from, MlaDecodeLengths* to) {
  hipmla_lengths_t c = {};
  if (Status status = read_struct("lengths", from, &c); !status.ok()) return status;
  to->batch_size = c.batch_size;
  to->qo_indptr = c.qo_indptr;
  to->kv_indptr = c.kv_indptr;
  to->kv_last_page_lens = c.kv_last_page_lens;
  to->kv_global_lens = c.kv_global_lens;
  to->kv_shard_begins = c.kv_shard_begins;
  return check_reserved("lengths", c.reserved);
}

Status convert(const hipmla_tensors_t* from, MlaDecodeTensors* to) {
  hipmla_tensors_t c = default_tensors();
  if (Status status = read_struct("tensors", from, &c); !status.ok()) return status;
  to->q = to_view(c.q);
  to->kv_buffer = to_view(c.kv_buffer);
  to->qo_indptr = to_view(c.qo_indptr);
  to->kv_indptr = to_view(c.kv_indptr);
  to->kv_indices = to_view(c.kv_indices);
  to->kv_last_page_lens = to_view(c.kv_last_page_lens);
  to->kv_global_lens = to_view(c.kv_global_lens);
  to->kv_shard_begins = to_view(c.kv_shard_begins);
  to->topk_indices = to_view(c.topk_indices);
  to->o = to_view(c.o);
  to->final_lse = to_view(c.final_lse);
  to->partial_o = to_view(c.partial_o);
  to->partial_lse = to_view(c.partial_lse);
  to->kv_token_scales = to_view(c.kv_token_scales);
  to->sink = to_view(c.sink);
  to->q_scale = {c.q_scale.device, c.q_scale.host};
  to->kv_scale = {c.kv_scale.device, c.kv_scale.host};
  to->softmax_scale = c.softmax_scale;
  to->logits_soft_cap = c.logits_soft_cap;
  Status status = check_reserved("tensors.q_scale", c.q_scale.reserved);
  if (status.ok()) status = check_reserved("tensors.kv_scale", c.kv_scale.reserved);
  if (status.ok() && c.lengths != nullptr) status = convert(c.lengths, &to->lengths);
  return status;
}

// ---- calls ----

// What shape, options and device are to every question about them.
struct Request {
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  DeviceInfo device;

  Status read(const hipmla_shape_t* c_shape, const hipmla_options_t* c_options,
              const hipmla_device_info_t* c_device) {
    Status status = convert(c_shape, &shape);
    if (status.ok()) status = convert(c_options, &options);
    if (status.ok()) status = convert(c_device, &device);
    return status;
  }
};

void copy_text(const std::string& from, char* text, size_t text_bytes) {
  if (text == nullptr || text_bytes == 0) return;
  const size_t size = std::min(from.size(), text_bytes - 1);
  std::memcpy(text, from.data(), size);
  text[size] = '\0';
}

template <typename Body>
hipmla_status_t call(char* text, size_t text_bytes, Body&& body) noexcept {
  const Status status = guard(body);
  copy_text(status.text(), text, text_bytes);
  return static_cast<hipmla_status_t>(status.code());
}

Status plan_is_null() { return invalid_argument("plan is null"); }

}  // namespace
}  // namespace hipmla

using hipmla::call;
using hipmla::convert;
using hipmla::Status;

const char* hipmla_version(void) { return hipmla::version(); }

const char* hipmla_platform(void) { return hipmla::platform_name(); }

const char* hipmla_status_name(hipmla_status_t status) {
  return status_code_name(static_cast<hipmla::StatusCode>(status));
}

void hipmla_device_info_init(hipmla_device_info_t* device, size_t struct_size) {
  hipmla::write_struct(hipmla::to_c(hipmla::DeviceInfo()), device, struct_size);
}

void hipmla_shape_init(hipmla_shape_t* shape, size_t struct_size) {
  hipmla::write_struct(hipmla::to_c(hipmla::MlaDecodeShape()), shape, struct_size);
}

void hipmla_options_init(hipmla_options_t* options, size_t struct_size) {
  hipmla::write_struct(hipmla::to_c(hipmla::MlaDecodeOptions()), options, struct_size);
}

void hipmla_lengths_init(hipmla_lengths_t* lengths, size_t struct_size) {
  hipmla::write_struct(hipmla_lengths_t{}, lengths, struct_size);
}

void hipmla_tensors_init(hipmla_tensors_t* tensors, size_t struct_size) {
  hipmla::write_struct(hipmla::default_tensors(), tensors, struct_size);
}

hipmla_tensor_t hipmla_dense_tensor(void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
  hipmla_tensor_t tensor = {};
  tensor.ndim = -1;
  if (shape == nullptr || ndim < 1 || ndim > 4) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.ndim = ndim;
  uint64_t stride = 1;  // may wrap: shapes that large are refused
  for (int32_t i = ndim - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i]);
  }
  return tensor;
}

hipmla_status_t hipmla_query_device(int32_t device_id, hipmla_device_info_t* device, char* text,
                                    size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    if (Status status = hipmla::check_size("device", device); !status.ok()) return status;
    hipmla::DeviceInfo info;
    Status status = hipmla::query_device(device_id, &info);
    if (status.ok()) hipmla::write_struct(hipmla::to_c(info), device, device->struct_size);
    return status;
  });
}

hipmla_status_t hipmla_check_support(const hipmla_shape_t* shape, const hipmla_options_t* options,
                                     const hipmla_device_info_t* device, char* text,
                                     size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    hipmla::Request r;
    if (Status status = r.read(shape, options, device); !status.ok()) return status;
    return hipmla::mla_decode_check_support(r.shape, r.options, r.device);
  });
}

hipmla_status_t hipmla_workspace_size(const hipmla_shape_t* shape, const hipmla_options_t* options,
                                      const hipmla_device_info_t* device, size_t* workspace_bytes,
                                      char* text, size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    hipmla::Request r;
    if (Status status = r.read(shape, options, device); !status.ok()) return status;
    return hipmla::mla_decode_workspace_size(r.shape, r.options, r.device, workspace_bytes);
  });
}

hipmla_status_t hipmla_plan_create(const hipmla_shape_t* shape, const hipmla_options_t* options,
                                   const hipmla_device_info_t* device,
                                   const hipmla_lengths_t* lengths, hipmla_plan_t** plan,
                                   char* text, size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    if (plan == nullptr) return hipmla::plan_is_null();
    hipmla::Request r;
    if (Status status = r.read(shape, options, device); !status.ok()) return status;
    hipmla::MlaDecodeLengths host_lengths;
    if (Status status = convert(lengths, &host_lengths); !status.ok()) return status;
    auto created = std::make_unique<hipmla_plan>();
    Status status =
        hipmla::mla_decode_plan(r.shape, r.options, r.device, host_lengths, &created->plan);
    if (status.ok()) *plan = created.release();
    return status;
  });
}

void hipmla_plan_destroy(hipmla_plan_t* plan) { delete plan; }

size_t hipmla_plan_workspace_bytes(const hipmla_plan_t* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

int32_t hipmla_plan_schedule(const hipmla_plan_t* plan) {
  return plan == nullptr ? 0 : static_cast<int32_t>(plan->plan.schedule());
}

int32_t hipmla_plan_num_partials(const hipmla_plan_t* plan) {
  return plan == nullptr ? 0 : plan->plan.num_partials();
}

uint64_t hipmla_plan_fingerprint(const hipmla_plan_t* plan) {
  return plan == nullptr ? 0 : plan->plan.fingerprint();
}

hipmla_status_t hipmla_plan_description(const hipmla_plan_t* plan, char* text, size_t text_bytes) {
  std::string description;
  const hipmla_status_t status = call(text, text_bytes, [&]() -> Status {
    if (plan == nullptr) return hipmla::plan_is_null();
    description = plan->plan.description();
    return Status();
  });
  if (status == HIPMLA_OK) hipmla::copy_text(description, text, text_bytes);
  return status;
}

hipmla_status_t hipmla_upload_plan(const hipmla_plan_t* plan, void* workspace,
                                   size_t workspace_bytes, void* stream, char* text,
                                   size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    if (plan == nullptr) return hipmla::plan_is_null();
    return hipmla::mla_decode_upload_plan(plan->plan, {workspace, workspace_bytes},
                                          static_cast<hipmla::Stream>(stream));
  });
}

hipmla_status_t hipmla_decode(const hipmla_plan_t* plan, const hipmla_tensors_t* tensors,
                              void* workspace, size_t workspace_bytes, void* stream, char* text,
                              size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    if (plan == nullptr) return hipmla::plan_is_null();
    hipmla::MlaDecodeTensors views;
    if (Status status = convert(tensors, &views); !status.ok()) return status;
    return hipmla::mla_decode_fwd(plan->plan, views, {workspace, workspace_bytes},
                                  static_cast<hipmla::Stream>(stream));
  });
}

hipmla_status_t hipmla_decode_once(const hipmla_tensors_t* tensors, const hipmla_options_t* options,
                                   const hipmla_device_info_t* device, void* workspace,
                                   size_t workspace_bytes, void* stream, char* text,
                                   size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    hipmla::MlaDecodeTensors views;
    if (Status status = convert(tensors, &views); !status.ok()) return status;
    hipmla::MlaDecodeOptions cpp_options;
    if (Status status = convert(options, &cpp_options); !status.ok()) return status;
    hipmla::DeviceInfo info;
    if (Status status = convert(device, &info); !status.ok()) return status;
    return hipmla::mla_decode_fwd(views, cpp_options, info, {workspace, workspace_bytes},
                                  static_cast<hipmla::Stream>(stream));
  });
}

hipmla_status_t hipmla_merge_states(const hipmla_tensor_t* o_shards,
                                    const hipmla_tensor_t* lse_shards, int32_t num_shards,
                                    const hipmla_tensor_t* o, const hipmla_tensor_t* lse,
                                    void* stream, char* text, size_t text_bytes) {
  return call(text, text_bytes, [&]() -> Status {
    using hipmla::kMaxMergeShards;
    using hipmla::TensorView;
    if (o == nullptr) return hipmla::invalid_argument("o is null");
    // More shards, or none, are refused before a view is read.
    const int32_t num_views = num_shards <= kMaxMergeShards ? num_shards : 0;
    const auto views_of = [num_views](const hipmla_tensor_t* shards) {
      std::array<TensorView, kMaxMergeShards> views;
      for (int32_t s = 0; shards != nullptr && s < num_views; ++s) {
        views[static_cast<size_t>(s)] = hipmla::to_view(shards[s]);
      }
      return views;
    };
    const auto o_views = views_of(o_shards);
    const auto lse_views = views_of(lse_shards);
    return hipmla::mla_merge_states(
        o_shards == nullptr ? nullptr : o_views.data(),
        lse_shards == nullptr ? nullptr : lse_views.data(), num_shards, hipmla::to_view(*o),
        lse == nullptr ? TensorView() : hipmla::to_view(*lse), static_cast<hipmla::Stream>(stream));
  });
}
