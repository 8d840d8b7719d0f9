// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/fingerprint.h"

#include <vector>

namespace hipmla::internal {
namespace {

// FNV-1a over 64-bit words instead of bytes; a fold of the high half brings every bit to every bit.
class Hash {
 public:
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3u;
    value_ ^= value_ >> 32;
  }
  void add_list(const std::vector<int32_t>& list) {
    add(list.size());
    for (int32_t value : list) add(static_cast<uint32_t>(value));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace

uint64_t fingerprint_of(const MlaDecodePlan::Impl& plan) {
  const MlaDecodeShape& shape = plan.shape;
  const MlaDecodeOptions& options = plan.options;
  const Stage1Config& config = plan.config();
  const int64_t fields[] = {
      static_cast<int64_t>(shape.q_type),
      static_cast<int64_t>(shape.kv_type),
      static_cast<int64_t>(shape.o_type),
      static_cast<int64_t>(shape.kv_layout),
      shape.num_heads,
      shape.head_dim_qk,
      shape.head_dim_v,
      shape.page_size,
      shape.batch_size,
      shape.max_seqlen_q,
      shape.total_q,
      shape.topk,
      static_cast<int64_t>(options.schedule),
      options.num_kv_splits,
      options.causal,
      options.sliding_window,
      options.lse_base2,
      options.return_partials,
      static_cast<int64_t>(options.kv_shard),
      options.cp_world_size,
      options.cp_rank,
      static_cast<int64_t>(plan.device.arch),
      plan.device.num_compute_units,
      plan.device.lds_bytes,
      static_cast<int64_t>(config.schedule),
      config.tile_rows,
      config.tile_kv,
      config.num_waves,
  };
  Hash hash;
  for (int64_t field : fields) hash.add(static_cast<uint64_t>(field));
  hash.add_list(plan.qo_indptr);
  hash.add_list(plan.kv_indptr);
  hash.add_list(plan.kv_last_page_lens);
  hash.add_list(plan.kv_global_lens);
  hash.add_list(plan.kv_shard_begins);
  return hash.value();
}

}  // namespace hipmla::internal
