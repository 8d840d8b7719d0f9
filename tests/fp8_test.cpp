// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// fp8 caches and queries: both formats, both layouts, all factors. Scores, outputs and poison go
// through the same checks as those of bf16.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

constexpr DataType kFn = DataType::kFp8E4m3Fn;
constexpr DataType kFnuz = DataType::kFp8E4m3Fnuz;

struct TypePair {
  DataType q_type;
  DataType kv_type;
  KvLayout kv_layout;
};

class Fp8 : public ::testing::TestWithParam<TypePair> {
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
    spec.num_heads = heads;
    spec.page_size = page_size;
    spec.q_lens = std::move(q_lens);
    spec.kv_lens = std::move(kv_lens);
    // Stored values of a few dozen.
    if (is_fp8(spec.q_type)) spec.q_scale_host = 0.09f;
    if (!is_packed()) spec.kv_scale_host = 0.06f;
    spec.seed = ++seed_;
    return spec;
  }
  bool is_packed() const { return GetParam().kv_layout == KvLayout::kPacked; }
  uint64_t seed_ = 100;
};

INSTANTIATE_TEST_SUITE_P(All, Fp8,
                         ::testing::Values(TypePair{DataType::kBf16, kFn, KvLayout::kDense},
                                           TypePair{DataType::kBf16, kFnuz, KvLayout::kDense},
                                           TypePair{DataType::kF16, kFn, KvLayout::kDense},
                                           TypePair{DataType::kF16, kFnuz, KvLayout::kDense},
                                           TypePair{kFn, kFn, KvLayout::kDense},
                                           TypePair{kFnuz, kFnuz, KvLayout::kDense},
                                           TypePair{DataType::kBf16, kFn, KvLayout::kPacked},
                                           TypePair{DataType::kBf16, kFnuz, KvLayout::kPacked}),
                         [](const auto& info) {
                           return std::string(data_type_name(info.param.q_type)) + "_" +
                                  data_type_name(info.param.kv_type) + "_" +
                                  kv_layout_name(info.param.kv_layout);
                         });

TEST_P(Fp8, OneTokenOneHead) { expect_decode(spec(1, {1}, {1}), {persistent_run(), split_run(1)}); }

TEST_P(Fp8, EveryTileAndOutputType) {
  int turn = 0;
  for (int32_t heads : {1, 16, 24, 64, 128})
    for (DataType o_type : {DataType::kBf16, DataType::kF16, DataType::kF32}) {
      BatchSpec s = spec(heads, {1, 2, 1}, {130, 35, 7}, ++turn % 2 ? 16 : 1);
      s.o_type = o_type;
      s.padded = turn % 3 == 0;
      expect_decode(s, {persistent_run(), split_run(3)});
    }
}

// Tails shorter than a tile and than the queries (case 6).
TEST_P(Fp8, Case06Tails) {
  for (int32_t heads : {16, 128})
    for (int32_t kv_len : {1, 2, 3, 4, 5, 129, 131})
      expect_decode(spec(heads, {4}, {kv_len}), {split_run(), persistent_run()});
}

TEST_P(Fp8, Case09QueryLengths) {
  for (int32_t seqlen_q = 1; seqlen_q <= 8; ++seqlen_q)
    for (bool causal : {true, false}) {
      BatchSpec s = spec(16, {seqlen_q, seqlen_q}, {70, 33});
      s.causal = causal;
      expect_decode(s, {persistent_run(), split_run(2)});
    }
}

// Factors on the host, on the device, on both sides, negative ones.
TEST_P(Fp8, TensorScales) {
  for (int variant = 0; variant < 5; ++variant) {
    BatchSpec s = spec(20, {2, 1}, {100, 50}, 16);
    if (is_packed() && !is_fp8(s.q_type)) {
      if (variant > 0) break;  // no factor to give
    }
    if (is_fp8(s.q_type)) {
      s.q_scale_host = variant == 1 ? 1.0f : variant == 3 ? -0.05f : 0.07f;
      s.q_scale_device = variant == 1 ? 0.06f : variant == 2 ? 1.3f : 0.0f;
    }
    if (!is_packed()) {
      s.kv_scale_host = variant == 1 ? 1.0f : variant == 4 ? -0.06f : 0.05f;
      s.kv_scale_device = variant == 1 ? 0.07f : variant == 2 ? 0.7f : 0.0f;
    }
    s.o_type = DataType::kF32;
    expect_decode(s, {persistent_run(), split_run(3), split_run(1)});
  }
}

TEST_P(Fp8, TokenScales) {
  if (is_packed()) return;
  for (int32_t heads : {4, 64, 128})
    for (int32_t page_size : {1, 16, 48})
      for (bool padded : {false, true}) {
        BatchSpec s = spec(heads, {1, 3}, {100, 67}, page_size);
        s.kv_scale_host = padded ? 1.0f : 1.7f;
        s.kv_scale_device = page_size == 16 ? 0.8f : 0.0f;
        s.token_scales = true;
        s.padded = padded;
        expect_decode(s, {persistent_run(), split_run(3)});
      }
}

// The largest and the smallest values of the format.
TEST_P(Fp8, WholeRangeOfTheFormat) {
  for (float factor : {1.0f / 64.0f, 16.0f}) {
    BatchSpec s = spec(16, {1}, {90});
    s.trend = ScoreTrend::kFlat;
    s.kv_scale_host = is_packed() ? 1.0f : factor;
    expect_decode(s, {persistent_run()});
  }
}

TEST_P(Fp8, EveryScoreTrend) {
  for (int trend = 1; trend < kNumScoreTrends; ++trend)
    for (int32_t heads : {16, 128}) {
      BatchSpec s = spec(heads, {1}, {300}, 64);
      s.trend = static_cast<ScoreTrend>(trend);
      expect_decode(s, {persistent_run(), split_run(3)});
    }
}

TEST_P(Fp8, PageSizesDoNotMatter) {
  std::vector<float> first;
  for (int32_t page_size : {1, 16, 48, 64, 480, 4096}) {
    if (!begin_case()) continue;
    BatchSpec s = spec(16, {1, 2}, {517, 130}, page_size);
    s.padded = page_size == 16;
    s.seed = 3;
    const Batch batch = build_batch(s);
    const MlaReference reference = mla_reference(batch.host_inputs());
    const DeviceBatch device_batch(batch, test_device());
    (void)expect_run(device_batch, reference, persistent_run());
    const DecodeResult result = expect_run(device_batch, reference, split_run(4));
    if (first.empty()) first = result.o;
    EXPECT_TRUE(same_bits(result.o, first)) << "page_size " << page_size << " changes the result";
  }
}

// Empty sequences, sequences without a query, and poison of every kind around them.
TEST_P(Fp8, Case04EmptySequences) {
  for (int32_t page_size : {1, 64}) {
    expect_decode(spec(16, {1, 1, 1, 1, 1}, {0, 1, 3, 0, 64}, page_size),
                  {persistent_run(), split_run(2)});
    expect_decode(spec(16, {0, 2, 0, 1, 0}, {70, 40, 0, 9, 3}, page_size),
                  {persistent_run(), split_run(2)});
  }
}

}  // namespace
}  // namespace hipmla::test
