// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

namespace hipmla {

/// Element type of a tensor. kI32 is for the index arrays only. fp8 is E4M3 in one of its two encodings: FN (OCP; NaN is
/// 0x7f and 0xff, bias 7, largest 448) and FNUZ (NaN is 0x80, bias 8, largest 240).
enum class DataType : int32_t {
  kBf16 = 0,
  kF16 = 1,
  kF32 = 2,
  kI32 = 3,
  kFp8E4m3Fn = 4,
  kFp8E4m3Fnuz = 5
};

constexpr bool is_fp8(DataType type) {
  return type == DataType::kFp8E4m3Fn || type == DataType::kFp8E4m3Fnuz;
}

/// Bytes of one element of `type`, or 0 for a value that is no DataType.
constexpr size_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kBf16:
    case DataType::kF16:
      return 2;
    case DataType::kF32:
    case DataType::kI32:
      return 4;
    case DataType::kFp8E4m3Fn:
    case DataType::kFp8E4m3Fnuz:
      return 1;
  }
  return 0;
}

/// "bf16", "f16", "f32", "i32", "fp8_e4m3fn", "fp8_e4m3fnuz", or "unknown".
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
    case DataType::kFp8E4m3Fn:
      return "fp8_e4m3fn";
    case DataType::kFp8E4m3Fnuz:
      return "fp8_e4m3fnuz";
  }
  return "unknown";
}

/// Processor families that a kernel can be built for. The CPU platform reports kGfx942, which it emulates.
enum class Arch : int32_t {
  kUnknown = 0,
  kGfx90a = 1,
  kGfx942 = 2,
  kGfx950 = 3,
  kSm80 = 4,
  kSm90 = 5
};

/// What one cached token looks like.
enum class KvLayout : int32_t {
  kDense = 0,  ///< 576 elements of kv_type
  kPacked =
      1,  ///< 656 bytes: 512 fp8, 4 f32 scales (one for each 128 of the 512), 64 bf16 rotary (DeepSeek-V3.2)
};

/// "dense", "packed", or "unknown".
constexpr const char* kv_layout_name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kDense:
      return "dense";
    case KvLayout::kPacked:
      return "packed";
  }
  return "unknown";
}

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
