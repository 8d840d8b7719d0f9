// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/tensor_check.h"

#include <algorithm>
#include <utility>

#include "src/text.h"

namespace hipmla::internal {
namespace {

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
    if (i > first_dense) dense_stride *= view.shape[i];
  }
  return Status();
}

// The bytes from a tensor's first element to the end of its last. Fails if they do not fit in
// memory, or if two elements of a written tensor share an address.
Status find_range(const TensorCheck& check, MemoryRange* range) {
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

}  // namespace

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
  if (view.data == nullptr && view.ndim == 0) {
    return invalid_argument(check.name, " is not given");
  }
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

Status check_memory(const TensorCheck& check, MemoryRange* range) {
  const TensorView& view = *check.view;
  if (view.data == nullptr) return invalid_argument(check.name, " is null");
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (address % static_cast<uintptr_t>(check.alignment) != 0) {
    return invalid_argument(check.name, " is not aligned to ", check.alignment, " bytes");
  }
  if (Status status = check_strides(check); !status.ok()) return status;
  return find_range(check, range);
}

}  // namespace hipmla::internal
