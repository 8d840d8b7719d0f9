// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/decode_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hipmla::test {
namespace {

// A part without keys must hold o = 0, whatever reads it.
std::string check_empty_parts(const MlaReference& reference, const DecodeResult& result) {
  for (size_t row = 0; row < result.partial_lse.size(); ++row) {
    if (!std::isinf(result.partial_lse[row])) continue;
    if (reference.non_finite[row % reference.non_finite.size()] == NonFinite::kInfinity) continue;
    for (size_t i = row * kHeadDimV; i < (row + 1) * kHeadDimV; ++i)
      if (result.partial_o[i] != 0.0f)
        return "an empty part (lse = -inf) has o != 0: row " + std::to_string(row) +
               " of [parts, total_q, num_heads]";
  }
  return "";
}

// Partials know no sink, and their LSE is natural.
void finish_merged(const Batch& batch, std::vector<float>* o, std::vector<float>* lse) {
  const auto num_heads = static_cast<size_t>(batch.spec.num_heads);
  for (size_t row = 0; row < lse->size(); ++row) {
    const double natural = (*lse)[row];
    if (!batch.sink.empty() && !std::isinf(natural)) {
      const double share = 1.0 / (1.0 + std::exp(batch.sink[row % num_heads] - natural));
      for (size_t i = row * kHeadDimV; i < (row + 1) * kHeadDimV; ++i)
        (*o)[i] = static_cast<float>(share * static_cast<double>((*o)[i]));
    }
    if (batch.spec.lse_base2) (*lse)[row] = static_cast<float>(natural / std::log(2.0));
  }
}

}  // namespace

void merge_parts(const std::vector<float>& part_o, const std::vector<float>& part_lse,
                 int64_t parts, int64_t rows, std::vector<float>* o, std::vector<float>* lse) {
  o->assign(static_cast<size_t>(rows * kHeadDimV), 0.0f);
  lse->assign(static_cast<size_t>(rows), -std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < rows; ++row) {
    double max = -std::numeric_limits<double>::infinity();
    bool any_nan = false;
    for (int64_t s = 0; s < parts; ++s) {
      const double part = part_lse[static_cast<size_t>(s * rows + row)];
      max = std::max(max, part);
      any_nan = any_nan || std::isnan(part);
    }
    if (std::isinf(max) && max < 0 && !any_nan) continue;
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

Arithmetic arithmetic_of(const BatchSpec& spec, Arch arch, ErrorModel model) {
  return library_arithmetic(spec.q_type, spec.o_type, spec.has_token_factors(), arch, model);
}

std::string check_result(const Batch& batch, const MlaReference& reference, const DecodeRun& run,
                         const DecodeResult& result, Arch arch, const std::string& rerun) {
  const std::string again = "\n  run again: " + rerun;
  if (!result.status.ok())
    return std::string(status_code_name(result.status.code())) + ": " + result.status.text() +
           again;
  if (!result.problems.empty()) return result.problems + again;

  const Arithmetic arithmetic = arithmetic_of(batch.spec, arch);
  std::string text;
  const auto add = [&](const std::string& prefix, const Comparison& comparison) {
    if (!comparison.ok) text += (text.empty() ? "" : "\n") + prefix + comparison.failure;
  };
  add("", compare_o(reference, reference.o, result.o, arithmetic, rerun));
  if (run.with_lse) add("", compare_lse(reference, reference.lse, result.lse, arithmetic, rerun));
  if (run.options.return_partials) {
    std::vector<float> o, lse;
    merge_parts(result.partial_o, result.partial_lse, result.num_partials, reference.num_rows(), &o,
                &lse);
    finish_merged(batch, &o, &lse);
    Arithmetic partial = arithmetic;
    partial.o_type = DataType::kF32;
    add("merged partial ", compare_o(reference, reference.o, o, partial, rerun));
    add("merged partial ", compare_lse(reference, reference.lse, lse, partial, rerun));
    if (text.empty()) text = check_empty_parts(reference, result);
  }
  return text;
}

}  // namespace hipmla::test
