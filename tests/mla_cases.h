// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What users are promised, as data. A shape that follows from these lists is never refused and no
// test of it is ever skipped: an entry that leaves a list is a broken promise.

#include <cstdint>

#include "hipmla/types.h"

namespace hipmla::test {

constexpr int32_t kPromisedHeads[] = {1,  3,  4,  5,  8,  12,  16,  20,  24,  32, 40,
                                      48, 63, 64, 80, 96, 112, 126, 128, 256, 512};

constexpr int32_t kPromisedSeqlensQ[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64};

// Any size from 1 to 4096; 48 and 480 are what hybrid models use.
constexpr int32_t kPromisedPageSizes[] = {1, 16, 32, 48, 64, 128, 256, 480, 1000, 1024, 4096};

// Where a combination of types is promised.
enum class PromisedOn {
  kEverywhere,
  kAmd,
};
constexpr bool includes(PromisedOn promise, Arch arch) {
  switch (arch) {
    case Arch::kUnknown:
      return false;
    case Arch::kSm80:
    case Arch::kSm90:
      return promise == PromisedOn::kEverywhere;
    case Arch::kGfx90a:
    case Arch::kGfx942:
    case Arch::kGfx950:
      return true;
  }
  return false;
}

struct PromisedTypes {
  DataType q_type;
  DataType kv_type;
  KvLayout kv_layout;
  PromisedOn on;
};
constexpr PromisedTypes kPromisedTypes[] = {
    {DataType::kBf16, DataType::kBf16, KvLayout::kDense, PromisedOn::kEverywhere},
    {DataType::kF16, DataType::kF16, KvLayout::kDense, PromisedOn::kEverywhere},
    {DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kBf16, DataType::kFp8E4m3Fnuz, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kF16, DataType::kFp8E4m3Fn, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kF16, DataType::kFp8E4m3Fnuz, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fn, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kFp8E4m3Fnuz, DataType::kFp8E4m3Fnuz, KvLayout::kDense, PromisedOn::kAmd},
    {DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kPacked, PromisedOn::kAmd},
    {DataType::kBf16, DataType::kFp8E4m3Fnuz, KvLayout::kPacked, PromisedOn::kAmd},
};

constexpr bool is_promised(DataType q_type, DataType kv_type, KvLayout kv_layout, Arch arch) {
  for (const PromisedTypes& types : kPromisedTypes)
    if (types.q_type == q_type && types.kv_type == kv_type && types.kv_layout == kv_layout)
      return includes(types.on, arch);
  return false;
}

// Of o, for all of the above.
constexpr DataType kPromisedOTypes[] = {DataType::kBf16, DataType::kF16, DataType::kF32};

// Each without and with these.
constexpr int32_t kPromisedTopks[] = {0, 1, 512, 2048, 65536};
constexpr int32_t kPromisedWindows[] = {0, 1, 128, 4096};     // not with topk
constexpr int32_t kPromisedRanks[] = {1, 2, 3, 4, 7, 8, 64};  // both kinds of shards; not with topk

constexpr Schedule kPromisedSchedules[] = {Schedule::kAuto, Schedule::kPersistent,
                                           Schedule::kSplitKv};

constexpr Arch kPromisedArchs[] = {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950, Arch::kSm80,
                                   Arch::kSm90};

// Memory that a workgroup may use on the smallest such device.
constexpr int64_t promised_lds_bytes(Arch arch) {
  return arch == Arch::kSm80 ? 163 * 1024 : arch == Arch::kSm90 ? 227 * 1024 : 64 * 1024;
}

}  // namespace hipmla::test
