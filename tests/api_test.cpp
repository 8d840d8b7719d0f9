// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// What the API refuses, and how. Every call here fails its checks or has nothing to do, so ordinary
// memory stands in for device memory: nothing is ever launched on it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/device.h"
#include "hipmla/mla_decode.h"
#include "hipmla/version.h"
#include "src/check.h"
#include "src/device_arch.h"

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
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  DeviceInfo device = kMi300x;
  MlaDecodeTensors t;
  Workspace workspace;

 private:
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
     "q_type f16 with kv_type bf16: no kernel; use bf16/bf16, f16/f16"},
    {[](Request* r) { r->shape.q_type = r->shape.kv_type = DataType::kF32; }, kUnsupported,
     "q_type f32 with kv_type f32"},
    {[](Request* r) { r->shape.o_type = DataType::kI32; }, kUnsupported, "o_type is i32"},
    {[](Request* r) { r->shape.o_type = static_cast<DataType>(77); }, kInvalid, "o_type is 77"},
    {[](Request* r) { r->options.schedule = static_cast<Schedule>(9); }, kInvalid, "schedule is 9"},
    {[](Request* r) { r->options.num_kv_splits = 4; }, kInvalid, "num_kv_splits is 4; must be 0"},
    {[](Request* r) {
       r->options = {Schedule::kPersistent, 1, true, false};
     },
     kInvalid, "must be 0 unless schedule is kSplitKv"},
    {[](Request* r) {
       r->options = {Schedule::kSplitKv, 257, true, false};
     },
     kUnsupported, "num_kv_splits is 257; at most 256"},
    {[](Request* r) {
       r->options = {Schedule::kSplitKv, -1, true, false};
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
       r->options = {Schedule::kSplitKv, 256, true, false};
     },
     kUnsupported, "work items; at most 16777215"},
    {[](Request* r) {
       r->shape.batch_size = 1 << 20;
       r->shape.max_seqlen_q = 26;
       r->shape.total_q = 1 << 20;
       r->options = {Schedule::kSplitKv, 2, true, false};
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

TEST(ApiTest, BadLengthsAreRefusedByThePlan) {
  for (const BadInput& bad : kBadLengths) {
    Request r;
    MlaDecodePlan plan;
    bad.change(&r);
    expect_status(mla_decode_plan(r.shape, r.options, r.device, r.t.lengths, &plan), bad);
    EXPECT_EQ(plan.impl(), nullptr);
  }
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
      {"partial_lse", &t.partial_lse}};
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

TEST(ApiTest, BadTensorsAreRefusedWithAPlan) {
  for (const BadInput& bad : kBadTensors) {
    Request r;
    const MlaDecodePlan plan = r.plan();
    bad.change(&r);
    expect_status(mla_decode_fwd(plan, r.t, r.workspace, nullptr), bad);
    EXPECT_TRUE(r.untouched()) << bad.text;
  }
}

const BadInput kBadPartials[] = {
    {[](Request* r) { r->t.partial_o.data = nullptr; }, kInvalid, "partial_o is null"},
    {[](Request* r) { r->t.partial_lse.data = nullptr; }, kInvalid, "partial_lse is null"},
    {[](Request* r) { r->t.partial_o = {}; }, kInvalid, "partial_o has 0 dimensions; must have 4"},
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
  Request r(true);
  const Status status =
      internal::check_tensors(*r.plan().impl(), internal::PlanOrigin::kCaller, r.t, r.workspace);
  EXPECT_TRUE(status.ok()) << status.text();
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
    {[](Request* r) { r->options.return_partials = true; }, kInvalid, "partial_o has 0 dimensions"},
    {[](Request* r) { r->workspace.bytes = 16; }, kSmall, "the workspace has 16 bytes"},
    {[](Request* r) { r->t.o.data = r->t.q.data; }, kInvalid, "q and o overlap"},
    {[](Request* r) { r->device = {}; }, kInvalid, "num_compute_units is 0"},
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
}

TEST(VersionTest, LibraryMatchesHeader) {
  const std::string expected = std::to_string(HIPMLA_VERSION_MAJOR) + "." +
                               std::to_string(HIPMLA_VERSION_MINOR) + "." +
                               std::to_string(HIPMLA_VERSION_PATCH);
  EXPECT_EQ(version(), expected);
  const std::string platform = platform_name();
  EXPECT_TRUE(platform == "amd" || platform == "cpu") << platform;
}

}  // namespace
}  // namespace hipmla
