// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "hipmla/mla_merge.h"

#include <hip/hip_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/mla/launch.h"
#include "kernels/mla/params.h"
#include "kernels/mla/stage1_configs.h"
#include "src/guard.h"
#include "src/select.h"
#include "src/tensor_check.h"
#include "src/text.h"

namespace hipmla {
namespace {

using internal::check_memory;
using internal::check_type_and_shape;
using internal::concat;
using internal::fixed;
using internal::invalid_argument;
using internal::MemoryRange;
using internal::MergeParams;
using internal::PlanOrigin;
using internal::TensorCheck;
using internal::unsupported;

static_assert(kMaxMergeShards == internal::kMaxShards);

// All views of one call.
struct MergeTensors {
  const TensorView* o_shards;
  const TensorView* lse_shards;
  int32_t num_shards;
  const TensorView& o;
  const TensorView& lse;

  // Their common shape. Expects `o` to have been checked.
  int64_t total_q() const { return o.shape[0]; }
  int64_t num_heads() const { return o.shape[1]; }
  int64_t num_rows() const { return total_q() * num_heads(); }
  bool has_lse() const { return lse.data != nullptr; }
};

TensorCheck o_check(const char* name, const TensorView& view, const MergeTensors& t, DataType dtype,
                    bool is_written) {
  return {name,
          &view,
          dtype,
          false,
          3,
          {fixed(t.total_q()), fixed(t.num_heads()), fixed(internal::kVDim)},
          internal::kVectorBytes,
          1,
          is_written,
          false};
}

TensorCheck lse_check(const char* name, const TensorView& view, const MergeTensors& t,
                      bool is_written) {
  return {name, &view, DataType::kF32, false, 2, {fixed(t.total_q()), fixed(t.num_heads())},
          4,    0,     is_written,     false};
}

Status check_o_type(const char* name, DataType dtype) {
  if (element_bytes(dtype) == 0) {
    return invalid_argument(name, " has dtype ", static_cast<int32_t>(dtype),
                            ", which is no DataType");
  }
  if (dtype == DataType::kBf16 || dtype == DataType::kF16 || dtype == DataType::kF32) {
    return Status();
  }
  return unsupported(name, " has dtype ", data_type_name(dtype),
                     "; bf16, f16 and f32 are supported");
}

// Numbers and types that decide whether a kernel serves the call.
Status check_request(const MergeTensors& t) {
  if (t.num_shards < 1) {
    return invalid_argument("num_shards is ", t.num_shards, "; must be at least 1");
  }
  if (t.num_shards > kMaxMergeShards) {
    return unsupported("num_shards is ", t.num_shards, "; at most ", kMaxMergeShards,
                       " are supported");
  }
  if (t.o_shards == nullptr) return invalid_argument("o_shards is null");
  if (t.lse_shards == nullptr) return invalid_argument("lse_shards is null");
  if (Status status = check_o_type("o", t.o.dtype); !status.ok()) return status;
  if (Status status = check_o_type("o_shards[0]", t.o_shards[0].dtype); !status.ok()) return status;
  if (t.o.ndim != 3) return invalid_argument("o has ", t.o.ndim, " dimensions; must have 3");
  for (int32_t i = 0; i < 3; ++i) {
    if (t.o.shape[i] < 0) {
      return invalid_argument("o has shape ", internal::shape_text(t.o), "; dimension ", i, " is ",
                              t.o.shape[i]);
    }
  }
  if (t.o.shape[2] != internal::kVDim) {
    return unsupported("o has shape ", internal::shape_text(t.o), "; dimension 2 is ", t.o.shape[2],
                       "; ", internal::kVDim, " is supported");
  }
  int64_t rows = 0;
  if (__builtin_mul_overflow(t.o.shape[0], t.o.shape[1], &rows) ||
      rows > internal::kMaxMergedRows || t.o.shape[1] > internal::kMaxMergedRows) {
    return unsupported("o has shape ", internal::shape_text(t.o), "; at most ",
                       internal::kMaxMergedRows, " rows to merge are supported");
  }
  return Status();
}

// Strides of dimensions of size 1 do not matter.
bool same_strides(const TensorView& a, const TensorView& b) {
  for (int32_t i = 0; i < a.ndim; ++i) {
    if (a.shape[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

bool same_view(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && same_strides(a, b);
}

// What is written, and where.
struct Written {
  const TensorView* view;
  MemoryRange range;
};

// Checks one shard's tensor against what is written: `like`, of the same kind, may be the very same
// view.
Status check_shard_memory(const TensorCheck& check, const TensorView& first, const Written* like,
                          const Written* other) {
  MemoryRange range = {};
  if (Status status = check_memory(check, &range); !status.ok()) return status;
  if (!same_strides(*check.view, first)) {
    return invalid_argument(check.name, " has other strides than the first shard");
  }
  if (like != nullptr && internal::overlap(range, like->range) &&
      !same_view(*check.view, *like->view)) {
    return invalid_argument(check.name, " and ", like->range.name,
                            " overlap; must be apart, or the same view");
  }
  if (other != nullptr && internal::overlap(range, other->range)) {
    return invalid_argument(check.name, " and ", other->range.name, " overlap");
  }
  return Status();
}

Status check_shapes(const MergeTensors& t) {
  const auto check = [](const TensorCheck& tensor) {
    return check_type_and_shape(tensor, PlanOrigin::kTensors);
  };
  if (t.has_lse()) {
    if (Status status = check(lse_check("lse", t.lse, t, true)); !status.ok()) return status;
  }
  for (int32_t s = 0; s < t.num_shards; ++s) {
    const std::string o_name = concat("o_shards[", s, "]");
    Status status = check(o_check(o_name.c_str(), t.o_shards[s], t, t.o_shards[0].dtype, false));
    if (!status.ok()) return status;
    const std::string lse_name = concat("lse_shards[", s, "]");
    status = check(lse_check(lse_name.c_str(), t.lse_shards[s], t, false));
    if (!status.ok()) return status;
  }
  return Status();
}

// Pointers, strides and overlaps. Expects checked shapes with elements.
Status check_all_memory(const MergeTensors& t) {
  Written o = {&t.o, {}};
  Status status = check_memory(o_check("o", t.o, t, t.o.dtype, true), &o.range);
  if (!status.ok()) return status;
  Written written_lse = {&t.lse, {}};
  const Written* lse = nullptr;
  if (t.has_lse()) {
    status = check_memory(lse_check("lse", t.lse, t, true), &written_lse.range);
    if (!status.ok()) return status;
    if (internal::overlap(o.range, written_lse.range)) {
      return invalid_argument("o and lse overlap");
    }
    lse = &written_lse;
  }
  for (int32_t s = 0; s < t.num_shards; ++s) {
    const std::string o_name = concat("o_shards[", s, "]");
    status =
        check_shard_memory(o_check(o_name.c_str(), t.o_shards[s], t, t.o_shards[0].dtype, false),
                           t.o_shards[0], &o, lse);
    if (!status.ok()) return status;
    const std::string lse_name = concat("lse_shards[", s, "]");
    status = check_shard_memory(lse_check(lse_name.c_str(), t.lse_shards[s], t, false),
                                t.lse_shards[0], lse, &o);
    if (!status.ok()) return status;
  }
  return Status();
}

MergeParams make_merge_params(const MergeTensors& t) {
  MergeParams p = {};
  for (int32_t s = 0; s < t.num_shards; ++s) {
    p.shards[s] = {t.o_shards[s].data, static_cast<const float*>(t.lse_shards[s].data)};
  }
  p.num_shards = t.num_shards;
  p.shard_type = t.o_shards[0].dtype;
  p.shard_o_stride_token = t.o_shards[0].stride[0];
  p.shard_o_stride_head = t.o_shards[0].stride[1];
  p.shard_lse_stride_token = t.lse_shards[0].stride[0];
  p.shard_lse_stride_head = t.lse_shards[0].stride[1];
  p.o = t.o.data;
  p.o_type = t.o.dtype;
  p.o_stride_token = t.o.stride[0];
  p.o_stride_head = t.o.stride[1];
  p.lse = static_cast<float*>(t.lse.data);
  p.lse_stride_token = t.lse.stride[0];
  p.lse_stride_head = t.lse.stride[1];
  p.num_heads = internal::make_fast_divisor(static_cast<uint32_t>(t.num_heads()));
  p.num_rows = t.num_rows();
  return p;
}

}  // namespace

Status mla_merge_states(const TensorView* o_shards, const TensorView* lse_shards,
                        int32_t num_shards, const TensorView& o, const TensorView& lse,
                        Stream stream) {
  return internal::guard([&]() -> Status {
    const MergeTensors tensors = {o_shards, lse_shards, num_shards, o, lse};
    if (Status status = check_request(tensors); !status.ok()) return status;
    if (Status status = check_shapes(tensors); !status.ok()) return status;
    if (tensors.num_rows() == 0) return Status();
    if (Status status = check_all_memory(tensors); !status.ok()) return status;
    return internal::device_call(
        [&] { return internal::launch_merge_states(make_merge_params(tensors), stream); },
        [&] {
          return internal::concat("launch of the merge of ", num_shards, " shards, ",
                                  tensors.num_rows(), " rows");
        });
  });
}

}  // namespace hipmla
