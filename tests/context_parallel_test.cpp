// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Sequences whose KV is spread over ranks (case 14 of docs/testing.md): every rank's result is
// right, and merged on the device they are the whole.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "hipmla/mla_merge.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

DeviceBuffer upload(const char* name, const std::vector<float>& values, size_t alignment) {
  DeviceBuffer buffer(name, values.size() * 4, alignment);
  buffer.upload(values.data(), buffer.bytes());
  return buffer;
}

// Runs every rank, merges, and compares with the whole.
void expect_shards(BatchSpec spec, KvShard kv_shard, int32_t world_size,
                   const std::vector<DecodeRun>& runs) {
  if (!begin_case()) return;
  spec.o_type = DataType::kF32;
  spec.lse_base2 = false;
  const Batch whole_batch = build_batch(spec);
  const MlaReference whole = mla_reference(whole_batch.host_inputs());
  spec.kv_shard = kv_shard;
  spec.cp_world_size = world_size;
  std::vector<DeviceBuffer> o_parts, lse_parts;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    spec.cp_rank = rank;
    const Batch batch = build_batch(spec);
    const MlaReference reference = mla_reference(batch.host_inputs());
    const DeviceBatch device_batch(batch, test_device());
    DecodeResult result =
        expect_run(device_batch, reference, runs[static_cast<size_t>(rank) % runs.size()]);
    ASSERT_TRUE(result.ok()) << result.status.text() << result.problems;
    for (size_t row = 0; row < reference.num_keys.size(); ++row) {
      if (reference.num_keys[row] > 0) continue;
      ASSERT_EQ(result.lse[row], -std::numeric_limits<float>::infinity());
    }
    o_parts.push_back(upload("o_shard", result.o, 16));
    lse_parts.push_back(upload("lse_shard", result.lse, 4));
  }
  const int64_t tokens = whole.total_q;
  const int64_t heads = whole.num_heads;
  const auto o_view = [&](const DeviceBuffer& buffer) {
    return dense_view(buffer.data(), DataType::kF32, tokens, heads, kHeadDimV);
  };
  const auto lse_view = [&](const DeviceBuffer& buffer) {
    return dense_view(buffer.data(), DataType::kF32, tokens, heads);
  };
  std::vector<TensorView> o_views, lse_views;
  for (const DeviceBuffer& buffer : o_parts) o_views.push_back(o_view(buffer));
  for (const DeviceBuffer& buffer : lse_parts) lse_views.push_back(lse_view(buffer));
  const DeviceBuffer o("o", o_parts[0].bytes(), 16);
  const DeviceBuffer lse("lse", lse_parts[0].bytes(), 4);
  const DeviceStream stream;
  const Status status = mla_merge_states(o_views.data(), lse_views.data(), world_size, o_view(o),
                                         lse_view(lse), stream.get());
  stream.synchronize();
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(o.check_guards() + lse.check_guards(), "");
  std::vector<float> merged_o(o.bytes() / 4), merged_lse(lse.bytes() / 4);
  o.download(merged_o.data(), o.bytes());
  lse.download(merged_lse.data(), lse.bytes());
  const Arithmetic arithmetic = arithmetic_of(spec, test_device().arch);
  const std::string what = spec.description();
  EXPECT_EQ(compare_o(whole, whole.o, merged_o, arithmetic, rerun_command()).failure, "") << what;
  EXPECT_EQ(compare_lse(whole, whole.lse, merged_lse, arithmetic, rerun_command()).failure, "")
      << what;
}

class ContextParallel : public ::testing::TestWithParam<KvShard> {};
INSTANTIATE_TEST_SUITE_P(All, ContextParallel,
                         ::testing::Values(KvShard::kRoundRobin, KvShard::kContiguous),
                         [](const auto& info) {
                           return info.param == KvShard::kRoundRobin ? "RoundRobin" : "Contiguous";
                         });

TEST_P(ContextParallel, Case14ShardsMergeToTheWhole) {
  for (int32_t world_size : {2, 3, 4, 7, 8})
    for (int32_t seqlen_q : {1, 4}) {
      BatchSpec spec = uniform_spec(DataType::kBf16, 16, seqlen_q, 0, 0);
      for (int32_t kv_len = 1; kv_len <= world_size + 1; ++kv_len) spec.kv_lens.push_back(kv_len);
      spec.kv_lens.push_back(23);
      spec.kv_lens.push_back(world_size == 7 && seqlen_q == 4 ? 8192 : 1000);
      spec.q_lens.assign(spec.kv_lens.size(), seqlen_q);
      spec.page_size = world_size == 4 ? 16 : 1;
      spec.seed = static_cast<uint64_t>(world_size * 10 + seqlen_q);
      expect_shards(spec, GetParam(), world_size,
                    {persistent_run(), split_run(), split_run(1), split_run(3)});
    }
}

TEST_P(ContextParallel, EveryTypeHeadCountAndMask) {
  uint64_t seed = 1;
  for (DataType kv_type : {DataType::kF16, DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz})
    for (int32_t heads : {3, 64, 128})
      for (int32_t window : {0, 1, 40})
        for (bool causal : {true, false}) {
          if (!is_promised(kv_type, kv_type, KvLayout::kDense, test_device().arch)) continue;
          BatchSpec spec = uniform_spec(kv_type, heads, 3, 0, 3, seed % 2 ? 1 : 48);
          spec.kv_lens = {200, 5, 64};
          spec.q_lens = {3, 6, 1};
          if (is_fp8(kv_type)) {
            spec.q_scale_host = 0.08f;
            spec.kv_scale_host = 0.06f;
          }
          spec.causal = causal;
          spec.sliding_window = window;
          spec.logits_soft_cap = seed % 3 == 0 ? 20.0f : 0.0f;
          spec.padded = seed % 2 == 1;
          spec.seed = ++seed;
          expect_shards(spec, GetParam(), 3, {persistent_run(), split_run(3)});
        }
}

// More ranks than tokens: most of them hold none.
TEST_P(ContextParallel, MoreRanksThanTokens) {
  BatchSpec spec = uniform_spec(DataType::kBf16, 8, 2, 5, 2);
  spec.kv_lens = {5, 0};
  expect_shards(spec, GetParam(), 64, {persistent_run(), split_run(2)});
}

}  // namespace
}  // namespace hipmla::test
