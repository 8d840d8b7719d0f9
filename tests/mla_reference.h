// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The operator in double precision, written from its definition (include/hipmla/mla_decode.h) and
// nothing else.

#include <cstdint>
#include <functional>
#include <vector>

#include "hipmla/mla_decode.h"
#include "hipmla/types.h"

namespace hipmla::test {

// One decode step in host memory. Views, arrays and options as in MlaDecodeTensors and
// MlaDecodeOptions; q and kv_buffer may have any strides (last dimension dense). Only the tokens
// that a sequence lists are read.
struct MlaHostInputs {
  TensorView q;          // [total_q, num_heads, 576]
  TensorView kv_buffer;  // [num_pages, page_size, 1, 576], or 656 bytes a token
  KvLayout kv_layout = KvLayout::kDense;
  double q_scale = 1.0;
  double kv_scale = 1.0;
  TensorView kv_token_scales;  // [num_pages, page_size] f32; data may be null

  int32_t batch_size = 0;
  const int32_t* qo_indptr = nullptr;
  const int32_t* kv_indptr = nullptr;  // this and what follows: not with topk
  const int32_t* kv_indices = nullptr;
  const int32_t* kv_last_page_lens = nullptr;
  KvShard kv_shard = KvShard::kWhole;
  int32_t cp_world_size = 1;
  int32_t cp_rank = 0;
  const int32_t* kv_global_lens = nullptr;
  const int32_t* kv_shard_begins = nullptr;

  int32_t topk = 0;
  const int32_t* topk_indices = nullptr;  // [total_q, topk]

  double softmax_scale = 0.0;
  double logits_soft_cap = 0.0;
  const float* sink = nullptr;  // [num_heads] or null
  bool causal = true;
  int32_t sliding_window = 0;
  bool lse_base2 = false;

  // Whether a token's values are a stored value times a factor of the token.
  bool has_token_factors() const {
    return kv_layout == KvLayout::kPacked || kv_token_scales.data != nullptr;
  }
};

// What a token holds that is not finite: NaN makes all of a row that sees it NaN; what becomes of
// such a row under an infinity is not specified.
enum class NonFinite : uint8_t { kNothing, kInfinity, kNan };

// What the operator must return, and the magnitudes that bound the rounding errors of an
// implementation. A row is a (query token, head) pair, in the order of the caller's tensors.
struct MlaReference {
  int64_t total_q = 0;
  int64_t num_heads = 0;
  double lse_unit = 1.0;    // of lse: 1, or log2 e for base 2
  double kv_scale = 1.0;    // |kv_scale|
  double soft_cap = 0.0;    // logits_soft_cap
  std::vector<double> o;    // [total_q, num_heads, 512]
  std::vector<double> lse;  // [total_q, num_heads]

  // With p the softmax weights of a row (their sum is less than 1 if it has a sink), those of a key
  // that is listed several times taken together, k and v with all their factors:
  std::vector<float> o_abs_sum;   // [total_q, num_heads, 512]  sum_p p |v|
  std::vector<float> o_root_sum;  // [total_q, num_heads, 512]  sqrt(sum_p (p v)^2)
  // [total_q, num_heads]  max over keys of |softmax_scale| |q|_2 |k|_2, and of the sink if it
  // counts
  std::vector<double> score_abs;
  // [total_q, num_heads]  max over keys of |softmax_scale| sqrt(sum_m S_m^2), with q.k cut into
  // sums S_m of values that have factor and mantissa in common; only if tokens have factors. See
  // mla_tolerance.
  std::vector<double> score_root;
  std::vector<double> p_max;      // [total_q, num_heads]  largest weight
  std::vector<double> v_max;      // [total_q, num_heads]  largest |v|
  std::vector<int64_t> num_keys;  // [total_q, num_heads]  keys that the row sees
  // [total_q, num_heads]  what one of them holds, the worst. The bounds above are then of the others.
  std::vector<NonFinite> non_finite;

  int64_t num_rows() const { return total_q * num_heads; }
};

// Length of sequence `b`, from the page counts.
int64_t sequence_kv_len(const MlaHostInputs& in, int32_t b);

// Sequences are spread over the host's cores. `progress`, if set, is called now and then from one
// thread with the share of the work that is done, 0..1.
MlaReference mla_reference(const MlaHostInputs& in,
                           const std::function<void(double done)>& progress = nullptr);

}  // namespace hipmla::test
