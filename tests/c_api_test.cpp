// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The C interface against the C++ one: every field arrives, structs of other versions are read as
// documented, and texts fit their buffers.

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hipmla/device.h"
#include "hipmla/hipmla.h"
#include "hipmla/mla_decode.h"
#include "hipmla/mla_merge.h"
#include "hipmla/version.h"

namespace hipmla {
namespace {

// A sound request about an MI300X that is not here.
struct CRequest {
  CRequest() {
    hipmla_device_info_init(&device, sizeof(device));
    device.arch = HIPMLA_GFX942;
    device.num_compute_units = 304;
    device.lds_bytes = 64 * 1024;
    hipmla_shape_init(&shape, sizeof(shape));
    shape.num_heads = 16;
    shape.page_size = 4;
    shape.batch_size = 2;
    shape.max_seqlen_q = 2;
    shape.total_q = 3;
    hipmla_options_init(&options, sizeof(options));
    hipmla_lengths_init(&lengths, sizeof(lengths));
    lengths.batch_size = 2;
    lengths.qo_indptr = qo_indptr;
    lengths.kv_indptr = kv_indptr;
    lengths.kv_last_page_lens = kv_last_page_lens;
  }
  hipmla_status_t check() {
    return hipmla_check_support(&shape, &options, &device, text, sizeof(text));
  }
  hipmla_plan_t* plan() {
    hipmla_plan_t* plan = nullptr;
    EXPECT_EQ(hipmla_plan_create(&shape, &options, &device, &lengths, &plan, text, sizeof(text)),
              HIPMLA_OK)
        << text;
    return plan;
  }

  int32_t qo_indptr[3] = {0, 2, 3};
  int32_t kv_indptr[3] = {0, 3, 5};
  int32_t kv_last_page_lens[2] = {4, 1};
  int32_t kv_global_lens[2] = {13, 6};
  int32_t kv_shard_begins[2] = {0, 1};
  hipmla_device_info_t device;
  hipmla_shape_t shape;
  hipmla_options_t options;
  hipmla_lengths_t lengths;
  char text[300] = "untouched";
};

TEST(CApiTest, VersionPlatformAndNames) {
  EXPECT_STREQ(hipmla_version(), version());
  EXPECT_STREQ(hipmla_platform(), platform_name());
  EXPECT_STREQ(hipmla_status_name(HIPMLA_STALE_PLAN), "stale plan");
  EXPECT_STREQ(hipmla_status_name(static_cast<hipmla_status_t>(77)), "unknown");
}

TEST(CApiTest, DefaultsAreThoseOfTheCppStructs) {
  CRequest r;
  EXPECT_EQ(r.shape.struct_size, sizeof(r.shape));
  EXPECT_EQ(r.shape.head_dim_qk, kHeadDimQk);
  EXPECT_EQ(r.shape.head_dim_v, kHeadDimV);
  EXPECT_EQ(r.shape.topk, 0);
  EXPECT_EQ(r.options.causal, 1);
  EXPECT_EQ(r.options.cp_world_size, 1);
  hipmla_tensors_t tensors;
  hipmla_tensors_init(&tensors, sizeof(tensors));
  EXPECT_EQ(tensors.q_scale.host, 1.0f);
  EXPECT_EQ(tensors.kv_scale.host, 1.0f);
  EXPECT_EQ(tensors.lengths, nullptr);
  hipmla_shape_init(nullptr, 8);
}

// A plan's fingerprint covers every field, so equal ones say that every field has arrived.
TEST(CApiTest, EveryFieldReachesThePlan) {
  CRequest r;
  r.shape.q_type = HIPMLA_F16;
  r.shape.kv_type = HIPMLA_FP8_E4M3FNUZ;
  r.shape.o_type = HIPMLA_F32;
  r.options.schedule = HIPMLA_SCHEDULE_SPLIT_KV;
  r.options.num_kv_splits = 3;
  r.options.causal = 0;
  r.options.sliding_window = 7;
  r.options.lse_base2 = 1;
  r.options.return_partials = 1;
  r.options.kv_shard = HIPMLA_KV_CONTIGUOUS;
  r.lengths.kv_global_lens = r.kv_global_lens;
  r.lengths.kv_shard_begins = r.kv_shard_begins;

  MlaDecodeShape shape;
  shape.q_type = DataType::kF16;
  shape.kv_type = DataType::kFp8E4m3Fnuz;
  shape.o_type = DataType::kF32;
  shape.num_heads = 16;
  shape.page_size = 4;
  shape.batch_size = 2;
  shape.max_seqlen_q = 2;
  shape.total_q = 3;
  MlaDecodeOptions options;
  options.schedule = Schedule::kSplitKv;
  options.num_kv_splits = 3;
  options.causal = false;
  options.sliding_window = 7;
  options.lse_base2 = true;
  options.return_partials = true;
  options.kv_shard = KvShard::kContiguous;
  const MlaDecodeLengths lengths = {
      2, r.qo_indptr, r.kv_indptr, r.kv_last_page_lens, r.kv_global_lens, r.kv_shard_begins};
  const auto expect_same = [&] {
    MlaDecodePlan plan;
    ASSERT_TRUE(
        mla_decode_plan(shape, options, {Arch::kGfx942, 304, 64 * 1024}, lengths, &plan).ok());
    hipmla_plan_t* c_plan = r.plan();
    ASSERT_NE(c_plan, nullptr);
    EXPECT_EQ(hipmla_plan_fingerprint(c_plan), plan.fingerprint());
    EXPECT_EQ(hipmla_plan_workspace_bytes(c_plan), plan.workspace_bytes());
    EXPECT_EQ(hipmla_plan_num_partials(c_plan), plan.num_partials());
    EXPECT_EQ(hipmla_plan_schedule(c_plan), static_cast<int32_t>(plan.schedule()));
    EXPECT_EQ(hipmla_plan_description(c_plan, r.text, sizeof(r.text)), HIPMLA_OK);
    EXPECT_EQ(r.text, plan.description());
    hipmla_plan_destroy(c_plan);
    size_t bytes = 0;
    size_t c_bytes = 1;
    ASSERT_TRUE(
        mla_decode_workspace_size(shape, options, {Arch::kGfx942, 304, 64 * 1024}, &bytes).ok());
    EXPECT_EQ(hipmla_workspace_size(&r.shape, &r.options, &r.device, &c_bytes, nullptr, 0),
              HIPMLA_OK);
    EXPECT_EQ(c_bytes, bytes);
  };
  expect_same();
  // The fields that exclude those above.
  r.shape.q_type = HIPMLA_BF16;
  shape.q_type = DataType::kBf16;
  r.shape.kv_layout = HIPMLA_KV_PACKED;
  shape.kv_layout = KvLayout::kPacked;
  r.shape.topk = 100;
  shape.topk = 100;
  hipmla_options_init(&r.options, sizeof(r.options));
  options = MlaDecodeOptions();
  expect_same();
}

TEST(CApiTest, RoundRobinFieldsReachTheChecks) {
  CRequest r;
  r.options.kv_shard = HIPMLA_KV_ROUND_ROBIN;
  r.options.cp_world_size = 5;
  r.options.cp_rank = 5;
  EXPECT_EQ(r.check(), HIPMLA_INVALID_ARGUMENT);
  EXPECT_STREQ(r.text, "cp_rank is 5; must be less than cp_world_size 5");
}

TEST(CApiTest, StatusAndTextAreThoseOfTheCppCall) {
  CRequest r;
  EXPECT_EQ(r.check(), HIPMLA_OK);
  EXPECT_STREQ(r.text, "");
  EXPECT_EQ(hipmla_check_support(&r.shape, nullptr, &r.device, nullptr, 0), HIPMLA_OK);
  r.shape.num_heads = 1000;
  EXPECT_EQ(r.check(), HIPMLA_UNSUPPORTED);
  EXPECT_STREQ(r.text, "num_heads is 1000; at most 512 is supported");
  // Cut to fit; not a byte further.
  char small[8] = {'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x'};
  EXPECT_EQ(hipmla_check_support(&r.shape, nullptr, &r.device, small, 5), HIPMLA_UNSUPPORTED);
  EXPECT_STREQ(small, "num_");
  EXPECT_EQ(small[5], 'x');
  EXPECT_EQ(hipmla_check_support(&r.shape, nullptr, &r.device, small, 1), HIPMLA_UNSUPPORTED);
  EXPECT_STREQ(small, "");
  EXPECT_EQ(hipmla_check_support(&r.shape, nullptr, &r.device, small, 0), HIPMLA_UNSUPPORTED);
  EXPECT_EQ(hipmla_check_support(&r.shape, nullptr, &r.device, nullptr, 100), HIPMLA_UNSUPPORTED);
}

TEST(CApiTest, BadArgumentsAreRefused) {
  const struct {
    std::function<hipmla_status_t(CRequest*)> run;
    const char* text;
  } calls[] = {
      {[](CRequest* r) {
         return hipmla_check_support(nullptr, nullptr, &r->device, r->text, sizeof(r->text));
       },
       "shape is null"},
      {[](CRequest* r) {
         return hipmla_check_support(&r->shape, nullptr, nullptr, r->text, sizeof(r->text));
       },
       "device is null"},
      {[](CRequest* r) {
         return hipmla_workspace_size(&r->shape, nullptr, &r->device, nullptr, r->text,
                                      sizeof(r->text));
       },
       "bytes is null"},
      {[](CRequest* r) {
         return hipmla_plan_create(&r->shape, nullptr, &r->device, &r->lengths, nullptr, r->text,
                                   sizeof(r->text));
       },
       "plan is null"},
      {[](CRequest* r) {
         hipmla_plan_t* plan = nullptr;
         return hipmla_plan_create(&r->shape, nullptr, &r->device, nullptr, &plan, r->text,
                                   sizeof(r->text));
       },
       "lengths is null"},
      {[](CRequest* r) {
         r->shape.struct_size = 0;
         return r->check();
       },
       "shape.struct_size is 0; must be the size of the struct"},
      {[](CRequest* r) {
         r->options.struct_size = size_t{1} << 40;
         return r->check();
       },
       "options.struct_size is 1099511627776"},
      {[](CRequest* r) {
         r->options.causal = 2;
         return r->check();
       },
       "options.causal is 2; must be 0 or 1"},
      {[](CRequest* r) {
         r->shape.reserved = 1;
         return r->check();
       },
       "shape.reserved is 1; must be 0"},
      {[](CRequest* r) {
         r->options.reserved = -1;
         return r->check();
       },
       "options.reserved is -1"},
      {[](CRequest* r) {
         r->shape.kv_type = 6;
         return r->check();
       },
       "kv_type is 6, which is no DataType"},
      {[](CRequest* r) {
         return hipmla_upload_plan(nullptr, nullptr, 0, nullptr, r->text, sizeof(r->text));
       },
       "plan is null"},
      {[](CRequest* r) {
         return hipmla_decode(nullptr, nullptr, nullptr, 0, nullptr, r->text, sizeof(r->text));
       },
       "plan is null"},
      {[](CRequest* r) { return hipmla_plan_description(nullptr, r->text, sizeof(r->text)); },
       "plan is null"},
      {[](CRequest* r) {
         return hipmla_decode_once(nullptr, nullptr, &r->device, nullptr, 0, nullptr, r->text,
                                   sizeof(r->text));
       },
       "tensors is null"},
      {[](CRequest* r) {
         return hipmla_merge_states(nullptr, nullptr, 1, nullptr, nullptr, nullptr, r->text,
                                    sizeof(r->text));
       },
       "o is null"},
      {[](CRequest* r) {
         const hipmla_tensor_t o = {};
         return hipmla_merge_states(&o, nullptr, 1, &o, nullptr, nullptr, r->text, sizeof(r->text));
       },
       "lse_shards is null"},
      {[](CRequest* r) { return hipmla_query_device(0, nullptr, r->text, sizeof(r->text)); },
       "device is null"},
  };
  for (const auto& call : calls) {
    CRequest r;
    EXPECT_EQ(call.run(&r), HIPMLA_INVALID_ARGUMENT) << call.text;
    EXPECT_NE(std::string(r.text).find(call.text), std::string::npos) << r.text;
  }
  CRequest r;
  const hipmla_tensor_t o = {};
  // 65 shards that are not there: refused before one is read.
  EXPECT_EQ(hipmla_merge_states(&o, &o, 65, &o, &o, nullptr, r.text, sizeof(r.text)),
            HIPMLA_UNSUPPORTED);
  EXPECT_EQ(hipmla_plan_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(hipmla_plan_schedule(nullptr), 0);
  EXPECT_EQ(hipmla_plan_num_partials(nullptr), 0);
  EXPECT_EQ(hipmla_plan_fingerprint(nullptr), 0u);
  hipmla_plan_destroy(nullptr);
}

// A caller whose headers are older: fields past its struct are not read.
TEST(CApiTest, SmallerStructsGetDefaults) {
  CRequest r;
  r.options.num_kv_splits = 0;
  r.options.cp_world_size = -5;  // a byte that the older struct does not have
  r.options.cp_rank = -5;
  EXPECT_EQ(r.check(), HIPMLA_INVALID_ARGUMENT);
  r.options.struct_size = offsetof(hipmla_options_t, cp_world_size);
  EXPECT_EQ(r.check(), HIPMLA_OK) << r.text;
  r.shape.topk = -1;
  EXPECT_EQ(r.check(), HIPMLA_INVALID_ARGUMENT);
  r.shape.struct_size = offsetof(hipmla_shape_t, topk);
  EXPECT_EQ(r.check(), HIPMLA_OK) << r.text;

  hipmla_options_t small;
  std::memset(&small, 0x55, sizeof(small));
  hipmla_options_init(&small, offsetof(hipmla_options_t, sliding_window));
  EXPECT_EQ(small.struct_size, offsetof(hipmla_options_t, sliding_window));
  EXPECT_EQ(small.causal, 1);
  EXPECT_EQ(small.sliding_window, 0x55555555) << "written past its end";
}

// A caller whose headers are newer.
TEST(CApiTest, LargerStructsMustEndInZeros) {
  CRequest r;
  struct {
    hipmla_shape_t known;
    int32_t unknown[4];
  } larger;
  std::memset(&larger, 0x55, sizeof(larger));
  hipmla_shape_init(&larger.known, sizeof(larger));
  EXPECT_EQ(larger.known.struct_size, sizeof(larger));
  for (int32_t field : larger.unknown) EXPECT_EQ(field, 0);
  larger.known.num_heads = 16;
  larger.known.batch_size = 2;
  larger.known.total_q = 2;
  EXPECT_EQ(hipmla_check_support(&larger.known, nullptr, &r.device, r.text, sizeof(r.text)),
            HIPMLA_OK)
      << r.text;
  larger.unknown[2] = 1;
  EXPECT_EQ(hipmla_check_support(&larger.known, nullptr, &r.device, r.text, sizeof(r.text)),
            HIPMLA_UNSUPPORTED);
  EXPECT_NE(std::string(r.text).find("is not 0; hipmla " + std::string(version()) + " knows"),
            std::string::npos)
      << r.text;
}

TEST(CApiTest, QueryDevice) {
  CRequest r;
  hipmla_device_info_t device;
  std::memset(&device, 0x55, sizeof(device));
  device.struct_size = sizeof(device);
  ASSERT_EQ(hipmla_query_device(0, &device, r.text, sizeof(r.text)), HIPMLA_OK) << r.text;
  DeviceInfo info;
  ASSERT_TRUE(query_device(0, &info).ok());
  EXPECT_EQ(device.arch, static_cast<int32_t>(info.arch));
  EXPECT_EQ(device.num_compute_units, info.num_compute_units);
  EXPECT_EQ(device.lds_bytes, info.lds_bytes);
  EXPECT_EQ(hipmla_query_device(9999, &device, r.text, sizeof(r.text)), HIPMLA_DEVICE_ERROR);
  EXPECT_EQ(device.lds_bytes, info.lds_bytes);
}

TEST(CApiTest, DenseTensor) {
  const int64_t shape[] = {3, 5, 576};
  int32_t memory = 0;
  const hipmla_tensor_t t = hipmla_dense_tensor(&memory, HIPMLA_F16, 3, shape);
  const TensorView view = dense_view(&memory, DataType::kF16, 3, 5, 576);
  EXPECT_EQ(t.data, view.data);
  EXPECT_EQ(t.dtype, HIPMLA_F16);
  EXPECT_EQ(t.ndim, 3);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(t.shape[i], view.shape[i]);
    EXPECT_EQ(t.stride[i], view.stride[i]);
  }
  for (int ndim : {-1, 0, 5}) EXPECT_EQ(hipmla_dense_tensor(&memory, 0, ndim, shape).ndim, -1);
  EXPECT_EQ(hipmla_dense_tensor(&memory, 0, 3, nullptr).ndim, -1);
}

// ---- on the device ----

// Device memory that lives as long as the test.
class DeviceMemory {
 public:
  ~DeviceMemory() {
    for (void* pointer : pointers_) (void)hipFree(pointer);
  }
  template <typename T>
  T* copy(const std::vector<T>& values) {
    void* pointer = nullptr;
    const size_t bytes = values.size() * sizeof(T);
    EXPECT_EQ(hipMalloc(&pointer, bytes), hipSuccess);
    pointers_.push_back(pointer);
    EXPECT_EQ(hipMemcpy(pointer, values.data(), bytes, hipMemcpyHostToDevice), hipSuccess);
    return static_cast<T*>(pointer);
  }

 private:
  std::vector<void*> pointers_;
};

std::vector<float> to_host(const float* pointer, size_t size) {
  std::vector<float> values(size);
  EXPECT_EQ(hipMemcpy(values.data(), pointer, size * sizeof(float), hipMemcpyDeviceToHost),
            hipSuccess);
  return values;
}

hipmla_tensor_t tensor(void* data, int32_t dtype, const std::vector<int64_t>& shape) {
  return hipmla_dense_tensor(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
}

constexpr int kHeads = 16;
constexpr int kKvLen = 3;

// One query whose q = 0, so that every key weighs the same: tokens 1, 2, 3 give their mean 2, and
// lse = ln 3.
class DeviceDecode {
 public:
  DeviceDecode() {
    std::vector<uint16_t> kv;  // in bf16
    for (uint16_t value : {0x3F80, 0x4000, 0x4040}) kv.insert(kv.end(), kHeadDimQk, value);
    hipmla_tensors_init(&tensors, sizeof(tensors));
    tensors.q = tensor(memory.copy(std::vector<uint16_t>(kHeads * kHeadDimQk, 0)), HIPMLA_BF16,
                       {1, kHeads, kHeadDimQk});
    tensors.kv_buffer = tensor(memory.copy(kv), HIPMLA_BF16, {kKvLen, 1, 1, kHeadDimQk});
    tensors.qo_indptr = tensor(memory.copy(qo_indptr), HIPMLA_I32, {2});
    tensors.kv_indptr = tensor(memory.copy(kv_indptr), HIPMLA_I32, {2});
    tensors.kv_indices = tensor(memory.copy(kv_indices), HIPMLA_I32, {kKvLen});
    tensors.kv_last_page_lens = tensor(memory.copy(kv_last_page_lens), HIPMLA_I32, {1});
    o = memory.copy(std::vector<float>(kHeads * kHeadDimV, NAN));
    lse = memory.copy(std::vector<float>(kHeads, NAN));
    tensors.o = tensor(o, HIPMLA_F32, {1, kHeads, kHeadDimV});
    tensors.final_lse = tensor(lse, HIPMLA_F32, {1, kHeads});
    tensors.softmax_scale = 0.1f;
    hipmla_lengths_init(&lengths, sizeof(lengths));
    lengths.batch_size = 1;
    lengths.qo_indptr = qo_indptr.data();
    lengths.kv_indptr = kv_indptr.data();
    lengths.kv_last_page_lens = kv_last_page_lens.data();
    device.struct_size = sizeof(device);
    EXPECT_EQ(hipmla_query_device(0, &device, text, sizeof(text)), HIPMLA_OK) << text;
    hipmla_shape_init(&shape, sizeof(shape));
    shape.o_type = HIPMLA_F32;
    shape.num_heads = kHeads;
    shape.batch_size = 1;
    shape.total_q = 1;
    EXPECT_EQ(hipmla_workspace_size(&shape, nullptr, &device, &workspace_bytes, text, sizeof(text)),
              HIPMLA_OK)
        << text;
    workspace = memory.copy(std::vector<char>(workspace_bytes));
  }

  void expect_result(float value, float log_sum) const {
    ASSERT_EQ(hipDeviceSynchronize(), hipSuccess);
    for (float x : to_host(o, kHeads * kHeadDimV)) ASSERT_NEAR(x, value, 0.02f);
    for (float x : to_host(lse, kHeads)) ASSERT_NEAR(x, log_sum, 1e-5f);
  }

  const std::vector<int32_t> qo_indptr = {0, 1};
  const std::vector<int32_t> kv_indptr = {0, kKvLen};
  const std::vector<int32_t> kv_indices = {2, 0, 1};
  const std::vector<int32_t> kv_last_page_lens = {1};
  DeviceMemory memory;
  hipmla_tensors_t tensors;
  hipmla_lengths_t lengths;
  hipmla_shape_t shape;
  hipmla_device_info_t device = {};
  float* o = nullptr;
  float* lse = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  char text[300] = "";
};

TEST(CApiTest, DecodeWithAPlan) {
  DeviceDecode d;
  hipmla_plan_t* plan = nullptr;
  ASSERT_EQ(
      hipmla_plan_create(&d.shape, nullptr, &d.device, &d.lengths, &plan, d.text, sizeof(d.text)),
      HIPMLA_OK)
      << d.text;
  ASSERT_EQ(
      hipmla_upload_plan(plan, d.workspace, d.workspace_bytes, nullptr, d.text, sizeof(d.text)),
      HIPMLA_OK)
      << d.text;
  ASSERT_EQ(hipmla_decode(plan, &d.tensors, d.workspace, d.workspace_bytes, nullptr, d.text,
                          sizeof(d.text)),
            HIPMLA_OK)
      << d.text;
  d.expect_result(2.0f, std::log(3.0f));
  hipmla_plan_destroy(plan);
}

TEST(CApiTest, DecodeOnceWithOptionsAndFactors) {
  DeviceDecode d;
  d.tensors.lengths = &d.lengths;
  d.tensors.kv_scale.host = 2.0f;
  hipmla_options_t options;
  hipmla_options_init(&options, sizeof(options));
  options.sliding_window = 2;  // pages 2, 0, 1: tokens 3, 1, 2
  options.lse_base2 = 1;
  ASSERT_EQ(hipmla_decode_once(&d.tensors, &options, &d.device, d.workspace, d.workspace_bytes,
                               nullptr, d.text, sizeof(d.text)),
            HIPMLA_OK)
      << d.text;
  d.expect_result(3.0f, 1.0f);
}

TEST(CApiTest, MergeStates) {
  DeviceDecode d;
  const size_t size = kHeads * kHeadDimV;
  std::array<hipmla_tensor_t, 2> o_shards;
  std::array<hipmla_tensor_t, 2> lse_shards;
  for (size_t s = 0; s < 2; ++s) {
    const float value = s == 0 ? 1.0f : 4.0f;
    o_shards[s] =
        tensor(d.memory.copy(std::vector<float>(size, value)), HIPMLA_F32, {1, kHeads, kHeadDimV});
    lse_shards[s] =
        tensor(d.memory.copy(std::vector<float>(kHeads, std::log(value))), HIPMLA_F32, {1, kHeads});
  }
  ASSERT_EQ(hipmla_merge_states(o_shards.data(), lse_shards.data(), 2, &d.tensors.o,
                                &d.tensors.final_lse, nullptr, d.text, sizeof(d.text)),
            HIPMLA_OK)
      << d.text;
  d.expect_result(3.4f, std::log(5.0f));  // (1 * 1 + 4 * 4) / 5
}

}  // namespace
}  // namespace hipmla
