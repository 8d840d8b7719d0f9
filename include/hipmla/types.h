// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace hipmla {

/// Element type of a tensor. kI32 is for the index arrays only.
enum class DataType : int32_t { kBf16 = 0, kF16 = 1, kF32 = 2, kI32 = 3 };

/// Bytes of one element of `type`, or 0 for a value that is no DataType.
constexpr size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kBf16:
    case DataType::kF16:
      return 2;
    case DataType::kF32:
    case DataType::kI32:
      return 4;
  }
  return 0;
}

/// "bf16", "f16", "f32", "i32", or "unknown".
constexpr const char* data_type_name(DataType type) {
  switch (type) {
    case DataType::kBf16:
      return "bf16";
    case DataType::kF16:
      return "f16";
    case DataType::kF32:
      return "f32";
    case DataType::kI32:
      return "i32";
  }
  return "unknown";
}

/// Processor families that a kernel can be built for. The CPU platform reports kGfx942, which it emulates.
enum class Arch : int32_t { kUnknown = 0, kGfx90a = 1, kGfx942 = 2, kGfx950 = 3 };

/// How stage 1 is spread over the device. Both give the same result within rounding.
enum class Schedule : int32_t {
  kAuto = 0,        ///< the library picks
  kPersistent = 1,  ///< one workgroup per compute unit walks an even share of all KV tiles
  kSplitKv = 2,     ///< each sequence is cut into num_kv_splits even parts, one workgroup each
};

/// A strided view of device memory that the caller owns. `data == nullptr` means "not given".
struct TensorView {
  void* data = nullptr;
  DataType dtype = DataType::kF32;
  int32_t ndim = 0;        ///< 0..4
  int64_t shape[4] = {};   ///< elements per dimension, outermost first; only [0, ndim) is read
  int64_t stride[4] = {};  ///< elements (not bytes) between neighbours of a dimension
};

/// A densely packed, row-major view: the last dimension has stride 1.
template <typename... Sizes>
constexpr TensorView dense_view(void* data, DataType dtype, Sizes... sizes) {
  static_assert(sizeof...(sizes) >= 1 && sizeof...(sizes) <= 4, "1 to 4 dimensions");
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.ndim = static_cast<int32_t>(sizeof...(sizes));
  const int64_t list[] = {static_cast<int64_t>(sizes)...};
  int64_t stride = 1;
  for (int32_t i = view.ndim - 1; i >= 0; --i) {
    view.shape[i] = list[i];
    view.stride[i] = stride;
    stride *= list[i];
  }
  return view;
}

}  // namespace hipmla
