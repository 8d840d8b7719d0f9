// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// What changes the softmax: soft cap, sink, sliding window, base of the LSE; alone and together.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

struct Case {
  const char* name;
  DataType q_type;
  DataType kv_type;
  KvLayout kv_layout;
};

class Modifiers : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    HIPMLA_SKIP_UNLESS_PROMISED(GetParam().q_type, GetParam().kv_type, GetParam().kv_layout);
  }
  BatchSpec spec(int32_t heads, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens,
                 int32_t page_size = 1) {
    BatchSpec spec;
    spec.q_type = GetParam().q_type;
    spec.kv_type = GetParam().kv_type;
    spec.kv_layout = GetParam().kv_layout;
    spec.o_type = seed_ % 3 == 0 ? DataType::kF32 : DataType::kBf16;
    if (is_fp8(spec.q_type)) spec.q_scale_host = 0.08f;
    if (is_fp8(spec.kv_type) && spec.kv_layout == KvLayout::kDense) spec.kv_scale_device = 0.06f;
    spec.num_heads = heads;
    spec.page_size = page_size;
    spec.q_lens = std::move(q_lens);
    spec.kv_lens = std::move(kv_lens);
    spec.seed = ++seed_;
    return spec;
  }
  static std::vector<DecodeRun> runs() {
    std::vector<DecodeRun> runs = {persistent_run(), split_run(1), split_run(4)};
    runs.push_back(split_run(3));
    runs.back().options.return_partials = true;
    return runs;
  }
  uint64_t seed_ = 500;
};

INSTANTIATE_TEST_SUITE_P(
    All, Modifiers,
    ::testing::Values(Case{"bf16", DataType::kBf16, DataType::kBf16, KvLayout::kDense},
                      Case{"f16", DataType::kF16, DataType::kF16, KvLayout::kDense},
                      Case{"fp8", DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fn, KvLayout::kDense},
                      Case{"f16_fp8", DataType::kF16, DataType::kFp8E4m3Fnuz, KvLayout::kDense},
                      Case{"packed", DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kPacked}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Modifiers, SoftCap) {
  for (float cap : {0.5f, 5.0f, 30.0f, 1e4f})
    for (int32_t heads : {16, 64, 128}) {
      BatchSpec s = spec(heads, {1, 3}, {150, 60}, 16);
      s.logits_soft_cap = cap;
      expect_decode(s, runs());
    }
  for (int trend = 1; trend < kNumScoreTrends; ++trend) {
    BatchSpec s = spec(20, {2}, {400});
    s.trend = static_cast<ScoreTrend>(trend);
    s.logits_soft_cap = 20.0f;
    expect_decode(s, runs());
  }
}

// Scores far beyond the cap, of both signs: 2^x overflows and underflows.
TEST_P(Modifiers, SoftCapOfLargeScores) {
  for (float scale : {20.0f, -20.0f}) {
    BatchSpec s = spec(16, {1}, {100});
    s.trend = ScoreTrend::kFlat;
    s.softmax_scale = scale;
    s.logits_soft_cap = 2.0f;
    expect_decode(s, {persistent_run(), split_run(3)});
  }
}

TEST_P(Modifiers, Sink) {
  for (int32_t heads : {5, 16, 64, 128})
    for (int32_t seqlen_q : {1, 3}) {
      BatchSpec s = spec(heads, {seqlen_q, seqlen_q, seqlen_q}, {150, 0, 60}, 16);
      s.sink = true;
      expect_decode(s, runs());
    }
}

TEST_P(Modifiers, SlidingWindow) {
  for (int32_t window : {1, 2, 31, 32, 33, 100, 1000, std::numeric_limits<int32_t>::max()})
    for (bool causal : {true, false})
      for (int32_t heads : {16, 128}) {
        BatchSpec s = spec(heads, {1, 4, 2}, {300, 70, 2}, 16);
        s.sliding_window = window;
        s.causal = causal;
        expect_decode(s, runs());
      }
}

// Queries wide apart: rows of one tile see ranges of the KV that do not touch.
TEST_P(Modifiers, SlidingWindowOfManyQueries) {
  for (int32_t window : {1, 5, 40}) {
    BatchSpec s = spec(3, {64, 33}, {200, 33});
    s.sliding_window = window;
    expect_decode(s, runs());
  }
}

TEST_P(Modifiers, LseInBase2) {
  for (int32_t heads : {16, 40}) {
    BatchSpec s = spec(heads, {1, 2, 1}, {200, 40, 0}, 16);
    s.lse_base2 = true;
    expect_decode(s, runs());
  }
}

TEST_P(Modifiers, Together) {
  for (int32_t heads : {7, 16, 128})
    for (bool padded : {false, true}) {
      BatchSpec s = spec(heads, {1, 4, 2}, {300, 70, 2}, 48);
      s.sliding_window = 90;
      s.logits_soft_cap = 15.0f;
      s.sink = true;
      s.lse_base2 = true;
      s.padded = padded;
      expect_decode(s, runs());
    }
}

// Up to 64 queries, with sequences that have none in between.
TEST_P(Modifiers, ManyQueries) {
  for (int32_t heads : {1, 3, 16}) {
    BatchSpec s = spec(heads, {64, 0, 17, 0, 1}, {130, 50, 17, 0, 9}, 16);
    expect_decode(s, {persistent_run(), split_run(1), split_run(3)});
    s.causal = false;
    expect_decode(s, {persistent_run(), split_run(3)});
  }
}

}  // namespace
}  // namespace hipmla::test
