// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The table of kernels and the selector: what is in the table is reachable, what is not is refused
// in the same words by every entry point. Nothing here touches a device.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/stage1_configs.h"
#include "src/plan.h"
#include "src/select.h"

namespace hipmla::internal {
namespace {

constexpr Arch kArchs[] = {Arch::kUnknown, Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950};

DeviceInfo device_of(Arch arch) { return {arch, 304, lds_bytes_of(arch)}; }

std::string describe(const MlaDecodeShape& s, const MlaDecodeOptions& o, const DeviceInfo& d) {
  return std::string(data_type_name(s.q_type)) + "/" + data_type_name(s.kv_type) + " " +
         kv_layout_name(s.kv_layout) + "/" + data_type_name(s.o_type) + ", topk " +
         std::to_string(s.topk) + ", heads " + std::to_string(s.num_heads) + ", ql " +
         std::to_string(s.max_seqlen_q) + ", page " + std::to_string(s.page_size) + ", batch " +
         std::to_string(s.batch_size) + ", splits " + std::to_string(o.num_kv_splits) +
         ", schedule " + std::to_string(static_cast<int>(o.schedule)) + ", window " +
         std::to_string(o.sliding_window) + ", shard " +
         std::to_string(static_cast<int>(o.kv_shard)) + " " + std::to_string(o.cp_rank) + "/" +
         std::to_string(o.cp_world_size) + ", " + arch_name(d.arch);
}

TEST(ConfigsTest, RowsDifferInWhatSelectsThem) {
  for (int a = 0; a < kNumStage1Configs; ++a) {
    for (int b = a + 1; b < kNumStage1Configs; ++b) {
      const Stage1Config& x = kStage1Configs[a];
      const Stage1Config& y = kStage1Configs[b];
      const bool same = x.schedule == y.schedule && x.q_type == y.q_type &&
                        x.kv_type == y.kv_type && x.kv_layout == y.kv_layout &&
                        x.tile_rows == y.tile_rows && (x.archs & y.archs) != 0;
      EXPECT_FALSE(same) << "rows " << a << " and " << b;
    }
  }
}

// The request that `config` was made for.
MlaDecodeShape shape_of(const Stage1Config& config) {
  MlaDecodeShape shape;
  shape.q_type = config.q_type;
  shape.kv_type = config.kv_type;
  shape.kv_layout = config.kv_layout;
  shape.batch_size = 1;
  shape.total_q = 1;
  return shape;
}

bool same_combination(const Stage1Config& a, const Stage1Config& b) {
  return a.schedule == b.schedule && a.q_type == b.q_type && a.kv_type == b.kv_type &&
         a.kv_layout == b.kv_layout;
}

TEST(ConfigsTest, EveryRowIsSelectedByASequenceThatFillsItsTile) {
  for (int row = 0; row < kNumStage1Configs; ++row) {
    const Stage1Config& config = kStage1Configs[row];
    MlaDecodeShape shape = shape_of(config);
    shape.num_heads = config.tile_rows;
    MlaDecodeOptions options;
    options.schedule = config.schedule;
    for (Arch arch : kArchs) {
      if ((config.archs & arch_bit(arch)) == 0) continue;
      int selected = -1;
      const Status status = select_stage1_config(shape, options, device_of(arch), &selected);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_EQ(selected, row) << arch_name(arch);
    }
  }
}

// The rule, said another way: no fitting row holds the sequence in a smaller tile, or more of it.
TEST(ConfigsTest, SelectedTileIsTheSmallestThatHoldsASequence) {
  for (const Stage1Config& base : kStage1Configs) {
    for (Arch arch : kArchs) {
      if ((base.archs & arch_bit(arch)) == 0) continue;
      for (int32_t num_heads : {1, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512}) {
        for (int32_t max_seqlen_q : {1, 2, 4, 8, 1024}) {
          MlaDecodeShape shape = shape_of(base);
          shape.num_heads = num_heads;
          shape.max_seqlen_q = max_seqlen_q;
          MlaDecodeOptions options;
          options.schedule = base.schedule;
          int selected = -1;
          ASSERT_TRUE(select_stage1_config(shape, options, device_of(arch), &selected).ok());
          const int rows = num_heads * max_seqlen_q;
          const int tile = kStage1Configs[selected].tile_rows;
          EXPECT_TRUE(same_combination(kStage1Configs[selected], base));
          for (const Stage1Config& other : kStage1Configs) {
            if (!same_combination(other, base) || (other.archs & arch_bit(arch)) == 0) continue;
            EXPECT_FALSE(other.tile_rows >= rows && other.tile_rows < tile);
            EXPECT_FALSE(tile < rows && other.tile_rows > tile);
          }
        }
      }
    }
  }
}

// With topk, query tokens share no KV, so a tile for more rows than heads would be idle.
TEST(ConfigsTest, SparseTilesAreChosenByHeadsAlone) {
  for (const Stage1Config& base : kStage1Configs) {
    MlaDecodeShape shape = shape_of(base);
    shape.num_heads = base.tile_rows;
    shape.max_seqlen_q = 8;
    shape.topk = 2048;
    MlaDecodeOptions options;
    options.schedule = base.schedule;
    for (Arch arch : kArchs) {
      if ((base.archs & arch_bit(arch)) == 0) continue;
      int selected = -1;
      ASSERT_TRUE(select_stage1_config(shape, options, device_of(arch), &selected).ok());
      EXPECT_EQ(kStage1Configs[selected].tile_rows, base.tile_rows);
    }
  }
}

// Every combination that has no row: what the text proposes is in the table, and keeps the cache if
// any row has it.
TEST(ConfigsTest, RefusalsNameTheNearestThatIsSupported) {
  const DataType types[] = {DataType::kBf16, DataType::kF16,       DataType::kF32,
                            DataType::kI32,  DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz};
  const DeviceInfo device = device_of(Arch::kGfx942);
  int num_refused = 0;
  for (DataType q_type : types) {
    for (DataType kv_type : types) {
      for (KvLayout kv_layout : {KvLayout::kDense, KvLayout::kPacked}) {
        MlaDecodeShape shape;
        shape.q_type = q_type;
        shape.kv_type = kv_type;
        shape.kv_layout = kv_layout;
        shape.num_heads = 16;
        const Status status = mla_decode_check_support(shape, {}, device);
        bool in_table = false;
        bool proposed = false;
        bool keeps_cache = true;  // no proposal has another type of cache though one with it exists
        const auto has_cache = [&](const Stage1Config& c) { return c.kv_type == kv_type; };
        const bool cache_exists =
            std::any_of(std::begin(kStage1Configs), std::end(kStage1Configs), has_cache);
        for (const Stage1Config& c : kStage1Configs) {
          in_table =
              in_table || (c.q_type == q_type && c.kv_type == kv_type && c.kv_layout == kv_layout);
          const std::string text = std::string("use q_type ") + data_type_name(c.q_type) +
                                   " with kv_type " + data_type_name(c.kv_type) + ", " +
                                   kv_layout_name(c.kv_layout);
          if (status.text().find(text) == std::string::npos) continue;
          proposed = true;
          keeps_cache = keeps_cache && (!cache_exists || has_cache(c));
        }
        EXPECT_EQ(status.ok(), in_table) << status.text();
        if (status.ok()) continue;
        ++num_refused;
        EXPECT_EQ(status.code(), StatusCode::kUnsupported);
        EXPECT_TRUE(proposed && keeps_cache) << status.text();
      }
    }
  }
  EXPECT_GT(num_refused, 50);
}

TEST(ConfigsTest, RowsThatDoNotFitTheLdsAreNotSelected) {
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  for (int32_t num_heads : {16, 32, 64, 128}) {
    shape.num_heads = num_heads;
    for (int64_t lds = 0; lds < 64 * 1024; lds += 1024) {
      const DeviceInfo device = {Arch::kGfx942, 304, lds};
      int selected = -1;
      const Status status = select_stage1_config(shape, options, device, &selected);
      if (status.ok()) {
        EXPECT_LE(kStage1Configs[selected].lds_bytes(), lds);
      } else {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported);
        EXPECT_NE(status.text().find(std::to_string(lds) + " bytes of LDS"), std::string::npos);
      }
    }
  }
}

TEST(ConfigsTest, AutoResolvesToAScheduleThatIsInTheTable) {
  EXPECT_EQ(choose_schedule(Schedule::kPersistent), Schedule::kPersistent);
  EXPECT_EQ(choose_schedule(Schedule::kSplitKv), Schedule::kSplitKv);
  const Schedule chosen = choose_schedule(Schedule::kAuto);
  EXPECT_TRUE(std::any_of(std::begin(kStage1Configs), std::end(kStage1Configs),
                          [&](const Stage1Config& c) { return c.schedule == chosen; }));
}

TEST(ConfigsTest, UnknownArchIsUnsupported) {
  MlaDecodeShape shape;
  shape.num_heads = 16;
  DeviceInfo device = device_of(Arch::kGfx942);
  EXPECT_TRUE(mla_decode_check_support(shape, {}, device).ok());
  device.arch = Arch::kUnknown;
  EXPECT_EQ(mla_decode_check_support(shape, {}, device).code(), StatusCode::kUnsupported);
}

// ---- random shapes, both ways ----

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % (static_cast<uint64_t>(high - low) + 1));
  }
  template <typename T>
  T pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(in(0, static_cast<int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

// Mostly sound, with an unsupported or senseless field now and then. Lengths fit the shape exactly.
struct RandomRequest {
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  DeviceInfo device;
  std::vector<int32_t> qo_indptr = {0};
  std::vector<int32_t> kv_indptr = {0};
  std::vector<int32_t> kv_last_page_lens;
  std::vector<int32_t> kv_global_lens;
  std::vector<int32_t> kv_shard_begins;

  explicit RandomRequest(Random* random) {
    const auto rarely = [&] { return random->in(1, 12) == 1; };
    const std::vector<DataType> all = {DataType::kBf16,      DataType::kF16,
                                       DataType::kF32,       DataType::kI32,
                                       DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz};
    const Stage1Config& config = kStage1Configs[random->in(0, kNumStage1Configs - 1)];
    shape.q_type = rarely() ? random->pick(all) : config.q_type;
    shape.kv_type = rarely() ? random->pick(all) : config.kv_type;
    if (is_fp8(shape.kv_type)) shape.kv_layout = config.kv_layout;  // else it shows in no tensor
    shape.o_type = random->pick<DataType>({DataType::kBf16, DataType::kF16, DataType::kF32});
    if (rarely()) shape.o_type = random->pick(all);
    if (random->in(0, 3) == 0) {
      shape.topk = static_cast<int32_t>(rarely() ? random->in(-1, 100000) : random->in(1, 4096));
    }
    shape.num_heads = static_cast<int32_t>(rarely() ? random->in(0, 1000) : random->in(1, 512));
    if (rarely()) shape.head_dim_qk = static_cast<int32_t>(random->in(1, 600));
    if (rarely()) shape.head_dim_v = static_cast<int32_t>(random->in(1, 600));
    shape.page_size = static_cast<int32_t>(rarely() ? random->in(0, 10000) : random->in(1, 4096));
    shape.max_seqlen_q = static_cast<int32_t>(rarely() ? random->in(1, 1500) : random->in(1, 8));
    options.schedule =
        random->pick<Schedule>({Schedule::kAuto, Schedule::kPersistent, Schedule::kSplitKv});
    if (rarely() || options.schedule == Schedule::kSplitKv) {
      options.num_kv_splits = static_cast<int32_t>(random->pick<int64_t>({0, 1, 4, 256, 257, -1}));
    }
    options.causal = random->in(0, 1) == 1;
    options.return_partials = random->in(0, 3) == 0;
    options.lse_base2 = random->in(0, 1) == 1;
    if (rarely() || (shape.topk == 0 && random->in(0, 1) == 0)) {
      options.sliding_window = static_cast<int32_t>(random->pick<int64_t>({1, 128, 100000, -1}));
    }
    if (rarely() || (shape.topk == 0 && random->in(0, 1) == 0)) {
      options.kv_shard = random->pick<KvShard>({KvShard::kRoundRobin, KvShard::kContiguous});
      if (rarely()) options.kv_shard = static_cast<KvShard>(random->in(-1, 4));
      if (rarely() || options.kv_shard == KvShard::kRoundRobin) {
        options.cp_world_size = static_cast<int32_t>(rarely() ? 2000 : random->in(1, 16));
        options.cp_rank = static_cast<int32_t>(random->in(0, options.cp_world_size));
        if (!rarely()) options.cp_rank %= std::max(1, options.cp_world_size);
      }
    }
    device = device_of(rarely() ? Arch::kUnknown : kArchs[random->in(1, 3)]);
    device.num_compute_units = static_cast<int32_t>(rarely() ? 0 : random->in(1, 400));
    if (rarely()) device.lds_bytes = random->in(0, 64 * 1024);

    const auto batch_size = static_cast<int32_t>(random->in(1, 40));
    const auto longest = static_cast<int32_t>(random->in(0, batch_size - 1));
    for (int32_t b = 0; b < batch_size; ++b) {
      const int64_t queries = b == longest ? shape.max_seqlen_q : random->in(0, shape.max_seqlen_q);
      const int64_t pages = random->in(0, 30);
      qo_indptr.push_back(qo_indptr.back() + static_cast<int32_t>(queries));
      kv_indptr.push_back(kv_indptr.back() + static_cast<int32_t>(pages));
      kv_last_page_lens.push_back(
          static_cast<int32_t>(random->in(1, std::max(1, shape.page_size))));
      const int64_t kv_len =
          pages == 0 ? 0 : (pages - 1) * int64_t{shape.page_size} + kv_last_page_lens.back();
      // The last round of tokens ends at this rank.
      const int64_t others = kv_len == 0 ? 0 : (kv_len - 1) * options.cp_world_size;
      const bool is_contiguous = options.kv_shard == KvShard::kContiguous;
      const int64_t begin = is_contiguous ? random->in(0, 1000) : 0;
      kv_shard_begins.push_back(static_cast<int32_t>(begin));
      kv_global_lens.push_back(static_cast<int32_t>(
          is_contiguous ? begin + kv_len : (kv_len == 0 ? 0 : others + options.cp_rank + 1)));
    }
    shape.batch_size = batch_size;
    shape.total_q = qo_indptr.back();
  }

  MlaDecodeLengths lengths() const {
    MlaDecodeLengths lengths = {shape.batch_size, qo_indptr.data(), kv_indptr.data(),
                                kv_last_page_lens.data()};
    if (options.kv_shard != KvShard::kWhole) lengths.kv_global_lens = kv_global_lens.data();
    if (options.kv_shard == KvShard::kContiguous) lengths.kv_shard_begins = kv_shard_begins.data();
    return lengths;
  }
};

// Tensors of the requested shape at addresses that are never used.
MlaDecodeTensors tensors_for(const RandomRequest& r, void* memory) {
  const MlaDecodeShape& s = r.shape;
  MlaDecodeTensors t;
  t.q = dense_view(memory, s.q_type, s.total_q, s.num_heads, s.head_dim_qk);
  const bool is_packed = s.kv_layout == KvLayout::kPacked;
  t.kv_buffer = dense_view(memory, s.kv_type, r.kv_indptr.back(), s.page_size, 1,
                           is_packed ? kPackedTokenBytes : s.head_dim_qk);
  if (s.topk != 0) t.topk_indices = dense_view(memory, DataType::kI32, s.total_q, s.topk);
  t.qo_indptr = dense_view(memory, DataType::kI32, s.batch_size + 1);
  t.kv_indptr = dense_view(memory, DataType::kI32, s.batch_size + 1);
  t.kv_indices = dense_view(memory, DataType::kI32, r.kv_indptr.back());
  t.kv_last_page_lens = dense_view(memory, DataType::kI32, s.batch_size);
  if (r.options.kv_shard != KvShard::kWhole) {
    t.kv_global_lens = dense_view(memory, DataType::kI32, s.batch_size);
  }
  if (r.options.kv_shard == KvShard::kContiguous) {
    t.kv_shard_begins = dense_view(memory, DataType::kI32, s.batch_size);
  }
  t.o = dense_view(memory, s.o_type, s.total_q, s.num_heads, s.head_dim_v);
  t.softmax_scale = 1.0f;
  t.lengths = r.lengths();
  return t;
}

TEST(ConfigsTest, SupportAndRefusalAgreeEverywhere) {
  Random random(41);
  int num_supported = 0;
  int num_refused = 0;
  std::vector<uint8_t> memory(4096, 0xff);
  for (int i = 0; i < 4000 && !testing::Test::HasFailure(); ++i) {
    const RandomRequest r(&random);
    SCOPED_TRACE(describe(r.shape, r.options, r.device));
    const Status support = mla_decode_check_support(r.shape, r.options, r.device);
    size_t bytes = 0;
    const Status size = mla_decode_workspace_size(r.shape, r.options, r.device, &bytes);
    MlaDecodePlan plan;
    const Status planned = mla_decode_plan(r.shape, r.options, r.device, r.lengths(), &plan);
    EXPECT_EQ(size, support) << size.text() << " / " << support.text();
    EXPECT_EQ(planned, support) << planned.text() << " / " << support.text();
    // No workspace: a supported call gets past every check of the request, and not further.
    const Status call =
        mla_decode_fwd(tensors_for(r, memory.data()), r.options, r.device, Workspace(), nullptr);
    if (support.ok()) {
      ++num_supported;
      EXPECT_EQ(call.code(), StatusCode::kWorkspaceTooSmall) << call.text();
      EXPECT_LE(plan.workspace_bytes(), bytes);
      EXPECT_GT(plan.workspace_bytes(), 0u);
    } else {
      ++num_refused;
      EXPECT_EQ(call, support) << call.text() << " / " << support.text();
      EXPECT_FALSE(support.text().empty());
    }
  }
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](uint8_t byte) { return byte == 0xff; }));
  EXPECT_GT(num_supported, 1000);
  EXPECT_GT(num_refused, 1000);
}

}  // namespace
}  // namespace hipmla::internal
