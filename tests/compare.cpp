// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "hipmla/mla_decode.h"

namespace hipmla::test {
namespace {

// Relative error of one rounding to nearest: half of the last bit of a value just above a power of
// two.
double unit_roundoff(DataType type) {
  switch (type) {
    case DataType::kBf16:
      return 0x1p-8;
    case DataType::kF16:
      return 0x1p-11;
    case DataType::kF32:
      return 0x1p-24;
    case DataType::kI32:
    case DataType::kFp8E4m3Fn:
    case DataType::kFp8E4m3Fnuz:
      break;  // no implementation rounds to these
  }
  return 0.0;
}

std::string index_text(const std::vector<int64_t>& shape, int64_t index) {
  std::string text;
  for (size_t i = shape.size(); i-- > 0;) {
    const int64_t size = std::max<int64_t>(shape[i], 1);
    text = std::to_string(index % size) + (text.empty() ? "" : ", ") + text;
    index /= size;
  }
  return "[" + text + "]";
}

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", x);
  return text;
}

bool same_special(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b;  // infinities
}

// 1 - cos of the angle between two rows, over their finite elements. Computed from the difference,
// as 1 - cos itself would lose all digits: |a - b|^2 = |a|^2 + |b|^2 - 2 a.b.
double cosine_distance(const float* a, const double* b, int64_t n) {
  double aa = 0.0, bb = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
    aa += static_cast<double>(a[i]) * a[i];
    bb += b[i] * b[i];
  }
  if (aa == 0.0 || bb == 0.0) return aa == bb ? 0.0 : 1.0;
  const double a_scale = 1.0 / std::sqrt(aa);
  const double b_scale = 1.0 / std::sqrt(bb);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
    const double difference = a[i] * a_scale - b[i] * b_scale;
    sum += difference * difference;
  }
  return 0.5 * sum;
}

void add_failure(Comparison* result, const CompareSpec& spec, const std::string& text) {
  if (result->num_failures++ > 0) return;
  result->ok = false;
  result->failure = spec.name + text;
}

double o_bound(const MlaTolerance& t, const MlaReference& reference, int64_t row, int64_t element) {
  // 0 * infinity must not make a bound of NaN.
  const double underflow =
      t.p_underflow > 0.0 ? t.p_underflow * reference.p_max[row] * reference.v_max[row] : 0.0;
  return t.noise * reference.o_root_sum[element] + t.bias * reference.o_abs_sum[element] +
         underflow + t.o_relative * std::abs(reference.o[element]) + t.o_step;
}

std::vector<uint8_t> unspecified_rows(const MlaReference& reference) {
  std::vector<uint8_t> rows;
  for (NonFinite seen : reference.non_finite) rows.push_back(seen == NonFinite::kInfinity);
  return rows;
}

}  // namespace

Arithmetic library_arithmetic(DataType q_type, DataType o_type, bool has_token_factors, Arch arch,
                              ErrorModel model) {
  return {q_type == DataType::kF16 ? DataType::kF16 : DataType::kBf16, o_type, has_token_factors,
          model, arch};
}

// Sources of error, with u = 2^-24 (f32), u_p the roundoff of P (stored as matrix_type for the
// second matrix product), u_o that of o, n the number of keys, and S = |scale| |q| |k|, which is at
// least |scale| sum_d |q_d k_d|, of the row's largest key:
//
// 1. Scores. Products of two 16-bit values are exact in f32; 576 additions, in any order, err by at
//    most 576 u S. The factor scale * log2(e), the subtraction of the maximum and exp2 add a few
//    roundings of numbers no larger than S + ln n: 16 u (S + ln n). A soft cap does not enlarge
//    errors (its slope is at most 1) and adds a few roundings of numbers no larger than itself:
//    16 u cap. A score error of d changes its weight p by the factor 1 + d. A sink is one more
//    score, which needs no product; S is at least as large.
// 2. P is rounded to matrix_type: relative error u_p each. Its sum l is taken in f32 before
//    rounding. P may stand at up to 2^8 relative to the running maximum (rescaling waits), which
//    changes no relative error; the largest weight is at least 1. So f16 loses what lies below its
//    smallest step 2^-24 next to a weight of at least 1: an absolute error of at most 2^-25, or
//    2^-14 where subnormals are flushed, times n keys, times v_max, divided by l >= 1 / p_max.
// 3. Sums over n keys in f32: n u, relative to sum p |v| for o and to l for lse. Merging up to n
//    parts is a sum of the same kind.
// 4. o is rounded once: u_o |o|, plus half a step where it is subnormal.
// 5. Where K and V are rounded products: relative error u_p of each value (and 2^-25 or 2^-14 where
//    a value is subnormal in f16). That makes u_p sum p |v| in o. A score errs by at most u_p S;
//    call its error E, then its weight errs by the factor e^E - 1.
//
// Worst case: errors add up with one sign. 1 and 2 make (576 u S + u_p) sum p |v|, 3 makes n u sum
// p |v|, and the error of l, the same relative amounts, times |o| <= sum p |v|.
//
// Statistical: the errors of different roundings are independent and uniform in +-c_i. Then
// (Hoeffding's argument with the variance c_i^2 / 3 of a uniform variable) their sum exceeds lambda
// sqrt(sum c_i^2) with probability below 2 exp(-3 lambda^2 / 2): 2.5e-14 at lambda^2 = 64 / 3,
// against some 1e9 elements in all tests. So 2 makes lambda u_p sqrt(sum (p v)^2), and a sum of m
// additions errs by lambda sqrt(m) u (compare Higham and Mary, "A new approach to probabilistic
// rounding error analysis", 2019). Keys with equal scores have equal errors of P; u_p |o| stands
// for these. Roundings of the few factors that all keys share stay linear.
//
// Statistical, 5: fp8 has 8 mantissas, and a value's error depends on its mantissa and the token's
// factor alone. So a score q.k, cut into the sums S_m of its products by mantissa and factor, errs
// by E = lambda u_p sqrt(sum_m S_m^2); score_root is that root. Factors differ from token to token,
// so the errors of keys are independent; the mean of e^E - 1, E^2 / 128, is not.
MlaTolerance mla_tolerance(const Arithmetic& arithmetic, const MlaReference& reference,
                           int64_t row) {
  constexpr double kLambda = 4.6188;
  const double u = unit_roundoff(DataType::kF32);
  const double u_p = unit_roundoff(arithmetic.matrix_type);
  const double n = static_cast<double>(std::max<int64_t>(reference.num_keys[row], 1));
  const double score_abs = reference.score_abs[row];
  const bool statistical = arithmetic.model == ErrorModel::kStatistical;
  const double smallest = arithmetic.matrix_type != DataType::kF16 ? 0.0
                          : arithmetic.arch == Arch::kGfx90a       ? 0x1p-14
                                                                   : 0x1p-25;

  MlaTolerance t;
  // A few roundings, relative to S + ln n, and to the soft cap.
  const double shared = 16.0 * u;
  const double shared_score = shared * (score_abs + reference.soft_cap);
  const double dot = (statistical ? kLambda * std::sqrt(kHeadDimQk) * u : kHeadDimQk * u);
  const double sum = statistical ? kLambda * std::sqrt(n) * u : n * u;
  double kv_score = 0.0;  // error of a score
  if (arithmetic.kv_is_rounded)
    kv_score = statistical ? kLambda * u_p * reference.score_root[row] : u_p * score_abs;
  if (statistical) {
    t.row_noise = std::expm1(kv_score);
    t.noise = kLambda * u_p + dot * score_abs + t.row_noise;  // lambda is in dot
    t.bias =
        2.0 * sum + shared * std::log(n + 1.0) + 2.0 * shared_score + kv_score * kv_score / 64.0;
    t.p_underflow = smallest * kLambda * std::sqrt(n);
    if (arithmetic.kv_is_rounded) t.noise += kLambda * u_p;
  } else {
    t.bias = u_p + 2.0 * sum + shared * std::log(n + 1.0) + 2.0 * (dot * score_abs + shared_score) +
             2.0 * std::expm1(kv_score);
    t.p_underflow = smallest * n;
    if (arithmetic.kv_is_rounded) t.bias += u_p;
  }
  t.o_relative = unit_roundoff(arithmetic.o_type) * (1.0 + u_p) + u_p;
  t.o_step = arithmetic.o_type == DataType::kF16 ? 0x1p-25 : 0x1p-126;
  if (arithmetic.kv_is_rounded) t.o_step += smallest * reference.kv_scale;
  t.lse = (dot * score_abs + shared_score + sum + shared * (1.0 + std::log(n + 1.0)) +
           std::expm1(kv_score)) *
          reference.lse_unit;
  t.lse_relative = 2.0 * u;
  return t;
}

Comparison compare(const CompareSpec& spec, const std::vector<float>& actual,
                   const std::vector<double>& expected) {
  Comparison result;
  const std::string again = spec.rerun.empty() ? "" : "\n  run again: " + spec.rerun;
  if (actual.size() != expected.size()) {
    add_failure(&result, spec,
                " has " + std::to_string(actual.size()) + " elements, expected " +
                    std::to_string(expected.size()) + again);
    return result;
  }
  const auto is_unspecified = [&](int64_t element) {
    const size_t run = spec.unspecified.empty() ? 0 : actual.size() / spec.unspecified.size();
    return run > 0 && spec.unspecified[static_cast<size_t>(element) / run] != 0;
  };
  const int64_t row_size = spec.shape.empty() ? 1 : std::max<int64_t>(spec.shape.back(), 1);
  const int64_t num_rows = static_cast<int64_t>(actual.size()) / row_size;
  for (int64_t row = 0; row < num_rows; ++row) {
    double largest = 0.0;
    for (int64_t i = row * row_size; i < (row + 1) * row_size; ++i)
      if (std::isfinite(expected[i])) largest = std::max(largest, std::abs(expected[i]));
    for (int64_t i = row * row_size; i < (row + 1) * row_size; ++i) {
      if (is_unspecified(i)) continue;
      const double a = actual[i];
      const double e = expected[i];
      const bool finite = std::isfinite(a) && std::isfinite(e);
      const double difference = std::abs(a - e);
      if (finite) {
        result.max_abs = std::max(result.max_abs, difference);
        if (std::abs(e) > 0.01 * largest)
          result.max_rel = std::max(result.max_rel, difference / std::abs(e));
      }
      const double allowed = std::max(spec.abs[i], spec.rel * std::abs(e));
      if (finite ? difference <= allowed : same_special(a, e)) continue;
      add_failure(&result, spec,
                  index_text(spec.shape, i) + " is " + number(a) + ", expected " + number(e) +
                      " (differs by " + number(difference) + ", allowed " + number(allowed) + ")" +
                      again);
    }
    const double distance =
        cosine_distance(actual.data() + row * row_size, expected.data() + row * row_size, row_size);
    result.cosine_distance = std::max(result.cosine_distance, distance);
    if (!spec.cosine_distance.empty() && !is_unspecified(row * row_size) &&
        !(distance <= spec.cosine_distance[row]))
      add_failure(&result, spec,
                  " row " + index_text({spec.shape.begin(), spec.shape.end() - 1}, row) +
                      " has cosine distance " + number(distance) + ", allowed " +
                      number(spec.cosine_distance[row]) + again);
  }
  if (result.num_failures > 1)
    result.failure += "\n  and " + std::to_string(result.num_failures - 1) + " more";
  return result;
}

// The cosine distance of two rows that differ by e is at most |e|^2 / (2 |o|^2) / (1 - |e| /
// |o|)^2. Worst case: |e| from the bounds of the elements. Statistical: those hold for 8 standard
// deviations; |e|^2, a sum over 512 elements, is near its mean, so a quarter of each bound (two
// standard deviations) is enough, except for the part that a row shares.
Comparison compare_o(const MlaReference& reference, const std::vector<double>& expected,
                     const std::vector<float>& actual, const Arithmetic& arithmetic,
                     const std::string& rerun) {
  CompareSpec spec;
  spec.name = "o";
  spec.unspecified = unspecified_rows(reference);
  spec.shape = {reference.total_q, reference.num_heads, kHeadDimV};
  spec.rerun = rerun;
  spec.abs.resize(static_cast<size_t>(reference.num_rows()) * kHeadDimV);
  spec.cosine_distance.resize(static_cast<size_t>(reference.num_rows()));
  for (int64_t row = 0; row < reference.num_rows(); ++row) {
    const MlaTolerance t = mla_tolerance(arithmetic, reference, row);
    double error_squared = 0.0;
    double o_squared = 0.0;
    for (int64_t i = row * kHeadDimV; i < (row + 1) * kHeadDimV; ++i) {
      spec.abs[i] = o_bound(t, reference, row, i);
      const double shared = t.o_relative * std::abs(reference.o[i]) + t.o_step +
                            t.row_noise * reference.o_root_sum[i];
      const double independent = spec.abs[i] - shared;
      const double typical =
          arithmetic.model == ErrorModel::kStatistical ? shared + 0.25 * independent : spec.abs[i];
      error_squared += typical * typical;
      o_squared += reference.o[i] * reference.o[i];
    }
    const double ratio = o_squared > 0.0 ? std::sqrt(error_squared / o_squared) : 1.0;
    spec.cosine_distance[row] =
        ratio < 0.5 ? 0.5 * ratio * ratio / ((1.0 - ratio) * (1.0 - ratio)) : 2.0;
  }
  return compare(spec, actual, expected);
}

Comparison compare_lse(const MlaReference& reference, const std::vector<double>& expected,
                       const std::vector<float>& actual, const Arithmetic& arithmetic,
                       const std::string& rerun) {
  CompareSpec spec;
  spec.name = "final_lse";
  spec.unspecified = unspecified_rows(reference);
  spec.shape = {reference.total_q, reference.num_heads};
  spec.rerun = rerun;
  spec.abs.resize(static_cast<size_t>(reference.num_rows()));
  for (int64_t row = 0; row < reference.num_rows(); ++row) {
    const MlaTolerance t = mla_tolerance(arithmetic, reference, row);
    const double lse = reference.lse[row];
    spec.abs[row] = t.lse + (std::isfinite(lse) ? t.lse_relative * std::abs(lse) : 0.0);
  }
  return compare(spec, actual, expected);
}

}  // namespace hipmla::test
