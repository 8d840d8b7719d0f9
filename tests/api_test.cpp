// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// What the API refuses, and how. Every call here fails its checks or has nothing to do, so ordinary
// memory stands in for device memory: nothing is ever launched on it.

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/device.h"
#include "hipmla/mla_decode.h"
#include "hipmla/mla_merge.h"
#include "hipmla/version.h"
#include "src/check.h"
#include "src/device_arch.h"
#include "src/params.h"

namespace hipmla {

// How GoogleTest shows a Status.
static void PrintTo(const Status& status, std::ostream* out) {
  *out << status_code_name(status.code()) << ": " << status.text();
}

namespace {

constexpr DeviceInfo kMi300x = {Arch::kGfx942, 304, 64 * 1024};

// A sound request: 2 sequences of 2 and 1 queries, 3 and 2 pages of 4 tokens, 5 heads.
class Request {
 public:
  static constexpr int64_t kTotalQ = 3;
  static constexpr int64_t kHeads = 5;
  static constexpr int64_t kPages = 7;
  static constexpr int64_t kPageSize = 4;

  explicit Request(bool return_partials = false) : arena_(size_t{1} << 20, kUntouched) {
    options.return_partials = return_partials;
    shape.num_heads = kHeads;
    shape.page_size = kPageSize;
    shape.batch_size = 2;
    shape.max_seqlen_q = 2;
    shape.total_q = kTotalQ;
    t.q = view(DataType::kBf16, {kTotalQ, kHeads, 576});
    t.kv_buffer = view(DataType::kBf16, {kPages, kPageSize, 1, 576});
    t.qo_indptr = view(DataType::kI32, {3});
    t.kv_indptr = view(DataType::kI32, {3});
    t.kv_indices = view(DataType::kI32, {5});
    t.kv_last_page_lens = view(DataType::kI32, {2});
    t.o = view(DataType::kBf16, {kTotalQ, kHeads, 512});
    t.final_lse = view(DataType::kF32, {kTotalQ, kHeads});
    if (return_partials) {
      t.partial_o = view(DataType::kF32, {1, kTotalQ, kHeads, 512});
      t.partial_lse = view(DataType::kF32, {1, kTotalQ, kHeads});
    }
    t.softmax_scale = 0.05f;
    t.lengths = {2, qo_indptr, kv_indptr, kv_last_page_lens};
    const TensorView memory = view(DataType::kI32, {16384});
    workspace = {memory.data, 65536};
  }
  // Variants, to be chosen before the plan is made.
  void make_sparse() {
    t.topk_indices = view(DataType::kI32, {kTotalQ, 64});
    t.qo_indptr = t.kv_indptr = t.kv_indices = t.kv_last_page_lens = TensorView();
    t.lengths = {2, qo_indptr};
    shape.topk = 64;
  }
  void make_fp8() {
    shape.kv_type = DataType::kFp8E4m3Fn;
    t.kv_buffer = view(DataType::kFp8E4m3Fn, {kPages, kPageSize, 1, 576});
    t.kv_token_scales = view(DataType::kF32, {kPages, kPageSize});
  }
  void make_packed() {
    shape.kv_type = DataType::kFp8E4m3Fnuz;
    shape.kv_layout = KvLayout::kPacked;
    t.kv_buffer = view(DataType::kFp8E4m3Fnuz, {kPages, kPageSize, 1, 656});
  }
  // The two sequences hold 12 and 5 tokens.
  void make_contiguous() {
    options.kv_shard = KvShard::kContiguous;
    add_shard_arrays(13, 6);
    t.kv_shard_begins = view(DataType::kI32, {2});
    t.lengths.kv_shard_begins = kv_shard_begins;
  }
  void make_round_robin() {
    options.kv_shard = KvShard::kRoundRobin;
    options.cp_world_size = 3;
    options.cp_rank = 1;
    add_shard_arrays(35, 16);
  }
  // Everything that any request may have.
  void make_full() {
    make_fp8();
    make_contiguous();
    t.sink = view(DataType::kF32, {kHeads});
    t.q_scale.device = static_cast<const float*>(view(DataType::kF32, {1}).data);
    t.kv_scale.device = static_cast<const float*>(view(DataType::kF32, {1}).data);
  }

  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  TensorView view(DataType dtype, const std::vector<int64_t>& sizes) {
    TensorView view;
    view.dtype = dtype;
    view.ndim = static_cast<int32_t>(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      view.shape[i] = sizes[i];
      view.stride[i] = stride;
      stride *= sizes[i];
    }
    const auto base = reinterpret_cast<uintptr_t>(arena_.data());
    const uintptr_t begin = (base + used_ + 255) / 256 * 256;
    view.data = arena_.data() + (begin - base);
    used_ = begin - base + static_cast<size_t>(stride) * element_bytes(dtype);
    EXPECT_LE(used_, arena_.size());
    return view;
  }

  MlaDecodePlan plan() const {
    MlaDecodePlan plan;
    const Status status = mla_decode_plan(shape, options, device, t.lengths, &plan);
    EXPECT_TRUE(status.ok()) << status.text();
    return plan;
  }

  bool untouched() const {
    return std::all_of(arena_.begin(), arena_.end(), [](uint8_t b) { return b == kUntouched; });
  }

  int32_t qo_indptr[3] = {0, 2, 3};
  int32_t kv_indptr[3] = {0, 3, 5};
  int32_t kv_last_page_lens[2] = {4, 1};
  int32_t kv_global_lens[2] = {};
  int32_t kv_shard_begins[2] = {0, 1};
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  DeviceInfo device = kMi300x;
  MlaDecodeTensors t;
  Workspace workspace;

 private:
  void add_shard_arrays(int32_t global_len_0, int32_t global_len_1) {
    kv_global_lens[0] = global_len_0;
    kv_global_lens[1] = global_len_1;
    t.kv_global_lens = view(DataType::kI32, {2});
    t.lengths.kv_global_lens = kv_global_lens;
  }

  static constexpr uint8_t kUntouched = 0xff;
  std::vector<uint8_t> arena_;
  size_t used_ = 0;
};

// One bad input: what is changed, and what must come back.
struct BadInput {
  std::function<void(Request*)> change;
  StatusCode code;
  const char* text;  // part of the status text
};

void expect_status(const Status& status, const BadInput& bad) {
  EXPECT_STREQ(status_code_name(status.code()), status_code_name(bad.code)) << status.text();
  EXPECT_NE(status.text().find(bad.text), std::string::npos)
      << "\"" << status.text() << "\" lacks \"" << bad.text << "\"";
}

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
constexpr StatusCode kStale = StatusCode::kStalePlan;
constexpr StatusCode kSmall = StatusCode::kWorkspaceTooSmall;

// ---- shape, options, device: the same Status from every entry point ----

const BadInput kBadShapes[] = {
    {[](Request* r) { r->shape.num_heads = 0; }, kInvalid, "num_heads is 0; must be at least 1"},
    {[](Request* r) { r->shape.num_heads = -3; }, kInvalid, "num_heads is -3"},
    {[](Request* r) { r->shape.num_heads = 513; }, kUnsupported, "num_heads is 513; at most 512"},
    {[](Request* r) { r->shape.page_size = 0; }, kInvalid, "page_size is 0"},
    {[](Request* r) { r->shape.page_size = 4097; }, kUnsupported,
     "page_size is 4097; at most 4096"},
    {[](Request* r) { r->shape.max_seqlen_q = 0; }, kInvalid, "max_seqlen_q is 0"},
    {[](Request* r) { r->shape.max_seqlen_q = 1025; }, kUnsupported, "at most 1024"},
    {[](Request* r) { r->shape.batch_size = -1; }, kInvalid, "batch_size is -1"},
    {[](Request* r) { r->shape.total_q = -1; }, kInvalid, "total_q is -1"},
    {[](Request* r) { r->shape.total_q = 5; }, kInvalid, "total_q is 5"},
    {[](Request* r) { r->shape.head_dim_qk = 512; }, kUnsupported, "head_dim_qk is 512; 576"},
    {[](Request* r) { r->shape.head_dim_v = 128; }, kUnsupported, "head_dim_v is 128; 512"},
    {[](Request* r) { r->shape.q_type = DataType::kF16; }, kUnsupported,
     "q_type f16 with kv_type bf16, dense: no kernel; use q_type bf16 with kv_type bf16, dense"},
    {[](Request* r) { r->shape.q_type = r->shape.kv_type = DataType::kF32; }, kUnsupported,
     "q_type f32 with kv_type f32, dense: no kernel; use q_type bf16 with kv_type bf16, dense or "
     "q_type f16 with kv_type f16, dense"},
    {[](Request* r) {
       r->make_packed();
       r->shape.q_type = DataType::kF16;
     },
     kUnsupported,
     "q_type f16 with kv_type fp8_e4m3fnuz, packed: no kernel; use q_type bf16 with kv_type "
     "fp8_e4m3fnuz, packed"},
    {[](Request* r) { r->shape.kv_layout = KvLayout::kPacked; }, kUnsupported,
     "q_type bf16 with kv_type bf16, packed: no kernel; use q_type bf16 with kv_type bf16, dense"},
    {[](Request* r) { r->shape.q_type = DataType::kFp8E4m3Fn; }, kUnsupported,
     "q_type fp8_e4m3fn with kv_type bf16, dense: no kernel; use q_type bf16"},
    {[](Request* r) {
       r->shape.q_type = DataType::kFp8E4m3Fn;
       r->shape.kv_type = DataType::kFp8E4m3Fnuz;
     },
     kUnsupported, "or q_type fp8_e4m3fnuz with kv_type fp8_e4m3fnuz, dense"},
    {[](Request* r) { r->shape.kv_layout = static_cast<KvLayout>(2); }, kInvalid,
     "kv_layout is 2, which is no KvLayout"},
    {[](Request* r) { r->shape.kv_type = static_cast<DataType>(6); }, kInvalid, "kv_type is 6"},
    {[](Request* r) { r->shape.o_type = DataType::kI32; }, kUnsupported, "o_type is i32"},
    {[](Request* r) { r->shape.o_type = DataType::kFp8E4m3Fn; }, kUnsupported,
     "o_type is fp8_e4m3fn; bf16, f16 and f32"},
    {[](Request* r) { r->shape.topk = -1; }, kInvalid, "topk is -1; must be at least 0"},
    {[](Request* r) { r->shape.topk = 65537; }, kUnsupported, "topk is 65537; at most 65536"},
    {[](Request* r) { r->options.sliding_window = -1; }, kInvalid, "sliding_window is -1"},
    {[](Request* r) {
       r->shape.topk = 64;
       r->options.sliding_window = 5;
     },
     kInvalid, "sliding_window is 5 with topk 64; must be 0"},
    {[](Request* r) {
       r->shape.topk = 64;
       r->options.kv_shard = KvShard::kContiguous;
     },
     kInvalid, "kv_shard is kContiguous with topk 64; must be kWhole"},
    {[](Request* r) { r->options.kv_shard = static_cast<KvShard>(3); }, kInvalid,
     "kv_shard is 3, which is no KvShard"},
    {[](Request* r) { r->options.cp_world_size = 2; }, kInvalid,
     "cp_world_size is 2; must be 1 unless kv_shard is kRoundRobin"},
    {[](Request* r) {
       r->make_contiguous();
       r->options.cp_world_size = 2;
     },
     kInvalid, "cp_world_size is 2; must be 1"},
    {[](Request* r) { r->options.cp_rank = 1; }, kInvalid,
     "cp_rank is 1; must be less than cp_world_size 1"},
    {[](Request* r) { r->options.cp_rank = -1; }, kInvalid, "cp_rank is -1"},
    {[](Request* r) { r->options.cp_world_size = 0; }, kInvalid, "cp_world_size is 0"},
    {[](Request* r) {
       r->make_round_robin();
       r->options.cp_rank = 3;
     },
     kInvalid, "cp_rank is 3; must be less than cp_world_size 3"},
    {[](Request* r) {
       r->make_round_robin();
       r->options.cp_world_size = 1025;
     },
     kUnsupported, "cp_world_size is 1025; at most 1024"},
    {[](Request* r) {
       r->shape.topk = 65536;
       r->shape.num_heads = 512;
       r->shape.batch_size = 1 << 20;
       r->shape.total_q = 1 << 20;
       r->options = {Schedule::kSplitKv, 256};
     },
     kUnsupported, "work items; at most 16777215"},
    {[](Request* r) { r->shape.o_type = static_cast<DataType>(77); }, kInvalid, "o_type is 77"},
    {[](Request* r) { r->options.schedule = static_cast<Schedule>(9); }, kInvalid, "schedule is 9"},
    {[](Request* r) { r->options.num_kv_splits = 4; }, kInvalid, "num_kv_splits is 4; must be 0"},
    {[](Request* r) {
       r->options = {Schedule::kPersistent, 1};
     },
     kInvalid, "must be 0 unless schedule is kSplitKv"},
    {[](Request* r) {
       r->options = {Schedule::kSplitKv, 257};
     },
     kUnsupported, "num_kv_splits is 257; at most 256"},
    {[](Request* r) {
       r->options = {Schedule::kSplitKv, -1};
     },
     kInvalid, "num_kv_splits is -1"},
    {[](Request* r) { r->device.arch = Arch::kUnknown; }, kUnsupported,
     "architecture unknown; there are kernels for gfx90a, gfx942, gfx950"},
    {[](Request* r) { r->device.arch = static_cast<Arch>(99); }, kUnsupported, "unknown"},
    {[](Request* r) { r->device.arch = static_cast<Arch>(-1); }, kUnsupported, "unknown"},
    {[](Request* r) { r->device.num_compute_units = 0; }, kInvalid, "num_compute_units is 0"},
    {[](Request* r) { r->device.num_compute_units = 1 << 20; }, kInvalid, "at most 65536"},
    {[](Request* r) { r->device.lds_bytes = 1024; }, kUnsupported, "1024 bytes of LDS"},
    {[](Request* r) { r->device.lds_bytes = -1; }, kInvalid, "lds_bytes is -1"},
    {[](Request* r) {
       r->shape.num_heads = 16;
       r->shape.batch_size = r->shape.max_seqlen_q = 1024;
       r->shape.total_q = 1024 * 1024;
       r->options = {Schedule::kSplitKv, 256};
     },
     kUnsupported, "work items; at most 16777215"},
    {[](Request* r) {
       r->shape.batch_size = 1 << 20;
       r->shape.max_seqlen_q = 26;
       r->shape.total_q = 1 << 20;
       r->options = {Schedule::kSplitKv, 2};
     },
     kUnsupported, "rows to merge"},
};

TEST(ApiTest, BadShapesGetTheSameStatusEverywhere) {
  for (const BadInput& bad : kBadShapes) {
    Request r;
    MlaDecodePlan plan = r.plan();
    const uint64_t fingerprint = plan.fingerprint();
    bad.change(&r);
    const Status status = mla_decode_check_support(r.shape, r.options, r.device);
    expect_status(status, bad);
    size_t bytes = 12345;
    EXPECT_EQ(mla_decode_workspace_size(r.shape, r.options, r.device, &bytes), status);
    EXPECT_EQ(bytes, 12345u);
    EXPECT_EQ(mla_decode_plan(r.shape, r.options, r.device, r.t.lengths, &plan), status);
    EXPECT_EQ(plan.fingerprint(), fingerprint) << "the plan was touched";
  }
}

// ---- lengths ----

const BadInput kBadLengths[] = {
    {[](Request* r) { r->t.lengths.batch_size = 1; }, kInvalid, "lengths.batch_size is 1"},
    {[](Request* r) { r->t.lengths.qo_indptr = nullptr; }, kInvalid, "qo_indptr is null"},
    {[](Request* r) { r->t.lengths.kv_indptr = nullptr; }, kInvalid, "kv_indptr is null"},
    {[](Request* r) { r->t.lengths.kv_last_page_lens = nullptr; }, kInvalid,
     "kv_last_page_lens is null; sequence 0 has 3 pages"},
    {[](Request* r) { r->qo_indptr[0] = 1; }, kInvalid, "qo_indptr[0] is 1; must be 0"},
    {[](Request* r) { r->kv_indptr[0] = -1; }, kInvalid, "kv_indptr[0] is -1; must be 0"},
    {[](Request* r) { r->qo_indptr[1] = -1; }, kInvalid,
     "sequence 0: lengths.qo_indptr falls from 0 to -1"},
    {[](Request* r) { r->kv_indptr[2] = 2; }, kInvalid,
     "sequence 1: lengths.kv_indptr falls from 3 to 2"},
    {[](Request* r) { r->kv_last_page_lens[1] = 0; }, kInvalid,
     "sequence 1: lengths.kv_last_page_lens is 0; must be 1..4"},
    {[](Request* r) { r->kv_last_page_lens[0] = 5; }, kInvalid, "is 5; must be 1..4"},
    {[](Request* r) { r->kv_last_page_lens[0] = -2147483647; }, kInvalid, "must be 1..4"},
    {[](Request* r) { r->shape.max_seqlen_q = 1, r->shape.total_q = 2; }, kInvalid,
     "sequence 0 has 2 queries; max_seqlen_q is 1"},
    {[](Request* r) { r->shape.total_q = 4; }, kInvalid, "qo_indptr[2] is 3; total_q is 4"},
    {[](Request* r) { r->kv_indptr[2] = 2147483647; }, kInvalid,
     "sequence 1 has 8589934573 tokens; at most 2147479551"},
    {[](Request* r) { r->qo_indptr[1] = 2147483647; }, kInvalid, "2147483647 queries"},
    {[](Request* r) { r->qo_indptr[1] = -2147483647 - 1; }, kInvalid, "falls from 0"},
};

// How a Request is varied before `change` is applied.
using Variant = void (Request::*)();

template <size_t kSize>
void expect_bad_lengths(const BadInput (&table)[kSize], Variant variant = nullptr) {
  for (const BadInput& bad : table) {
    Request r;
    if (variant != nullptr) (r.*variant)();
    EXPECT_NE(r.plan().impl(), nullptr);
    MlaDecodePlan plan;
    bad.change(&r);
    expect_status(mla_decode_plan(r.shape, r.options, r.device, r.t.lengths, &plan), bad);
    EXPECT_EQ(plan.impl(), nullptr);
  }
}

TEST(ApiTest, BadLengthsAreRefusedByThePlan) { expect_bad_lengths(kBadLengths); }

const BadInput kBadContiguousLengths[] = {
    {[](Request* r) { r->t.lengths.kv_global_lens = nullptr; }, kInvalid,
     "lengths.kv_global_lens is null; kv_shard is kContiguous"},
    {[](Request* r) { r->t.lengths.kv_shard_begins = nullptr; }, kInvalid,
     "lengths.kv_shard_begins is null; kv_shard is kContiguous"},
    {[](Request* r) { r->kv_global_lens[0] = -1; }, kInvalid,
     "sequence 0: lengths.kv_global_lens is -1; must be 0..2147479551"},
    {[](Request* r) { r->kv_global_lens[1] = 2147479552; }, kInvalid,
     "sequence 1: lengths.kv_global_lens is 2147479552"},
    {[](Request* r) { r->kv_shard_begins[1] = -1; }, kInvalid,
     "sequence 1: lengths.kv_shard_begins is -1; must be at least 0"},
    {[](Request* r) { r->kv_shard_begins[1] = 2; }, kInvalid,
     "sequence 1 has 5 tokens from lengths.kv_shard_begins 2 on; lengths.kv_global_lens is 6"},
    {[](Request* r) { r->kv_shard_begins[1] = 2147483647; }, kInvalid,
     "kv_shard_begins 2147483647"},
    {[](Request* r) { r->kv_global_lens[0] = 11; }, kInvalid, "sequence 0 has 12 tokens"},
    {[](Request* r) { r->kv_last_page_lens[0] = 9; }, kInvalid, "must be 1..4"},
};

const BadInput kBadRoundRobinLengths[] = {
    {[](Request* r) { r->t.lengths.kv_global_lens = nullptr; }, kInvalid,
     "lengths.kv_global_lens is null; kv_shard is kRoundRobin"},
    {[](Request* r) { r->t.lengths.kv_shard_begins = r->kv_shard_begins; }, kInvalid,
     "lengths.kv_shard_begins is given; kv_shard is kRoundRobin"},
    {[](Request* r) { r->kv_global_lens[0] = 34; }, kInvalid,
     "sequence 0 has 12 tokens; rank 1 of 3 has 11 of lengths.kv_global_lens 34"},
    {[](Request* r) { r->kv_global_lens[1] = 18; }, kInvalid, "rank 1 of 3 has 6"},
    {[](Request* r) { r->options.cp_rank = 0; }, kInvalid, "sequence 1 has 5 tokens; rank 0 of 3"},
    {[](Request* r) { r->options.cp_rank = 2; }, kInvalid, "rank 2 of 3 has 11"},
};

const BadInput kBadWholeLengths[] = {
    {[](Request* r) { r->t.lengths.kv_global_lens = r->kv_global_lens; }, kInvalid,
     "lengths.kv_global_lens is given; kv_shard is kWhole"},
    {[](Request* r) { r->t.lengths.kv_shard_begins = r->kv_shard_begins; }, kInvalid,
     "lengths.kv_shard_begins is given; kv_shard is kWhole"},
};

const BadInput kBadSparseLengths[] = {
    {[](Request* r) { r->t.lengths.qo_indptr = nullptr; }, kInvalid, "qo_indptr is null"},
    {[](Request* r) { r->qo_indptr[2] = 4; }, kInvalid, "qo_indptr[2] is 4; total_q is 3"},
    {[](Request* r) { r->qo_indptr[1] = 3; }, kInvalid, "sequence 0 has 3 queries"},
    {[](Request* r) { r->t.lengths.batch_size = 3; }, kInvalid, "lengths.batch_size is 3"},
};

TEST(ApiTest, BadLengthsOfShardsAndOfSparseRequestsAreRefused) {
  expect_bad_lengths(kBadWholeLengths);
  expect_bad_lengths(kBadContiguousLengths, &Request::make_contiguous);
  expect_bad_lengths(kBadRoundRobinLengths, &Request::make_round_robin);
  expect_bad_lengths(kBadSparseLengths, &Request::make_sparse);
}

TEST(ApiTest, ShardsThatHoldNothingAreAccepted) {
  Request r;
  r.make_contiguous();
  r.kv_indptr[1] = r.kv_indptr[2] = 0;
  r.kv_shard_begins[0] = r.kv_global_lens[0] = 2147479551;
  EXPECT_NE(r.plan().impl(), nullptr);
  Request round_robin;
  round_robin.make_round_robin();
  round_robin.kv_indptr[1] = round_robin.kv_indptr[2] = 0;
  round_robin.kv_global_lens[0] = 0;
  round_robin.kv_global_lens[1] = 1;  // all on rank 0
  EXPECT_NE(round_robin.plan().impl(), nullptr);
}

TEST(ApiTest, LastPageLengthIsNotReadWithoutAPage) {
  Request r;
  r.kv_indptr[1] = r.kv_indptr[2] = 0;
  r.t.lengths.kv_last_page_lens = nullptr;
  EXPECT_NE(r.plan().impl(), nullptr);
}

TEST(ApiTest, LongestSequenceIsAccepted) {
  Request r;
  r.shape.page_size = 4096;
  r.kv_indptr[2] = 3 + (1 << 19) - 1;
  r.kv_last_page_lens[1] = 4095;
  EXPECT_NE(r.plan().impl(), nullptr);
  r.kv_last_page_lens[1] = 4096;
  MlaDecodePlan plan;
  EXPECT_FALSE(mla_decode_plan(r.shape, r.options, r.device, r.t.lengths, &plan).ok());
}

// ---- tensors and workspace against a plan ----

TensorView* find_tensor(Request* r, const std::string& name) {
  MlaDecodeTensors& t = r->t;
  const std::pair<const char*, TensorView*> tensors[] = {
      {"q", &t.q},
      {"kv_buffer", &t.kv_buffer},
      {"qo_indptr", &t.qo_indptr},
      {"kv_indptr", &t.kv_indptr},
      {"kv_indices", &t.kv_indices},
      {"kv_last_page_lens", &t.kv_last_page_lens},
      {"o", &t.o},
      {"final_lse", &t.final_lse},
      {"partial_o", &t.partial_o},
      {"partial_lse", &t.partial_lse},
      {"kv_global_lens", &t.kv_global_lens},
      {"kv_shard_begins", &t.kv_shard_begins},
      {"topk_indices", &t.topk_indices},
      {"kv_token_scales", &t.kv_token_scales},
      {"sink", &t.sink}};
  for (const auto& [known, view] : tensors) {
    if (name == known) return view;
  }
  ADD_FAILURE() << name;
  return nullptr;
}

char* shifted(const TensorView& view, int64_t bytes) {
  return static_cast<char*>(view.data) + bytes;
}

const BadInput kBadTensors[] = {
    // What the plan was built for.
    {[](Request* r) { r->t.q.dtype = DataType::kF16; }, kStale,
     "q has dtype f16; the plan was built for bf16"},
    {[](Request* r) { r->t.kv_buffer.dtype = DataType::kF16; }, kStale, "kv_buffer has dtype f16"},
    {[](Request* r) { r->t.o.dtype = DataType::kF32; }, kStale, "o has dtype f32"},
    {[](Request* r) { r->t.q.shape[1] = 6; }, kStale,
     "q has shape [3, 6, 576]; dimension 1 is 6; the plan was built for 5"},
    {[](Request* r) { r->t.q.shape[0] = 4; }, kStale, "dimension 0 is 4; the plan was built for 3"},
    {[](Request* r) { r->t.o.shape[0] = 2; }, kStale, "o has shape [2, 5, 512]"},
    {[](Request* r) { r->t.kv_buffer.shape[1] = 64; }, kStale, "is 64; the plan was built for 4"},
    {[](Request* r) { r->t.qo_indptr.shape[0] = 4; }, kStale, "qo_indptr has shape [4]"},
    {[](Request* r) { r->t.kv_indptr.shape[0] = 2; }, kStale, "kv_indptr has shape [2]"},
    {[](Request* r) { r->t.kv_last_page_lens.shape[0] = 3; }, kStale,
     "kv_last_page_lens has shape"},
    {[](Request* r) { r->t.kv_indices.shape[0] = 4; }, kStale,
     "kv_indices has shape [4]; dimension 0 is 4; the plan needs at least 5"},
    {[](Request* r) { r->t.kv_buffer.shape[0] = 0; }, kStale, "kv_buffer has shape [0, 4, 1, 576]"},
    {[](Request* r) { r->t.final_lse.shape[1] = 16; }, kStale, "final_lse has shape [3, 16]"},
    {[](Request* r) { r->t.partial_o = r->t.partial_lse = r->t.o; }, kStale,
     "partial_o is given; the plan was built without return_partials"},
    {[](Request* r) { r->qo_indptr[1] = 1; }, kStale,
     "lengths.qo_indptr[1] is 1; the plan was built for 2"},
    {[](Request* r) { r->kv_indptr[2] = 6; }, kStale,
     "lengths.kv_indptr[2] is 6; the plan was built for 5"},
    {[](Request* r) { r->kv_last_page_lens[1] = 3; }, kStale,
     "lengths.kv_last_page_lens[1] is 3; the plan was built for 1"},
    {[](Request* r) { r->t.lengths.batch_size = 1; }, kStale, "lengths.batch_size is 1"},
    // What no plan fits.
    {[](Request* r) { r->t.lengths.kv_indptr = nullptr; }, kInvalid, "kv_indptr is null"},
    {[](Request* r) { r->t.softmax_scale = std::numeric_limits<float>::infinity(); }, kInvalid,
     "softmax_scale is inf"},
    {[](Request* r) { r->t.softmax_scale = std::numeric_limits<float>::quiet_NaN(); }, kInvalid,
     "must be finite"},
    {[](Request* r) { r->t.q.ndim = 2; }, kInvalid, "q has 2 dimensions; must have 3"},
    {[](Request* r) { r->t.q.ndim = -1; }, kInvalid, "q has -1 dimensions"},
    {[](Request* r) { r->t.o.ndim = 9; }, kInvalid, "o has 9 dimensions"},
    {[](Request* r) { r->t.q.shape[2] = 512; }, kInvalid, "dimension 2 is 512; must be 576"},
    {[](Request* r) { r->t.kv_buffer.shape[2] = 2; }, kInvalid, "dimension 2 is 2; must be 1"},
    {[](Request* r) { r->t.q.dtype = static_cast<DataType>(50); }, kInvalid, "dtype unknown"},
    {[](Request* r) { r->t.qo_indptr.dtype = DataType::kF32; }, kInvalid, "must be i32"},
    {[](Request* r) { r->t.final_lse.dtype = DataType::kBf16; }, kInvalid, "must be f32"},
    {[](Request* r) { r->t.kv_indices.shape[0] = -5; }, kInvalid, "dimension 0 is -5"},
    {[](Request* r) { r->t.q.stride[2] = 2; }, kInvalid,
     "q has stride 2 in dimension 2; must be 1"},
    {[](Request* r) { r->t.q.stride[1] = 580; }, kInvalid, "must be a multiple of 8"},
    {[](Request* r) { r->t.q.stride[0] = -2880; }, kInvalid, "not negative"},
    {[](Request* r) { r->t.kv_indices.stride[0] = 2; }, kInvalid, "kv_indices has stride 2"},
    {[](Request* r) { r->t.o.stride[1] = 504; }, kInvalid, "elements overlap"},
    {[](Request* r) { r->t.o.stride[0] = 0; }, kInvalid, "o has stride 0 in dimension 0"},
    {[](Request* r) { r->t.o.stride[0] = 4 * 512; }, kInvalid, "elements overlap"},
    {[](Request* r) { r->t.final_lse.stride[0] = 4; }, kInvalid, "final_lse has stride 4"},
    {[](Request* r) { r->t.final_lse.stride[1] = 0; }, kInvalid, "elements overlap"},
    {[](Request* r) { r->t.q.stride[0] = int64_t{1} << 62; }, kInvalid, "overflows"},
    {[](Request* r) { r->t.o.stride[0] = (int64_t{1} << 61) + 8; }, kInvalid, "address space"},
    // Alignment and nulls; see also EveryTensorIsCheckedForNullAndAlignment.
    {[](Request* r) { r->t.q.data = shifted(r->t.q, 8); }, kInvalid, "q is not aligned to 16"},
    {[](Request* r) { r->t.o.data = shifted(r->t.o, 2); }, kInvalid, "o is not aligned to 16"},
    // Overlaps.
    {[](Request* r) { r->t.o.data = r->t.q.data; }, kInvalid, "q and o overlap"},
    {[](Request* r) { r->t.o.data = r->t.kv_buffer.data; }, kInvalid, "kv_buffer and o overlap"},
    {[](Request* r) { r->t.final_lse.data = r->t.o.data; }, kInvalid, "o and final_lse overlap"},
    {[](Request* r) { r->t.final_lse.data = r->t.kv_indices.data; }, kInvalid, "overlap"},
    {[](Request* r) { r->t.final_lse.data = shifted(r->t.o, 3 * 5 * 512 * 2 - 4); }, kInvalid,
     "o and final_lse overlap"},
    {[](Request* r) { r->t.o.data = r->workspace.data; }, kInvalid, "o and workspace overlap"},
    {[](Request* r) { r->t.q.data = r->workspace.data; }, kInvalid, "q and workspace overlap"},
    // Workspace.
    {[](Request* r) { r->workspace.bytes = 10; }, kSmall,
     "the workspace has 10 bytes; the plan needs"},
    {[](Request* r) { r->workspace = {}; }, kSmall, "the workspace has 0 bytes"},
    {[](Request* r) { r->workspace.data = nullptr; }, kInvalid, "workspace.data is null"},
    {[](Request* r) { r->workspace.data = static_cast<char*>(r->workspace.data) + 16; }, kInvalid,
     "workspace.data is not aligned to 256"},
};

template <size_t kSize>
void expect_bad_tensors(const BadInput (&table)[kSize], Variant variant = nullptr) {
  for (const BadInput& bad : table) {
    Request r;
    if (variant != nullptr) (r.*variant)();
    const MlaDecodePlan plan = r.plan();
    bad.change(&r);
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr), bad);
    EXPECT_TRUE(r.untouched()) << bad.text;
  }
}

TEST(ApiTest, BadTensorsAreRefusedWithAPlan) { expect_bad_tensors(kBadTensors); }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

// With a plan for whole bf16 KV.
const BadInput kBadExtras[] = {
    {[](Request* r) { r->t.q_scale.host = kInf; }, kInvalid, "q_scale.host is inf; must be finite"},
    {[](Request* r) { r->t.kv_scale.host = -kInf; }, kInvalid, "kv_scale.host is -inf"},
    {[](Request* r) { r->t.kv_scale.host = std::numeric_limits<float>::quiet_NaN(); }, kInvalid,
     "must be finite"},
    {[](Request* r) { r->t.q_scale.host = r->t.kv_scale.host = kMax; }, kInvalid,
     "softmax_scale * q_scale.host * kv_scale.host is"},
    {[](Request* r) { r->t.logits_soft_cap = -30.0f; }, kInvalid,
     "logits_soft_cap is -30.000000; must not be negative"},
    {[](Request* r) { r->t.logits_soft_cap = kInf; }, kInvalid, "logits_soft_cap is inf"},
    {[](Request* r) { r->t.logits_soft_cap = kMax; }, kInvalid, "too large"},
    {[](Request* r) { r->t.sink = r->view(DataType::kF32, {6}); }, kStale,
     "sink has shape [6]; dimension 0 is 6; the plan was built for 5"},
    {[](Request* r) { r->t.sink = r->view(DataType::kBf16, {5}); }, kInvalid, "must be f32"},
    {[](Request* r) {
       r->t.sink = r->view(DataType::kF32, {5});
       r->t.sink.stride[0] = 2;
     },
     kInvalid, "sink has stride 2"},
    {[](Request* r) {
       r->t.kv_token_scales = r->view(DataType::kF32, {7, 4});
     },
     kInvalid, "kv_token_scales is given; kv_buffer is bf16, dense, not dense fp8"},
    {[](Request* r) {
       r->t.topk_indices = r->view(DataType::kI32, {3, 64});
     },
     kStale, "topk_indices is given; the plan was built without topk"},
    {[](Request* r) { r->t.kv_global_lens = r->view(DataType::kI32, {2}); }, kStale,
     "kv_global_lens is given; the plan was built without a kv_shard other than kWhole"},
    {[](Request* r) { r->t.kv_shard_begins = r->view(DataType::kI32, {2}); }, kStale,
     "kv_shard_begins is given; the plan was built without kv_shard kContiguous"},
    {[](Request* r) { r->t.lengths.kv_global_lens = r->kv_global_lens; }, kStale,
     "lengths.kv_global_lens is given; the plan was built with kv_shard kWhole"},
    {[](Request* r) { r->t.kv_buffer.dtype = DataType::kFp8E4m3Fn; }, kStale,
     "kv_buffer has dtype fp8_e4m3fn; the plan was built for bf16"},
    {[](Request* r) { r->t.q_scale.device = static_cast<const float*>(r->t.o.data); }, kInvalid,
     "q_scale.device and o overlap"},
    {[](Request* r) { r->t.kv_scale.device = static_cast<const float*>(r->t.final_lse.data) + 3; },
     kInvalid, "kv_scale.device and final_lse overlap"},
    {[](Request* r) { r->t.kv_scale.device = reinterpret_cast<const float*>(shifted(r->t.q, 2)); },
     kInvalid, "kv_scale.device is not aligned to 4"},
};

const BadInput kBadFp8[] = {
    {[](Request* r) { r->t.kv_buffer.dtype = DataType::kFp8E4m3Fnuz; }, kStale,
     "kv_buffer has dtype fp8_e4m3fnuz; the plan was built for fp8_e4m3fn"},
    {[](Request* r) { r->t.kv_buffer.stride[1] = 584; }, kInvalid, "must be a multiple of 16"},
    {[](Request* r) { r->t.kv_buffer.shape[3] = 656; }, kInvalid, "is 656; must be 576"},
    {[](Request* r) { r->t.kv_token_scales.shape[0] = 6; }, kInvalid,
     "kv_token_scales has shape [6, 4]; dimension 0 is 6; must be 7"},
    {[](Request* r) { r->t.kv_token_scales.shape[1] = 5; }, kStale, "dimension 1 is 5"},
    {[](Request* r) { r->t.kv_token_scales.ndim = 1; }, kInvalid, "must have 2"},
    {[](Request* r) { r->t.kv_token_scales.stride[1] = -1; }, kInvalid, "not negative"},
    {[](Request* r) { r->t.kv_token_scales.dtype = DataType::kF16; }, kInvalid, "must be f32"},
    {[](Request* r) { r->t.kv_token_scales.data = r->t.o.data; }, kInvalid,
     "kv_token_scales and o overlap"},
};

const BadInput kBadPacked[] = {
    {[](Request* r) { r->t.kv_buffer.shape[3] = 576; }, kInvalid, "is 576; must be 656"},
    {[](Request* r) { r->t.kv_buffer.stride[1] = 664; }, kInvalid, "must be a multiple of 16"},
    {[](Request* r) { r->t.kv_buffer.stride[3] = 2; }, kInvalid, "must be 1"},
    {[](Request* r) { r->t.kv_scale.host = 0.5f; }, kInvalid,
     "kv_scale is given; a packed cache has its own scales"},
    {[](Request* r) { r->t.kv_scale.device = static_cast<const float*>(r->t.q.data); }, kInvalid,
     "kv_scale is given"},
    {[](Request* r) {
       r->t.kv_token_scales = r->view(DataType::kF32, {7, 4});
     },
     kInvalid, "kv_buffer is fp8_e4m3fnuz, packed, not dense fp8"},
};

const BadInput kBadContiguous[] = {
    {[](Request* r) { r->t.kv_global_lens = {}; }, kInvalid, "kv_global_lens is not given"},
    {[](Request* r) { r->t.kv_shard_begins = {}; }, kInvalid, "kv_shard_begins is not given"},
    {[](Request* r) { r->t.kv_global_lens.shape[0] = 3; }, kStale, "kv_global_lens has shape [3]"},
    {[](Request* r) { r->t.kv_shard_begins.dtype = DataType::kF32; }, kInvalid, "must be i32"},
    {[](Request* r) { r->t.final_lse.data = r->t.kv_shard_begins.data; }, kInvalid,
     "kv_shard_begins and final_lse overlap"},
    {[](Request* r) { r->t.lengths.kv_shard_begins = nullptr; }, kInvalid,
     "lengths.kv_shard_begins is null"},
    {[](Request* r) { r->kv_global_lens[1] = 7; }, kStale,
     "lengths.kv_global_lens[1] is 7; the plan was built for 6"},
    {[](Request* r) { r->kv_shard_begins[0] = 1; }, kStale,
     "lengths.kv_shard_begins[0] is 1; the plan was built for 0"},
};

const BadInput kBadRoundRobin[] = {
    {[](Request* r) { r->t.kv_shard_begins = r->t.kv_global_lens; }, kStale,
     "kv_shard_begins is given"},
    {[](Request* r) { r->t.lengths.kv_shard_begins = r->kv_shard_begins; }, kStale,
     "lengths.kv_shard_begins is given; the plan was built with kv_shard kRoundRobin"},
    {[](Request* r) { r->t.lengths.kv_global_lens = nullptr; }, kInvalid, "kv_global_lens is null"},
    {[](Request* r) { r->kv_global_lens[0] = 36; }, kStale, "is 36; the plan was built for 35"},
    {[](Request* r) { r->t.o.data = r->t.kv_global_lens.data; }, kInvalid,
     "kv_global_lens and o overlap"},
};

const BadInput kBadSparse[] = {
    {[](Request* r) { r->t.topk_indices = {}; }, kInvalid, "topk_indices is not given"},
    {[](Request* r) { r->t.topk_indices.data = nullptr; }, kInvalid, "topk_indices is null"},
    {[](Request* r) { r->t.topk_indices.shape[1] = 32; }, kStale,
     "topk_indices has shape [3, 32]; dimension 1 is 32; the plan was built for 64"},
    {[](Request* r) { r->t.topk_indices.shape[0] = 2; }, kStale, "dimension 0 is 2"},
    {[](Request* r) { r->t.topk_indices.stride[0] = 80; }, kInvalid, "must be 64"},
    {[](Request* r) { r->t.topk_indices.stride[1] = 0; }, kInvalid, "must be 1"},
    {[](Request* r) { r->t.topk_indices.dtype = DataType::kF32; }, kInvalid, "must be i32"},
    {[](Request* r) { r->t.o.data = r->t.topk_indices.data; }, kInvalid,
     "topk_indices and o overlap"},
    {[](Request* r) { r->qo_indptr[1] = 1; }, kStale, "lengths.qo_indptr[1] is 1"},
    {[](Request* r) { r->t.q.shape[0] = 4; }, kStale, "dimension 0 is 4"},
};

TEST(ApiTest, BadTensorsOfEveryKindAreRefusedWithAPlan) {
  expect_bad_tensors(kBadExtras);
  expect_bad_tensors(kBadFp8, &Request::make_fp8);
  expect_bad_tensors(kBadPacked, &Request::make_packed);
  expect_bad_tensors(kBadContiguous, &Request::make_contiguous);
  expect_bad_tensors(kBadRoundRobin, &Request::make_round_robin);
  expect_bad_tensors(kBadSparse, &Request::make_sparse);
}

TEST(ApiTest, EveryOptionalTensorIsCheckedForAlignment) {
  for (const char* name : {"kv_global_lens", "kv_shard_begins", "kv_token_scales", "sink"}) {
    Request r;
    r.make_full();
    const MlaDecodePlan plan = r.plan();
    TensorView* view = find_tensor(&r, name);
    view->data = shifted(*view, 2);
    const std::string text = std::string(name) + " is not aligned to 4 bytes";
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr),
                  {nullptr, kInvalid, text.c_str()});
    view->data = r.t.o.data;
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr),
                  {nullptr, kInvalid, "o overlap"});
  }
}

const BadInput kBadPartials[] = {
    {[](Request* r) { r->t.partial_o.data = nullptr; }, kInvalid, "partial_o is null"},
    {[](Request* r) { r->t.partial_lse.data = nullptr; }, kInvalid, "partial_lse is null"},
    {[](Request* r) { r->t.partial_o = {}; }, kInvalid, "partial_o is not given"},
    {[](Request* r) { r->t.partial_o.shape[0] = 2; }, kStale, "partial_o has shape [2, 3, 5, 512]"},
    {[](Request* r) { r->t.partial_lse.shape[0] = 0; }, kStale, "partial_lse has shape [0, 3, 5]"},
    {[](Request* r) { r->t.partial_o.dtype = DataType::kBf16; }, kInvalid, "must be f32"},
    {[](Request* r) { r->t.partial_o.stride[1] = 4096; }, kInvalid, "must be 2560"},
    {[](Request* r) { r->t.partial_lse.stride[1] = 8; }, kInvalid, "must be 5"},
    {[](Request* r) { r->t.partial_o.data = r->t.o.data; }, kInvalid, "o and partial_o overlap"},
    {[](Request* r) { r->t.partial_lse.data = r->t.partial_o.data; }, kInvalid,
     "partial_o and partial_lse overlap"},
};

TEST(ApiTest, BadPartialsAreRefused) {
  for (const BadInput& bad : kBadPartials) {
    Request r(true);
    const MlaDecodePlan plan = r.plan();
    ASSERT_EQ(plan.num_partials(), 1);
    bad.change(&r);
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr), bad);
    EXPECT_TRUE(r.untouched()) << bad.text;
  }
}

TEST(ApiTest, EveryTensorIsCheckedForNullAndAlignment) {
  for (const char* name : {"q", "kv_buffer", "qo_indptr", "kv_indptr", "kv_indices",
                           "kv_last_page_lens", "o", "final_lse", "partial_o", "partial_lse"}) {
    Request r(true);
    const MlaDecodePlan plan = r.plan();
    TensorView* view = find_tensor(&r, name);
    view->data = shifted(*view, 1);
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr),
                  {nullptr, kInvalid, "is not aligned to"});
    view->data = nullptr;
    if (std::string(name) == "final_lse") continue;  // optional
    const std::string text = std::string(name) + " is null";
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr),
                  {nullptr, kInvalid, text.c_str()});
    EXPECT_TRUE(r.untouched());
  }
}

// The other side of the table: what must pass. Checked, not launched.
TEST(ApiTest, GoodTensorsPassTheChecks) {
  const std::pair<const char*, std::function<void(Request*)>> variants[] = {
      {"as it is", [](Request*) {}},
      {"no lse", [](Request* r) { r->t.final_lse = {}; }},
      {"padded q", [](Request* r) { r->t.q.stride[1] = 584, r->t.q.stride[0] = 584 * 5; }},
      {"q seen through a broadcast", [](Request* r) { r->t.q.stride[1] = 0; }},
      {"o by head first", [](Request* r) { r->t.o.stride[0] = 512, r->t.o.stride[1] = 3 * 512; }},
      {"lse by head first",
       [](Request* r) { r->t.final_lse.stride[0] = 1, r->t.final_lse.stride[1] = 3; }},
      {"more page ids than listed", [](Request* r) { r->t.kv_indices.shape[0] = 7; }},
      {"stride of a dimension of one", [](Request* r) { r->t.kv_buffer.stride[2] = -13; }},
      {"negative scale", [](Request* r) { r->t.softmax_scale = -1.0f; }},
      {"inputs that share memory", [](Request* r) { r->t.kv_indptr.data = r->t.qo_indptr.data; }},
  };
  for (const auto& [name, change] : variants) {
    Request r;
    const MlaDecodePlan plan = r.plan();
    change(&r);
    for (auto origin : {internal::PlanOrigin::kCaller, internal::PlanOrigin::kTensors}) {
      const Status status = internal::check_tensors(*plan.impl(), origin, r.t, r.workspace);
      EXPECT_TRUE(status.ok()) << name << ": " << status.text();
    }
  }
  const std::pair<const char*, Variant> kinds[] = {
      {"sparse", &Request::make_sparse},           {"fp8", &Request::make_fp8},
      {"packed", &Request::make_packed},           {"contiguous", &Request::make_contiguous},
      {"round robin", &Request::make_round_robin}, {"full", &Request::make_full}};
  for (const auto& [name, variant] : kinds) {
    Request r;
    (r.*variant)();
    r.t.logits_soft_cap = 30.0f;
    if (r.t.kv_token_scales.data != nullptr) r.t.kv_token_scales.stride[0] = 0;  // broadcast
    if (name == std::string("sparse")) r.t.kv_indptr = r.t.o;                    // not looked at
    const Status status =
        internal::check_tensors(*r.plan().impl(), internal::PlanOrigin::kCaller, r.t, r.workspace);
    EXPECT_TRUE(status.ok()) << name << ": " << status.text();
  }
  Request r(true);
  const Status status =
      internal::check_tensors(*r.plan().impl(), internal::PlanOrigin::kCaller, r.t, r.workspace);
  EXPECT_TRUE(status.ok()) << status.text();
}

// ---- what the kernels are handed ----

TEST(ParamsTest, PlainRequest) {
  Request r;
  const internal::MlaParams p = internal::make_params(*r.plan().impl(), r.t, r.workspace);
  EXPECT_EQ(p.qo_indptr, r.t.qo_indptr.data);
  EXPECT_EQ(p.kv_last_page_lens, r.t.kv_last_page_lens.data);
  for (const void* pointer :
       {static_cast<const void*>(p.kv_global_lens), static_cast<const void*>(p.kv_shard_begins),
        static_cast<const void*>(p.topk_indices), static_cast<const void*>(p.kv_token_scales),
        static_cast<const void*>(p.q_scale), static_cast<const void*>(p.kv_scale),
        static_cast<const void*>(p.sink)}) {
    EXPECT_EQ(pointer, nullptr);
  }
  EXPECT_FLOAT_EQ(p.scale_log2, 0.05f * 1.44269504f);
  EXPECT_EQ(p.output_scale, 1.0f);
  EXPECT_EQ(p.soft_cap_log2, 0.0f);
  EXPECT_FLOAT_EQ(p.lse_factor, 0.69314718f);
  EXPECT_EQ(p.causal, 1);
  EXPECT_EQ(p.window, INT32_MAX);
  EXPECT_EQ(p.topk, 0);
  EXPECT_EQ(p.shard_first, 0);
  EXPECT_EQ(p.shard_stride.divisor, 1u);
}

TEST(ParamsTest, FactorsAndTheirHostParts) {
  Request r;
  r.make_full();
  r.t.q_scale.host = 3.0f;
  r.t.kv_scale.host = -0.25f;
  r.t.logits_soft_cap = 30.0f;
  r.options.lse_base2 = true;
  r.options.sliding_window = 9;
  const internal::MlaParams p = internal::make_params(*r.plan().impl(), r.t, r.workspace);
  EXPECT_FLOAT_EQ(p.scale_log2, 0.05f * 1.44269504f * 3.0f * -0.25f);
  EXPECT_EQ(p.output_scale, -0.25f);
  EXPECT_FLOAT_EQ(p.soft_cap_log2, 30.0f * 1.44269504f);
  EXPECT_EQ(p.lse_factor, 1.0f);
  EXPECT_EQ(p.window, 9);
  EXPECT_EQ(p.q_scale, r.t.q_scale.device);
  EXPECT_EQ(p.kv_scale, r.t.kv_scale.device);
  EXPECT_EQ(p.sink, r.t.sink.data);
  EXPECT_EQ(p.kv_token_scales, r.t.kv_token_scales.data);
  EXPECT_EQ(p.token_scale_stride_page, 4);
  EXPECT_EQ(p.token_scale_stride_token, 1);
  EXPECT_EQ(p.kv_global_lens, r.t.kv_global_lens.data);
  EXPECT_EQ(p.kv_shard_begins, r.t.kv_shard_begins.data);
  EXPECT_EQ(p.shard_stride.divisor, 1u);
}

TEST(ParamsTest, RoundRobin) {
  Request r;
  r.make_round_robin();
  const internal::MlaParams p = internal::make_params(*r.plan().impl(), r.t, r.workspace);
  EXPECT_EQ(p.kv_global_lens, r.t.kv_global_lens.data);
  EXPECT_EQ(p.kv_shard_begins, nullptr);
  EXPECT_EQ(p.shard_first, 1);
  EXPECT_EQ(p.shard_stride.divisor, 3u);
}

TEST(ParamsTest, Sparse) {
  Request r;
  r.make_sparse();
  r.t.kv_indptr = r.view(DataType::kI32, {3});  // not looked at
  const MlaDecodePlan plan = r.plan();
  internal::MlaParams p = internal::make_params(*plan.impl(), r.t, r.workspace);
  EXPECT_EQ(p.topk_indices, r.t.topk_indices.data);
  EXPECT_EQ(p.topk, 64);
  EXPECT_EQ(p.num_slots, 28);
  EXPECT_EQ(p.qo_indptr, nullptr);
  EXPECT_EQ(p.kv_indptr, nullptr);
  EXPECT_EQ(p.kv_indices, nullptr);
  EXPECT_EQ(p.kv_last_page_lens, nullptr);
  EXPECT_EQ(p.causal, 0);
  EXPECT_EQ(p.window, INT32_MAX);
  r.t.kv_buffer.shape[0] = (int64_t{1} << 29) - 1;
  p = internal::make_params(*plan.impl(), r.t, r.workspace);
  EXPECT_EQ(p.num_slots, INT32_MAX - 3);
  r.t.kv_buffer.shape[0] = int64_t{1} << 61;
  p = internal::make_params(*plan.impl(), r.t, r.workspace);
  EXPECT_EQ(p.num_slots, INT32_MAX);
}

TEST(ApiTest, EmptyPlanFitsNoCall) {
  Request r;
  const BadInput bad = {nullptr, kStale, "the plan is empty"};
  expect_status(mla_decode_fwd(MlaDecodePlan(), r.t, r.workspace, nullptr), bad);
  expect_status(mla_decode_upload_plan(MlaDecodePlan(), r.workspace, nullptr), bad);
  MlaDecodePlan moved_from = r.plan();
  const MlaDecodePlan moved_to = std::move(moved_from);
  EXPECT_NE(moved_to.impl(), nullptr);
  const MlaDecodePlan copy = moved_to;
  EXPECT_EQ(copy.impl(), moved_to.impl());
}

TEST(ApiTest, UploadChecksTheWorkspace) {
  Request r;
  const MlaDecodePlan plan = r.plan();
  expect_status(mla_decode_upload_plan(plan, {r.workspace.data, 1}, nullptr),
                {nullptr, kSmall, "the workspace has 1 bytes"});
  expect_status(mla_decode_upload_plan(plan, {nullptr, 65536}, nullptr),
                {nullptr, kInvalid, "workspace.data is null"});
  EXPECT_TRUE(r.untouched());
}

TEST(ApiTest, NullResults) {
  Request r;
  expect_status(mla_decode_workspace_size(r.shape, r.options, r.device, nullptr),
                {nullptr, kInvalid, "bytes is null"});
  expect_status(mla_decode_plan(r.shape, r.options, r.device, r.t.lengths, nullptr),
                {nullptr, kInvalid, "plan is null"});
  expect_status(query_device(0, nullptr), {nullptr, kInvalid, "info is null"});
}

// ---- the call that plans inside ----

const BadInput kBadCalls[] = {
    {[](Request* r) { r->t.lengths = {}; }, kInvalid, "lengths are not given; q has 3 tokens"},
    {[](Request* r) { r->t.lengths.qo_indptr = nullptr; }, kInvalid, "qo_indptr is null"},
    {[](Request* r) { r->t.lengths.batch_size = -1; }, kInvalid, "batch_size is -1"},
    {[](Request* r) { r->qo_indptr[2] = 4; }, kInvalid, "qo_indptr[2] is 4; q has 3 tokens"},
    {[](Request* r) { r->qo_indptr[1] = 4; }, kInvalid, "falls from 4 to 3"},
    {[](Request* r) { r->kv_last_page_lens[0] = 9; }, kInvalid, "must be 1..4"},
    {[](Request* r) { r->t.q.ndim = 0; }, kInvalid, "q has 0 dimensions; must have 3"},
    {[](Request* r) { r->t.kv_buffer.ndim = 3; }, kInvalid, "must have 4"},
    {[](Request* r) { r->t.o.ndim = 4; }, kInvalid, "o has 4 dimensions; must have 3"},
    {[](Request* r) { r->t.q.dtype = DataType::kF16; }, kUnsupported,
     "q_type f16 with kv_type bf16"},
    {[](Request* r) { r->t.q.shape[2] = 128; }, kUnsupported, "head_dim_qk is 128"},
    {[](Request* r) { r->t.o.shape[2] = 128; }, kUnsupported, "head_dim_v is 128"},
    {[](Request* r) { r->t.q.shape[1] = int64_t{1} << 40; }, kUnsupported, "num_heads is"},
    {[](Request* r) { r->t.kv_buffer.shape[1] = 1 << 20; }, kUnsupported, "page_size is 1048576"},
    {[](Request* r) { r->t.o.shape[0] = 2; }, kInvalid, "dimension 0 is 2; must be 3"},
    {[](Request* r) { r->t.kv_buffer.shape[3] = 512; }, kInvalid,
     "dimension 3 is 512; must be 576"},
    {[](Request* r) { r->t.kv_indices.shape[0] = 4; }, kInvalid, "the lengths need at least 5"},
    {[](Request* r) { r->t.partial_o = r->t.o; }, kInvalid, "must be null without return_partials"},
    {[](Request* r) { r->options.return_partials = true; }, kInvalid, "partial_o is not given"},
    {[](Request* r) { r->workspace.bytes = 16; }, kSmall, "the workspace has 16 bytes"},
    {[](Request* r) { r->t.o.data = r->t.q.data; }, kInvalid, "q and o overlap"},
    {[](Request* r) { r->device = {}; }, kInvalid, "num_compute_units is 0"},
    {[](Request* r) { r->make_sparse(), r->t.topk_indices.ndim = 1; }, kInvalid,
     "topk_indices has 1 dimensions; must have 2"},
    {[](Request* r) { r->make_sparse(), r->t.topk_indices.data = nullptr; }, kInvalid,
     "topk_indices is null"},
    {[](Request* r) { r->make_sparse(), r->t.topk_indices.shape[1] = 1 << 20; }, kUnsupported,
     "topk is 1048576"},
    {[](Request* r) { r->make_sparse(), r->t.topk_indices.shape[0] = 2; }, kInvalid,
     "dimension 0 is 2; must be 3"},
    {[](Request* r) { r->make_sparse(), r->options.sliding_window = 3; }, kInvalid, "with topk 64"},
    {[](Request* r) { r->make_fp8(), r->t.q.dtype = DataType::kFp8E4m3Fnuz; }, kUnsupported,
     "q_type fp8_e4m3fnuz with kv_type fp8_e4m3fn, dense: no kernel"},
    {[](Request* r) { r->make_packed(), r->t.q.dtype = DataType::kF16; }, kUnsupported,
     "q_type f16 with kv_type fp8_e4m3fnuz, packed: no kernel"},
    {[](Request* r) { r->t.kv_buffer.shape[3] = 656; }, kInvalid, "is 656; must be 576"},
    {[](Request* r) { r->make_contiguous(), r->options.kv_shard = KvShard::kWhole; }, kInvalid,
     "lengths.kv_global_lens is given; kv_shard is kWhole"},
    {[](Request* r) { r->make_contiguous(), r->t.lengths.kv_shard_begins = nullptr; }, kInvalid,
     "lengths.kv_shard_begins is null"},
    {[](Request* r) { r->make_contiguous(), r->t.kv_shard_begins = {}; }, kInvalid,
     "kv_shard_begins is not given"},
    {[](Request* r) { r->t.kv_shard_begins = r->t.kv_indices; }, kInvalid,
     "kv_shard_begins is given; must be null without kv_shard kContiguous"},
    {[](Request* r) { r->make_round_robin(), r->kv_global_lens[0] = 1; }, kInvalid,
     "sequence 0 has 12 tokens; rank 1 of 3 has 0 of lengths.kv_global_lens 1"},
    {[](Request* r) { r->make_full(), r->t.sink.shape[0] = 4; }, kInvalid, "is 4; must be 5"},
};

TEST(ApiTest, BadCallsThatPlanInsideAreRefused) {
  for (const BadInput& bad : kBadCalls) {
    Request r;
    bad.change(&r);
    expect_status(mla_decode_fwd(r.t, r.options, r.device, r.workspace, nullptr), bad);
    EXPECT_TRUE(r.untouched()) << bad.text;
  }
}

TEST(ApiTest, EmptyBatchesDoNothing) {
  MlaDecodeTensors t;
  t.q = dense_view(nullptr, DataType::kBf16, 0, 16, 576);
  t.kv_buffer = dense_view(nullptr, DataType::kBf16, 0, 64, 1, 576);
  t.qo_indptr = t.kv_indptr = dense_view(nullptr, DataType::kI32, 1);
  t.kv_indices = t.kv_last_page_lens = dense_view(nullptr, DataType::kI32, 0);
  t.o = dense_view(nullptr, DataType::kBf16, 0, 16, 512);
  const Status status = mla_decode_fwd(t, MlaDecodeOptions(), kMi300x, Workspace(), nullptr);
  EXPECT_TRUE(status.ok()) << status.text();
  // Sequences, but no query.
  const int32_t qo_indptr[] = {0, 0, 0};
  const int32_t kv_indptr[] = {0, 0, 1};
  const int32_t kv_last_page_lens[] = {0, 3};
  t.lengths = {2, qo_indptr, kv_indptr, kv_last_page_lens};
  t.qo_indptr = t.kv_indptr = dense_view(nullptr, DataType::kI32, 3);
  t.kv_indices = dense_view(nullptr, DataType::kI32, 1);
  t.kv_last_page_lens = dense_view(nullptr, DataType::kI32, 2);
  t.kv_buffer = dense_view(nullptr, DataType::kBf16, 1, 64, 1, 576);
  const Status no_query = mla_decode_fwd(t, MlaDecodeOptions(), kMi300x, Workspace(), nullptr);
  EXPECT_TRUE(no_query.ok()) << no_query.text();
}

// ---- merging states ----

// A sound request for 3 shards of 4 tokens and 5 heads, on ordinary memory that nothing is launched
// on.
class MergeRequest {
 public:
  MergeRequest() : arena_(size_t{1} << 20, kUntouched) {
    for (int s = 0; s < 3; ++s) {
      o_shards[s] = dense_view(take(4 * 5 * 512 * 2), DataType::kBf16, 4, 5, 512);
      lse_shards[s] = dense_view(take(4 * 5 * 4), DataType::kF32, 4, 5);
    }
    o = dense_view(take(4 * 5 * 512 * 4), DataType::kF32, 4, 5, 512);
    lse = dense_view(take(4 * 5 * 4), DataType::kF32, 4, 5);
  }
  Status run() const {
    return mla_merge_states(has_o_shards ? o_shards : nullptr,
                            has_lse_shards ? lse_shards : nullptr, num_shards, o, lse, nullptr);
  }
  bool untouched() const {
    return std::all_of(arena_.begin(), arena_.end(), [](uint8_t b) { return b == kUntouched; });
  }

  bool has_o_shards = true;
  bool has_lse_shards = true;
  int32_t num_shards = 3;
  TensorView o_shards[3];
  TensorView lse_shards[3];
  TensorView o;
  TensorView lse;

 private:
  void* take(size_t bytes) {
    const auto base = reinterpret_cast<uintptr_t>(arena_.data());
    const uintptr_t begin = (base + used_ + 255) / 256 * 256;
    used_ = begin - base + bytes;
    EXPECT_LE(used_, arena_.size());
    return arena_.data() + (begin - base);
  }

  static constexpr uint8_t kUntouched = 0xff;
  std::vector<uint8_t> arena_;
  size_t used_ = 0;
};

struct BadMerge {
  std::function<void(MergeRequest*)> change;
  StatusCode code;
  const char* text;
};

const BadMerge kBadMerges[] = {
    {[](MergeRequest* r) { r->num_shards = 0; }, kInvalid, "num_shards is 0; must be at least 1"},
    {[](MergeRequest* r) { r->num_shards = -7; }, kInvalid, "num_shards is -7"},
    {[](MergeRequest* r) { r->num_shards = 65; }, kUnsupported, "num_shards is 65; at most 64"},
    {[](MergeRequest* r) { r->has_o_shards = false; }, kInvalid, "o_shards is null"},
    {[](MergeRequest* r) { r->has_lse_shards = false; }, kInvalid, "lse_shards is null"},
    {[](MergeRequest* r) { r->o = {}; }, kInvalid, "o has 0 dimensions; must have 3"},
    {[](MergeRequest* r) { r->o.data = nullptr; }, kInvalid, "o is null"},
    {[](MergeRequest* r) { r->o.dtype = DataType::kI32; }, kUnsupported, "o has dtype i32"},
    {[](MergeRequest* r) { r->o.dtype = DataType::kFp8E4m3Fn; }, kUnsupported, "bf16, f16 and f32"},
    {[](MergeRequest* r) { r->o.dtype = static_cast<DataType>(9); }, kInvalid, "o has dtype 9"},
    {[](MergeRequest* r) { r->o_shards[0].dtype = DataType::kI32; }, kUnsupported,
     "o_shards[0] has dtype i32"},
    {[](MergeRequest* r) { r->o_shards[2].dtype = DataType::kF16; }, kInvalid,
     "o_shards[2] has dtype f16; must be bf16"},
    {[](MergeRequest* r) { r->lse_shards[1].dtype = DataType::kBf16; }, kInvalid,
     "lse_shards[1] has dtype bf16; must be f32"},
    {[](MergeRequest* r) { r->lse.dtype = DataType::kF16; }, kInvalid, "lse has dtype f16"},
    {[](MergeRequest* r) { r->o.shape[2] = 576; }, kUnsupported, "is 576; 512 is supported"},
    {[](MergeRequest* r) { r->o.shape[0] = -1; }, kInvalid, "dimension 0 is -1"},
    {[](MergeRequest* r) { r->o.shape[0] = int64_t{1} << 40; }, kUnsupported,
     "at most 67108863 rows"},
    {[](MergeRequest* r) { r->o.shape[0] = 0, r->o.shape[1] = int64_t{1} << 40; }, kUnsupported,
     "at most 67108863 rows"},
    {[](MergeRequest* r) { r->o_shards[1].shape[1] = 6; }, kInvalid,
     "o_shards[1] has shape [4, 6, 512]; dimension 1 is 6; must be 5"},
    {[](MergeRequest* r) { r->lse_shards[0].shape[0] = 3; }, kInvalid, "lse_shards[0] has shape"},
    {[](MergeRequest* r) { r->lse.shape[1] = 4; }, kInvalid, "lse has shape [4, 4]"},
    {[](MergeRequest* r) { r->lse.ndim = 3; }, kInvalid, "lse has 3 dimensions"},
    {[](MergeRequest* r) { r->o_shards[2].data = nullptr; }, kInvalid, "o_shards[2] is null"},
    {[](MergeRequest* r) { r->lse_shards[2].data = nullptr; }, kInvalid, "lse_shards[2] is null"},
    {[](MergeRequest* r) { r->o_shards[1].data = shifted(r->o_shards[1], 8); }, kInvalid,
     "o_shards[1] is not aligned to 16"},
    {[](MergeRequest* r) { r->o.stride[1] = 514; }, kInvalid, "multiple of 4"},
    {[](MergeRequest* r) { r->o.stride[2] = 2; }, kInvalid, "o has stride 2"},
    {[](MergeRequest* r) { r->o.stride[0] = 0; }, kInvalid, "elements overlap"},
    {[](MergeRequest* r) { r->lse.stride[0] = 1; }, kInvalid, "elements overlap"},
    {[](MergeRequest* r) { r->o_shards[1].stride[0] = 3072; }, kInvalid,
     "o_shards[1] has other strides than the first shard"},
    {[](MergeRequest* r) { r->lse_shards[2].stride[0] = 8; }, kInvalid, "has other strides"},
    {[](MergeRequest* r) { r->lse.data = r->o.data; }, kInvalid, "o and lse overlap"},
    {[](MergeRequest* r) { r->o.data = r->o_shards[1].data; }, kInvalid,
     "o_shards[1] and o overlap; must be apart, or the same view"},
    {[](MergeRequest* r) {
       r->o = r->o_shards[0];
       r->o.data = shifted(r->o, 1024);
     },
     kInvalid, "o_shards[0] and o overlap"},
    {[](MergeRequest* r) {
       r->o = r->o_shards[0];
       std::swap(r->o.stride[0], r->o.stride[1]);
       r->o.stride[1] = 4 * 512;
       r->o.stride[0] = 512;
     },
     kInvalid, "o_shards[0] and o overlap"},
    {[](MergeRequest* r) { r->lse.data = shifted(r->lse_shards[2], 4); }, kInvalid,
     "lse_shards[2] and lse overlap"},
    {[](MergeRequest* r) { r->lse.data = r->o_shards[2].data; }, kInvalid,
     "o_shards[2] and lse overlap"},
    {[](MergeRequest* r) { r->o.data = shifted(r->lse_shards[2], -4 * 5 * 512 * 4 + 16); },
     kInvalid, "and o overlap"},
};

TEST(MergeTest, BadStatesAreRefused) {
  for (const BadMerge& bad : kBadMerges) {
    MergeRequest r;
    bad.change(&r);
    expect_status(r.run(), {nullptr, bad.code, bad.text});
    EXPECT_TRUE(r.untouched()) << bad.text;
  }
}

TEST(MergeTest, NoRowsAreANoOp) {
  for (int dimension : {0, 1}) {
    MergeRequest r;
    for (TensorView* view : {&r.o, &r.lse, &r.o_shards[0], &r.o_shards[1], &r.o_shards[2],
                             &r.lse_shards[0], &r.lse_shards[1], &r.lse_shards[2]}) {
      view->shape[dimension] = 0;
      view->data = nullptr;
    }
    const Status status = r.run();
    EXPECT_TRUE(status.ok()) << status.text();
    r.lse_shards[2].shape[dimension] = 1;
    EXPECT_FALSE(r.run().ok());
  }
}

// ---- device, version, status ----

TEST(DeviceTest, ArchIsReadFromTheRuntimesName) {
  using internal::parse_arch;
  EXPECT_EQ(parse_arch("gfx942:sramecc+:xnack-"), Arch::kGfx942);
  EXPECT_EQ(parse_arch("gfx90a:sramecc+:xnack-"), Arch::kGfx90a);
  EXPECT_EQ(parse_arch("gfx950"), Arch::kGfx950);
  EXPECT_EQ(parse_arch("gfx9420"), Arch::kUnknown);
  EXPECT_EQ(parse_arch("gfx94"), Arch::kUnknown);
  EXPECT_EQ(parse_arch("gfx1100"), Arch::kUnknown);
  EXPECT_EQ(parse_arch(""), Arch::kUnknown);
  EXPECT_EQ(parse_arch(":gfx942"), Arch::kUnknown);
  for (Arch arch : {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950}) {
    EXPECT_EQ(parse_arch(arch_name(arch)), arch);
  }
  EXPECT_STREQ(arch_name(Arch::kUnknown), "unknown");
}

TEST(DeviceTest, NoSuchDevice) {
  DeviceInfo info;
  info.num_compute_units = 7;
  expect_status(query_device(9999, &info), {nullptr, StatusCode::kDeviceError, "device 9999"});
  EXPECT_EQ(info.num_compute_units, 7);
  EXPECT_EQ(hipGetLastError(), hipSuccess) << "left for the next launch to report";
}

TEST(VersionTest, LibraryMatchesHeader) {
  const std::string expected = std::to_string(HIPMLA_VERSION_MAJOR) + "." +
                               std::to_string(HIPMLA_VERSION_MINOR) + "." +
                               std::to_string(HIPMLA_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
  const std::string platform = platform_name();
  EXPECT_TRUE(platform == "amd" || platform == "nvidia" || platform == "cpu") << platform;
}

}  // namespace
}  // namespace hipmla
