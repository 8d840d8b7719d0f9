// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "src/check.h"
#include "src/fold.h"
#include "src/text.h"

namespace hipmla::internal {
namespace {

enum class SizeRule {
  kFixed,    // by the operator
  kPlanned,  // by what the plan was built for
  kAtLeast   // by what the plan reads
};

struct SizeCheck {
  int64_t size;
  SizeRule rule;
};

struct TensorCheck {
  const char* name;
  const TensorView* view;
  DataType dtype;
  bool dtype_is_planned;
  int32_t ndim;
  SizeCheck sizes[4];
  int64_t alignment;  // bytes, of the pointer and of the strides of dimensions that are not dense
  int32_t num_dense;  // so many last dimensions are packed
  bool is_written;
};

constexpr int64_t kVectorBytes = 16;  // what one load or store of a lane moves

constexpr SizeCheck fixed(int64_t size) { return {size, SizeRule::kFixed}; }
constexpr SizeCheck planned(int64_t size) { return {size, SizeRule::kPlanned}; }
constexpr SizeCheck at_least(int64_t size) { return {size, SizeRule::kAtLeast}; }

constexpr int kNumTensors = 10;

std::array<TensorCheck, kNumTensors> expected_tensors(const MlaDecodePlan::Impl& plan,
                                                      const MlaDecodeTensors& t) {
  const MlaDecodeShape& s = plan.shape;
  const auto o_shape = unfold_shape(s.total_q, s.num_heads, s.head_dim_v);
  const SizeCheck tokens = planned(o_shape[0]);
  const SizeCheck heads = planned(o_shape[1]);
  const SizeCheck v = fixed(o_shape[2]);
  const SizeCheck qk = fixed(s.head_dim_qk);
  const SizeCheck pages = at_least(plan.num_pages() > 0 ? 1 : 0);
  const SizeCheck page = planned(s.page_size);
  const SizeCheck indices = at_least(plan.num_pages());
  const SizeCheck batch = planned(s.batch_size);
  const SizeCheck indptr = planned(int64_t{s.batch_size} + 1);
  const SizeCheck parts = planned(plan.num_partials);
  const auto f32 = DataType::kF32;
  const auto i32 = DataType::kI32;
  const int64_t vec = kVectorBytes;
  return {{
      {"q", &t.q, s.q_type, true, 3, {tokens, heads, qk}, vec, 1, false},
      {"kv_buffer", &t.kv_buffer, s.kv_type, true, 4, {pages, page, fixed(1), qk}, vec, 1, false},
      {"qo_indptr", &t.qo_indptr, i32, false, 1, {indptr}, 4, 1, false},
      {"kv_indptr", &t.kv_indptr, i32, false, 1, {indptr}, 4, 1, false},
      {"kv_indices", &t.kv_indices, i32, false, 1, {indices}, 4, 1, false},
      {"kv_last_page_lens", &t.kv_last_page_lens, i32, false, 1, {batch}, 4, 1, false},
      {"o", &t.o, s.o_type, true, 3, {tokens, heads, v}, vec, 1, true},
      {"final_lse", &t.final_lse, f32, false, 2, {tokens, heads}, 4, 0, true},
      {"partial_o", &t.partial_o, f32, false, 4, {parts, tokens, heads, v}, vec, 4, true},
      {"partial_lse", &t.partial_lse, f32, false, 3, {parts, tokens, heads}, 4, 3, true},
  }};
}

std::string shape_text(const TensorView& view) {
  std::string text = "[";
  for (int32_t i = 0; i < view.ndim; ++i) text += concat(i == 0 ? "" : ", ", view.shape[i]);
  return text + "]";
}

bool has_elements(const TensorView& view) {
  return std::all_of(view.shape, view.shape + view.ndim, [](int64_t size) { return size > 0; });
}

Status check_type_and_shape(const TensorCheck& check, PlanOrigin origin) {
  const TensorView& view = *check.view;
  const bool may_be_stale = origin == PlanOrigin::kCaller;
  const StatusCode planned_code =
      may_be_stale ? StatusCode::kStalePlan : StatusCode::kInvalidArgument;
  const char* planned_text = may_be_stale ? "; the plan was built for " : "; must be ";
  if (view.dtype != check.dtype) {
    const bool stale = check.dtype_is_planned && element_bytes(view.dtype) != 0;
    return Status(stale ? planned_code : StatusCode::kInvalidArgument,
                  concat(check.name, " has dtype ", data_type_name(view.dtype),
                         stale ? planned_text : "; must be ", data_type_name(check.dtype)));
  }
  if (view.ndim != check.ndim) {
    return invalid_argument(check.name, " has ", view.ndim, " dimensions; must have ", check.ndim);
  }
  for (int32_t i = 0; i < view.ndim; ++i) {
    const int64_t size = view.shape[i];
    const SizeCheck& expected = check.sizes[i];
    const bool fits =
        expected.rule == SizeRule::kAtLeast ? size >= expected.size : size == expected.size;
    if (fits) continue;
    const std::string found =
        concat(check.name, " has shape ", shape_text(view), "; dimension ", i, " is ", size);
    if (size < 0 || expected.rule == SizeRule::kFixed) {
      return invalid_argument(found, "; must be ", expected.size);
    }
    if (expected.rule == SizeRule::kAtLeast) {
      return Status(planned_code, concat(found,
                                         may_be_stale ? "; the plan needs at least "
                                                      : "; the lengths need at least ",
                                         expected.size));
    }
    return Status(planned_code, concat(found, planned_text, expected.size));
  }
  return Status();
}

// Strides of dimensions of size 1 do not matter.
Status check_strides(const TensorCheck& check) {
  const TensorView& view = *check.view;
  const auto element = static_cast<int64_t>(element_bytes(view.dtype));
  const int32_t first_dense = view.ndim - check.num_dense;
  int64_t dense_stride = 1;
  for (int32_t i = view.ndim - 1; i >= 0; --i) {
    const int64_t stride = view.stride[i];
    if (view.shape[i] > 1) {
      if (i >= first_dense && stride != dense_stride) {
        return invalid_argument(check.name, " has stride ", stride, " in dimension ", i,
                                "; must be ", dense_stride);
      }
      if (i < first_dense && (stride < 0 || stride % (check.alignment / element) != 0)) {
        return invalid_argument(check.name, " has stride ", stride, " in dimension ", i,
                                "; must be a multiple of ", check.alignment / element,
                                " and not negative");
      }
    }
    dense_stride *= view.shape[i];
  }
  return Status();
}

// Bytes [begin, end) of memory.
struct Range {
  const char* name;
  uintptr_t begin;
  uintptr_t end;
  bool is_written;
};

bool overlap(const Range& a, const Range& b) { return a.begin < b.end && b.begin < a.end; }

// The bytes from a tensor's first element to the end of its last. Fails if they do not fit in
// memory, or if two elements of a written tensor share an address.
Status find_range(const TensorCheck& check, Range* range) {
  const TensorView& view = *check.view;
  // Dimensions by stride, smallest first: each must step over all that the ones before it span.
  int32_t order[4] = {0, 1, 2, 3};
  for (int32_t k = 1; k < view.ndim; ++k) {
    for (int32_t j = k; j > 0 && view.stride[order[j]] < view.stride[order[j - 1]]; --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  const auto element = static_cast<int64_t>(element_bytes(view.dtype));
  int64_t last = 0;  // offset of the last element so far
  for (int32_t k = 0; k < view.ndim; ++k) {
    const int32_t i = order[k];
    if (view.shape[i] == 1) continue;
    if (check.is_written && view.stride[i] <= last) {
      return invalid_argument(check.name, " has stride ", view.stride[i], " in dimension ", i,
                              "; elements overlap, as the dimensions inside span ", last + 1);
    }
    int64_t span = 0;
    if (__builtin_mul_overflow(view.shape[i] - 1, view.stride[i], &span) ||
        __builtin_add_overflow(last, span, &last)) {
      return invalid_argument(check.name, " of shape ", shape_text(view), " has stride ",
                              view.stride[i], " in dimension ", i, "; its extent overflows");
    }
  }
  int64_t bytes = 0;
  const auto begin = reinterpret_cast<uintptr_t>(view.data);
  uintptr_t end = 0;
  if (__builtin_add_overflow(last, 1, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
      __builtin_add_overflow(begin, static_cast<uintptr_t>(bytes), &end)) {
    return invalid_argument(check.name, " of shape ", shape_text(view),
                            " does not fit in the address space");
  }
  *range = {check.name, begin, end, check.is_written};
  return Status();
}

Status check_memory(const TensorCheck& check, Range* range) {
  const TensorView& view = *check.view;
  if (view.data == nullptr) return invalid_argument(check.name, " is null");
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % static_cast<uintptr_t>(check.alignment) != 0) {
    return invalid_argument(check.name, " is not aligned to ", check.alignment, " bytes");
  }
  if (Status status = check_strides(check); !status.ok()) return status;
  return find_range(check, range);
}

// Which tensors the plan's options want.
Status check_presence(const MlaDecodePlan::Impl& plan, PlanOrigin origin,
                      const MlaDecodeTensors& tensors) {
  if (plan.options.return_partials) return Status();
  for (const auto& [name, view] : {std::pair{"partial_o", &tensors.partial_o},
                                   std::pair{"partial_lse", &tensors.partial_lse}}) {
    if (view->data == nullptr) continue;
    return origin == PlanOrigin::kCaller
               ? Status(StatusCode::kStalePlan,
                        concat(name, " is given; the plan was built without return_partials"))
               : invalid_argument(name, " is given; must be null without return_partials");
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
  if (!std::isfinite(tensors.softmax_scale)) {
    return invalid_argument("softmax_scale is ", tensors.softmax_scale, "; must be finite");
  }
  std::array<Range, kNumTensors + 1> ranges;
  size_t num_ranges = 0;
  const bool has_work = plan.num_items > 0;
  for (const TensorCheck& check : expected_tensors(plan, tensors)) {
    const bool is_partial = check.view == &tensors.partial_o || check.view == &tensors.partial_lse;
    if (is_partial && !plan.options.return_partials) continue;
    if (check.view == &tensors.final_lse && check.view->data == nullptr) continue;
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
