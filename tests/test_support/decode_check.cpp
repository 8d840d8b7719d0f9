// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/decode_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hipmla::test {
namespace {

// A part without keys must hold o = 0, whatever reads it.
std::string check_empty_parts(const DecodeResult& result) {
  for (size_t row = 0; row < result.partial_lse.size(); ++row) {
    if (!std::isinf(result.partial_lse[row])) continue;
    for (size_t i = row * kHeadDimV; i < (row + 1) * kHeadDimV; ++i)
      if (result.partial_o[i] != 0.0f)
        return "an empty part (lse = -inf) has o != 0: row " + std::to_string(row) +
               " of [parts, total_q, num_heads]";
  }
  return "";
}

}  // namespace

void merge_parts(const std::vector<float>& part_o, const std::vector<float>& part_lse,
                 int64_t parts, int64_t rows, std::vector<float>* o, std::vector<float>* lse) {
  o->assign(static_cast<size_t>(rows * kHeadDimV), 0.0f);
  lse->assign(static_cast<size_t>(rows), -std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < rows; ++row) {
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t s = 0; s < parts; ++s)
      max = std::max<double>(max, part_lse[static_cast<size_t>(s * rows + row)]);
    if (std::isinf(max) && max < 0) continue;
    double sum = 0.0;
    double merged[kHeadDimV] = {};
    for (int64_t s = 0; s < parts; ++s) {
      const double weight = std::exp(part_lse[static_cast<size_t>(s * rows + row)] - max);
      sum += weight;
      if (weight == 0.0) continue;
      const float* part = part_o.data() + (s * rows + row) * kHeadDimV;
      for (int d = 0; d < kHeadDimV; ++d) merged[d] += weight * static_cast<double>(part[d]);
    }
    for (int d = 0; d < kHeadDimV; ++d)
      (*o)[static_cast<size_t>(row * kHeadDimV + d)] = static_cast<float>(merged[d] / sum);
    (*lse)[static_cast<size_t>(row)] = static_cast<float>(max + std::log(sum));
  }
}

std::string check_result(const Batch& batch, const MlaReference& reference, const DecodeRun& run,
                         const DecodeResult& result, Arch arch, const std::string& rerun) {
  const std::string again = "\n  run again: " + rerun;
  if (!result.status.ok())
    return std::string(status_code_name(result.status.code())) + ": " + result.status.text() +
           again;
  if (!result.problems.empty()) return result.problems + again;

  const DataType type = batch.spec.type;
  constexpr ErrorModel kModel = ErrorModel::kStatistical;
  std::string text;
  const auto add = [&](const std::string& prefix, const Comparison& comparison) {
    if (!comparison.ok) text += (text.empty() ? "" : "\n") + prefix + comparison.failure;
  };
  add("",
      compare_o(reference, reference.o, result.o, type, batch.spec.o_type, rerun, kModel, arch));
  if (run.with_lse)
    add("", compare_lse(reference, reference.lse, result.lse, type, rerun, kModel, arch));
  if (run.options.return_partials) {
    std::vector<float> o, lse;
    merge_parts(result.partial_o, result.partial_lse, result.num_partials, reference.num_rows(), &o,
                &lse);
    add("merged partial ",
        compare_o(reference, reference.o, o, type, DataType::kF32, rerun, kModel, arch));
    add("merged partial ", compare_lse(reference, reference.lse, lse, type, rerun, kModel, arch));
    if (text.empty()) text = check_empty_parts(result);
  }
  return text;
}

}  // namespace hipmla::test
