// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// The operator in double precision, written from its definition (include/hipmla/mla_decode.h) and
// nothing else.

#include <cstdint>
#include <functional>
#include <vector>

#include "hipmla/types.h"

namespace hipmla::test {

// One decode step in host memory. Views and arrays as in MlaDecodeTensors; q and kv_buffer may have
// any strides (last dimension dense). Only the tokens that a sequence lists are read.
struct MlaHostInputs {
  TensorView q;          // [total_q, num_heads, 576]
  TensorView kv_buffer;  // [num_pages, page_size, 1, 576]
  int32_t batch_size = 0;
  const int32_t* qo_indptr = nullptr;
  const int32_t* kv_indptr = nullptr;
  const int32_t* kv_indices = nullptr;
  const int32_t* kv_last_page_lens = nullptr;
  double softmax_scale = 0.0;
  bool causal = true;
};

// What the operator must return, and the magnitudes that bound the rounding errors of an
// implementation. A row is a (query token, head) pair, in the order of the caller's tensors.
struct MlaReference {
  int64_t total_q = 0;
  int64_t num_heads = 0;
  std::vector<double> o;    // [total_q, num_heads, 512]
  std::vector<double> lse;  // [total_q, num_heads]

  // With p the softmax weights of a row, those of a key that is listed several times taken
  // together:
  std::vector<float> o_abs_sum;   // [total_q, num_heads, 512]  sum_p p |v|
  std::vector<float> o_root_sum;  // [total_q, num_heads, 512]  sqrt(sum_p (p v)^2)
  std::vector<double>
      score_abs;              // [total_q, num_heads]  max over keys of |softmax_scale| |q|_2 |k|_2
  std::vector<double> p_max;  // [total_q, num_heads]  largest weight
  std::vector<double> v_max;  // [total_q, num_heads]  largest |v|
  std::vector<int64_t> num_keys;  // [total_q, num_heads]  keys that the row sees

  int64_t num_rows() const { return total_q * num_heads; }
};

// Length of sequence `b`, from the page counts.
int64_t sequence_kv_len(const MlaHostInputs& in, int32_t b);

// Sequences are spread over the host's cores. `progress`, if set, is called now and then from one
// thread with the share of the work that is done, 0..1.
MlaReference mla_reference(const MlaHostInputs& in,
                           const std::function<void(double done)>& progress = nullptr);

}  // namespace hipmla::test
