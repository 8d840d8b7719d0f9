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

constexpr int32_t kPromisedSeqlensQ[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};

// 48 and 480 are what hybrid models use.
constexpr int32_t kPromisedPageSizes[] = {1, 16, 32, 48, 64, 128, 256, 480, 1024};

struct PromisedTypes {
  DataType type;  // of q and kv
  DataType o_type;
};
constexpr PromisedTypes kPromisedTypes[] = {
    {DataType::kBf16, DataType::kBf16}, {DataType::kF16, DataType::kF16},
    {DataType::kBf16, DataType::kF32},  {DataType::kF16, DataType::kF32},
    {DataType::kBf16, DataType::kF16},  {DataType::kF16, DataType::kBf16},
};

constexpr Schedule kPromisedSchedules[] = {Schedule::kAuto, Schedule::kPersistent,
                                           Schedule::kSplitKv};

constexpr Arch kPromisedArchs[] = {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950};

}  // namespace hipmla::test
