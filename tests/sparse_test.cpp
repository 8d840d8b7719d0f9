// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Sparse attention: each query sees the tokens that its list names.

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
  bool token_scales;
};

class Sparse : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    HIPMLA_SKIP_UNLESS_PROMISED(GetParam().q_type, GetParam().kv_type, GetParam().kv_layout);
  }
  BatchSpec spec(int32_t heads, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens,
                 int32_t topk, int32_t page_size = 1) {
    BatchSpec spec;
    spec.q_type = GetParam().q_type;
    spec.kv_type = GetParam().kv_type;
    spec.kv_layout = GetParam().kv_layout;
    spec.token_scales = GetParam().token_scales;
    if (is_fp8(spec.q_type)) spec.q_scale_host = 0.08f;
    if (is_fp8(spec.kv_type) && spec.kv_layout == KvLayout::kDense && !spec.token_scales)
      spec.kv_scale_host = 0.06f;
    spec.num_heads = heads;
    spec.page_size = page_size;
    spec.q_lens = std::move(q_lens);
    spec.kv_lens = std::move(kv_lens);
    spec.topk = topk;
    spec.seed = ++seed_;
    return spec;
  }
  static std::vector<DecodeRun> runs() {
    std::vector<DecodeRun> runs = {persistent_run(), split_run(), split_run(1), split_run(4)};
    runs.push_back(split_run(3));
    runs.back().options.return_partials = true;
    runs.push_back(persistent_run());
    runs.back().one_call = true;
    return runs;
  }
  uint64_t seed_ = 900;
};

INSTANTIATE_TEST_SUITE_P(
    All, Sparse,
    ::testing::Values(
        Case{"bf16", DataType::kBf16, DataType::kBf16, KvLayout::kDense, false},
        Case{"f16", DataType::kF16, DataType::kF16, KvLayout::kDense, false},
        Case{"bf16_fp8fn", DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kDense, false},
        Case{"fp8fnuz", DataType::kFp8E4m3Fnuz, DataType::kFp8E4m3Fnuz, KvLayout::kDense, false},
        Case{"token_scales", DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kDense, true},
        Case{"packed_fn", DataType::kBf16, DataType::kFp8E4m3Fn, KvLayout::kPacked, false},
        Case{"packed_fnuz", DataType::kBf16, DataType::kFp8E4m3Fnuz, KvLayout::kPacked, false}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Sparse, HolesAnywhere) {
  for (int holes = 0; holes < kNumTopkHoles; ++holes)
    for (int32_t topk : {1, 31, 32, 33, 200}) {
      BatchSpec s = spec(16, {1, 2, 1}, {300, 70, 9}, topk, 16);
      s.topk_holes = static_cast<TopkHoles>(holes);
      expect_decode(s, runs());
    }
}

TEST_P(Sparse, HeadsAndPages) {
  for (int32_t heads : {1, 5, 16, 64, 128})
    for (int32_t page_size : {1, 48, 64, 4096}) {
      BatchSpec s = spec(heads, {1, 3}, {150, 60}, 70, page_size);
      s.padded = heads % 2 == 1 || page_size == 48;
      s.o_type = page_size == 64 ? DataType::kF32 : DataType::kBf16;
      expect_decode(s, {persistent_run(), split_run(3)});
    }
}

TEST_P(Sparse, OnlyHolesGiveZero) {
  for (int32_t heads : {16, 128})
    for (const DecodeRun& run : {persistent_run(), split_run(1), split_run(3)}) {
      if (!begin_case()) continue;
      BatchSpec s = spec(heads, {2, 1}, {40, 40}, 100);
      s.topk_holes = TopkHoles::kAll;
      s.sink = heads == 16;
      const Batch batch = build_batch(s);
      const MlaReference reference = mla_reference(batch.host_inputs());
      const DeviceBatch device_batch(batch, test_device());
      const DecodeResult result = expect_run(device_batch, reference, run);
      for (float x : result.o) ASSERT_EQ(x, 0.0f);
      for (float x : result.lse) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
    }
}

TEST_P(Sparse, QueriesWithoutTokensAndBatchesWithoutQueries) {
  expect_decode(spec(16, {0, 2, 0, 1}, {40, 0, 9, 3}, 33), runs());
  expect_decode(spec(16, {2}, {0}, 5), runs());
}

// No entry can name a token of a cache without pages.
TEST_P(Sparse, CacheWithoutPages) {
  for (const DecodeRun& run : {persistent_run(), split_run(3)}) {
    if (!begin_case()) continue;
    Batch batch = build_batch(spec(16, {1, 2}, {9, 9}, 40));
    batch.num_pages = 0;
    batch.kv.clear();
    const MlaReference reference = mla_reference(batch.host_inputs());
    const DecodeResult result = expect_run(DeviceBatch(batch, test_device()), reference, run);
    for (float x : result.lse) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
  }
}

TEST_P(Sparse, WithModifiers) {
  for (int32_t heads : {16, 128}) {
    BatchSpec s = spec(heads, {1, 2}, {300, 70}, 150, 16);
    s.logits_soft_cap = 15.0f;
    s.sink = true;
    s.lse_base2 = true;
    s.padded = true;
    expect_decode(s, runs());
  }
}

// The whole sequence in its order is dense attention without a mask.
TEST_P(Sparse, AllTokensEqualDenseAttention) {
  if (!begin_case()) return;
  BatchSpec dense = spec(16, {1, 1}, {160, 160}, 0, 16);
  dense.causal = false;
  const Batch dense_batch = build_batch(dense);
  Batch sparse_batch = dense_batch;
  sparse_batch.spec.topk = 160;
  for (int32_t b = 0; b < 2; ++b)
    for (int32_t p = 0; p < 160; ++p) {
      const int32_t page =
          dense_batch.kv_indices[static_cast<size_t>(dense_batch.kv_indptr[b] + p / 16)];
      sparse_batch.topk_indices.push_back(page * 16 + p % 16);
    }
  const DecodeResult a = DeviceBatch(dense_batch, test_device()).run(split_run(2));
  const DecodeResult b = DeviceBatch(sparse_batch, test_device()).run(split_run(2));
  ASSERT_TRUE(a.ok() && b.ok()) << a.status.text() << a.problems << b.status.text() << b.problems;
  EXPECT_TRUE(same_bits(a.o, b.o) && same_bits(a.lse, b.lse));
}

TEST_P(Sparse, ContradictionsAreRefused) {
  for (int what = 0; what < 2; ++what) {
    if (!begin_case()) continue;
    BatchSpec s = spec(16, {1, 1}, {40, 40}, 33);
    if (what == 0) s.sliding_window = 8;
    if (what == 1) {
      s.kv_shard = KvShard::kRoundRobin;
      s.cp_world_size = 2;
    }
    const Batch batch = build_batch(s);
    const DecodeResult result = DeviceBatch(batch, test_device()).run(persistent_run());
    EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument) << result.status.text();
    EXPECT_EQ(result.problems, "");
  }
}

}  // namespace
}  // namespace hipmla::test
