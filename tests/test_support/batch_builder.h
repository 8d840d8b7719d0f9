// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Makes the inputs of a decode step: lengths, a shuffled page table over a larger pool, and values
// whose attention weights are worth testing. Everything follows from the spec; equal specs give
// equal batches.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "hipmla/types.h"
#include "tests/mla_reference.h"

namespace hipmla::test {

// How the scores of a sequence run over its positions, on top of noise.
enum class ScoreTrend {
  kMixed,       // one of the others for each sequence
  kFlat,        // noise only; rows differ in how peaked they are
  kSlowGrowth,  // by 60 in all, in steps that are too small, tile by tile, to make a kernel raise
                // its maximum
  kJumps,       // steps of up to 40 up and down, with tokens of the highest level so far in between
  kSink,        // the first token and each of the newest weigh as much as all others
  kTail,  // each of the newest tokens, where the causal limit is, weighs as much as all others
};
constexpr int kNumScoreTrends = 6;

// Where the lists of a sparse batch have entries that name no token.
enum class TopkHoles {
  kMixed,  // one of the others for each query
  kNone,
  kSome,   // one in three
  kFirst,  // the first 40
  kLast,   // all but the first few
  kAll,
};
constexpr int kNumTopkHoles = 6;

// What a cached token holds instead of its values.
enum class Poison {
  kNan,            // everywhere
  kInfinity,       // in one of the 512 latent dims
  kMinusInfinity,  // likewise
};
constexpr int kNumPoisons = 3;

// Where a type of the cache has no infinity, its NaN stands for it.
struct PoisonedToken {
  int32_t sequence;
  int32_t position;  // in the whole sequence; nothing happens if another shard holds it
  Poison what;
};

struct BatchSpec {
  DataType q_type = DataType::kBf16;
  DataType kv_type = DataType::kBf16;
  DataType o_type = DataType::kBf16;
  KvLayout kv_layout = KvLayout::kDense;
  int32_t num_heads = 16;
  int32_t page_size = 1;
  int32_t max_seqlen_q = 0;      // 0: the largest of q_lens
  std::vector<int32_t> q_lens;   // of each sequence
  std::vector<int32_t> kv_lens;  // of each whole sequence, over all shards
  bool causal = true;
  float softmax_scale = 1.0f / 24.0f;
  ScoreTrend trend = ScoreTrend::kMixed;
  bool padded = false;        // q, kv, o, lse and token scales get strides larger than dense
  int64_t pool_tokens = 0;    // more than this: sequences share pages; 0: every page is listed once
  bool shuffle_pages = true;  // else physical pages rise along the batch
  // What KV slots that no sequence uses hold, byte by byte; none: NaN in the cache's type.
  std::optional<uint16_t> unused;

  // Factors of fp8 tensors: host * device, the latter only if not 0.
  float q_scale_host = 1.0f;
  float q_scale_device = 0.0f;
  float kv_scale_host = 1.0f;
  float kv_scale_device = 0.0f;
  bool token_scales = false;

  float logits_soft_cap = 0.0f;
  bool sink = false;
  int32_t sliding_window = 0;
  bool lse_base2 = false;

  // Rank cp_rank of cp_world_size holds: kRoundRobin, every cp_world_size-th token; kContiguous,
  // one of cp_world_size parts of nearly the same size.
  KvShard kv_shard = KvShard::kWhole;
  int32_t cp_world_size = 1;
  int32_t cp_rank = 0;

  std::vector<PoisonedToken> poisoned;

  int32_t topk = 0;  // each query sees so many entries that name tokens of its sequence, or none
  TopkHoles topk_holes = TopkHoles::kMixed;

  uint64_t seed = 1;

  float q_scale() const { return q_scale_host * (q_scale_device != 0.0f ? q_scale_device : 1.0f); }
  float kv_scale() const {
    return kv_scale_host * (kv_scale_device != 0.0f ? kv_scale_device : 1.0f);
  }
  bool has_token_factors() const { return token_scales || kv_layout == KvLayout::kPacked; }
  // Bytes of a cached token.
  int64_t token_elements() const { return kv_layout == KvLayout::kPacked ? 656 : kHeadDimQk; }

  // For messages; long lists are cut.
  std::string description() const;
};

// Inputs in host memory, in the layout in which they are copied to the device. Strides in elements.
struct Batch {
  BatchSpec spec;
  int32_t batch_size = 0;
  int64_t total_q = 0;
  int64_t num_pages = 0;
  std::vector<uint8_t> q;     // with padding
  std::vector<uint8_t> kv;    // with padding
  int64_t q_stride[2] = {};   // token, head
  int64_t kv_stride[2] = {};  // page, token
  int64_t o_stride[2] = {};   // token, head
  int64_t lse_stride[2] = {};
  std::vector<float> kv_token_scales;  // with padding; empty: none
  int64_t scale_stride[2] = {};        // page, token
  std::vector<float> sink;             // [num_heads], or empty
  std::vector<int32_t> qo_indptr;
  std::vector<int32_t> kv_indptr;
  std::vector<int32_t> kv_indices;         // longer than the pages in use; the rest is poison
  std::vector<int32_t> kv_last_page_lens;  // poison where a sequence has no page
  std::vector<int32_t> kv_global_lens;     // empty for kWhole
  std::vector<int32_t> kv_shard_begins;    // empty but for kContiguous
  std::vector<int32_t> topk_indices;       // [total_q, topk]

  MlaHostInputs host_inputs() const;
  MlaDecodeShape shape() const;
  MlaDecodeLengths lengths() const;
  // Sets what the spec says: mask, LSE base and shard.
  void set_options(MlaDecodeOptions* options) const;
};

Batch build_batch(const BatchSpec& spec);

// The spec of several equal sequences. `type` is that of q, KV and o; if fp8, o is bf16.
BatchSpec uniform_spec(DataType type, int32_t num_heads, int32_t seqlen_q, int32_t kv_len,
                       int32_t batch_size, int32_t page_size = 1);

// Small, fast, and the same everywhere (std::distributions are not).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) { next(); }
  uint64_t next();
  // Of [0, n), n > 0.
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  // Of [low, high].
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  template <typename T>
  const T& pick(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
  }

 private:
  uint64_t state_;
};

}  // namespace hipmla::test
