// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Every row of kStage1Configs, with sizes relative to its tile. The selector would give small
// problems to small tiles, so these tests build the work list for the row themselves and launch it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/launch.h"
#include "src/work_list.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

using internal::kStage1Configs;
using internal::Stage1Config;

template <typename T>
DeviceBuffer upload_list(const char* name, const std::vector<T>& list) {
  DeviceBuffer buffer(name, list.size() * sizeof(T), 16);
  buffer.upload(list.data(), buffer.bytes());
  return buffer;
}

// Runs row `index` on a batch with dense outputs, as mla_decode_fwd would.
DecodeResult run_row(int index, const DeviceBatch& device_batch, const MlaDecodeOptions& options,
                     int num_slots) {
  const Stage1Config& config = kStage1Configs[index];
  const Batch& batch = device_batch.batch();
  const internal::WorkList list =
      internal::build_work_list(batch.lengths(), batch.shape(), options, config, num_slots);
  const DeviceBuffer items = upload_list("items", list.items);
  const DeviceBuffer slots = upload_list("slot_item_begin", list.slot_item_begin);
  const DeviceBuffer reduce_items = upload_list("reduce_items", list.reduce_items);
  const auto rows = static_cast<size_t>(batch.total_q * batch.spec.num_heads);
  const auto partial_rows = static_cast<size_t>(list.partial_rows);
  const DeviceBuffer partial_o("partial_o", partial_rows * kHeadDimV * 4, 16);
  const DeviceBuffer partial_lse("partial_lse", partial_rows * 4, 4);
  const DeviceBuffer o("o", rows * kHeadDimV * element_bytes(batch.spec.o_type), 16);
  const DeviceBuffer lse("final_lse", rows * 4, 4);

  const MlaDecodeTensors tensors = device_batch.tensors();
  internal::MlaParams params = {};
  params.q = tensors.q.data;
  params.q_stride_token = tensors.q.stride[0];
  params.q_stride_head = tensors.q.stride[1];
  params.kv = tensors.kv_buffer.data;
  params.kv_stride_page = tensors.kv_buffer.stride[0];
  params.kv_stride_token = tensors.kv_buffer.stride[1];
  params.qo_indptr = static_cast<const int32_t*>(tensors.qo_indptr.data);
  params.kv_indptr = static_cast<const int32_t*>(tensors.kv_indptr.data);
  params.kv_indices = static_cast<const int32_t*>(tensors.kv_indices.data);
  params.kv_last_page_lens = static_cast<const int32_t*>(tensors.kv_last_page_lens.data);
  params.o = o.data();
  params.o_stride_token = int64_t{kHeadDimV} * batch.spec.num_heads;
  params.o_stride_head = kHeadDimV;
  params.lse = static_cast<float*>(lse.data());
  params.lse_stride_token = batch.spec.num_heads;
  params.lse_stride_head = 1;
  params.partial_o = static_cast<float*>(partial_o.data());
  params.partial_lse = static_cast<float*>(partial_lse.data());
  params.partial_stride = list.partial_stride;
  params.items = static_cast<const internal::WorkItem*>(items.data());
  params.slot_item_begin = static_cast<const int32_t*>(slots.data());
  params.reduce_items = static_cast<const internal::ReduceItem*>(reduce_items.data());
  params.num_heads = internal::make_fast_divisor(static_cast<uint32_t>(batch.spec.num_heads));
  params.page_size = internal::make_fast_divisor(static_cast<uint32_t>(batch.spec.page_size));
  params.scale_log2 = batch.spec.softmax_scale * 1.44269504f;
  params.causal = batch.spec.causal ? 1 : 0;
  params.o_type = batch.spec.o_type;

  const auto launch = config.schedule == Schedule::kPersistent ? internal::launch_stage1_persistent
                                                               : internal::launch_stage1_split_kv;
  check_hip(launch(index, params, list.num_workgroups(), nullptr), "launch of stage 1");
  if (!list.reduce_items.empty())
    check_hip(internal::launch_stage2(params, static_cast<int>(list.reduce_items.size()),
                                      config.tile_rows, nullptr),
              "launch of stage 2");
  check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");

  DecodeResult result;
  result.problems = o.check_guards() + lse.check_guards() + partial_o.check_guards() +
                    partial_lse.check_guards() + device_batch.check_inputs();
  result.o.resize(rows * kHeadDimV);
  const std::vector<uint8_t> raw = o.download();
  for (size_t i = 0; i < result.o.size(); ++i)
    result.o[i] = load_element(raw.data(), batch.spec.o_type, static_cast<int64_t>(i));
  result.lse.resize(rows);
  lse.download(result.lse.data(), lse.bytes());
  result.plan = std::to_string(list.items.size()) + " items, up to " +
                std::to_string(list.num_partials) + " parts";
  return result;
}

class ConfigRows : public ::testing::TestWithParam<int> {};

// KV lengths and numbers of rows around the row's tile, in all combinations.
TEST_P(ConfigRows, SizesAroundTheTile) {
  const Stage1Config& config = kStage1Configs[GetParam()];
  if ((config.archs & internal::arch_bit(test_device().arch)) == 0)
    GTEST_SKIP() << "row " << GetParam() << " is not built for " << arch_name(test_device().arch);
  const int tile = config.tile_rows;
  for (int rows : {1, tile - 1, tile, tile + 1, 2 * tile + 3}) {
    // As heads of one query, and as queries of a head count that is no divisor of the tile.
    for (int heads : {rows, 3}) {
      const int queries = (rows + heads - 1) / heads;
      for (bool causal : {true, false}) {
        if (!begin_case()) continue;
        BatchSpec spec = uniform_spec(config.kv_type, heads, queries, 0, 6, 16);
        spec.kv_lens = {
            0, 1, config.tile_kv - 1, config.tile_kv, config.tile_kv + 1, 2 * config.tile_kv + 3};
        spec.causal = causal;
        spec.seed = static_cast<uint64_t>(rows * 1000 + heads);
        const Batch batch = build_batch(spec);
        const MlaReference reference = mla_reference(batch.host_inputs());
        const DeviceBatch device_batch(batch, test_device());
        MlaDecodeOptions options;
        options.schedule = config.schedule;
        options.causal = causal;
        options.num_kv_splits = config.schedule == Schedule::kSplitKv ? 2 : 0;
        // 304 slots make one item of each tile, 2 make long walks over several units.
        for (int num_slots : {304, 2}) {
          const DecodeResult result = run_row(GetParam(), device_batch, options, num_slots);
          EXPECT_EQ(check_result(batch, reference, persistent_run(), result, test_device().arch,
                                 rerun_command()),
                    "")
              << "  row " << GetParam() << ", " << num_slots << " slots, " << result.plan << "\n  "
              << spec.description();
          if (config.schedule == Schedule::kSplitKv) break;  // does not depend on the slots
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConfigRows, ::testing::Range(0, internal::kNumStage1Configs),
                         [](const auto& info) {
                           const Stage1Config& c = kStage1Configs[info.param];
                           return std::string(c.schedule == Schedule::kPersistent ? "persistent"
                                                                                  : "split") +
                                  "_" + data_type_name(c.q_type) + "_" + data_type_name(c.kv_type) +
                                  "_" + std::to_string(c.tile_rows) + "x" +
                                  std::to_string(c.tile_kv) + "_row" + std::to_string(info.param);
                         });

}  // namespace
}  // namespace hipmla::test
