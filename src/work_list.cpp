// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/work_list.h"

#include <algorithm>

#include "src/fold.h"
#include "src/select.h"

namespace hipmla::internal {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Split-KV without a caller's number cuts into at most this many rounds of workgroups. A second
// round lets 1.5 units per slot share evenly; a third would only add partials.
constexpr int kMaxRounds = 2;

// The merge of a row reads 2 KiB for each partial, one after the other: so many take about as long
// as a tile. An estimate; it keeps one short sequence from being cut into single tiles.
constexpr int kPartialsPerTile = 32;

struct Unit {
  int32_t batch;
  int32_t first_q;  // of the sequence, in the batch
  int32_t row_begin;
  int32_t row_end;
  KvRange kv;
  int32_t num_tiles;
};

struct Units {
  std::vector<Unit> list;
  int64_t total_tiles = 0;
  int32_t max_tiles = 0;
};

int64_t bound_units(const MlaDecodeShape& shape, const Stage1Config& config) {
  // Sequences that can have a query.
  const int64_t sequences =
      shape.topk > 0 ? shape.total_q : std::min<int64_t>(shape.batch_size, shape.total_q);
  const int64_t per_sequence = num_row_tiles(rows_that_share_kv(shape), config.tile_rows);
  // Every sequence leaves at most tile_rows - 1 rows of its last tile unused.
  const int64_t by_rows =
      (shape.total_q * shape.num_heads + sequences * (config.tile_rows - 1)) / config.tile_rows;
  return std::min(sequences * per_sequence, by_rows);
}

// One sequence as units see it.
struct UnitSequence {
  int32_t batch;
  int32_t first_q;
  int32_t num_queries;
  KvPlacement kv;
};

// Calls visit(UnitSequence) in order.
template <typename Visit>
void for_each_sequence(const MlaDecodeLengths& lengths, const MlaDecodeShape& shape,
                       const MlaDecodeOptions& options, Visit&& visit) {
  if (shape.topk > 0) {
    for (int32_t t = 0; t < shape.total_q; ++t) visit(UnitSequence{t, t, 1, whole_kv(shape.topk)});
    return;
  }
  for (int32_t b = 0; b < lengths.batch_size; ++b) {
    const int32_t pages = lengths.kv_indptr[b + 1] - lengths.kv_indptr[b];
    const int32_t last_page_len = pages == 0 ? 0 : lengths.kv_last_page_lens[b];
    KvPlacement kv =
        whole_kv(static_cast<int32_t>(kv_length(pages, shape.page_size, last_page_len)));
    if (options.kv_shard != KvShard::kWhole) kv.global_len = lengths.kv_global_lens[b];
    if (options.kv_shard == KvShard::kContiguous) kv.first = lengths.kv_shard_begins[b];
    if (options.kv_shard == KvShard::kRoundRobin) {
      kv.first = options.cp_rank;
      kv.stride = options.cp_world_size;
    }
    visit(
        UnitSequence{b, lengths.qo_indptr[b], lengths.qo_indptr[b + 1] - lengths.qo_indptr[b], kv});
  }
}

Units list_units(const MlaDecodeLengths& lengths, const MlaDecodeShape& shape,
                 const MlaDecodeOptions& options, const Stage1Config& config) {
  const MaskRule mask = mask_rule(shape, options);
  Units units;
  units.list.reserve(static_cast<size_t>(bound_units(shape, config)));
  for_each_sequence(lengths, shape, options, [&](const UnitSequence& s) {
    const int32_t rows = rows_of_sequence(s.num_queries, shape.num_heads);
    for (int32_t row_begin = 0; row_begin < rows; row_begin += config.tile_rows) {
      const int32_t row_end = std::min(rows, row_begin + config.tile_rows);
      const auto visible = [&](int32_t row) {
        return visible_kv(s.kv, s.num_queries, unfold_row(row, shape.num_heads).query, mask.causal,
                          mask.window);
      };
      KvRange kv = {visible(row_begin).begin, visible(row_end - 1).end};
      if (kv.begin == kv.end) kv = {0, 0};
      const auto num_tiles = static_cast<int32_t>(ceil_div(kv.end - kv.begin, config.tile_kv));
      units.list.push_back({s.batch, s.first_q, row_begin, row_end, kv, num_tiles});
      units.total_tiles += num_tiles;
      units.max_tiles = std::max(units.max_tiles, num_tiles);
    }
  });
  return units;
}

// Turns parts of units, given in order, into items, partials and reduce items.
class ListWriter {
 public:
  ListWriter(WorkList* list, const MlaDecodeShape& shape, bool return_partials,
             const Stage1Config& config)
      : list_(list),
        num_heads_(shape.num_heads),
        caller_rows_(return_partials ? shape.total_q * shape.num_heads : 0),
        return_partials_(return_partials),
        tile_rows_(config.tile_rows),
        tile_kv_(config.tile_kv) {
    list_->partial_stride = return_partials_ ? caller_rows_ : tile_rows_;
  }

  // Appends the next part, KV tiles [tile_begin, tile_end) of `unit`.
  void add_part(const Unit& unit, int32_t tile_begin, int32_t tile_end) {
    if (tile_begin == 0) first_part_ = list_->items.size();
    const int32_t kv_begin = unit.kv.begin + tile_begin * tile_kv_;
    const int32_t kv_end =
        tile_end == unit.num_tiles ? unit.kv.end : unit.kv.begin + tile_end * tile_kv_;
    list_->items.push_back({unit.batch, unit.row_begin, unit.row_end, kv_begin, kv_end, 0, -1});
    if (tile_end == unit.num_tiles) finish_unit(unit);
  }

 private:
  // Gives the parts of a unit their partials, if it needs any.
  //
  //   compact layout   [partial tile, tile_rows]: parts of a unit are consecutive tiles
  //   caller's layout  [num_partials, total_q, num_heads]
  void finish_unit(const Unit& unit) {
    const auto num_parts = static_cast<int32_t>(list_->items.size() - first_part_);
    list_->num_partials = std::max(list_->num_partials, num_parts);
    if (num_parts == 1 && !return_partials_) return;
    int64_t first_row = list_->partial_rows;
    if (return_partials_) {
      first_row = int64_t{unit.first_q} * num_heads_ + unit.row_begin;
    } else {
      list_->partial_rows += int64_t{num_parts} * tile_rows_;
    }
    for (int32_t part = 0; part < num_parts; ++part) {
      list_->items[first_part_ + static_cast<size_t>(part)].partial_row =
          first_row + part * list_->partial_stride;
    }
    list_->reduce_items.push_back({unit.batch, unit.row_begin, unit.row_end, num_parts, first_row});
  }

  WorkList* list_;
  int32_t num_heads_;
  int64_t caller_rows_;
  bool return_partials_;
  int32_t tile_rows_;
  int32_t tile_kv_;
  size_t first_part_ = 0;
};

// How slots are filled. All in KV tiles.
struct Fill {
  int64_t capacity;  // cost that a slot may reach; at least overhead + min_part
  int64_t min_part;  // a cut leaves at least so much on both sides where it can
  int64_t overhead;  // of every part
};

// Lays the units along slots, each filled up to its capacity before the next is begun, and calls
// place(unit, tile_begin, tile_end, slot) for each part. Returns the slots used, or max_slots + 1
// as soon as they do not suffice.
//
// With min_part 1, every slot but the last does at least (capacity - overhead) of the cost of the
// uncut units: it is closed either by a cut that fills it (whose rest costs one overhead more), or
// when no more than an overhead is left. So max_slots * (capacity - overhead) >= that cost is
// enough.
template <typename Place>
int fill_slots(const std::vector<Unit>& units, const Fill& fill, int max_slots, Place&& place) {
  int slot = 0;
  int64_t used = 0;
  for (const Unit& unit : units) {
    int64_t begin = 0;
    for (;;) {
      const int64_t room = fill.capacity - used - fill.overhead;
      const int64_t rest = unit.num_tiles - begin;
      if (rest <= room) {
        place(unit, static_cast<int32_t>(begin), unit.num_tiles, slot);
        used += fill.overhead + rest;
        break;
      }
      int64_t part = std::min(room, rest - fill.min_part);
      if (part < fill.min_part) part = used == 0 ? (rest + 1) / 2 : 0;  // an empty slot takes some
      if (part > 0) {
        place(unit, static_cast<int32_t>(begin), static_cast<int32_t>(begin + part), slot);
        begin += part;
      }
      used = 0;
      if (++slot == max_slots) return max_slots + 1;
    }
  }
  return slot + 1;
}

// The fill with the smallest capacity that the slots can hold; of two with the same, the one with
// longer parts.
Fill balance(const Units& units, int num_slots, int64_t overhead) {
  const auto num_units = static_cast<int64_t>(units.list.size());
  const int64_t mean = ceil_div(units.total_tiles + num_units * overhead, num_slots);
  const auto no_op = [](const Unit&, int32_t, int32_t, int) {};
  // Parts shorter than their own overhead are not worth a slot, so little work uses few slots.
  int64_t capacity = std::max(mean, 2 * overhead);
  for (;; ++capacity) {
    for (int64_t min_part : {overhead, int64_t{1}}) {
      const Fill fill{capacity, min_part, overhead};
      const bool is_sure = min_part == 1 && capacity >= mean + overhead;  // see fill_slots
      if (is_sure || fill_slots(units.list, fill, num_slots, no_op) <= num_slots) return fill;
    }
  }
}

void build_persistent(const Units& units, int num_slots, int64_t overhead, WorkList* list,
                      ListWriter* writer) {
  if (units.list.empty()) return;
  const Fill fill = balance(units, num_slots, overhead);
  list->items.reserve(units.list.size() + static_cast<size_t>(num_slots));
  list->slot_item_begin.reserve(static_cast<size_t>(num_slots) + 1);
  const auto place = [&](const Unit& unit, int32_t tile_begin, int32_t tile_end, int slot) {
    if (static_cast<size_t>(slot) == list->slot_item_begin.size()) {
      list->slot_item_begin.push_back(static_cast<int32_t>(list->items.size()));
    }
    writer->add_part(unit, tile_begin, tile_end);
  };
  fill_slots(units.list, fill, num_slots, place);
  list->slot_item_begin.push_back(static_cast<int32_t>(list->items.size()));
}

void build_split_kv(const Units& units, int32_t caller_splits, int num_slots, int32_t overhead,
                    WorkList* list, ListWriter* writer) {
  const auto num_units = static_cast<int64_t>(units.list.size());
  const int32_t chosen_splits =
      caller_splits > 0
          ? caller_splits
          : choose_num_splits(num_units, units.total_tiles, units.max_tiles, num_slots, overhead);
  list->items.reserve(units.list.size());
  for (const Unit& unit : units.list) {
    // A chosen number is for the longest; shorter units get parts of about the same length.
    const int64_t num_parts = caller_splits > 0 ? std::min(caller_splits, unit.num_tiles)
                                                : ceil_div(int64_t{unit.num_tiles} * chosen_splits,
                                                           std::max(1, units.max_tiles));
    if (num_parts <= 1) {
      writer->add_part(unit, 0, unit.num_tiles);
      continue;
    }
    for (int64_t part = 0; part < num_parts; ++part) {
      writer->add_part(unit, static_cast<int32_t>(unit.num_tiles * part / num_parts),
                       static_cast<int32_t>(unit.num_tiles * (part + 1) / num_parts));
    }
  }
}

}  // namespace

// Cost of each number: rounds of workgroups x cost of the longest part + what the merge reads.
int32_t choose_num_splits(int64_t num_units, int64_t total_tiles, int32_t max_tiles, int num_slots,
                          int32_t overhead_tiles) {
  int32_t best = 1;
  int64_t best_cost = INT64_MAX;
  for (int32_t splits = 1; splits <= std::min(max_tiles, kMaxKvSplits); ++splits) {
    // Units count by their length: one half as long as the longest gets half the parts. Rounding up
    // less than doubles the parts of a unit that is cut, so all of these together have at most
    // twice kMaxRounds * num_slots parts.
    const int64_t full_parts = ceil_div(total_tiles * splits, max_tiles);
    if (splits > 1 && full_parts > int64_t{kMaxRounds} * num_slots) break;
    const int64_t rounds = ceil_div(std::max(num_units, full_parts), num_slots);
    const int64_t cost =
        rounds * (overhead_tiles + ceil_div(max_tiles, splits)) * kPartialsPerTile +
        (splits > 1 ? splits : 0);
    if (cost < best_cost) {
      best_cost = cost;
      best = splits;
    }
  }
  return best;
}

WorkList build_work_list(const MlaDecodeLengths& lengths, const MlaDecodeShape& shape,
                         const MlaDecodeOptions& options, const Stage1Config& config,
                         int num_slots) {
  WorkList list;
  const Units units = list_units(lengths, shape, options, config);
  ListWriter writer(&list, shape, options.return_partials, config);
  const int32_t overhead = item_overhead_tiles(config);
  if (config.schedule == Schedule::kPersistent) {
    build_persistent(units, num_slots, overhead, &list, &writer);
  } else {
    build_split_kv(units, options.num_kv_splits, num_slots, overhead, &list, &writer);
  }
  return list;
}

WorkSize size_of_work(const WorkList& list) {
  return {static_cast<int64_t>(list.items.size()),
          static_cast<int64_t>(list.slot_item_begin.size()),
          static_cast<int64_t>(list.reduce_items.size()), list.partial_rows};
}

WorkSize bound_work(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                    const Stage1Config& config, int num_slots) {
  const int64_t units = bound_units(shape, config);
  if (units == 0) return WorkSize();
  int64_t parts_of_cut_units = 0;
  int64_t cut_units = 0;
  WorkSize size;
  if (config.schedule == Schedule::kPersistent) {
    cut_units = std::min<int64_t>(units, num_slots - 1);
    parts_of_cut_units = cut_units == 0 ? 0 : cut_units + num_slots - 1;
    size.num_items = units + num_slots - 1;
    size.num_slot_begins = std::min<int64_t>(size.num_items, num_slots) + 1;
  } else if (options.num_kv_splits > 0) {
    cut_units = options.num_kv_splits > 1 ? units : 0;
    parts_of_cut_units = cut_units * options.num_kv_splits;
    size.num_items = units * options.num_kv_splits;
  } else {
    cut_units = std::min(units, int64_t{kMaxRounds} * num_slots);
    parts_of_cut_units = std::min(units * kMaxKvSplits, int64_t{2} * kMaxRounds * num_slots);
    size.num_items = std::min(units * kMaxKvSplits, units + parts_of_cut_units);
  }
  size.num_reduce_items = options.return_partials ? units : cut_units;
  size.partial_rows = options.return_partials ? 0 : parts_of_cut_units * config.tile_rows;
  return size;
}

}  // namespace hipmla::internal
