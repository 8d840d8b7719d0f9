// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Public faults of MLA decode libraries as inputs, for bf16, f16 and fp8. Each stands for a kind of
// fault. Numbers are those of docs/testing.md; what is missing here is tested elsewhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

class FieldCases : public ::testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { HIPMLA_SKIP_UNLESS_PROMISED(GetParam(), GetParam(), KvLayout::kDense); }
  BatchSpec spec(int32_t heads, std::vector<int32_t> q_lens, std::vector<int32_t> kv_lens,
                 int32_t page_size = 1) {
    BatchSpec spec;
    spec.q_type = spec.kv_type = GetParam();
    spec.o_type = is_fp8(spec.q_type) ? DataType::kBf16 : spec.q_type;
    if (is_fp8(spec.q_type)) spec.q_scale_host = spec.kv_scale_host = 0.07f;
    spec.num_heads = heads;
    spec.page_size = page_size;
    spec.q_lens = std::move(q_lens);
    spec.kv_lens = std::move(kv_lens);
    spec.seed = ++seed_;
    return spec;
  }
  BatchSpec uniform(int32_t heads, int32_t seqlen_q, int32_t kv_len, int32_t batch_size,
                    int32_t page_size = 1) {
    return spec(heads, std::vector<int32_t>(static_cast<size_t>(batch_size), seqlen_q),
                std::vector<int32_t>(static_cast<size_t>(batch_size), kv_len), page_size);
  }
  uint64_t seed_ = 0;
};

INSTANTIATE_TEST_SUITE_P(All, FieldCases,
                         ::testing::Values(DataType::kBf16, DataType::kF16, DataType::kFp8E4m3Fnuz),
                         [](const auto& info) { return data_type_name(info.param); });

TEST_P(FieldCases, Case01QueryLengthSweep) {
  for (int32_t seqlen_q : {1, 2, 3, 4, 5, 6, 7, 8, 16})
    for (int32_t kv_len : {seqlen_q, 21, 260, 1200}) {
      expect_decode(uniform(16, seqlen_q, kv_len, 1), {split_run(), split_run(3)});
      // A large batch of long sequences only where faults were seen.
      const bool is_long = kv_len == 1200;
      if (is_long && seqlen_q != 6 && seqlen_q != 8) continue;
      if (is_long && is_fp8(GetParam())) continue;
      const int32_t batch_size = is_long && GetParam() == DataType::kF16 ? 8 : 32;
      expect_decode(uniform(16, seqlen_q, kv_len, batch_size), {split_run()});
    }
}

TEST_P(FieldCases, Case02SplitThatTheMaskHides) {
  for (int32_t kv_len : {260, 388})
    for (int32_t batch_size : {1, 2})
      expect_decode(uniform(16, 8, kv_len, batch_size),
                    {split_run(2), split_run(5), split_run(8), split_run(9), split_run(13),
                     split_run(64), split_run(256), persistent_run()});
  // The last KV tile holds keys that only the last query sees.
  expect_decode(uniform(16, 8, 257, 1), {split_run(9), split_run(16), persistent_run()});
}

TEST_P(FieldCases, Case03PageSizes) {
  for (int32_t heads : {16, 64, 128}) {
    std::vector<float> first_o;
    for (int32_t page_size : {1, 16, 32, 64, 128, 48, 480}) {
      if (!begin_case()) continue;
      BatchSpec same = spec(heads, {1, 2}, {517, 130}, page_size);
      same.seed = 3;  // the same logical KV for each page size
      const Batch batch = build_batch(same);
      const MlaReference reference = mla_reference(batch.host_inputs());
      const DeviceBatch device_batch(batch, test_device());
      (void)expect_run(device_batch, reference, persistent_run());
      const DecodeResult result = expect_run(device_batch, reference, split_run(4));
      if (first_o.empty()) first_o = result.o;
      EXPECT_TRUE(same_bits(result.o, first_o))
          << "page_size " << page_size << " changes the result";
    }
  }
}

TEST_P(FieldCases, Case03LastPageLenOutOfRangeIsRefused) {
  for (int32_t page_size : {1, 16, 48})
    for (int32_t bad : {0, -1, page_size + 1, std::numeric_limits<int32_t>::max()}) {
      if (!begin_case()) continue;
      const BatchSpec good = uniform(16, 1, 3 * page_size, 3, page_size);
      Batch batch = build_batch(good);
      batch.kv_last_page_lens[1] = bad;
      MlaDecodePlan plan;
      const Status status = mla_decode_plan(batch.shape(), persistent_run().options, test_device(),
                                            batch.lengths(), &plan);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << "last_page_len " << bad;
      EXPECT_NE(status.text().find(std::to_string(bad)), std::string::npos) << status.text();
    }
}

TEST_P(FieldCases, Case04EmptySequences) {
  const std::vector<std::vector<int32_t>> lengths = {
      {0, 1, 3, 0, 4096, 17, 0, 64}, {0, 5, 40}, {5, 0, 40}, {5, 40, 0}, {0, 0, 0}, {0}};
  for (int32_t seqlen_q : {1, 4})
    for (const std::vector<int32_t>& kv_lens : lengths)
      for (int32_t page_size : {1, 64}) {
        BatchSpec s = spec(16, std::vector<int32_t>(kv_lens.size(), seqlen_q), kv_lens, page_size);
        if (!begin_case()) continue;
        const Batch batch = build_batch(s);
        const MlaReference reference = mla_reference(batch.host_inputs());
        const DeviceBatch device_batch(batch, test_device());
        for (const DecodeRun& run : {persistent_run(), split_run(), split_run(1), split_run(6)}) {
          const DecodeResult result = expect_run(device_batch, reference, run);
          ASSERT_TRUE(result.ok());
          for (size_t row = 0; row < reference.num_keys.size(); ++row) {
            if (reference.num_keys[row] > 0) continue;
            EXPECT_EQ(result.lse[row], -std::numeric_limits<float>::infinity());
            EXPECT_EQ(
                *std::max_element(result.o.begin() + static_cast<int64_t>(row) * kHeadDimV,
                                  result.o.begin() + static_cast<int64_t>(row + 1) * kHeadDimV),
                0.0f);
          }
        }
      }
}

// Sequences without a query, and batches that hold nothing at all.
TEST_P(FieldCases, Case04NoQueries) {
  expect_decode(spec(16, {0, 2, 0, 1, 0}, {70, 40, 0, 9, 3}), {persistent_run(), split_run(3)});
  expect_decode(spec(16, {3, 1, 8, 2}, {2, 40, 5, 1}),
                {persistent_run(), split_run(2)});  // n > kv_len
}

TEST_P(FieldCases, Case05LongRaggedBatch) {
  std::vector<int32_t> kv_lens;
  const int32_t longest = GetParam() == DataType::kBf16 ? 256 * 1024 : 32 * 1024;
  for (int32_t kv_len = longest; kv_len >= 2 * 1024; kv_len /= 2) kv_lens.push_back(kv_len);
  BatchSpec s = spec(16, std::vector<int32_t>(kv_lens.size(), 1), kv_lens, 64);
  s.pool_tokens = 128 * 1024;  // sequences share pages, as 600 MB of KV are not the point
  expect_decode(s, {persistent_run()});
}

TEST_P(FieldCases, Case05RampOf512Sequences) {
  std::vector<int32_t> kv_lens;
  for (int32_t i = 1; i <= 512; ++i) kv_lens.push_back(i == 1 ? 1 : i * 4);
  BatchSpec s = spec(16, std::vector<int32_t>(kv_lens.size(), 1), kv_lens);
  s.pool_tokens = 128 * 1024;
  if (GetParam() != DataType::kBf16) {  // the same ramp with fewer steps
    s.q_lens.resize(64);
    s.kv_lens.resize(64);
  }
  expect_decode(s, {persistent_run(), split_run()});
}

// A plan must refuse tensors that it was not built for.
TEST_P(FieldCases, Case07StalePlan) {
  const BatchSpec base = spec(16, {2, 2, 2}, {40, 70, 9}, 16);
  const auto changed = [&](auto change) {
    BatchSpec other = base;
    change(&other);
    return other;
  };
  const DataType other_type = GetParam() == DataType::kBf16 ? DataType::kF16 : DataType::kBf16;
  const struct {
    const char* what;
    BatchSpec spec;
  } others[] = {
      {"num_heads", changed([](BatchSpec* s) { s->num_heads = 32; })},
      {"fewer heads", changed([](BatchSpec* s) { s->num_heads = 8; })},
      {"query lengths", changed([](BatchSpec* s) {
         s->q_lens = {1, 2, 3};
       })},
      {"total_q", changed([](BatchSpec* s) {
         s->q_lens = {2, 2, 1};
       })},
      {"types", changed([&](BatchSpec* s) { s->q_type = s->kv_type = other_type; })},
      {"o_type", changed([](BatchSpec* s) { s->o_type = DataType::kF32; })},
      {"page_size", changed([](BatchSpec* s) { s->page_size = 32; })},
      {"kv lengths", changed([](BatchSpec* s) {
         s->kv_lens = {40, 71, 9};
       })},
      {"kv pages", changed([](BatchSpec* s) {
         s->kv_lens = {40, 90, 9};
       })},
      {"batch_size", changed([](BatchSpec* s) {
         s->q_lens.pop_back();
         s->kv_lens.pop_back();
       })},
  };
  const Batch batch = build_batch(base);
  for (const DecodeRun& run : {persistent_run(), split_run(2)}) {
    MlaDecodePlan plan;
    ASSERT_TRUE(
        mla_decode_plan(batch.shape(), run.options, test_device(), batch.lengths(), &plan).ok());
    const size_t bytes = plan.workspace_bytes() + (1 << 20);
    for (const auto& other : others) {
      if (!begin_case()) continue;
      const Batch other_batch = build_batch(other.spec);
      const DeviceBatch device_batch(other_batch, test_device());
      const auto rows = static_cast<size_t>(other_batch.total_q * other.spec.num_heads);
      const DeviceBuffer o("o", rows * kHeadDimV * element_bytes(other.spec.o_type), 16);
      const DeviceBuffer lse("final_lse", rows * 4, 4);
      const DeviceBuffer workspace("workspace", bytes, kWorkspaceAlignment);
      MlaDecodeTensors tensors = device_batch.tensors();
      tensors.o = dense_view(o.data(), other.spec.o_type, other_batch.total_q, other.spec.num_heads,
                             kHeadDimV);
      tensors.final_lse =
          dense_view(lse.data(), DataType::kF32, other_batch.total_q, other.spec.num_heads);
      for (const bool is_default : {false, true}) {
        const Status status = mla_decode_fwd(is_default ? MlaDecodePlan() : plan, tensors,
                                             {workspace.data(), bytes}, nullptr);
        check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
        EXPECT_EQ(status.code(), StatusCode::kStalePlan)
            << other.what << ": " << status.text() << "\n  run again: " << rerun_command();
        EXPECT_EQ(o.check_untouched() + lse.check_untouched() + workspace.check_untouched(), "");
      }
    }
  }
}

TEST_P(FieldCases, Case08HeadCounts) {
  for (int32_t heads : {1, 4, 5, 8, 12, 20, 24, 40, 48, 80, 96, 112, 128})
    for (int32_t seqlen_q : {1, 4})
      for (int32_t page_size : {1, 64})
        expect_decode(spec(heads, {seqlen_q, seqlen_q}, {77, 35}, page_size),
                      {persistent_run(), split_run(2)});
}

TEST_P(FieldCases, Case11OneSplitInSplitMode) {
  for (int32_t seqlen_q : {1, 2, 4})
    expect_decode(spec(32, std::vector<int32_t>(4, seqlen_q), {1, 500, 64, 0}), {split_run(1)});
}

// Unused slots hold NaN in every test; here also infinity, and largest finite values, whose sums
// overflow.
TEST_P(FieldCases, Case12WhatUnusedSlotsHold) {
  const bool bf16 = GetParam() == DataType::kBf16;
  std::vector<uint16_t> patterns = {0x7fc1, 0xffff, static_cast<uint16_t>(bf16 ? 0x7f80 : 0x7c00),
                                    static_cast<uint16_t>(bf16 ? 0xff7f : 0xfbff)};
  if (is_fp8(GetParam())) patterns = {0x8080, 0x7f7f, 0xffff};  // NaN, largest, lowest
  for (uint16_t pattern : patterns)
    for (int32_t page_size : {1, 16, 64, 128}) {
      BatchSpec s = spec(16, {1, 3, 1, 2}, {65, 33, 3, 129}, page_size);
      s.unused = pattern;
      expect_decode(s, {persistent_run(), split_run(), split_run(5)});
    }
  for (int32_t heads : {32, 64, 128}) {
    expect_decode(spec(heads, {1, 2}, {65, 33}, 64), {persistent_run(), split_run(2)});
  }
}

TEST_P(FieldCases, Case13LseOfEveryMode) {
  for (int32_t heads : {16, 20, 128})
    for (int32_t seqlen_q : {1, 3})
      for (DataType o_type : {DataType::kBf16, DataType::kF16, DataType::kF32}) {
        BatchSpec s = spec(heads, std::vector<int32_t>(4, seqlen_q), {0, 1, 200, 20}, 16);
        s.o_type = o_type;
        expect_decode(s, {persistent_run(), split_run(1), split_run(2), split_run(4), split_run()});
      }
}

// Each of the newest tokens holds NaN or infinity in turn: the queries before it are not to notice.
TEST_P(FieldCases, Case19MaskedTokensHoldNan) {
  for (int32_t heads : {16, 3, 64})
    for (int32_t newest = 0; newest < 4; ++newest)
      for (int what = 0; what < kNumPoisons; ++what) {
        BatchSpec s = spec(heads, {4, 4}, {100, 33});
        s.poisoned = {{0, 99 - newest, static_cast<Poison>(what)},
                      {1, 32 - newest, static_cast<Poison>(what)}};
        expect_decode(s, {persistent_run(), split_run(3)});
      }
}

}  // namespace
}  // namespace hipmla::test
