// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Every row of kStage1Configs, with sizes relative to its tile. The selector would give small
// problems to small tiles, so these tests build the work list for the row themselves and launch it.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/launch.h"
#include "src/params.h"
#include "src/plan.h"
#include "src/work_list.h"
#include "src/workspace.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

using internal::kStage1Configs;
using internal::Stage1Config;

template <typename T>
void store_list(const std::vector<T>& list, size_t offset, std::vector<uint8_t>* bytes) {
  if (!list.empty()) std::memcpy(bytes->data() + offset, list.data(), list.size() * sizeof(T));
}

// Runs row `index` on a batch with dense outputs, as mla_decode_fwd would.
DecodeResult run_row(int index, const DeviceBatch& device_batch, const MlaDecodeOptions& options,
                     int num_slots) {
  const Stage1Config& config = kStage1Configs[index];
  const Batch& batch = device_batch.batch();
  MlaDecodePlan::Impl plan;
  plan.shape = batch.shape();
  plan.options = options;
  batch.set_options(&plan.options);
  const internal::WorkList list =
      internal::build_work_list(batch.lengths(), plan.shape, plan.options, config, num_slots);
  plan.layout = internal::layout_workspace(internal::size_of_work(list));
  plan.num_partials = list.num_partials;
  plan.partial_stride = list.partial_stride;
  std::vector<uint8_t> lists(plan.layout.list_bytes);
  store_list(list.items, plan.layout.items, &lists);
  store_list(list.slot_item_begin, plan.layout.slot_item_begin, &lists);
  store_list(list.reduce_items, plan.layout.reduce_items, &lists);
  DeviceBuffer workspace("workspace", plan.layout.total_bytes, kWorkspaceAlignment);
  workspace.upload(lists.data(), lists.size());

  const BatchSpec& spec = batch.spec;
  const auto rows = static_cast<size_t>(batch.total_q * spec.num_heads);
  const DeviceBuffer o("o", rows * kHeadDimV * element_bytes(spec.o_type), 16);
  const DeviceBuffer lse("final_lse", rows * 4, 4);
  MlaDecodeTensors tensors = device_batch.tensors();
  tensors.o = dense_view(o.data(), spec.o_type, batch.total_q, spec.num_heads, kHeadDimV);
  tensors.final_lse = dense_view(lse.data(), DataType::kF32, batch.total_q, spec.num_heads);
  const internal::MlaParams params =
      internal::make_params(plan, tensors, {workspace.data(), workspace.bytes()});

  const auto launch = config.schedule == Schedule::kPersistent ? internal::launch_stage1_persistent
                                                               : internal::launch_stage1_split_kv;
  check_hip(launch(index, params, list.num_workgroups(), nullptr), "launch of stage 1");
  if (!list.reduce_items.empty())
    check_hip(internal::launch_stage2(params, static_cast<int>(list.reduce_items.size()),
                                      config.tile_rows, nullptr),
              "launch of stage 2");
  check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");

  DecodeResult result;
  result.problems = o.check_guards() + lse.check_guards() + workspace.check_guards() +
                    device_batch.check_inputs();
  result.o.resize(rows * kHeadDimV);
  const std::vector<uint8_t> raw = o.download();
  for (size_t i = 0; i < result.o.size(); ++i)
    result.o[i] = load_element(raw.data(), spec.o_type, static_cast<int64_t>(i));
  result.lse.resize(rows);
  lse.download(result.lse.data(), lse.bytes());
  result.plan = std::to_string(list.items.size()) + " items, up to " +
                std::to_string(list.num_partials) + " parts";
  return result;
}

// A batch for the row's kernel.
BatchSpec spec_for(const Stage1Config& config, int32_t num_heads, int32_t num_queries) {
  BatchSpec spec = uniform_spec(config.q_type, num_heads, num_queries, 0, 6, 16);
  spec.kv_type = config.kv_type;
  spec.kv_layout = config.kv_layout;
  if (is_fp8(config.q_type)) spec.q_scale_host = 0.08f;
  if (is_fp8(config.kv_type) && config.kv_layout == KvLayout::kDense) spec.kv_scale_host = 0.06f;
  spec.kv_lens = {
      0, 1, config.tile_kv - 1, config.tile_kv, config.tile_kv + 1, 2 * config.tile_kv + 3};
  spec.seed = static_cast<uint64_t>(num_queries * num_heads * 1000 + num_heads);
  return spec;
}

// Runs the row in all ways that matter: 304 slots make one item of each tile, 2 make long walks
// over several units.
void expect_row(int index, const BatchSpec& spec) {
  if (!begin_case()) return;
  const Stage1Config& config = kStage1Configs[index];
  const Batch batch = build_batch(spec);
  const MlaReference reference = mla_reference(batch.host_inputs());
  const DeviceBatch device_batch(batch, test_device());
  MlaDecodeOptions options;
  options.schedule = config.schedule;
  options.num_kv_splits = config.schedule == Schedule::kSplitKv ? 2 : 0;
  for (int num_slots : {304, 2}) {
    const DecodeResult result = run_row(index, device_batch, options, num_slots);
    EXPECT_EQ(check_result(batch, reference, persistent_run(), result, test_device().arch,
                           rerun_command()),
              "")
        << "  row " << index << ", " << num_slots << " slots, " << result.plan << "\n  "
        << spec.description();
    if (config.schedule == Schedule::kSplitKv) break;  // does not depend on the slots
  }
}

class ConfigRows : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if ((config().archs & internal::arch_bit(test_device().arch)) == 0)
      GTEST_SKIP() << "row " << GetParam() << " is not built for " << arch_name(test_device().arch);
  }
  const Stage1Config& config() const { return kStage1Configs[GetParam()]; }
};

// KV lengths and numbers of rows around the row's tile, in all combinations.
TEST_P(ConfigRows, SizesAroundTheTile) {
  const int tile = config().tile_rows;
  for (int rows : {1, tile - 1, tile, tile + 1, 2 * tile + 3}) {
    // As heads of one query, and as queries of a head count that is no divisor of the tile.
    for (int heads : {rows, 3}) {
      BatchSpec spec = spec_for(config(), heads, (rows + heads - 1) / heads);
      spec.causal = heads == rows || rows != tile;
      expect_row(GetParam(), spec);
    }
  }
}

// What the other test leaves out: token scales, sparse lists, masks and modifiers.
TEST_P(ConfigRows, Modifiers) {
  const int heads = config().tile_rows + 5;
  for (int variant = 0; variant < 4; ++variant) {
    BatchSpec spec = spec_for(config(), heads, variant == 2 ? 1 : 2);
    spec.token_scales =
        is_fp8(config().kv_type) && config().kv_layout == KvLayout::kDense && variant != 0;
    if (spec.token_scales) spec.kv_scale_host = 1.2f;
    spec.padded = variant % 2 == 1;
    spec.sink = variant >= 1;
    spec.logits_soft_cap = variant == 1 ? 12.0f : 0.0f;
    spec.sliding_window = variant == 1 ? 40 : 0;
    spec.lse_base2 = variant == 1;
    spec.topk = variant >= 2 ? config().tile_kv * 2 + 7 : 0;
    spec.topk_holes = variant == 2 ? TopkHoles::kMixed : TopkHoles::kSome;
    spec.causal = variant != 3;
    if (variant == 0) {
      spec.kv_shard = KvShard::kRoundRobin;
      spec.cp_world_size = 3;
      spec.cp_rank = 1;
    }
    expect_row(GetParam(), spec);
  }
}

// A sequence for each kind of poison at each token that some queries may not see, and at two that none may.
void add_poisoned_sequences(BatchSpec* spec, int32_t num_queries, int32_t kv_len) {
  std::vector<int32_t> positions;
  for (int32_t i = 1; i < num_queries; ++i) positions.push_back(kv_len - i);
  if (spec->sliding_window > 0)
    for (int32_t i = -2; i < num_queries - 1; ++i)
      positions.push_back(kv_len - num_queries - spec->sliding_window + 1 + i);
  for (int32_t position : positions)
    for (int what = 0; what < kNumPoisons; ++what) {
      spec->poisoned.push_back(
          {static_cast<int32_t>(spec->kv_lens.size()), position, static_cast<Poison>(what)});
      spec->kv_lens.push_back(kv_len);
      spec->q_lens.push_back(num_queries);
    }
}

// Rows are the same to the bit whatever the tokens hold that they may not see.
TEST_P(ConfigRows, UnseenTokensDoNotMatter) {
  constexpr int32_t kQueries = 5;  // four in the first row tile
  for (int variant = 0; variant < 3; ++variant) {
    if (!begin_case()) continue;
    BatchSpec spec = spec_for(config(), config().tile_rows / 4, kQueries);
    spec.q_lens.clear();
    spec.kv_lens.clear();
    spec.sliding_window = variant == 0 ? 0 : config().tile_kv - 3;
    spec.logits_soft_cap = variant == 1 ? 12.0f : 0.0f;
    if (variant == 2) {
      spec.kv_shard = KvShard::kRoundRobin;
      spec.cp_world_size = 2;
      spec.cp_rank = 1;
    }
    add_poisoned_sequences(&spec, kQueries, 2 * config().tile_kv + 9);
    BatchSpec clean = spec;
    clean.poisoned.clear();

    MlaDecodeOptions options;
    options.schedule = config().schedule;
    DecodeResult results[2];
    MlaReference reference;
    for (const BatchSpec* one : {&clean, &spec}) {
      const Batch batch = build_batch(*one);
      const DeviceBatch device_batch(batch, test_device());
      DecodeResult& result = results[one == &spec];
      result = run_row(GetParam(), device_batch, options, 2);
      reference = mla_reference(batch.host_inputs());
      EXPECT_EQ(check_result(batch, reference, persistent_run(), result, test_device().arch,
                             rerun_command()),
                "")
          << "  row " << GetParam() << ", " << result.plan << "\n  " << one->description();
    }
    int64_t poisoned = 0;
    for (int64_t row = 0; row < reference.num_rows(); ++row) {
      if (reference.non_finite[static_cast<size_t>(row)] != NonFinite::kNothing) {
        ++poisoned;
        continue;
      }
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b, size_t size) {
        return std::memcmp(a.data() + static_cast<size_t>(row) * size,
                           b.data() + static_cast<size_t>(row) * size, size * 4) == 0;
      };
      EXPECT_TRUE(same(results[0].o, results[1].o, kHeadDimV) &&
                  same(results[0].lse, results[1].lse, 1))
          << "row " << row << " of " << reference.num_heads
          << " heads\n  run again: " << rerun_command();
    }
    EXPECT_GT(poisoned, 0);
    EXPECT_LT(poisoned, reference.num_rows());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConfigRows, ::testing::Range(0, internal::kNumStage1Configs),
                         [](const auto& info) {
                           const Stage1Config& c = kStage1Configs[info.param];
                           return std::string(c.schedule == Schedule::kPersistent ? "persistent"
                                                                                  : "split") +
                                  "_" + data_type_name(c.q_type) + "_" + data_type_name(c.kv_type) +
                                  "_" + kv_layout_name(c.kv_layout) + "_" +
                                  std::to_string(c.tile_rows) + "x" + std::to_string(c.tile_kv) +
                                  "_row" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace hipmla::test
