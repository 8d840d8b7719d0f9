// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Makes the inputs of a decode step: lengths, a shuffled page table over a larger pool, and values
// whose attention weights are worth testing. Everything follows from the spec; equal specs give
// equal batches.

#include <cstdint>
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

struct BatchSpec {
  DataType type = DataType::kBf16;  // of q and kv
  DataType o_type = DataType::kBf16;
  int32_t num_heads = 16;
  int32_t page_size = 1;
  int32_t max_seqlen_q = 0;     // 0: the largest of q_lens
  std::vector<int32_t> q_lens;  // of each sequence
  std::vector<int32_t> kv_lens;
  bool causal = true;
  float softmax_scale = 1.0f / 24.0f;
  ScoreTrend trend = ScoreTrend::kMixed;
  bool padded = false;        // q, kv, o and lse get strides larger than dense
  int64_t pool_tokens = 0;    // more than this: sequences share pages; 0: every page is listed once
  bool shuffle_pages = true;  // else physical pages rise along the batch
  uint16_t unused = 0x7fc1;   // what KV slots that no sequence uses hold
  uint64_t seed = 1;

  // For messages; long lists are cut.
  std::string description() const;
};

// Inputs in host memory, in the layout in which they are copied to the device.
struct Batch {
  BatchSpec spec;
  int32_t batch_size = 0;
  int64_t total_q = 0;
  int64_t num_pages = 0;
  std::vector<uint16_t> q;    // with padding
  std::vector<uint16_t> kv;   // with padding
  int64_t q_stride[2] = {};   // token, head
  int64_t kv_stride[2] = {};  // page, token
  int64_t o_stride[2] = {};   // token, head
  int64_t lse_stride[2] = {};
  std::vector<int32_t> qo_indptr;
  std::vector<int32_t> kv_indptr;
  std::vector<int32_t> kv_indices;         // longer than the pages in use; the rest is poison
  std::vector<int32_t> kv_last_page_lens;  // poison where a sequence has no page

  MlaHostInputs host_inputs() const;
  MlaDecodeShape shape() const;
  MlaDecodeLengths lengths() const;
};

Batch build_batch(const BatchSpec& spec);

// The specs of several equal sequences.
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
