// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What one tensor must look like, and where it lies in memory.

#include <cstdint>
#include <string>

#include "hipmla/status.h"
#include "hipmla/types.h"

namespace hipmla::internal {

// Who says what the tensors must look like, and thus what it is called if they do not.
enum class PlanOrigin {
  kCaller,  // a plan that may be for something else: kStalePlan
  kTensors  // a plan made from these very tensors, which contradict each other: kInvalidArgument
};

enum class SizeRule {
  kFixed,    // by the operator, or by another tensor of the same call
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
  bool is_optional;  // may be not given
};

constexpr int64_t kVectorBytes = 16;  // what one load or store of a lane moves

constexpr SizeCheck fixed(int64_t size) { return {size, SizeRule::kFixed}; }
constexpr SizeCheck planned(int64_t size) { return {size, SizeRule::kPlanned}; }
constexpr SizeCheck at_least(int64_t size) { return {size, SizeRule::kAtLeast}; }

// Bytes [begin, end) of memory.
struct MemoryRange {
  const char* name;
  uintptr_t begin;
  uintptr_t end;
  bool is_written;
};

inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.begin < b.end && b.begin < a.end;
}

// "[3, 16, 576]"
std::string shape_text(const TensorView& view);

// False if any dimension is 0. `view` has passed check_type_and_shape.
bool has_elements(const TensorView& view);

Status check_type_and_shape(const TensorCheck& check, PlanOrigin origin);

// Pointer, alignment and strides of a tensor with elements that has passed check_type_and_shape.
// Sets `*range` to the bytes from its first element to the end of its last. Fails, too, if two
// elements of a written tensor share an address.
Status check_memory(const TensorCheck& check, MemoryRange* range);

}  // namespace hipmla::internal
