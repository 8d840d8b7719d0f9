// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The yardsticks themselves: the reference on cases with a known answer, compare() on results that
// are wrong.

#include "tests/mla_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/compare.h"
#include "tests/test_support/batch_builder.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(FloatBits, AllValuesSurviveARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float from_bf16 = bf16_to_float(half);
    const float from_f16 = f16_to_float(half);
    if (!std::isnan(from_bf16)) {
      EXPECT_EQ(float_to_bf16(from_bf16), half);
    }
    if (!std::isnan(from_f16)) {
      EXPECT_EQ(float_to_f16(from_f16), half);
    }
    EXPECT_EQ(std::isnan(from_f16), (bits & 0x7fff) > 0x7c00);
    EXPECT_EQ(std::isnan(from_bf16), (bits & 0x7fff) > 0x7f80);
  }
}

TEST(FloatBits, RoundingIsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);  // a tie
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-10f + 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(float_to_f16(-0x1.8p-24f), 0x8002);
  for (uint16_t poison : {kPoison16}) {
    EXPECT_TRUE(std::isnan(bf16_to_float(poison)));
    EXPECT_TRUE(std::isnan(f16_to_float(poison)));
    EXPECT_TRUE(std::isnan(float_from_bits(kPoison32)));
  }
}

// Two sequences, pages of two tokens, hand-made values: q picks dim 0, so that scores are what the
// tokens hold there.
TEST(MlaReference, KnownAnswers) {
  constexpr int kHeads = 2;
  std::vector<uint16_t> q(3 * kHeads * kHeadDimQk, 0);  // 2 queries, then 1
  std::vector<uint16_t> kv(4 * 2 * kHeadDimQk, kPoison16);
  const auto token = [&](int page, int slot, float score, float value) {
    uint16_t* row = kv.data() + (page * 2 + slot) * kHeadDimQk;
    std::fill(row, row + kHeadDimQk, static_cast<uint16_t>(0));
    row[575] = float_to_bf16(score);  // not in V
    row[7] = float_to_bf16(value);
  };
  for (int r = 0; r < 3 * kHeads; ++r)
    q[static_cast<size_t>(r) * kHeadDimQk + 575] = float_to_bf16(r % 2 ? 2.0f : 1.0f);
  token(3, 0, 0.0f, 1.0f);
  token(3, 1, 2.0f, 2.0f);
  token(1, 0, 4.0f, 4.0f);
  token(2, 0, 5.0f, -8.0f);
  const std::vector<int32_t> qo_indptr = {0, 2, 3}, kv_indptr = {0, 2, 3}, kv_indices = {3, 1, 2},
                             last = {1, 1};
  MlaHostInputs in;
  in.q = dense_view(q.data(), DataType::kBf16, 3, kHeads, kHeadDimQk);
  in.kv_buffer = dense_view(kv.data(), DataType::kBf16, 4, 2, 1, kHeadDimQk);
  in.batch_size = 2;
  in.qo_indptr = qo_indptr.data();
  in.kv_indptr = kv_indptr.data();
  in.kv_indices = kv_indices.data();
  in.kv_last_page_lens = last.data();
  in.softmax_scale = 0.5;

  const MlaReference r = mla_reference(in);
  ASSERT_EQ(r.o.size(), 3u * kHeads * kHeadDimV);
  // Query 0 of sequence 0 sees two tokens (scores 0 and 1 for head 0, twice that for head 1), query
  // 1 sees three.
  const double e = std::exp(1.0);
  EXPECT_NEAR(r.lse[0], std::log(1 + e), 1e-14);
  EXPECT_NEAR(r.lse[1], std::log(1 + e * e), 1e-14);
  EXPECT_NEAR(r.lse[2], std::log(1 + e + e * e), 1e-14);
  EXPECT_NEAR(r.lse[3], std::log(1 + e * e + e * e * e * e), 1e-14);
  EXPECT_NEAR(r.lse[4], 2.5, 1e-14);
  EXPECT_NEAR(r.lse[5], 5.0, 1e-14);
  const auto o7 = [&](int row) { return r.o[static_cast<size_t>(row) * kHeadDimV + 7]; };
  EXPECT_NEAR(o7(0), (1 + 2 * e) / (1 + e), 1e-14);
  EXPECT_NEAR(o7(2), (1 + 2 * e + 4 * e * e) / (1 + e + e * e), 1e-14);
  EXPECT_EQ(o7(4), -8.0);
  EXPECT_NEAR(r.o_abs_sum[4 * kHeadDimV + 7], 8.0, 1e-6);
  EXPECT_NEAR(r.o_root_sum[0 * kHeadDimV + 7], std::sqrt(1 + 4 * e * e) / (1 + e), 1e-6);
  EXPECT_EQ(r.num_keys[0], 2);
  EXPECT_EQ(r.num_keys[2], 3);

  in.causal = false;
  EXPECT_NEAR(mla_reference(in).lse[0], std::log(1 + e + e * e), 1e-14);
}

TEST(MlaReference, RowsWithoutKeys) {
  BatchSpec spec;
  spec.num_heads = 3;
  spec.q_lens = {2, 4};
  spec.kv_lens = {0, 2};
  const Batch batch = build_batch(spec);
  const MlaReference r = mla_reference(batch.host_inputs());
  for (size_t row = 0; row < 18; ++row) {
    const bool sees = row >= 12;  // the last two queries of the second sequence
    EXPECT_EQ(std::isinf(r.lse[row]) && r.lse[row] < 0, !sees) << row;
    EXPECT_EQ(r.o[row * kHeadDimV] == 0.0, !sees) << row;
  }
}

// Page size, page order and padding are addressing only.
TEST(MlaReference, AddressingDoesNotMatter) {
  std::vector<double> first;
  for (int32_t page_size : {1, 7, 64})
    for (bool padded : {false, true}) {
      BatchSpec spec = uniform_spec(DataType::kF16, 3, 2, 100, 2, page_size);
      spec.padded = padded;
      const MlaReference r = mla_reference(build_batch(spec).host_inputs());
      if (first.empty()) first = r.o;
      EXPECT_EQ(r.o, first);
    }
}

TEST(BatchBuilder, UnusedSlotsHoldNan) {
  BatchSpec spec = uniform_spec(DataType::kBf16, 2, 1, 10, 3, 4);
  const Batch batch = build_batch(spec);
  int64_t finite = 0;
  for (uint16_t bits : batch.kv) finite += std::isfinite(bf16_to_float(bits)) ? 1 : 0;
  EXPECT_EQ(finite, 30 * kHeadDimQk);
  for (size_t i = 0; i < 9; ++i) EXPECT_NE(batch.kv_indices[i], 0) << "page 0 is listed";
}

// ---- compare

CompareSpec row_spec(double abs) {
  CompareSpec spec;
  spec.name = "x";
  spec.shape = {2, 4};
  spec.abs.assign(8, abs);
  spec.rerun = "./again";
  return spec;
}

TEST(Compare, OneMissIsEnough) {
  const std::vector<double> expected = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> actual(expected.begin(), expected.end());
  EXPECT_TRUE(compare(row_spec(0.0), actual, expected).ok);
  actual[6] = 7.25f;
  const Comparison c = compare(row_spec(0.125), actual, expected);
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.num_failures, 1);
  EXPECT_EQ(c.failure,
            "x[1, 2] is 7.25, expected 7 (differs by 0.25, allowed 0.125)\n  run again: ./again");
  EXPECT_TRUE(compare(row_spec(0.25), actual, expected).ok);
  CompareSpec relative = row_spec(0.0);
  relative.rel = 0.04;
  EXPECT_TRUE(compare(relative, actual, expected).ok);
}

TEST(Compare, SpecialValuesMustBeAtEqualPositions) {
  const auto ok = [](float a, double e) {
    return compare(row_spec(1e30), {0, 0, a, 0, 0, 0, 0, 0}, {0, 0, e, 0, 0, 0, 0, 0}).ok;
  };
  EXPECT_TRUE(ok(kNan, kNan));
  EXPECT_TRUE(ok(kInf, kInf));
  EXPECT_TRUE(ok(-kInf, -kInf));
  EXPECT_FALSE(ok(kNan, 0.0));
  EXPECT_FALSE(ok(0.0f, kNan));
  EXPECT_FALSE(ok(kInf, -kInf));
  EXPECT_FALSE(ok(-kInf, -1e30));
  EXPECT_FALSE(ok(kNan, kInf));
}

TEST(Compare, CosineDistanceOfARow) {
  const std::vector<double> expected = {3, 4, 0, 0, 1, 0, 0, 0};
  const std::vector<float> actual = {3, 4, 0, 0, 1, 0.1f, 0, 0};
  CompareSpec spec = row_spec(1.0);
  spec.cosine_distance = {1e-9, 0.006};
  const Comparison good = compare(spec, actual, expected);
  EXPECT_TRUE(good.ok) << good.failure;
  EXPECT_NEAR(good.cosine_distance, 1.0 - 1.0 / std::sqrt(1.01), 1e-8);
  spec.cosine_distance[1] = 0.004;
  const Comparison bad = compare(spec, actual, expected);
  EXPECT_FALSE(bad.ok);
  EXPECT_NE(bad.failure.find("row [1] has cosine distance"), std::string::npos) << bad.failure;
}

TEST(Compare, SizesMustMatch) { EXPECT_FALSE(compare(row_spec(1.0), {1, 2}, {1, 2, 3}).ok); }

TEST(Tolerance, GrowsWithErrorSourcesOnly) {
  const auto t = [](DataType kv, DataType o, int64_t n, ErrorModel m) {
    return mla_tolerance(kv, o, n, m);
  };
  constexpr auto kStat = ErrorModel::kStatistical;
  constexpr auto kWorst = ErrorModel::kWorstCase;
  EXPECT_GT(t(DataType::kBf16, DataType::kF32, 1, kStat).p_rounding,
            t(DataType::kF16, DataType::kF32, 1, kStat).p_rounding);
  EXPECT_GT(t(DataType::kF16, DataType::kBf16, 1, kStat).o_relative,
            t(DataType::kF16, DataType::kF16, 1, kStat).o_relative);
  EXPECT_EQ(t(DataType::kBf16, DataType::kBf16, 9, kStat).p_underflow, 0.0);
  EXPECT_GT(t(DataType::kF16, DataType::kBf16, 9, kStat).p_underflow, 0.0);
  for (auto model : {kStat, kWorst})
    EXPECT_GT(t(DataType::kBf16, DataType::kBf16, 1000, model).accumulation,
              t(DataType::kBf16, DataType::kBf16, 10, model).accumulation);
  EXPECT_LT(t(DataType::kBf16, DataType::kBf16, 1 << 18, kStat).accumulation,
            t(DataType::kBf16, DataType::kBf16, 1 << 18, kWorst).accumulation);
}

// ---- the bounds must be narrow enough to notice what goes wrong in practice

struct Result {
  MlaReference reference;
  std::vector<float> o, lse;
  bool ok() const {
    return compare_o(reference, reference.o, o, DataType::kBf16, DataType::kF32, "").ok &&
           compare_lse(reference, reference.lse, lse, DataType::kBf16, "").ok;
  }
};

// Outputs of `of`, to be compared with the reference of `batch`.
Result result_of(const Batch& batch, const Batch& of) {
  Result r;
  r.reference = mla_reference(batch.host_inputs());
  const MlaReference other = mla_reference(of.host_inputs());
  r.o.assign(other.o.begin(), other.o.end());
  r.lse.assign(other.lse.begin(), other.lse.end());
  return r;
}

TEST(Tolerance, NoticesOneLostToken) {
  for (int trend = 1; trend < kNumScoreTrends; ++trend)
    for (int32_t kv_len : {2, 65, 1200}) {
      BatchSpec spec = uniform_spec(DataType::kBf16, 16, 1, kv_len, 1);
      spec.trend = static_cast<ScoreTrend>(trend);
      const Batch batch = build_batch(spec);
      EXPECT_TRUE(result_of(batch, batch).ok());
      Batch shorter = batch;  // without its newest token
      shorter.kv_indptr[1] -= 1;
      EXPECT_FALSE(result_of(batch, shorter).ok()) << kv_len << " tokens, trend " << trend;
      Batch swapped = batch;  // one token read twice, in place of another
      swapped.kv_indices[0] = swapped.kv_indices[static_cast<size_t>(kv_len) - 1];
      EXPECT_FALSE(result_of(batch, swapped).ok()) << kv_len << " tokens, trend " << trend;
    }
}

TEST(Tolerance, NoticesSwappedRows) {
  const Batch batch = build_batch(uniform_spec(DataType::kBf16, 8, 2, 300, 1));
  Result r = result_of(batch, batch);
  for (size_t d = 0; d < kHeadDimV; ++d) std::swap(r.o[5 * kHeadDimV + d], r.o[6 * kHeadDimV + d]);
  EXPECT_FALSE(r.ok());
}

TEST(Tolerance, NoticesLog2InPlaceOfLn) {
  const Batch batch = build_batch(uniform_spec(DataType::kBf16, 4, 1, 64, 1));
  Result r = result_of(batch, batch);
  for (float& x : r.lse) x *= 1.442695f;
  EXPECT_FALSE(r.ok());
}

}  // namespace
}  // namespace hipmla::test
