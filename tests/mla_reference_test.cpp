// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The yardsticks themselves: the reference on cases with a known answer, compare() on results that
// are wrong.

#include "tests/mla_reference.h"

#include <gtest/gtest.h>

#include <climits>
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

TEST(FloatBits, Fp8) {
  for (DataType type : {DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz}) {
    const bool is_fn = type == DataType::kFp8E4m3Fn;
    int nans = 0;
    for (int bits = 0; bits < 256; ++bits) {
      const float x = fp8_to_float(type, static_cast<uint8_t>(bits));
      if (std::isnan(x)) {
        ++nans;
        continue;
      }
      EXPECT_EQ(float_to_fp8(type, x), bits);
      // Neighbours: the midpoint goes to the even one.
      if (bits % 128 >= (is_fn ? 0x7e : 0x7f)) continue;
      const float next = fp8_to_float(type, static_cast<uint8_t>(bits + 1));
      const float middle = (x + next) / 2;
      EXPECT_EQ(float_to_fp8(type, middle), bits % 2 == 0 ? bits : bits + 1) << middle;
    }
    EXPECT_EQ(nans, is_fn ? 2 : 1);
    EXPECT_EQ(float_to_fp8(type, 1e9f), is_fn ? 0x7e : 0x7f);
    EXPECT_EQ(float_to_fp8(type, -1e9f), is_fn ? 0xfe : 0xff);
    EXPECT_TRUE(std::isnan(fp8_to_float(type, float_to_fp8(type, kNan))));
  }
  // From the formats' definition.
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fn, 0x7e), 448.0f);
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fn, 0x38), 1.0f);
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fn, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::signbit(fp8_to_float(DataType::kFp8E4m3Fn, 0x80)));
  EXPECT_TRUE(std::isnan(fp8_to_float(DataType::kFp8E4m3Fn, 0x7f)));
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fnuz, 0x7f), 240.0f);
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fnuz, 0x40), 1.0f);
  EXPECT_EQ(fp8_to_float(DataType::kFp8E4m3Fnuz, 0x01), 0x1p-10f);
  EXPECT_EQ(float_to_fp8(DataType::kFp8E4m3Fnuz, -0.0f), 0);
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

// Four tokens with scores 0, 1, 2, 3 and values 1, 2, 4, 8 in dim 7; one head.
struct FourTokens {
  std::vector<uint16_t> q = std::vector<uint16_t>(2 * kHeadDimQk, 0);
  std::vector<uint16_t> kv = std::vector<uint16_t>(5 * kHeadDimQk, kPoison16);  // slot 0: NaN
  std::vector<int32_t> qo_indptr = {0, 1}, kv_indptr = {0, 4}, kv_indices = {1, 2, 3, 4},
                       last = {1};
  MlaHostInputs in;

  explicit FourTokens(int32_t num_queries = 1) {
    qo_indptr[1] = num_queries;
    for (int t = 0; t < num_queries; ++t)
      q[static_cast<size_t>(t) * kHeadDimQk + 575] = float_to_bf16(1.0f);
    for (int p = 0; p < 4; ++p) {
      uint16_t* row = kv.data() + (p + 1) * kHeadDimQk;
      std::fill(row, row + kHeadDimQk, static_cast<uint16_t>(0));
      row[575] = float_to_bf16(static_cast<float>(p));
      row[7] = float_to_bf16(static_cast<float>(1 << p));
    }
    in.q = dense_view(q.data(), DataType::kBf16, num_queries, 1, kHeadDimQk);
    in.kv_buffer = dense_view(kv.data(), DataType::kBf16, 5, 1, 1, kHeadDimQk);
    in.batch_size = 1;
    in.qo_indptr = qo_indptr.data();
    in.kv_indptr = kv_indptr.data();
    in.kv_indices = kv_indices.data();
    in.kv_last_page_lens = last.data();
    in.softmax_scale = 1.0;
  }
  // Expects the row to see these tokens, with scores f(p) and a sink in the denominator.
  template <typename F>
  void expect_row(int row, const std::vector<int>& tokens, F score, double exp_sink = 0.0) const {
    const MlaReference r = mla_reference(in);
    double sum = 0.0, o = 0.0;
    for (int p : tokens) sum += std::exp(score(p));
    for (int p : tokens) o += std::exp(score(p)) * (1 << p) / (sum + exp_sink);
    EXPECT_NEAR(r.lse[static_cast<size_t>(row)], std::log(sum) * r.lse_unit, 1e-14);
    EXPECT_NEAR(r.o[static_cast<size_t>(row) * kHeadDimV + 7], o, 1e-14);
    EXPECT_EQ(r.num_keys[static_cast<size_t>(row)], static_cast<int64_t>(tokens.size()));
  }
};

TEST(MlaReference, SoftCapSinkAndBase) {
  FourTokens x;
  const auto plain = [](int p) { return static_cast<double>(p); };
  x.expect_row(0, {0, 1, 2, 3}, plain);
  x.in.logits_soft_cap = 2.0;
  x.expect_row(0, {0, 1, 2, 3}, [](int p) { return 2.0 * std::tanh(p / 2.0); });
  x.in.logits_soft_cap = 0.0;
  float sink = 1.5f;
  x.in.sink = &sink;
  x.expect_row(0, {0, 1, 2, 3}, plain, std::exp(1.5));
  sink = 1e30f;
  EXPECT_EQ(mla_reference(x.in).o[7], 0.0);
  sink = -kInf;
  x.expect_row(0, {0, 1, 2, 3}, plain);
  x.in.lse_base2 = true;
  EXPECT_NEAR(mla_reference(x.in).lse[0],
              std::log2(1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0)), 1e-14);
}

TEST(MlaReference, SlidingWindow) {
  FourTokens x(2);  // queries at positions 2 and 3
  const auto plain = [](int p) { return static_cast<double>(p); };
  x.in.sliding_window = 2;
  x.expect_row(0, {1, 2}, plain);
  x.expect_row(1, {2, 3}, plain);
  x.in.causal = false;
  x.expect_row(0, {1, 2, 3}, plain);
  x.in.sliding_window = 1;
  x.expect_row(1, {3}, plain);
}

TEST(MlaReference, Shards) {
  const auto plain = [](int p) { return static_cast<double>(p); };
  // Eight tokens, of which this rank has four: the scores and values here belong to local
  // positions.
  FourTokens x(2);  // queries at global positions 6 and 7
  const std::vector<int32_t> global = {8};
  std::vector<int32_t> begins = {3};
  x.in.kv_global_lens = global.data();
  x.in.kv_shard = KvShard::kRoundRobin;
  x.in.cp_world_size = 2;
  x.in.cp_rank = 1;  // positions 1, 3, 5, 7
  x.expect_row(0, {0, 1, 2}, plain);
  x.expect_row(1, {0, 1, 2, 3}, plain);
  x.in.sliding_window = 3;  // from 4 and from 5 on
  x.expect_row(0, {2}, plain);
  x.expect_row(1, {2, 3}, plain);
  x.in.cp_rank = 0;  // positions 0, 2, 4, 6
  x.expect_row(0, {2, 3}, plain);
  x.expect_row(1, {3}, plain);
  x.in.kv_shard = KvShard::kContiguous;  // positions 3, 4, 5, 6
  x.in.kv_shard_begins = begins.data();
  x.expect_row(0, {1, 2, 3}, plain);
  x.in.sliding_window = 0;
  x.expect_row(0, {0, 1, 2, 3}, plain);
  begins[0] = 4;  // positions 4 to 7
  x.expect_row(0, {0, 1, 2}, plain);
}

TEST(MlaReference, SparseLists) {
  FourTokens x(2);
  const std::vector<int32_t> topk = {4, -1, 1, -1, 5, 2, 2, INT32_MAX};
  x.in.topk = 4;
  x.in.topk_indices = topk.data();
  const auto plain = [](int p) { return static_cast<double>(p); };
  x.expect_row(0, {3, 0}, plain);
  x.expect_row(1, {1, 1}, plain);
  const std::vector<int32_t> none(8, -1);
  x.in.topk_indices = none.data();
  EXPECT_EQ(mla_reference(x.in).lse[1], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(mla_reference(x.in).o[7], 0.0);
}

// fp8 with every factor, and the packed record, against the same values in bf16.
TEST(MlaReference, Fp8FactorsAndRecords) {
  FourTokens x;
  const auto plain = [](int p) { return static_cast<double>(p); };
  std::vector<uint8_t> q(kHeadDimQk, 0), kv(5 * kHeadDimQk, 0xff), packed(5 * 656, 0xff);
  const std::vector<float> token_scales = {kNan, 4.0f, 2.0f, 0.5f, 1.0f};
  q[575] = float_to_fp8(DataType::kFp8E4m3Fn, 0.25f);
  for (int p = 0; p < 4; ++p) {
    uint8_t* row = kv.data() + (p + 1) * kHeadDimQk;
    std::fill(row, row + kHeadDimQk, uint8_t{0});
    const float factor = 2.0f * token_scales[static_cast<size_t>(p) + 1];
    row[575] = float_to_fp8(DataType::kFp8E4m3Fn, static_cast<float>(p) / factor);
    row[7] = float_to_fp8(DataType::kFp8E4m3Fn, static_cast<float>(1 << p) / factor);
    uint8_t* record = packed.data() + (p + 1) * 656;
    std::fill(record, record + 656, uint8_t{0});
    record[7] = float_to_fp8(DataType::kFp8E4m3Fn, static_cast<float>(1 << p) / 8.0f);
    const float scale = 8.0f;
    std::memcpy(record + 512, &scale, 4);
    const uint16_t rotary = float_to_bf16(static_cast<float>(p));
    std::memcpy(record + 528 + 2 * 63, &rotary, 2);
  }
  x.in.q = dense_view(q.data(), DataType::kFp8E4m3Fn, 1, 1, kHeadDimQk);
  x.in.kv_buffer = dense_view(kv.data(), DataType::kFp8E4m3Fn, 5, 1, 1, kHeadDimQk);
  x.in.q_scale = 4.0;
  x.in.kv_scale = 2.0;
  x.in.kv_token_scales = dense_view(const_cast<float*>(token_scales.data()), DataType::kF32, 5, 1);
  x.expect_row(0, {0, 1, 2, 3}, plain);
  x.in.kv_buffer = dense_view(packed.data(), DataType::kFp8E4m3Fn, 5, 1, 1, 656);
  x.in.kv_layout = KvLayout::kPacked;
  x.in.kv_token_scales.data = nullptr;
  x.in.kv_scale = 1.0;
  x.expect_row(0, {0, 1, 2, 3}, plain);
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
  for (size_t i = 0; i < batch.kv.size() / 2; ++i)
    finite += std::isfinite(load_element(batch.kv.data(), DataType::kBf16, static_cast<int64_t>(i)))
                  ? 1
                  : 0;
  EXPECT_EQ(finite, 30 * kHeadDimQk);
  for (size_t i = 0; i < 9; ++i) EXPECT_NE(batch.kv_indices[i], 0) << "page 0 is listed";
}

TEST(BatchBuilder, UnusedFp8SlotsHoldNan) {
  for (DataType type : {DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz})
    for (KvLayout layout : {KvLayout::kDense, KvLayout::kPacked}) {
      BatchSpec spec = uniform_spec(type, 2, 1, 10, 3, 4);
      spec.kv_layout = layout;
      spec.token_scales = layout == KvLayout::kDense;
      const Batch batch = build_batch(spec);
      const int64_t size = spec.token_elements();
      int64_t used = 0;
      for (int64_t slot = 0; slot < batch.num_pages * 4; ++slot) {
        const uint8_t* token = batch.kv.data() + slot * size;
        if (!std::isnan(fp8_to_float(type, token[0]))) {
          ++used;
          continue;
        }
        for (int64_t d = 0; d < (layout == KvLayout::kPacked ? 512 : size); ++d)
          ASSERT_TRUE(std::isnan(fp8_to_float(type, token[d])));
        for (int64_t i = 512; layout == KvLayout::kPacked && i < 528; i += 4) {
          float scale = 0.0f;
          std::memcpy(&scale, token + i, 4);
          ASSERT_TRUE(std::isnan(scale));
        }
        if (spec.token_scales) {
          ASSERT_TRUE(std::isnan(batch.kv_token_scales[static_cast<size_t>(slot)]));
        }
      }
      EXPECT_EQ(used, 30);
    }
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
  MlaReference r;
  r.num_keys = {1, 9, 10, 1000, 1 << 18};
  r.score_abs.assign(5, 1.0);
  r.score_root.assign(5, 1.0);
  constexpr auto kBf16 = DataType::kBf16;
  constexpr auto kF16 = DataType::kF16;
  constexpr auto kStat = ErrorModel::kStatistical;
  constexpr auto kWorst = ErrorModel::kWorstCase;
  const auto t = [&](DataType matrix, DataType o, int64_t row, ErrorModel model,
                     bool rounded = false) {
    return mla_tolerance({matrix, o, rounded, model}, r, row);
  };
  EXPECT_GT(t(kBf16, DataType::kF32, 0, kStat).noise, t(kF16, DataType::kF32, 0, kStat).noise);
  EXPECT_GT(t(kF16, kBf16, 0, kStat).o_relative, t(kF16, kF16, 0, kStat).o_relative);
  EXPECT_EQ(t(kBf16, kBf16, 1, kStat).p_underflow, 0.0);
  EXPECT_GT(t(kF16, kBf16, 1, kStat).p_underflow, 0.0);
  for (auto model : {kStat, kWorst}) {
    EXPECT_GT(t(kBf16, kBf16, 3, model).bias, t(kBf16, kBf16, 2, model).bias);
    EXPECT_GT(t(kBf16, kBf16, 3, model, true).lse, t(kBf16, kBf16, 3, model).lse);
  }
  EXPECT_LT(t(kBf16, kBf16, 4, kStat).bias, t(kBf16, kBf16, 4, kWorst).bias);
}

// ---- the bounds must be narrow enough to notice what goes wrong in practice

struct Result {
  MlaReference reference;
  Arithmetic arithmetic;
  std::vector<float> o, lse;
  bool ok() const {
    return compare_o(reference, reference.o, o, arithmetic, "").ok &&
           compare_lse(reference, reference.lse, lse, arithmetic, "").ok;
  }
};

// Outputs of `of`, to be compared with the reference of `batch`.
Result result_of(const Batch& batch, const Batch& of) {
  Result r;
  r.reference = mla_reference(batch.host_inputs());
  r.arithmetic =
      library_arithmetic(batch.spec.q_type, DataType::kF32, batch.spec.has_token_factors());
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
      if (kv_len == 65) {  // where K and V are rounded
        spec.kv_type = DataType::kFp8E4m3Fn;
        spec.kv_layout = KvLayout::kPacked;
      }
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

// Of a packed record and of a token: 12 % off, as one step of fp8.
TEST(Tolerance, NoticesOneWrongScale) {
  for (int trend = 1; trend < kNumScoreTrends; ++trend)
    for (bool is_packed : {false, true}) {
      BatchSpec spec = uniform_spec(DataType::kBf16, 16, 1, 40, 1);
      spec.kv_type = DataType::kFp8E4m3Fnuz;
      spec.kv_layout = is_packed ? KvLayout::kPacked : KvLayout::kDense;
      spec.token_scales = !is_packed;
      spec.trend = static_cast<ScoreTrend>(trend);
      const Batch batch = build_batch(spec);
      EXPECT_TRUE(result_of(batch, batch).ok());
      Batch wrong = batch;
      const auto slot = static_cast<size_t>(batch.kv_indices[39]);  // the newest token
      if (is_packed) {
        float scale = 0.0f;
        uint8_t* place = wrong.kv.data() + slot * 656 + 512 + 4;
        std::memcpy(&scale, place, 4);
        scale *= 1.125f;
        std::memcpy(place, &scale, 4);
      } else {
        wrong.kv_token_scales[slot] *= 1.125f;
      }
      EXPECT_FALSE(result_of(batch, wrong).ok()) << "trend " << trend << " packed " << is_packed;
    }
}

TEST(Tolerance, NoticesALostSinkCapOrWindow) {
  BatchSpec spec = uniform_spec(DataType::kBf16, 8, 2, 120, 1);
  spec.trend = ScoreTrend::kTail;
  spec.sink = true;
  spec.logits_soft_cap = 30.0f;
  spec.sliding_window = 64;
  const Batch batch = build_batch(spec);
  EXPECT_TRUE(result_of(batch, batch).ok());
  Batch other = batch;
  other.sink.clear();
  EXPECT_FALSE(result_of(batch, other).ok()) << "sink";
  other = batch;
  other.spec.logits_soft_cap = 0.0f;
  EXPECT_FALSE(result_of(batch, other).ok()) << "soft cap";
  for (int32_t window : {63, 65}) {
    other = batch;
    other.spec.sliding_window = window;
    EXPECT_FALSE(result_of(batch, other).ok()) << "window " << window;
  }
}

TEST(Tolerance, NoticesLog2InPlaceOfLn) {
  const Batch batch = build_batch(uniform_spec(DataType::kBf16, 4, 1, 64, 1));
  Result r = result_of(batch, batch);
  for (float& x : r.lse) x *= 1.442695f;
  EXPECT_FALSE(r.ok());
}

}  // namespace
}  // namespace hipmla::test
