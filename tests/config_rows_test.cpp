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
