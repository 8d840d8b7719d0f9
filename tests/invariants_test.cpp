// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// What must stay the same when something changes that must not matter.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/decode_test.h"
#if defined(HIPMLA_PLATFORM_CPU)
#include "hip_cpu/control.h"
#endif

namespace hipmla::test {
namespace {

std::vector<BatchSpec> some_specs() {
  std::vector<BatchSpec> specs;
  uint64_t seed = 0;
  const auto add = [&](DataType type, int32_t heads) {
    BatchSpec spec = uniform_spec(type, heads, 2, 0, 4, 16);
    spec.kv_lens = {333, 2, 0, 150};
    spec.q_lens = {2, 1, 2, 3};
    if (is_fp8(type)) spec.q_scale_host = spec.kv_scale_device = 0.07f;
    spec.seed = ++seed;
    specs.push_back(spec);
  };
  for (DataType type : {DataType::kBf16, DataType::kF16, DataType::kFp8E4m3Fn})
    for (int32_t heads : {5, 16, 40, 128}) add(type, heads);
  add(DataType::kBf16, 24);
  specs.back().kv_type = DataType::kFp8E4m3Fnuz;
  specs.back().token_scales = true;
  add(DataType::kBf16, 24);
  specs.back().kv_type = DataType::kFp8E4m3Fn;
  specs.back().kv_layout = KvLayout::kPacked;
  add(DataType::kF16, 24);
  specs.back().sink = true;
  specs.back().logits_soft_cap = 20.0f;
  specs.back().sliding_window = 77;
  specs.back().lse_base2 = true;
  const auto is_missing = [](const BatchSpec& s) {
    return !is_promised(s.q_type, s.kv_type, s.kv_layout, test_device().arch);
  };
  specs.erase(std::remove_if(specs.begin(), specs.end(), is_missing), specs.end());
  return specs;
}

// Sparse batches: their sequences have no pages, so permute() does not fit them.
std::vector<BatchSpec> sparse_specs() {
  std::vector<BatchSpec> specs;
  for (int32_t heads : {16, 128}) {
    BatchSpec spec = uniform_spec(DataType::kBf16, heads, 2, 150, 3, 16);
    spec.topk = 130;
    spec.seed = static_cast<uint64_t>(heads);
    specs.push_back(spec);
  }
  return specs;
}

std::vector<BatchSpec> all_specs() {
  std::vector<BatchSpec> specs = some_specs();
  for (const BatchSpec& spec : sparse_specs()) specs.push_back(spec);
  return specs;
}

TEST(Invariants, RunToRunBitwiseEqual) {
  for (const BatchSpec& spec : all_specs()) {
    if (!begin_case()) continue;
    const Batch batch = build_batch(spec);
    const DeviceBatch device_batch(batch, test_device());
    for (const DecodeRun& run : {persistent_run(), split_run(), split_run(5)}) {
      const DecodeResult first = device_batch.run(run);
      ASSERT_TRUE(first.ok()) << first.status.text() << first.problems;
      for (int i = 0; i < 2; ++i) {
        const DecodeResult again = device_batch.run(run);
        EXPECT_TRUE(same_bits(first.o, again.o) && same_bits(first.lse, again.lse))
            << run.description() << "; " << spec.description()
            << "\n  run again: " << rerun_command();
      }
    }
  }
}

// The batch with its sequences in another order: sequence i of the result is order[i].
Batch permute(const Batch& batch, const std::vector<int32_t>& order) {
  Batch out = batch;
  out.qo_indptr = {0};
  out.kv_indptr = {0};
  out.q.clear();
  out.kv_indices.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    const auto b = static_cast<size_t>(order[i]);
    out.spec.q_lens[i] = batch.spec.q_lens[b];
    out.spec.kv_lens[i] = batch.spec.kv_lens[b];
    out.kv_last_page_lens[i] = batch.kv_last_page_lens[b];
    const auto token_bytes =
        batch.q_stride[0] * static_cast<int64_t>(element_bytes(batch.spec.q_type));
    out.q.insert(out.q.end(), batch.q.begin() + batch.qo_indptr[b] * token_bytes,
                 batch.q.begin() + batch.qo_indptr[b + 1] * token_bytes);
    out.kv_indices.insert(out.kv_indices.end(), batch.kv_indices.begin() + batch.kv_indptr[b],
                          batch.kv_indices.begin() + batch.kv_indptr[b + 1]);
    out.qo_indptr.push_back(out.qo_indptr.back() + batch.spec.q_lens[b]);
    out.kv_indptr.push_back(out.kv_indptr.back() + batch.kv_indptr[b + 1] - batch.kv_indptr[b]);
  }
  return out;
}

// For plans that cut each sequence alike, wherever it is in the batch: a given number of splits.
TEST(Invariants, PermutingTheBatchPermutesTheOutput) {
  for (const BatchSpec& spec : some_specs()) {
    if (!begin_case()) continue;
    const Batch batch = build_batch(spec);
    const std::vector<int32_t> order = {2, 3, 0, 1};
    const Batch permuted = permute(batch, order);
    const DeviceBatch device_batch(batch, test_device());
    const DeviceBatch device_permuted(permuted, test_device());
    for (int32_t splits : {1, 3, 8}) {
      const DecodeResult a = device_batch.run(split_run(splits));
      const DecodeResult b = device_permuted.run(split_run(splits));
      ASSERT_TRUE(a.ok() && b.ok())
          << a.status.text() << a.problems << b.status.text() << b.problems;
      const int64_t row = int64_t{spec.num_heads} * kHeadDimV;
      for (size_t i = 0; i < order.size(); ++i) {
        const auto s = static_cast<size_t>(order[i]);
        const std::vector<float> from(a.o.begin() + batch.qo_indptr[s] * row,
                                      a.o.begin() + batch.qo_indptr[s + 1] * row);
        const std::vector<float> to(b.o.begin() + permuted.qo_indptr[i] * row,
                                    b.o.begin() + permuted.qo_indptr[i + 1] * row);
        const std::vector<float> from_lse(a.lse.begin() + batch.qo_indptr[s] * spec.num_heads,
                                          a.lse.begin() + batch.qo_indptr[s + 1] * spec.num_heads);
        const std::vector<float> to_lse(b.lse.begin() + permuted.qo_indptr[i] * spec.num_heads,
                                        b.lse.begin() + permuted.qo_indptr[i + 1] * spec.num_heads);
        EXPECT_TRUE(same_bits(from, to) && same_bits(from_lse, to_lse))
            << "sequence " << s << ", " << splits << " splits; " << spec.description()
            << "\n  run again: " << rerun_command();
      }
    }
  }
}

std::vector<double> to_double(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(Invariants, BothModesAgree) {
  for (BatchSpec spec : all_specs()) {
    if (!begin_case()) continue;
    spec.o_type = DataType::kF32;  // the bounds count one rounding of o, two results have two
    const Batch batch = build_batch(spec);
    const MlaReference reference = mla_reference(batch.host_inputs());
    const DeviceBatch device_batch(batch, test_device());
    const DecodeResult a = expect_run(device_batch, reference, persistent_run());
    const DecodeResult b = expect_run(device_batch, reference, split_run());
    EXPECT_EQ(
        compare_o(reference, to_double(a.o), b.o, arithmetic_of(spec), rerun_command()).failure,
        "");
    EXPECT_EQ(compare_lse(reference, to_double(a.lse), b.lse, arithmetic_of(spec), rerun_command())
                  .failure,
              "");
  }
}

TEST(Invariants, AnySplitCountAgrees) {
  for (DataType type : {DataType::kBf16, DataType::kF16, DataType::kFp8E4m3Fnuz})
    for (int32_t heads : {16, 128}) {
      if (!is_promised(type, type, KvLayout::kDense, test_device().arch)) continue;
      BatchSpec spec = uniform_spec(type, heads, 2, 0, 3, 1);
      if (is_fp8(type)) spec.q_scale_host = spec.kv_scale_host = 0.07f;
      spec.kv_lens = {520, 33, 300};
      spec.seed = static_cast<uint64_t>(heads);
      std::vector<DecodeRun> runs;
      for (int32_t splits = 1; splits <= 17; ++splits) runs.push_back(split_run(splits));
      expect_decode(spec, runs);
    }
  BatchSpec spec = uniform_spec(DataType::kBf16, 16, 1, 0, 2, 16);
  spec.kv_lens = {9000, 2100};  // more parts than a wave has lanes
  expect_decode(spec, {split_run(64), split_run(65), split_run(200), split_run(256)});
}

// KV of each sequence cut into contiguous shards; each shard's (o, lse), merged on the host, is the
// whole.
TEST(Invariants, ShardsMergeToTheWhole) {
  for (int32_t num_shards : {2, 3, 7})
    for (int32_t seqlen_q : {1, 4}) {
      if (!begin_case()) continue;
      BatchSpec spec = uniform_spec(DataType::kBf16, 16, seqlen_q, 0, 3, 1);
      spec.kv_lens = {5, 260, 100};
      spec.o_type = DataType::kF32;
      spec.seed = static_cast<uint64_t>(num_shards * 10 + seqlen_q);
      const Batch whole = build_batch(spec);
      const MlaReference reference = mla_reference(whole.host_inputs());
      std::vector<float> parts_o, parts_lse;
      for (int32_t shard = 0; shard < num_shards; ++shard) {
        Batch part = whole;
        part.kv_indices.clear();
        part.kv_indptr = {0};
        // The causal limit lies in the last seqlen_q positions, which the last shard holds in full:
        // it is causal, and the others are seen by every query.
        const bool is_last = shard == num_shards - 1;
        part.spec.causal = is_last;
        for (size_t b = 0; b < spec.kv_lens.size(); ++b) {
          const int32_t cut_len = spec.kv_lens[b] - seqlen_q;
          const int32_t begin = cut_len * shard / num_shards;
          const int32_t end = is_last ? spec.kv_lens[b] : cut_len * (shard + 1) / num_shards;
          part.kv_indices.insert(part.kv_indices.end(),
                                 whole.kv_indices.begin() + whole.kv_indptr[b] + begin,
                                 whole.kv_indices.begin() + whole.kv_indptr[b] + end);
          part.kv_indptr.push_back(part.kv_indptr.back() + end - begin);
          part.kv_last_page_lens[b] = 1;
        }
        const DeviceBatch device_batch(part, test_device());
        const DecodeResult result = device_batch.run(shard % 2 ? split_run(2) : persistent_run());
        ASSERT_TRUE(result.ok()) << result.status.text() << result.problems;
        parts_o.insert(parts_o.end(), result.o.begin(), result.o.end());
        parts_lse.insert(parts_lse.end(), result.lse.begin(), result.lse.end());
      }
      std::vector<float> o, lse;
      merge_parts(parts_o, parts_lse, num_shards, reference.num_rows(), &o, &lse);
      EXPECT_EQ(compare_o(reference, reference.o, o, arithmetic_of(spec), rerun_command()).failure,
                "");
      EXPECT_EQ(
          compare_lse(reference, reference.lse, lse, arithmetic_of(spec), rerun_command()).failure,
          "");
    }
}

// A factor means the same on the host and on the device, and a power of two changes no bit.
TEST(Invariants, FactorsOfTwoDoNotMatter) {
  constexpr DataType kFp8 = DataType::kFp8E4m3Fn;
  HIPMLA_SKIP_UNLESS_PROMISED(kFp8, kFp8, KvLayout::kDense);
  for (int32_t heads : {16, 128}) {
    if (!begin_case()) continue;
    BatchSpec spec = uniform_spec(kFp8, heads, 2, 150, 2, 16);
    spec.o_type = DataType::kF32;
    spec.q_scale_host = spec.kv_scale_host = 0.0625f;
    const Batch batch = build_batch(spec);
    const DecodeResult first = DeviceBatch(batch, test_device()).run(split_run(2));
    ASSERT_TRUE(first.ok()) << first.status.text() << first.problems;
    Batch other = batch;
    other.spec.q_scale_host = other.spec.kv_scale_host = 1.0f;
    other.spec.q_scale_device = other.spec.kv_scale_device = 0.0625f;
    const DecodeResult on_device = DeviceBatch(other, test_device()).run(split_run(2));
    EXPECT_TRUE(same_bits(first.o, on_device.o) && same_bits(first.lse, on_device.lse));
    other = batch;  // q four times, the softmax scale a quarter
    other.spec.q_scale_host *= 4.0f;
    other.spec.softmax_scale /= 4.0f;
    const DecodeResult moved = DeviceBatch(other, test_device()).run(split_run(2));
    EXPECT_TRUE(same_bits(first.o, moved.o) && same_bits(first.lse, moved.lse));
    other = batch;  // the same factor for each token
    other.spec.kv_scale_host = 1.0f;
    other.spec.token_scales = true;
    other.scale_stride[0] = spec.page_size;
    other.scale_stride[1] = 1;
    other.kv_token_scales.assign(static_cast<size_t>(batch.num_pages * spec.page_size), 0.0625f);
    const DecodeResult per_token = DeviceBatch(other, test_device()).run(split_run(2));
    EXPECT_TRUE(same_bits(first.o, per_token.o) && same_bits(first.lse, per_token.lse));
  }
}

#if defined(HIPMLA_PLATFORM_CPU)

class RestoreDeviceConfig {
 public:
  ~RestoreDeviceConfig() { hip_cpu::set_device_config(saved_); }

 private:
  hip_cpu::DeviceConfig saved_ = hip_cpu::get_device_config();
};

// The plan is for 304 compute units; how many the device has, in which order its lanes run and how
// many host threads run them must not show in the result.
TEST(Invariants, CpuScheduleOrderDoesNotMatter) {
  const RestoreDeviceConfig restore;
  DeviceInfo planned_for = test_device();
  planned_for.num_compute_units = 304;
  for (const BatchSpec& spec : all_specs()) {
    if (!begin_case()) continue;
    const Batch batch = build_batch(spec);
    const DeviceBatch device_batch(batch, test_device());
    for (DecodeRun run : {persistent_run(), split_run(4)}) {
      run.device = planned_for;
      DecodeResult first;
      for (uint64_t seed : {1, 2, 3, 12345}) {
        hip_cpu::DeviceConfig config = hip_cpu::get_device_config();
        config.schedule_seed = seed;
        config.num_compute_units = seed == 1 ? 304 : seed == 2 ? 1 : 80;
        config.num_host_threads = seed == 3 ? 1 : 2;
        hip_cpu::set_device_config(config);
        const DecodeResult result = device_batch.run(run);
        ASSERT_TRUE(result.ok()) << result.status.text() << result.problems;
        if (first.o.empty()) first = result;
        EXPECT_TRUE(same_bits(first.o, result.o) && same_bits(first.lse, result.lse))
            << "schedule seed " << seed << "; " << run.description() << "; " << spec.description()
            << "\n  run again: " << rerun_command();
      }
    }
  }
}

#endif

// Plans for small and large devices cut the work differently; all are right.
TEST(Invariants, PlansForOtherDevicesAreRight) {
  for (int32_t compute_units : {1, 2, 7, 64, 1024}) {
    BatchSpec spec = uniform_spec(DataType::kBf16, 20, 2, 0, 4, 16);
    spec.kv_lens = {500, 2, 0, 150};
    spec.seed = static_cast<uint64_t>(compute_units);
    std::vector<DecodeRun> runs = {persistent_run(), split_run()};
    for (DecodeRun& run : runs) {
      run.device = test_device();
      run.device->num_compute_units = compute_units;
    }
    expect_decode(spec, runs);
  }
}

}  // namespace
}  // namespace hipmla::test
