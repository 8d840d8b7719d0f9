// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Properties of the work list and of plans, over random batches. Nothing here touches a device.

#include "src/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/params.h"
#include "kernels/mla/stage1_configs.h"
#include "src/fingerprint.h"
#include "src/fold.h"
#include "src/select.h"
#include "src/work_list.h"
#include "src/workspace.h"

namespace hipmla::internal {
namespace {

// Uniform in [low, high]; the same on every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int32_t in(int64_t low, int64_t high) {
    const uint64_t count = static_cast<uint64_t>(high - low) + 1;
    return static_cast<int32_t>(low + static_cast<int64_t>(engine_() % count));
  }
  bool once_in(int n) { return in(1, n) == 1; }
  int32_t pick(std::initializer_list<int32_t> values) {
    return *(values.begin() + in(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Lengths of a batch, as counts.
struct Batch {
  int32_t page_size = 1;
  std::vector<int32_t> qo_indptr = {0};
  std::vector<int32_t> kv_indptr = {0};
  std::vector<int32_t> kv_last_page_lens;
  std::vector<int32_t> kv_global_lens;   // if sharded
  std::vector<int32_t> kv_shard_begins;  // if sharded contiguously

  void add(int32_t num_queries, int32_t kv_len) {
    const int32_t pages = (kv_len + page_size - 1) / page_size;
    qo_indptr.push_back(qo_indptr.back() + num_queries);
    kv_indptr.push_back(kv_indptr.back() + pages);
    kv_last_page_lens.push_back(pages == 0 ? -77 : kv_len - (pages - 1) * page_size);
  }
  int32_t size() const { return static_cast<int32_t>(kv_last_page_lens.size()); }
  int32_t num_queries(int32_t b) const { return qo_indptr[at(b) + 1] - qo_indptr[at(b)]; }
  int32_t kv_len(int32_t b) const {
    const int32_t pages = kv_indptr[at(b) + 1] - kv_indptr[at(b)];
    return pages == 0 ? 0 : (pages - 1) * page_size + kv_last_page_lens[at(b)];
  }
  MlaDecodeLengths lengths() const {
    return {size(),
            qo_indptr.data(),
            kv_indptr.data(),
            kv_last_page_lens.data(),
            kv_global_lens.empty() ? nullptr : kv_global_lens.data(),
            kv_shard_begins.empty() ? nullptr : kv_shard_begins.data()};
  }
  static size_t at(int32_t b) { return static_cast<size_t>(b); }
};

MlaDecodeShape shape_of(const Batch& batch, const Stage1Config& config, int32_t num_heads) {
  MlaDecodeShape shape;
  shape.q_type = config.q_type;
  shape.kv_type = config.kv_type;
  shape.kv_layout = config.kv_layout;
  shape.num_heads = num_heads;
  shape.page_size = batch.page_size;
  shape.batch_size = batch.size();
  shape.total_q = batch.qo_indptr.back();
  for (int32_t b = 0; b < batch.size(); ++b) {
    shape.max_seqlen_q = std::max(shape.max_seqlen_q, batch.num_queries(b));
  }
  return shape;
}

// Everything that build_work_list is given.
struct Case {
  Batch batch;
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  Stage1Config config = {};
  int num_slots = 1;

  WorkList build() const {
    return build_work_list(batch.lengths(), shape, options, config, num_slots);
  }

  // Sequences as the plan sees them: with topk, query tokens.
  bool is_sparse() const { return shape.topk > 0; }
  int32_t num_sequences() const {
    return is_sparse() ? static_cast<int32_t>(shape.total_q) : batch.size();
  }
  int32_t num_queries(int32_t s) const { return is_sparse() ? 1 : batch.num_queries(s); }
  int32_t first_q(int32_t s) const { return is_sparse() ? s : batch.qo_indptr[Batch::at(s)]; }
};

// Tokens below `end` that rank `rank` of `world_size` holds: whole rounds, and perhaps one of the
// last.
int32_t tokens_of_rank(int32_t end, int32_t rank, int32_t world_size) {
  return end / world_size + (rank < end % world_size ? 1 : 0);
}

// Makes the batch of `c` a shard of a larger one.
void shard(Random* random, Case* c) {
  MlaDecodeOptions& options = c->options;
  options.kv_shard = random->once_in(2) ? KvShard::kRoundRobin : KvShard::kContiguous;
  const bool is_round_robin = options.kv_shard == KvShard::kRoundRobin;
  options.cp_world_size = is_round_robin ? random->pick({1, 2, 3, 8, 64, 1024}) : 1;
  options.cp_rank = random->in(0, options.cp_world_size - 1);
  Batch sharded;
  sharded.page_size = c->batch.page_size;
  for (int32_t b = 0; b < c->batch.size(); ++b) {
    const int32_t len = c->batch.kv_len(b);
    int32_t global_len = len;
    int32_t local_len = 0;
    if (is_round_robin) {
      global_len = std::min(len * int64_t{random->pick({1, options.cp_world_size})},
                            int64_t{kMaxKvLen} - random->in(0, 1));
      local_len = tokens_of_rank(global_len, options.cp_rank, options.cp_world_size);
    } else {
      const int32_t begin = random->in(0, len);
      local_len = random->once_in(3) ? len - begin : random->in(0, len - begin);
      sharded.kv_shard_begins.push_back(begin);
    }
    sharded.kv_global_lens.push_back(global_len);
    sharded.add(c->batch.num_queries(b), local_len);
  }
  c->batch = sharded;
}

Batch random_batch(Random* random, int32_t tile_kv, int32_t max_queries) {
  Batch batch;
  batch.page_size = random->pick({1, 1, 16, 48, 64, 480, 4096});
  const int32_t size = random->once_in(4) ? random->in(1, 300) : random->in(1, 20);
  const int32_t kind = random->in(0, 4);
  for (int32_t b = 0; b < size; ++b) {
    int32_t kv_len = 0;
    switch (kind) {
      case 0:  // around tile borders
        kv_len = tile_kv * random->in(0, 5) + random->in(-1, 1);
        break;
      case 1:
        kv_len = random->in(0, 9000);
        break;
      case 2:  // one long among short ones
        kv_len = b == size / 2 ? random->in(10000, 300000) : random->in(0, 40);
        break;
      case 3:  // equal
        kv_len = 2048;
        break;
      default:  // falling
        kv_len = 131072 / (b + 1);
        break;
    }
    if (random->once_in(8)) kv_len = 0;
    const int32_t num_queries = random->once_in(9) ? 0 : random->in(1, max_queries);
    batch.add(num_queries, std::max(0, kv_len));
  }
  return batch;
}

Case random_case(Random* random, const Stage1Config& config) {
  Case c;
  c.config = config;
  const int32_t num_heads = random->pick({1, 3, 5, 8, 12, 16, 20, 40, 48, 96, 112, 128, 512});
  const int32_t max_queries =
      num_heads > 100 ? random->in(1, 4) : random->pick({1, 1, 2, 4, 7, 17});
  c.batch = random_batch(random, config.tile_kv, max_queries);
  if (random->once_in(3)) shard(random, &c);
  c.shape = shape_of(c.batch, config, num_heads);
  if (c.options.kv_shard == KvShard::kWhole && random->once_in(4)) {
    c.shape.topk = random->pick({1, config.tile_kv - 1, config.tile_kv, 512, 2048, 65536});
  } else if (random->once_in(2)) {
    c.options.sliding_window = random->pick({1, 2, 64, config.tile_kv + 1, 4096, INT32_MAX});
  }
  c.options.schedule = config.schedule;
  c.options.causal = !random->once_in(3);
  c.options.return_partials = random->once_in(4);
  if (config.schedule == Schedule::kSplitKv && random->once_in(2)) {
    c.options.num_kv_splits = random->pick({1, 2, 3, 5, 16, 64, 256});
  }
  c.num_slots = random->pick({1, 2, 7, 104, 256, 304, random->in(1, 1000)});
  return c;
}

// The definition of what a query may see: global positions first, then those of them that are here.
KvRange visible(const Case& c, int32_t s, int32_t query) {
  if (c.is_sparse()) return {0, c.shape.topk};
  const MlaDecodeOptions& options = c.options;
  const int32_t kv_len = c.batch.kv_len(s);
  const bool is_whole = options.kv_shard == KvShard::kWhole;
  const int32_t global_len = is_whole ? kv_len : c.batch.kv_global_lens[Batch::at(s)];
  const int32_t own_position = global_len - c.batch.num_queries(s) + query;
  const int64_t window = options.sliding_window > 0 ? options.sliding_window : INT64_C(1) << 40;
  const auto begin = static_cast<int32_t>(std::max<int64_t>(0, own_position + 1 - window));
  const int32_t end = options.causal ? std::max(0, own_position + 1) : global_len;
  if (options.kv_shard == KvShard::kRoundRobin) {
    return {tokens_of_rank(begin, options.cp_rank, options.cp_world_size),
            tokens_of_rank(end, options.cp_rank, options.cp_world_size)};
  }
  const int32_t first = is_whole ? 0 : c.batch.kv_shard_begins[Batch::at(s)];
  return {std::clamp(begin - first, 0, kv_len), std::clamp(end - first, 0, kv_len)};
}

int32_t num_tiles(const Case& c, const WorkItem& item) {
  return (item.kv_end - item.kv_begin + c.config.tile_kv - 1) / c.config.tile_kv;
}

// Walks items and reduce items along all rows of the batch, in order.
class ListCheck {
 public:
  ListCheck(const Case& c, const WorkList& list) : c_(c), list_(list) {}

  void run() {
    for (int32_t b = 0; b < c_.num_sequences(); ++b) {
      const int32_t rows = c_.num_queries(b) * c_.shape.num_heads;
      for (int32_t row = 0; row < rows; row += c_.config.tile_rows) {
        ASSERT_NO_FATAL_FAILURE(check_unit(b, row, std::min(rows, row + c_.config.tile_rows)));
      }
    }
    EXPECT_EQ(next_item_, list_.items.size());
    EXPECT_EQ(next_reduce_, list_.reduce_items.size());
    EXPECT_EQ(list_.num_partials, std::max(1, most_parts_));
    if (c_.options.return_partials) {
      EXPECT_EQ(list_.partial_rows, 0);
      EXPECT_EQ(list_.partial_stride, c_.shape.total_q * c_.shape.num_heads);
    } else {
      EXPECT_EQ(list_.partial_rows, int64_t{partial_tiles_} * c_.config.tile_rows);
      EXPECT_EQ(list_.partial_stride, c_.config.tile_rows);
    }
  }

  int64_t cost_of_units() const { return cost_of_units_; }
  int64_t parts_of_cut_units() const { return parts_of_cut_units_; }

 private:
  // Parts are consecutive, cut on tile borders, and begin and end exactly where what the rows see
  // does: so every visible (row, token) is covered once, and nothing is that no row sees.
  void check_unit(int32_t b, int32_t row_begin, int32_t row_end) {
    KvRange kv = {INT32_MAX, 0};
    const int32_t last_query = (row_end - 1) / c_.shape.num_heads;
    for (int32_t query = row_begin / c_.shape.num_heads; query <= last_query; ++query) {
      const KvRange row = visible(c_, b, query);
      if (row.begin >= row.end) continue;
      kv = {std::min(kv.begin, row.begin), std::max(kv.end, row.end)};
    }
    if (kv.begin >= kv.end) kv = {0, 0};
    const size_t first = next_item_;
    int32_t covered = kv.begin;
    do {
      ASSERT_LT(next_item_, list_.items.size());
      const WorkItem& item = list_.items[next_item_++];
      ASSERT_EQ(item.batch, b);
      ASSERT_EQ(item.row_begin, row_begin);
      ASSERT_EQ(item.row_end, row_end);
      ASSERT_EQ(item.kv_begin, covered);
      ASSERT_EQ((item.kv_begin - kv.begin) % c_.config.tile_kv, 0);
      ASSERT_TRUE(item.kv_end > item.kv_begin || kv.end == 0);
      ASSERT_TRUE(item.kv_end == kv.end || (item.kv_end - kv.begin) % c_.config.tile_kv == 0);
      ASSERT_EQ(item.reserved, 0);
      covered = item.kv_end;
    } while (covered < kv.end);
    ASSERT_EQ(covered, kv.end);
    cost_of_units_ += (kv.end - kv.begin + c_.config.tile_kv - 1) / c_.config.tile_kv +
                      item_overhead_tiles(c_.config);
    const auto num_parts = static_cast<int32_t>(next_item_ - first);
    most_parts_ = std::max(most_parts_, num_parts);
    if (num_parts > 1) parts_of_cut_units_ += num_parts;
    check_partials(b, row_begin, row_end, first, num_parts);
  }

  void check_partials(int32_t b, int32_t row_begin, int32_t row_end, size_t first,
                      int32_t num_parts) {
    if (num_parts == 1 && !c_.options.return_partials) {
      ASSERT_EQ(list_.items[first].partial_row, -1);
      return;
    }
    const int64_t token_rows = int64_t{c_.first_q(b)} * c_.shape.num_heads;
    for (int32_t part = 0; part < num_parts; ++part) {
      // Both layouts give each (row, part) a place of its own: compact ones are handed out in
      // order.
      const int64_t expected =
          c_.options.return_partials
              ? part * c_.shape.total_q * c_.shape.num_heads + token_rows + row_begin
              : int64_t{partial_tiles_ + part} * c_.config.tile_rows;
      ASSERT_EQ(list_.items[first + static_cast<size_t>(part)].partial_row, expected);
    }
    partial_tiles_ += num_parts;
    ASSERT_LT(next_reduce_, list_.reduce_items.size());
    const ReduceItem& reduce = list_.reduce_items[next_reduce_++];
    ASSERT_EQ(reduce.batch, b);
    ASSERT_EQ(reduce.row_begin, row_begin);
    ASSERT_EQ(reduce.row_end, row_end);
    ASSERT_EQ(reduce.num_partials, num_parts);
    ASSERT_EQ(reduce.partial_row, list_.items[first].partial_row);
  }

  const Case& c_;
  const WorkList& list_;
  size_t next_item_ = 0;
  size_t next_reduce_ = 0;
  int32_t most_parts_ = 0;
  int32_t partial_tiles_ = 0;
  int64_t cost_of_units_ = 0;
  int64_t parts_of_cut_units_ = 0;
};

void check_slots(const Case& c, const WorkList& list, int64_t cost_of_units) {
  const std::vector<int32_t>& begin = list.slot_item_begin;
  if (list.items.empty()) {
    EXPECT_TRUE(begin.empty());
    return;
  }
  ASSERT_GE(begin.size(), 2u);
  ASSERT_LE(begin.size(), static_cast<size_t>(c.num_slots) + 1);
  EXPECT_EQ(begin.front(), 0);
  EXPECT_EQ(begin.back(), static_cast<int32_t>(list.items.size()));
  const int64_t overhead = item_overhead_tiles(c.config);
  const int64_t mean = (cost_of_units + c.num_slots - 1) / c.num_slots;
  const int64_t most = std::max(mean + overhead, 2 * overhead);
  for (size_t slot = 0; slot + 1 < begin.size(); ++slot) {
    ASSERT_LT(begin[slot], begin[slot + 1]) << "slot " << slot << " has no work";
    int64_t cost = 0;
    for (int32_t i = begin[slot]; i < begin[slot + 1]; ++i) {
      cost += overhead + num_tiles(c, list.items[static_cast<size_t>(i)]);
    }
    ASSERT_LE(cost, most) << "slot " << slot;
  }
}

// Even parts of one unit differ by one tile at most.
void check_splits(const Case& c, const WorkList& list) {
  EXPECT_TRUE(list.slot_item_begin.empty());
  int32_t most = c.options.num_kv_splits == 0 ? kMaxKvSplits : c.options.num_kv_splits;
  EXPECT_LE(list.num_partials, most);
  int32_t shortest = 0;
  int32_t longest = 0;
  const WorkItem* previous = nullptr;
  for (const WorkItem& item : list.items) {
    const bool same_unit = previous != nullptr && previous->batch == item.batch &&
                           previous->row_begin == item.row_begin;
    if (!same_unit) shortest = longest = num_tiles(c, item);
    previous = &item;
    shortest = std::min(shortest, num_tiles(c, item));
    longest = std::max(longest, num_tiles(c, item));
    ASSERT_LE(longest - shortest, 1);
  }
}

void expect_within(const WorkSize& size, const WorkSize& most) {
  EXPECT_LE(size.num_items, most.num_items);
  EXPECT_LE(size.num_slot_begins, most.num_slot_begins);
  EXPECT_LE(size.num_reduce_items, most.num_reduce_items);
  EXPECT_LE(size.partial_rows, most.partial_rows);
}

std::string describe(const Case& c) {
  return "batch " + std::to_string(c.batch.size()) + ", heads " +
         std::to_string(c.shape.num_heads) + ", ql " + std::to_string(c.shape.max_seqlen_q) +
         ", page " + std::to_string(c.batch.page_size) + ", tile rows " +
         std::to_string(c.config.tile_rows) + ", splits " +
         std::to_string(c.options.num_kv_splits) + ", slots " + std::to_string(c.num_slots) +
         ", topk " + std::to_string(c.shape.topk) + ", window " +
         std::to_string(c.options.sliding_window) + ", shard " +
         std::to_string(static_cast<int>(c.options.kv_shard)) + " " +
         std::to_string(c.options.cp_rank) + "/" + std::to_string(c.options.cp_world_size) +
         (c.options.causal ? ", causal" : "") + (c.options.return_partials ? ", partials" : "") +
         (c.config.schedule == Schedule::kPersistent ? ", persistent" : ", split-KV");
}

void check_case(const Case& c) {
  SCOPED_TRACE(describe(c));
  const WorkList list = c.build();
  ListCheck check(c, list);
  ASSERT_NO_FATAL_FAILURE(check.run());
  if (c.config.schedule == Schedule::kPersistent) {
    check_slots(c, list, check.cost_of_units());
    EXPECT_LE(check.parts_of_cut_units(), 2 * (c.num_slots - 1));
  } else {
    check_splits(c, list);
    if (c.options.num_kv_splits == 0) {
      EXPECT_LE(check.parts_of_cut_units(), 4 * c.num_slots);
    }
  }
  expect_within(size_of_work(list), bound_work(c.shape, c.options, c.config, c.num_slots));
}

TEST(WorkListTest, PropertiesHoldForRandomBatches) {
  for (int row = 0; row < kNumStage1Configs; ++row) {
    Random random(100 + static_cast<uint64_t>(row));
    for (int i = 0; i < 100 && !testing::Test::HasFailure(); ++i) {
      check_case(random_case(&random, kStage1Configs[row]));
    }
  }
}

TEST(WorkListTest, SequencesWithoutKvOrQueries) {
  for (const Stage1Config& config : kStage1Configs) {
    Case c;
    c.config = config;
    c.num_slots = 304;
    c.options.schedule = config.schedule;
    for (int32_t kv_len : {0, 1, 3, 0, 4096, 17, 0, 64}) c.batch.add(4, kv_len);
    c.batch.add(0, 500);
    c.batch.add(0, 0);
    c.shape = shape_of(c.batch, config, 16);
    check_case(c);
    Case none;
    none.config = config;
    none.batch.add(0, 100);
    none.shape = shape_of(none.batch, config, 16);
    EXPECT_TRUE(none.build().items.empty());
    EXPECT_EQ(none.build().num_partials, 1);
    EXPECT_EQ(layout_workspace(size_of_work(none.build())).total_bytes, 0u);
  }
}

Case uniform_case(const Stage1Config& config, int32_t batch_size, int32_t num_heads,
                  int32_t num_queries, int32_t kv_len, int num_slots) {
  Case c;
  c.config = config;
  c.num_slots = num_slots;
  c.options.schedule = config.schedule;
  for (int32_t b = 0; b < batch_size; ++b) c.batch.add(num_queries, kv_len);
  c.shape = shape_of(c.batch, config, num_heads);
  return c;
}

const Stage1Config& first_config(Schedule schedule, int tile_rows) {
  for (const Stage1Config& config : kStage1Configs) {
    if (config.schedule == schedule && config.tile_rows == tile_rows) return config;
  }
  ADD_FAILURE() << "no such row";
  return kStage1Configs[0];
}

// One unit for each slot: cutting any of them would only cost.
TEST(WorkListTest, EqualUnitsThatFillTheSlotsAreNotCut) {
  const Stage1Config& config = first_config(Schedule::kPersistent, 16);
  for (int32_t rounds : {1, 2, 3}) {
    const Case c = uniform_case(config, 304 * rounds, 16, 1, 8192, 304);
    const WorkList list = c.build();
    EXPECT_EQ(list.reduce_items.size(), 0u);
    EXPECT_EQ(list.num_workgroups(), 304);
    EXPECT_EQ(list.items.size(), 304u * static_cast<size_t>(rounds));
  }
}

TEST(WorkListTest, OneSequenceSpreadsOverTheDevice) {
  for (Schedule schedule : {Schedule::kPersistent, Schedule::kSplitKv}) {
    const Stage1Config& config = first_config(schedule, 16);
    const Case large = uniform_case(config, 1, 16, 1, 65536, 304);
    EXPECT_GE(large.build().num_workgroups(), 200);
    const Case small = uniform_case(config, 1, 16, 1, 8192, 304);
    EXPECT_GE(small.build().num_workgroups(), 64);
    // A single tile is not worth two workgroups.
    const Case tiny = uniform_case(config, 1, 16, 1, config.tile_kv, 304);
    EXPECT_EQ(tiny.build().num_workgroups(), 1);
  }
}

// A part shorter than what starting it costs appears only where balance needs it.
TEST(WorkListTest, ShortPartsAreRare) {
  const Stage1Config& config = first_config(Schedule::kPersistent, 16);
  Random random(5);
  int64_t short_parts = 0;
  int64_t parts = 0;
  for (int i = 0; i < 200; ++i) {
    Case c;
    c.config = config;
    c.num_slots = 304;
    for (int b = 0; b < 64; ++b) c.batch.add(1, random.in(1000, 20000));
    c.shape = shape_of(c.batch, config, 16);
    for (const WorkItem& item : c.build().items) {
      parts += 1;
      short_parts += item.partial_row >= 0 && num_tiles(c, item) < item_overhead_tiles(config);
    }
  }
  EXPECT_LT(short_parts * 1000, parts);  // one in 80 without the rule
}

TEST(WorkListTest, CallersSplitsAreTakenAsGiven) {
  const Stage1Config& config = first_config(Schedule::kSplitKv, 32);
  for (int32_t splits : {1, 2, 7, 256}) {
    Case c = uniform_case(config, 3, 32, 1, config.tile_kv * 20 + 1, 304);
    c.options.num_kv_splits = splits;
    const WorkList list = c.build();
    EXPECT_EQ(list.num_partials, std::min(splits, 21));
    EXPECT_EQ(list.items.size(), 3u * static_cast<size_t>(std::min(splits, 21)));
    EXPECT_EQ(list.reduce_items.size(), splits == 1 ? 0u : 3u);
  }
}

// A window far into a long sequence: the list is as long as the window, not as the sequence.
TEST(WorkListTest, OnlyTheWindowIsWorkedOn) {
  for (Schedule schedule : {Schedule::kPersistent, Schedule::kSplitKv}) {
    const Stage1Config& config = first_config(schedule, 16);
    Case c = uniform_case(config, 3, 16, 1, 100000, 304);
    c.options.sliding_window = 100;
    check_case(c);
    int32_t tokens = 0;
    for (const WorkItem& item : c.build().items) tokens += item.kv_end - item.kv_begin;
    EXPECT_EQ(tokens, 300);
  }
}

// With topk, a query token is a sequence: a tile never holds rows of two, and causal is not asked.
TEST(WorkListTest, SparseUnitsAreQueryTokens) {
  const Stage1Config& config = first_config(Schedule::kSplitKv, 16);
  Case c = uniform_case(config, 2, 3, 5, 0, 304);
  c.shape.topk = 70;
  c.options.num_kv_splits = 2;
  const WorkList list = c.build();
  ASSERT_EQ(list.items.size(), 20u);
  for (int32_t i = 0; i < 20; ++i) {
    const WorkItem& item = list.items[static_cast<size_t>(i)];
    EXPECT_EQ(item.batch, i / 2);
    EXPECT_EQ(item.row_begin, 0);
    EXPECT_EQ(item.row_end, 3);
    EXPECT_EQ(item.kv_begin, i % 2 == 0 ? 0 : 32);
    EXPECT_EQ(item.kv_end, i % 2 == 0 ? 32 : 70);
  }
}

TEST(ChooseNumSplitsTest, FillsWholeRounds) {
  const int32_t overhead = item_overhead_tiles(kStage1Configs[0]);
  // As many units as slots, or a multiple: nothing to gain.
  EXPECT_EQ(choose_num_splits(304, 304 * 256, 256, 304, overhead), 1);
  EXPECT_EQ(choose_num_splits(608, 608 * 256, 256, 304, overhead), 1);
  // Half a round.
  EXPECT_EQ(choose_num_splits(152, 152 * 256, 256, 304, overhead), 2);
  // Three parts would take a second round that is nearly empty.
  EXPECT_EQ(choose_num_splits(128, 128 * 256, 256, 304, overhead), 2);
  EXPECT_EQ(choose_num_splits(1, 1, 1, 304, overhead), 1);
  EXPECT_EQ(choose_num_splits(1, 0, 0, 304, overhead), 1);
  for (int32_t tiles : {1, 2, 100, 1 << 20}) {
    const int32_t splits = choose_num_splits(1, tiles, tiles, 1000, overhead);
    EXPECT_GE(splits, 1);
    EXPECT_LE(splits, kMaxKvSplits);
  }
}

TEST(FoldTest, RowsAndBack) {
  for (int32_t num_heads : {1, 3, 16, 48, 512}) {
    for (int32_t row = 0; row < 5 * num_heads; ++row) {
      const QueryHead place = unfold_row(row, num_heads);
      EXPECT_LT(place.head, num_heads);
      EXPECT_EQ(fold_rows(place, num_heads), row);
    }
  }
  EXPECT_EQ(num_row_tiles(0, 16), 0);
  EXPECT_EQ(num_row_tiles(16, 16), 1);
  EXPECT_EQ(num_row_tiles(17, 16), 2);
  const std::array<int64_t, 3> expected = {7, 48, 512};
  EXPECT_EQ(unfold_shape(7, 48, 512), expected);
}

TEST(FoldTest, KvLength) {
  EXPECT_EQ(kv_length(0, 64, -5), 0);
  EXPECT_EQ(kv_length(3, 64, 1), 129);
  EXPECT_EQ(kv_length(INT32_MAX, 4096, 4096), int64_t{INT32_MAX} * 4096);
}

TEST(FoldTest, CausalLimit) {
  const auto sees = [](int32_t kv_len, int32_t num_queries, int32_t query, bool causal) {
    const KvRange range = visible_kv(whole_kv(kv_len), num_queries, query, causal, INT32_MAX);
    return std::pair(range.begin, range.end);
  };
  // kv_len 3, 2 queries: the last sees all, the first all but one.
  EXPECT_EQ(sees(3, 2, 0, true), std::pair(0, 2));
  EXPECT_EQ(sees(3, 2, 1, true), std::pair(0, 3));
  EXPECT_EQ(sees(1, 4, 2, true), std::pair(0, 0));
  EXPECT_EQ(sees(1, 4, 3, true), std::pair(0, 1));
  EXPECT_EQ(sees(3, 2, 0, false), std::pair(0, 3));
  EXPECT_EQ(sees(kMaxKvLen, 1024, 1023, true), std::pair(0, kMaxKvLen));
}

// One rule of the definition after the other, for every token of every small sequence.
bool sees_token(int32_t position, int32_t global_len, int32_t num_queries, int32_t query,
                bool causal, int32_t window) {
  const int32_t own_position = global_len - num_queries + query;
  if (position >= global_len) return false;
  if (causal && position > own_position) return false;
  return position >= int64_t{own_position} - window + 1;
}

// Global positions of the local tokens, against which a range is checked.
void check_visible(const std::vector<int32_t>& positions, const KvPlacement& kv) {
  for (int32_t num_queries : {1, 2, 5, 14}) {
    for (int32_t window : {1, 2, 3, 7, 100, INT32_MAX}) {
      for (bool causal : {true, false}) {
        for (int32_t query = 0; query < num_queries; ++query) {
          const KvRange seen = visible_kv(kv, num_queries, query, causal, window);
          ASSERT_LE(0, seen.begin);
          ASSERT_LE(seen.begin, seen.end);
          ASSERT_LE(seen.end, kv.local_len);
          for (int32_t p = 0; p < kv.local_len; ++p) {
            ASSERT_EQ(p >= seen.begin && p < seen.end,
                      sees_token(positions[static_cast<size_t>(p)], kv.global_len, num_queries,
                                 query, causal, window))
                << "local " << p << " of " << kv.local_len << ", global " << kv.global_len
                << ", first " << kv.first << ", stride " << kv.stride << ", query " << query
                << " of " << num_queries << ", window " << window << ", causal " << causal;
          }
        }
      }
    }
  }
}

TEST(FoldTest, VisibleRangesOfRoundRobinShards) {
  for (int32_t world_size : {1, 2, 3, 8, 20}) {
    for (int32_t global_len = 0; global_len <= 17; ++global_len) {
      for (int32_t rank = 0; rank < world_size; ++rank) {
        std::vector<int32_t> positions;
        for (int32_t p = 0; p < global_len; ++p) {
          if (p % world_size == rank) positions.push_back(p);
        }
        const auto local_len = static_cast<int32_t>(positions.size());
        ASSERT_EQ(round_robin_len(global_len, rank, world_size), local_len);
        ASSERT_NO_FATAL_FAILURE(
            check_visible(positions, {local_len, global_len, rank, world_size}));
      }
    }
  }
}

TEST(FoldTest, VisibleRangesOfContiguousShards) {
  for (int32_t global_len = 0; global_len <= 13; ++global_len) {
    for (int32_t begin = 0; begin <= global_len; ++begin) {
      std::vector<int32_t> positions;
      for (int32_t end = begin; end <= global_len; ++end) {
        const auto local_len = static_cast<int32_t>(positions.size());
        ASSERT_NO_FATAL_FAILURE(check_visible(positions, {local_len, global_len, begin, 1}));
        positions.push_back(end);
      }
    }
  }
}

// What the work list relies on: the first and the last query of a tile bound what all of it sees.
TEST(FoldTest, NeighboursLeaveNoGap) {
  for (int32_t stride : {1, 2, 3, 8}) {
    for (int32_t window : {1, 2, 5, INT32_MAX}) {
      for (int32_t global_len = 0; global_len < 20; ++global_len) {
        const KvPlacement kv = {round_robin_len(global_len, 1 % stride, stride), global_len,
                                1 % stride, stride};
        constexpr int32_t kQueries = 8;
        std::vector<bool> seen(static_cast<size_t>(kv.local_len));
        for (int32_t query = 2; query < kQueries; ++query) {
          const KvRange row = visible_kv(kv, kQueries, query, true, window);
          for (int32_t p = row.begin; p < row.end; ++p) seen[static_cast<size_t>(p)] = true;
        }
        const int32_t begin = visible_kv(kv, kQueries, 2, true, window).begin;
        const int32_t end = visible_kv(kv, kQueries, kQueries - 1, true, window).end;
        for (int32_t p = 0; p < kv.local_len; ++p) {
          ASSERT_EQ(seen[static_cast<size_t>(p)], p >= begin && p < end);
        }
      }
    }
  }
}

// The formula of params.h in 32 bits, as a kernel computes it.
uint32_t divide(uint32_t n, const FastDivisor& d) {
  const auto high = static_cast<uint32_t>((uint64_t{n} * d.multiplier) >> 32);
  return (high + n) >> d.shift;
}

TEST(FastDivisorTest, EqualsDivision) {
  Random random(11);
  std::vector<uint32_t> divisors;
  for (uint32_t d = 1; d <= 4096; ++d) divisors.push_back(d);
  for (uint32_t d : {65535u, 65536u, 65537u, 0x3fffffffu, 0x40000000u, 0x7fffffffu}) {
    divisors.push_back(d);
  }
  constexpr uint32_t kLast = 0x7fffffffu;
  for (uint32_t d : divisors) {
    const FastDivisor fast = make_fast_divisor(d);
    ASSERT_EQ(fast.divisor, d);
    const auto check = [&](uint32_t n) { ASSERT_EQ(divide(n, fast), n / d) << n << " / " << d; };
    std::vector<uint32_t> values = {0, 1, kLast - 1, kLast};
    for (uint32_t quotient : {1u, 2u, 3u, 1000u, kLast / d - 1, kLast / d}) {
      for (uint32_t nearby : {0u, 1u, 2u}) {
        values.push_back(std::min<uint32_t>(quotient * d + nearby - 1, kLast));
      }
    }
    for (int i = 0; i < 200; ++i) values.push_back(static_cast<uint32_t>(random.in(0, kLast)));
    for (uint32_t n : values) {
      ASSERT_NO_FATAL_FAILURE(check(n));
    }
  }
}

// ---- plans ----

constexpr DeviceInfo kMi300x = {Arch::kGfx942, 304, 64 * 1024};

MlaDecodePlan build_plan(const Case& c, const DeviceInfo& device = kMi300x) {
  MlaDecodePlan plan;
  const Status status = mla_decode_plan(c.shape, c.options, device, c.batch.lengths(), &plan);
  EXPECT_TRUE(status.ok()) << status.text() << "; " << describe(c);
  return plan;
}

size_t announced_bytes(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                       const DeviceInfo& device = kMi300x) {
  size_t bytes = 0;
  const Status status = mla_decode_workspace_size(shape, options, device, &bytes);
  EXPECT_TRUE(status.ok()) << status.text();
  return bytes;
}

TEST(PlanTest, WorkspaceIsNeverMoreThanAnnounced) {
  Random random(17);
  for (int i = 0; i < 1500 && !testing::Test::HasFailure(); ++i) {
    const Case c = random_case(&random, kStage1Configs[random.in(0, kNumStage1Configs - 1)]);
    DeviceInfo device = kMi300x;
    device.num_compute_units = c.num_slots;
    const MlaDecodePlan plan = build_plan(c, device);
    EXPECT_LE(plan.workspace_bytes(), announced_bytes(c.shape, c.options, device)) << describe(c);
    // A bound made for more serves as well.
    MlaDecodeShape larger = c.shape;
    larger.max_seqlen_q = std::min(kMaxSeqlenQ, larger.max_seqlen_q + random.in(0, 60));
    larger.batch_size += random.in(0, 100);
    larger.total_q += random.in(0, 100) * int64_t{random.in(0, 1)};
    larger.total_q = std::min(larger.total_q, int64_t{larger.batch_size} * larger.max_seqlen_q);
    EXPECT_LE(plan.workspace_bytes(), announced_bytes(larger, c.options, device)) << describe(c);
  }
}

TEST(PlanTest, WorkspaceOfALargeBatchStaysSmall) {
  MlaDecodeShape shape;
  shape.num_heads = 32;
  shape.batch_size = 512;
  shape.max_seqlen_q = 4;
  shape.total_q = 2048;
  for (Schedule schedule : {Schedule::kAuto, Schedule::kPersistent, Schedule::kSplitKv}) {
    MlaDecodeOptions options;
    options.schedule = schedule;
    const size_t bytes = announced_bytes(shape, options);
    EXPECT_LT(bytes, size_t{512} << 20);
    RecordProperty("bytes_schedule_" + std::to_string(static_cast<int>(schedule)),
                   std::to_string(bytes));
    options.return_partials = true;  // in the caller's memory
    EXPECT_LT(announced_bytes(shape, options), size_t{1} << 20);
  }
}

TEST(PlanTest, ListIsTheHeadOfTheWorkspaceByteForByte) {
  Random random(23);
  for (int i = 0; i < 50; ++i) {
    Case c = random_case(&random, kStage1Configs[random.in(0, kNumStage1Configs - 1)]);
    const MlaDecodePlan plan = build_plan(c);
    const MlaDecodePlan::Impl& impl = *plan.impl();
    c.config = impl.config();
    c.num_slots = kMi300x.num_compute_units;
    const WorkList list = c.build();
    ASSERT_EQ(impl.list.size(), impl.layout.list_bytes);
    const auto expect_at = [&](size_t offset, const void* data, size_t bytes) {
      EXPECT_EQ(offset % kWorkspaceAlignment, 0u);
      ASSERT_LE(offset + bytes, impl.list.size());
      if (bytes > 0) {
        EXPECT_EQ(std::memcmp(impl.list.data() + offset, data, bytes), 0);
      }
    };
    expect_at(impl.layout.items, list.items.data(), list.items.size() * sizeof(WorkItem));
    expect_at(impl.layout.slot_item_begin, list.slot_item_begin.data(),
              list.slot_item_begin.size() * sizeof(int32_t));
    expect_at(impl.layout.reduce_items, list.reduce_items.data(),
              list.reduce_items.size() * sizeof(ReduceItem));
    EXPECT_EQ(impl.num_workgroups, list.num_workgroups());
    EXPECT_EQ(impl.num_items, static_cast<int>(list.items.size()));
    EXPECT_EQ(impl.num_reduce_items, static_cast<int>(list.reduce_items.size()));
    EXPECT_EQ(plan.num_partials(), list.num_partials);
    EXPECT_GE(impl.layout.partial_lse,
              impl.layout.partial_o + static_cast<size_t>(list.partial_rows) * kVDim * 4);
    EXPECT_GE(plan.workspace_bytes(),
              impl.layout.partial_lse + static_cast<size_t>(list.partial_rows) * 4);
  }
}

TEST(PlanTest, SameInputGivesTheSamePlan) {
  Random random(29);
  for (int i = 0; i < 50; ++i) {
    const Case c = random_case(&random, kStage1Configs[random.in(0, kNumStage1Configs - 1)]);
    const MlaDecodePlan a = build_plan(c);
    Case copy = c;
    for (int32_t b = 0; b < c.batch.size(); ++b) {
      // What is not read does not count.
      if (c.batch.kv_len(b) == 0) copy.batch.kv_last_page_lens[Batch::at(b)] = 1234567;
      if (c.is_sparse()) copy.batch.kv_indptr[Batch::at(b)] = -b;
    }
    const MlaDecodePlan b = build_plan(copy);
    EXPECT_EQ(a.fingerprint(), b.fingerprint());
    EXPECT_EQ(a.description(), b.description());
    EXPECT_EQ(a.impl()->list, b.impl()->list);
  }
}

struct Input {
  Case c;
  DeviceInfo device = kMi300x;
};

void contiguous(Input* i, const std::vector<int32_t>& global_lens,
                const std::vector<int32_t>& shard_begins) {
  i->c.options.kv_shard = KvShard::kContiguous;
  i->c.batch.kv_global_lens = global_lens;
  i->c.batch.kv_shard_begins = shard_begins;
}

void round_robin(Input* i, int32_t rank, int32_t world_size,
                 const std::vector<int32_t>& global_lens) {
  i->c.options.kv_shard = KvShard::kRoundRobin;
  i->c.options.cp_rank = rank;
  i->c.options.cp_world_size = world_size;
  i->c.batch.kv_global_lens = global_lens;
}

// Each entry changes one thing that a plan depends on.
TEST(PlanTest, AnyOtherInputGivesAnotherFingerprint) {
  Input base;
  base.c.batch.page_size = 16;
  base.c.batch.add(2, 100);
  base.c.batch.add(1, 50);
  base.c.shape = shape_of(base.c.batch, kStage1Configs[0], 16);
  base.c.shape.max_seqlen_q = 3;
  base.c.options.schedule = Schedule::kSplitKv;
  base.c.options.num_kv_splits = 2;

  const std::vector<std::pair<const char*, std::function<void(Input*)>>> changes = {
      {"nothing", [](Input*) {}},
      {"types", [](Input* i) { i->c.shape.q_type = i->c.shape.kv_type = DataType::kF16; }},
      {"kv_type", [](Input* i) { i->c.shape.kv_type = DataType::kFp8E4m3Fn; }},
      {"other fp8", [](Input* i) { i->c.shape.kv_type = DataType::kFp8E4m3Fnuz; }},
      {"kv_layout",
       [](Input* i) {
         i->c.shape.kv_type = DataType::kFp8E4m3Fn;
         i->c.shape.kv_layout = KvLayout::kPacked;
       }},
      {"topk", [](Input* i) { i->c.shape.topk = 100; }},
      {"other topk", [](Input* i) { i->c.shape.topk = 101; }},
      {"sliding_window", [](Input* i) { i->c.options.sliding_window = 1000; }},
      {"lse_base2", [](Input* i) { i->c.options.lse_base2 = true; }},
      {"contiguous",
       [](Input* i) {
         contiguous(i, {100, 50}, {0, 0});
       }},
      {"contiguous, more in all",
       [](Input* i) {
         contiguous(i, {100, 51}, {0, 0});
       }},
      {"contiguous, from another begin",
       [](Input* i) {
         contiguous(i, {100, 51}, {0, 1});
       }},
      {"round robin",
       [](Input* i) {
         round_robin(i, 0, 2, {200, 100});
       }},
      {"round robin, more in all",
       [](Input* i) {
         round_robin(i, 0, 2, {200, 99});
       }},
      {"round robin, other rank",
       [](Input* i) {
         round_robin(i, 1, 2, {200, 100});
       }},
      {"round robin, more ranks",
       [](Input* i) {
         round_robin(i, 1, 3, {299, 149});
       }},
      {"o_type", [](Input* i) { i->c.shape.o_type = DataType::kF32; }},
      {"num_heads", [](Input* i) { i->c.shape.num_heads = 17; }},
      {"page_size", [](Input* i) { i->c.shape.page_size = 17; }},
      {"max_seqlen_q", [](Input* i) { i->c.shape.max_seqlen_q = 4; }},
      {"schedule",
       [](Input* i) {
         i->c.options.schedule = Schedule::kPersistent;
         i->c.options.num_kv_splits = 0;
       }},
      {"schedule auto",
       [](Input* i) {
         i->c.options.schedule = Schedule::kAuto;
         i->c.options.num_kv_splits = 0;
       }},
      {"num_kv_splits", [](Input* i) { i->c.options.num_kv_splits = 3; }},
      {"chosen splits", [](Input* i) { i->c.options.num_kv_splits = 0; }},
      {"causal", [](Input* i) { i->c.options.causal = false; }},
      {"return_partials", [](Input* i) { i->c.options.return_partials = true; }},
      {"arch", [](Input* i) { i->device.arch = Arch::kGfx90a; }},
      {"compute units", [](Input* i) { i->device.num_compute_units = 303; }},
      {"lds", [](Input* i) { i->device.lds_bytes -= 1; }},
      {"queries",
       [](Input* i) {
         i->c.batch.qo_indptr = {0, 1, 3};
       }},
      {"total_q",
       [](Input* i) {
         i->c.batch.qo_indptr = {0, 2, 4};
         i->c.shape.total_q = 4;
       }},
      {"pages",
       [](Input* i) {
         i->c.batch.kv_indptr = {0, 6, 11};
       }},
      {"last page", [](Input* i) { i->c.batch.kv_last_page_lens[1] = 1; }},
      {"one more sequence",
       [](Input* i) {
         i->c.batch.add(0, 0);
         i->c.shape.batch_size = 3;
       }},
  };
  std::vector<uint64_t> seen;
  for (const auto& [name, change] : changes) {
    Input input = base;
    change(&input);
    const uint64_t fingerprint = build_plan(input.c, input.device).fingerprint();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), fingerprint), 0) << name;
    seen.push_back(fingerprint);
  }
}

// Fields that cannot change alone in a request that makes sense.
TEST(PlanTest, EveryFieldOfAShardCounts) {
  Input base;
  base.c.batch.add(1, 10);
  base.c.shape = shape_of(base.c.batch, kStage1Configs[0], 16);
  round_robin(&base, 1, 3, {30});
  const MlaDecodePlan plan = build_plan(base.c);
  const std::pair<const char*, std::function<void(MlaDecodePlan::Impl*)>> changes[] = {
      {"nothing", [](MlaDecodePlan::Impl*) {}},
      {"kv_shard", [](MlaDecodePlan::Impl* p) { p->options.kv_shard = KvShard::kContiguous; }},
      {"cp_world_size", [](MlaDecodePlan::Impl* p) { p->options.cp_world_size = 4; }},
      {"cp_rank", [](MlaDecodePlan::Impl* p) { p->options.cp_rank = 2; }},
      {"kv_global_lens", [](MlaDecodePlan::Impl* p) { p->kv_global_lens[0] = 31; }},
      {"kv_shard_begins", [](MlaDecodePlan::Impl* p) { p->kv_shard_begins = {0}; }},
      {"kv_layout", [](MlaDecodePlan::Impl* p) { p->shape.kv_layout = KvLayout::kPacked; }},
  };
  std::vector<uint64_t> seen;
  for (const auto& [name, change] : changes) {
    MlaDecodePlan::Impl impl = *plan.impl();
    change(&impl);
    const uint64_t fingerprint = fingerprint_of(impl);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), fingerprint), 0) << name;
    seen.push_back(fingerprint);
  }
  EXPECT_EQ(seen[0], plan.fingerprint());
}

TEST(PlanTest, DescriptionNamesWhatIsSpecial) {
  Input i;
  i.c.batch.add(1, 10);
  i.c.shape = shape_of(i.c.batch, kStage1Configs[0], 16);
  const auto text = [&i] { return build_plan(i.c).description(); };
  for (const char* word : {"packed", "top ", "window", "rank", "shards"}) {
    EXPECT_EQ(text().find(word), std::string::npos) << text();
  }
  i.c.options.sliding_window = 77;
  EXPECT_NE(text().find("window of 77 tokens"), std::string::npos) << text();
  round_robin(&i, 1, 3, {30});
  EXPECT_NE(text().find("rank 1 of 3"), std::string::npos) << text();
  i.c.options.cp_world_size = 1;
  i.c.options.cp_rank = 0;
  contiguous(&i, {30}, {5});
  EXPECT_NE(text().find("contiguous shards"), std::string::npos) << text();
  i.c.options = {};
  i.c.shape.kv_type = DataType::kFp8E4m3Fnuz;
  i.c.shape.kv_layout = KvLayout::kPacked;
  i.c.shape.topk = 2048;
  EXPECT_NE(text().find("bf16/fp8_e4m3fnuz packed"), std::string::npos) << text();
  EXPECT_NE(text().find("top 2048 tokens"), std::string::npos) << text();
}

TEST(PlanTest, EmptyBatchesAreANoOp) {
  for (Schedule schedule : {Schedule::kAuto, Schedule::kPersistent, Schedule::kSplitKv}) {
    Case c;
    c.shape = shape_of(c.batch, kStage1Configs[0], 16);
    c.options.schedule = schedule;
    MlaDecodeLengths none;
    MlaDecodePlan plan;
    ASSERT_TRUE(mla_decode_plan(c.shape, c.options, kMi300x, none, &plan).ok());
    EXPECT_EQ(plan.workspace_bytes(), 0u);
    EXPECT_EQ(plan.num_partials(), 1);
    EXPECT_NE(plan.schedule(), Schedule::kAuto);
    EXPECT_TRUE(mla_decode_upload_plan(plan, Workspace(), nullptr).ok());
    EXPECT_TRUE(mla_decode_plan(c.shape, c.options, kMi300x, c.batch.lengths(), &plan).ok());
    c.batch.add(0, 100);
    c.shape.batch_size = 1;
    EXPECT_EQ(build_plan(c).workspace_bytes(), 0u);
  }
}

TEST(PlanTest, DefaultConstructedPlanIsEmpty) {
  const MlaDecodePlan plan;
  EXPECT_EQ(plan.workspace_bytes(), 0u);
  EXPECT_EQ(plan.num_partials(), 0);
  EXPECT_EQ(plan.fingerprint(), 0u);
  EXPECT_EQ(plan.description(), "empty");
}

// Ragged batches: the longest slot against the mean, in numbers rather than by the guarantee alone.
TEST(PlanTest, RaggedBatchesAreBalanced) {
  const Stage1Config& config = first_config(Schedule::kPersistent, 16);
  Case falling;
  for (int32_t k = 256; k >= 2; k /= 2) falling.batch.add(1, k * 1024);
  Case ramp;
  for (int32_t b = 0; b < 512; ++b) ramp.batch.add(1, 1 + b * 4);
  for (Case* c : {&falling, &ramp}) {
    c->config = config;
    c->num_slots = 304;
    c->shape = shape_of(c->batch, config, 16);
    check_case(*c);
    const WorkList list = c->build();
    int64_t most = 0;
    int64_t total = 0;
    for (size_t slot = 0; slot + 1 < list.slot_item_begin.size(); ++slot) {
      int64_t cost = 0;
      for (int32_t i = list.slot_item_begin[slot]; i < list.slot_item_begin[slot + 1]; ++i) {
        cost += num_tiles(*c, list.items[static_cast<size_t>(i)]) + item_overhead_tiles(config);
      }
      most = std::max(most, cost);
      total += cost;
    }
    EXPECT_GE(list.num_workgroups(), 290);
    EXPECT_LE(most, (total + 303) / 304 + item_overhead_tiles(config));
  }
}

}  // namespace
}  // namespace hipmla::internal
