// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Comparison of results with the double-precision reference, and how far apart rounding may bring
// them.

#include <cstdint>
#include <string>
#include <vector>

#include "hipmla/types.h"
#include "tests/mla_reference.h"

namespace hipmla::test {

// How rounding errors are assumed to add up.
enum class ErrorModel {
  kStatistical,  // independent and without bias, as on random inputs: n errors of size u add to
                 // about sqrt(n) u
  kWorstCase,    // all of one sign: for inputs of unknown origin
};

// In what an implementation computes.
struct Arithmetic {
  DataType matrix_type = DataType::kBf16;  // of K, V and the weights in the matrix products
  DataType o_type = DataType::kBf16;
  // K and V are products of a stored value and a factor of the token, rounded to matrix_type;
  // otherwise they are exact in matrix_type.
  bool kv_is_rounded = false;
  ErrorModel model = ErrorModel::kStatistical;
  // Matters for f16 only: gfx90a's matrix operations take subnormal inputs as zero.
  Arch arch = Arch::kGfx942;
};

// That of the library for tensors of these types. fp8 queries are multiplied as bf16.
Arithmetic library_arithmetic(DataType q_type, DataType o_type, bool has_token_factors,
                              Arch arch = Arch::kGfx942,
                              ErrorModel model = ErrorModel::kStatistical);

// Coefficients of the error bounds of one row; see mla_tolerance for their derivation.
//
//   |o - o_ref|     <= noise o_root_sum + bias o_abs_sum + p_underflow p_max v_max
//                      + o_relative |o_ref| + o_step
//   |lse - lse_ref| <= lse + lse_relative |lse_ref|
struct MlaTolerance {
  double noise = 0.0;
  double row_noise = 0.0;  // the part of noise that all elements of a row have in common
  double bias = 0.0;
  double p_underflow = 0.0;
  double o_relative = 0.0;
  double o_step = 0.0;
  double lse = 0.0;
  double lse_relative = 0.0;
};

// The one place that says how exact a result must be: from the arithmetic and from row `row` of the
// reference.
MlaTolerance mla_tolerance(const Arithmetic& arithmetic, const MlaReference& reference,
                           int64_t row);

// What to compare: rows of the last dimension of `shape`, row-major and dense.
struct CompareSpec {
  std::string name;            // of the tensor, for the text
  std::vector<int64_t> shape;  // the last dimension is the row
  // An element passes if it is within abs[i] or within rel * |expected|. `abs` holds one value for
  // each element.
  std::vector<double> abs;
  double rel = 0.0;
  // Bound of the cosine distance of each row; empty: not looked at.
  std::vector<double> cosine_distance;
  // Rows of the attention whose result is not specified, if not 0: one value for each run of as many
  // elements as there are values. Empty: none.
  std::vector<uint8_t> unspecified;
  std::string rerun;  // the command that runs this case again
};

struct Comparison {
  bool ok = true;
  std::string failure;  // the first failure: index, both values, command; empty if ok
  int64_t num_failures = 0;
  double max_abs = 0.0;  // over finite elements
  double max_rel = 0.0;  // |actual - expected| / |expected| over elements not near 0 (above 1 % of
                         // the row's largest)
  double cosine_distance = 0.0;  // largest of any row
};

// NaN and infinities must be at equal positions (infinities with equal sign); no element may miss
// its bound.
Comparison compare(const CompareSpec& spec, const std::vector<float>& actual,
                   const std::vector<double>& expected);

// compare() of dense [total_q, num_heads, 512] outputs, or [total_q, num_heads] LSEs, with the
// bounds of mla_tolerance. `expected` is usually reference.o or reference.lse; bounds always come
// from the reference.
Comparison compare_o(const MlaReference& reference, const std::vector<double>& expected,
                     const std::vector<float>& actual, const Arithmetic& arithmetic,
                     const std::string& rerun);
Comparison compare_lse(const MlaReference& reference, const std::vector<double>& expected,
                       const std::vector<float>& actual, const Arithmetic& arithmetic,
                       const std::string& rerun);

}  // namespace hipmla::test
