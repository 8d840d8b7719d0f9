// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Promised shapes against the reference, and the faults that this library was built to rule out.

#include "hipmla/mla_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "tests/mla_cases.h"
#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

DecodeRun with_partials(DecodeRun run) {
  run.options.return_partials = true;
  return run;
}

DecodeRun auto_run(bool one_call = false) {
  DecodeRun run;
  run.one_call = one_call;
  return run;
}

// ---- promised shapes

// Everything that is promised about a request beside its lengths.
std::vector<MlaDecodeOptions> promised_options() {
  std::vector<MlaDecodeOptions> list;
  for (Schedule schedule : kPromisedSchedules) {
    MlaDecodeOptions options;
    options.schedule = schedule;
    for (bool causal : {true, false})
      for (int32_t window : kPromisedWindows) {
        list.push_back(options);
        list.back().causal = causal;
        list.back().sliding_window = window;
        list.back().lse_base2 = window == 128;
      }
    for (int32_t ranks : kPromisedRanks) {
      list.push_back(options);
      list.back().kv_shard = KvShard::kRoundRobin;
      list.back().cp_world_size = ranks;
      list.back().cp_rank = ranks - 1;
    }
    list.push_back(options);
    list.back().kv_shard = KvShard::kContiguous;
  }
  return list;
}

TEST(PromisedShapes, AreSupportedOnEveryArchitecture) {
  const std::vector<MlaDecodeOptions> options_list = promised_options();
  const auto expect_support = [](const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                                 Arch arch) {
    const Status status =
        mla_decode_check_support(shape, options, DeviceInfo{arch, 304, promised_lds_bytes(arch)});
    ASSERT_TRUE(status.ok()) << status.text() << "; heads " << shape.num_heads << " seqlen_q "
                             << shape.max_seqlen_q << " page_size " << shape.page_size << " "
                             << data_type_name(shape.q_type) << "/" << data_type_name(shape.kv_type)
                             << " topk " << shape.topk;
  };
  size_t turn = 0;
  for (Arch arch : kPromisedArchs)
    for (const PromisedTypes& types : kPromisedTypes) {
      if (!includes(types.on, arch)) continue;
      for (int32_t heads : kPromisedHeads)
        for (int32_t seqlen_q : kPromisedSeqlensQ)
          for (int32_t page_size : kPromisedPageSizes) {
            MlaDecodeShape shape;
            shape.q_type = types.q_type;
            shape.kv_type = types.kv_type;
            shape.kv_layout = types.kv_layout;
            shape.num_heads = heads;
            shape.page_size = page_size;
            shape.batch_size = 8;
            shape.max_seqlen_q = seqlen_q;
            shape.total_q = 8 * seqlen_q;
            shape.o_type = kPromisedOTypes[++turn % std::size(kPromisedOTypes)];
            for (const MlaDecodeOptions& options : options_list)
              ASSERT_NO_FATAL_FAILURE(expect_support(shape, options, arch));
            for (int32_t topk : kPromisedTopks)
              for (Schedule schedule : kPromisedSchedules) {
                shape.topk = topk;
                MlaDecodeOptions options;
                options.schedule = schedule;
                ASSERT_NO_FATAL_FAILURE(expect_support(shape, options, arch));
              }
          }
    }
}

// Those of kPromisedTypes that the device has.
std::vector<PromisedTypes> types_of_device() {
  std::vector<PromisedTypes> list;
  for (const PromisedTypes& types : kPromisedTypes)
    if (includes(types.on, test_device().arch)) list.push_back(types);
  return list;
}

// Sets types, and factors that keep stored fp8 values at a few dozen.
void set_types(const PromisedTypes& types, uint64_t turn, BatchSpec* spec) {
  spec->q_type = types.q_type;
  spec->kv_type = types.kv_type;
  spec->kv_layout = types.kv_layout;
  spec->o_type = kPromisedOTypes[turn % std::size(kPromisedOTypes)];
  if (is_fp8(types.q_type)) (turn % 2 ? spec->q_scale_host : spec->q_scale_device) = 0.08f;
  if (!is_fp8(types.kv_type) || types.kv_layout == KvLayout::kPacked) return;
  spec->token_scales = turn % 5 == 0;
  if (!spec->token_scales) (turn % 3 ? spec->kv_scale_host : spec->kv_scale_device) = 0.06f;
}

class PromisedHeads : public ::testing::TestWithParam<int32_t> {};

// Every query length; page sizes, types and the rest take turns, so that each meets every head
// count in some test.
TEST_P(PromisedHeads, AreRight) {
  const int32_t heads = GetParam();
  const std::vector<PromisedTypes> types = types_of_device();
  uint64_t turn = static_cast<uint64_t>(heads) * 5;
  for (int32_t seqlen_q : kPromisedSeqlensQ) {
    if (heads * seqlen_q > 2048) continue;  // of rows; WideRows covers more
    ++turn;
    BatchSpec spec;
    set_types(types[turn % types.size()], turn, &spec);
    spec.num_heads = heads;
    spec.page_size = kPromisedPageSizes[turn % std::size(kPromisedPageSizes)];
    spec.q_lens = {seqlen_q, std::max(1, seqlen_q - 1), seqlen_q};
    spec.kv_lens = {97, seqlen_q, 40 + static_cast<int32_t>(turn % 30)};
    spec.causal = turn % 4 != 0;
    spec.padded = turn % 3 == 0;
    spec.sink = turn % 7 == 0;
    spec.seed = turn;
    expect_decode(spec, {persistent_run(), split_run(), split_run(2), auto_run(turn % 2 == 0)});
  }
}
INSTANTIATE_TEST_SUITE_P(All, PromisedHeads, ::testing::ValuesIn(kPromisedHeads),
                         [](const auto& info) { return std::to_string(info.param); });

class PromisedTypePairs : public ::testing::TestWithParam<PromisedTypes> {
 protected:
  void SetUp() override {
    HIPMLA_SKIP_UNLESS_PROMISED(GetParam().q_type, GetParam().kv_type, GetParam().kv_layout);
  }
};

TEST_P(PromisedTypePairs, EveryPageSizeIsRight) {
  uint64_t turn = 100;
  for (int32_t page_size : kPromisedPageSizes)
    for (int32_t heads : {1, 5, 16, 24, 128})
      for (int32_t seqlen_q : {1, 2, 4}) {
        ++turn;
        if (page_size > 256 && turn % 3 != 0) continue;  // mostly NaN to be uploaded
        BatchSpec spec;
        set_types(GetParam(), turn, &spec);
        spec.num_heads = heads;
        spec.page_size = page_size;
        spec.q_lens = {seqlen_q, seqlen_q, seqlen_q};
        spec.kv_lens = {std::min(page_size + 1, 300), std::min(page_size, 130), 50};
        if (heads == 1) spec.kv_lens[0] = page_size + 1;
        spec.padded = turn % 2 == 0;
        spec.seed = turn;
        expect_decode(spec, {persistent_run(), split_run(3)});
      }
}
INSTANTIATE_TEST_SUITE_P(All, PromisedTypePairs, ::testing::ValuesIn(kPromisedTypes),
                         [](const auto& info) {
                           const PromisedTypes& t = info.param;
                           return std::string(data_type_name(t.q_type)) + "_" +
                                  data_type_name(t.kv_type) + "_" + kv_layout_name(t.kv_layout);
                         });

TEST(PromisedShapes, WideRows) {
  for (int32_t heads : {256, 512}) {
    BatchSpec spec = uniform_spec(DataType::kBf16, heads, 16, 40, 1, 16);
    spec.seed = 7;
    expect_decode(spec, {persistent_run(), split_run(2)});
  }
}

TEST(PromisedShapes, NegativeSoftmaxScale) {
  for (DataType type : {DataType::kBf16, DataType::kF16}) {
    BatchSpec spec = uniform_spec(type, 24, 2, 300, 3, 16);
    spec.softmax_scale = -0.0625f;
    spec.trend = ScoreTrend::kSlowGrowth;
    spec.seed = 8;
    expect_decode(spec, {persistent_run(), split_run(4)});
    spec.trend = ScoreTrend::kJumps;
    expect_decode(spec, {persistent_run(), split_run(4)});
  }
}

// Each trend of the scores along the sequence, so that the running maximum rises often, rarely, in
// jumps, or never.
TEST(PromisedShapes, EveryScoreTrend) {
  for (DataType type : {DataType::kBf16, DataType::kF16})
    for (int trend = 1; trend < kNumScoreTrends; ++trend)
      for (int32_t heads : {16, 32, 64, 128}) {
        BatchSpec spec = uniform_spec(type, heads, 1, 700, 1, 64);
        spec.trend = static_cast<ScoreTrend>(trend);
        spec.seed = 9 + static_cast<uint64_t>(trend);
        expect_decode(spec, {persistent_run(), split_run(1), split_run(3)});
      }
}

TEST(PromisedShapes, SharedPages) {
  BatchSpec spec = uniform_spec(DataType::kBf16, 16, 2, 400, 6, 16);
  spec.pool_tokens = 640;
  spec.seed = 10;
  expect_decode(spec, {persistent_run(), split_run(3)});
}

TEST(PromisedShapes, OptionalOutputs) {
  for (int32_t heads : {16, 20}) {
    BatchSpec spec = uniform_spec(DataType::kBf16, heads, 2, 260, 2, 64);
    spec.seed = 11;
    std::vector<DecodeRun> runs = {persistent_run(), split_run(), split_run(1), split_run(5)};
    for (size_t i = 0; i < 4; ++i) runs.push_back(with_partials(runs[i]));
    for (size_t i = 0; i < 8; ++i) {
      runs.push_back(runs[i]);
      runs.back().with_lse = false;
    }
    expect_decode(spec, runs);
  }
}

// ---- faults of the field, each ruled out

// The reduction must write final_lse of split rows and stage 1 that of the others, whatever the
// mix.
TEST(Faults, SplitKvWritesFinalLseForEveryRow) {
  for (int32_t heads : {5, 16, 32, 128})
    for (int32_t seqlen_q : {1, 4}) {
      BatchSpec spec = uniform_spec(DataType::kBf16, heads, seqlen_q, 0, 5, 1);
      spec.kv_lens = {3, 500, 0, 40, 97};
      spec.seed = static_cast<uint64_t>(heads + seqlen_q);
      expect_decode(spec, {split_run(), split_run(1), split_run(2), split_run(7), split_run(64)});
    }
}

// A head count that is no tile, and several queries: o, final_lse and partials come back as
// (total_q, num_heads, ...). Rows differ in value, so any other order of rows fails.
TEST(Faults, FoldedHeadsKeepTheCallersShape) {
  for (DataType type : {DataType::kBf16, DataType::kF16})
    for (int32_t heads : {3, 20, 48, 63, 96, 126, 128, 256})
      for (int32_t seqlen_q : {1, 3, 4}) {
        if (heads * seqlen_q > 512) continue;
        BatchSpec spec = uniform_spec(type, heads, seqlen_q, 0, 3, 16);
        spec.kv_lens = {200, 33, 70};
        spec.padded = heads % 2 == 1;
        spec.seed = static_cast<uint64_t>(heads * 10 + seqlen_q);
        expect_decode(spec, {persistent_run(), with_partials(persistent_run()), split_run(3),
                             with_partials(split_run(3)), with_partials(split_run())});
      }
}

TEST(Faults, SeveralQueriesWith128Heads) {
  for (DataType type : {DataType::kBf16, DataType::kF16})
    for (int32_t seqlen_q = 2; seqlen_q <= 8; ++seqlen_q) {
      BatchSpec spec = uniform_spec(type, 128, seqlen_q, 0, 3, 1);
      spec.kv_lens = {130, seqlen_q, 65 + seqlen_q};
      spec.seed = static_cast<uint64_t>(seqlen_q);
      expect_decode(spec, {persistent_run(), split_run(), split_run(3)});
    }
}

TEST(Faults, Bf16PersistentOneQuery128Heads) {
  for (int32_t page_size : {1, 64})
    for (int32_t batch_size : {1, 7}) {
      BatchSpec spec = uniform_spec(DataType::kBf16, 128, 1, 333, batch_size, page_size);
      spec.kv_lens[0] = 1030;
      spec.seed = static_cast<uint64_t>(page_size + batch_size);
      expect_decode(spec, {persistent_run()});
    }
}

}  // namespace
}  // namespace hipmla::test
