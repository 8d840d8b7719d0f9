// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Whether what a run returned is right.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/compare.h"
#include "tests/test_support/decode_runner.h"

namespace hipmla::test {

// Merges states of disjoint sets of keys in double precision:
//   part_o [parts, rows, 512], part_lse [parts, rows], natural log
void merge_parts(const std::vector<float>& part_o, const std::vector<float>& part_lse,
                 int64_t parts, int64_t rows, std::vector<float>* o, std::vector<float>* lse);

// The library's arithmetic on such a batch.
Arithmetic arithmetic_of(const BatchSpec& spec, Arch arch = Arch::kGfx942,
                         ErrorModel model = ErrorModel::kStatistical);

// "" if `result` is right: no problem found by the run, and o and lse within the bounds of
// mla_tolerance. Partials, if there are any, must merge to o and lse. `rerun` is the command that a
// failure tells.
std::string check_result(const Batch& batch, const MlaReference& reference, const DecodeRun& run,
                         const DecodeResult& result, Arch arch, const std::string& rerun);

}  // namespace hipmla::test
