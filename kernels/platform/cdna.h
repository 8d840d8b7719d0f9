// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Layouts of the CDNA matrix operations and what follows from them. Included by amd.h and cpu.h, so that the
// CPU platform runs these very functions.
//
// mfma_f32_16x16x16 computes D[m][n] += sum_k A[m][k] B[k][n], 16 x 16 x 16. With g = lane / 16 and i = lane % 16:
//
//   A fragment (KV side)    lane holds A[m = i][k = 4 g + j]    j = 0..3     16-bit values, two registers
//   B fragment (row side)   lane holds B[k = 4 g + j][n = i]    j = 0..3
//   D accumulator           lane holds D[m = 4 g + r][n = i]    r = 0..3     f32, four registers
//
// (AMD CDNA3 instruction set guide, section "Matrix arithmetic instructions"; AMD matrix instruction calculator.)
//
// Scores:  S^T[token][row] = K Q^T     A = K, B = Q^T.   A lane gets four scores of one row.
// Output:  O^T[dim][row]   = V^T P^T   A = V^T, B = P^T. P^T in the B layout is S^T in the D layout: no shuffle.
//
// So a lane owns one row: its running maximum, sum and rescale factor are per-lane scalars. The order of k is free
// as long as A and B agree, and so is the order of the output dims; both are chosen for 16-byte accesses.

#include "kernels/platform/halves.h"

namespace hipmla::device {

constexpr bool kHasAccumulatorFile = true;
// Whether a kernel for `arch` can be written in this vocabulary.
constexpr bool platform_has(Arch arch) {
  return arch == Arch::kGfx90a || arch == Arch::kGfx942 || arch == Arch::kGfx950;
}

using Fragment = Words2;
using AccTile = Floats4;

constexpr int kAccElements = 4;  // scores, or output values, of one accumulator tile in a lane
constexpr int kLaneRows = 1;     // rows of a 16-row block that one lane has values of

// Accumulator element r is of the lane's row acc_slot(r), and at acc_col in the other dimension.
HIPMLA_DEVICE constexpr int acc_slot(int) { return 0; }
HIPMLA_DEVICE int acc_row(int lane, int /*slot*/) { return lane % 16; }
HIPMLA_DEVICE int acc_col(int lane, int r) { return 4 * (lane / 16) + r; }
// One lane of those that share a row.
HIPMLA_DEVICE bool leads_row(int lane) { return lane < 16; }

// Over the lanes that share a row; each of them gets the result.
HIPMLA_DEVICE float row_max(float x) {
  x = max_of(x, shuffle_xor(x, 16));
  return max_of(x, shuffle_xor(x, 32));
}
HIPMLA_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 16);
  return x + shuffle_xor(x, 32);
}

HIPMLA_DEVICE void split_words(Words4 words, Fragment (&out)[2]) {
  out[0] = Fragment{words[0], words[1]};
  out[1] = Fragment{words[2], words[3]};
}

// The same two fragments, put aside in LDS: [lanes] of 16 bytes.
constexpr int kRowFragmentsBytes = 16 * kWaveSize;
HIPMLA_DEVICE void store_row_fragments(char* lds, const Fragment (&in)[2], int lane) {
  store_lds16(lds + 16 * lane, Words4{in[0][0], in[0][1], in[1][0], in[1][1]});
}
HIPMLA_DEVICE void reload_row_fragments(Fragment (&out)[2], const char* lds, int lane) {
  split_words(load_lds16(lds + 16 * lane), out);
}

// Two A fragments: 16 tokens x 32 dims, in the same order of dims.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_k_fragments(Fragment (&out)[2], const char* tokens, int row_bytes,
                                    int lane) {
  split_words(load_lds16(tokens + (lane % 16) * row_bytes + 16 * (lane / 16)), out);
}

// Eight A fragments of V^T, 128 dims x 16 tokens, transposed in registers: a lane reads 8 dims of 4 tokens with
// 16-byte reads and turns them by byte permutes. Fragment e, row m is dim 8 m + e.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_v_fragments(Fragment (&out)[8], const char* tokens, int row_bytes,
                                    int lane) {
  Words4 token[4];
#pragma unroll
  for (int j = 0; j < 4; ++j)
    token[j] = load_lds16(tokens + (4 * (lane / 16) + j) * row_bytes + 16 * (lane % 16));
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const uint32_t half =
        e % 2 == 0 ? 0x05040100u : 0x07060302u;  // low or high halves of both words
    out[e] = Fragment{permute_bytes(token[1][e / 2], token[0][e / 2], half),
                      permute_bytes(token[3][e / 2], token[2][e / 2], half)};
  }
}

// The output of mma_spread over such fragments: run r is kRunElements neighbouring dims of one of the lane's rows.
constexpr int kOutputRuns = 4;
constexpr int kRunElements = 8;
HIPMLA_DEVICE constexpr int output_run_slot(int) { return 0; }  // which of the lane's rows
HIPMLA_DEVICE int output_run_dim(int lane, int r) { return 8 * acc_col(lane, r); }
HIPMLA_DEVICE void output_run(float (&out)[kRunElements], const AccTile* acc, int r, float factor) {
#pragma unroll
  for (int e = 0; e < kRunElements; ++e) out[e] = acc[e][r] * factor;
}

// Probabilities of one accumulator tile as a B fragment. bf16 rounds half up, which for values that are not negative
// is an add and a byte permute; f16 rounds to nearest even.
template <DataType kType>
HIPMLA_DEVICE Fragment pack_probabilities(AccTile p) {
  if constexpr (kType == DataType::kBf16) {
    const uint32_t high_halves = 0x07060302u;
    return Fragment{permute_bytes(bits_of(p[1]) + 0x8000u, bits_of(p[0]) + 0x8000u, high_halves),
                    permute_bytes(bits_of(p[3]) + 0x8000u, bits_of(p[2]) + 0x8000u, high_halves)};
  } else {
    return Fragment{pack_nearest<kType>(p[0], p[1]), pack_nearest<kType>(p[2], p[3])};
  }
}

// 16 rows x 32 dims of kQ, as this lane loads them: lane group g has dims 8 g .. 8 g + 7 of its row.
template <DataType kQ>
struct RowWords {
  uint32_t words[is_fp8(kQ) ? 2 : 4];
};
//   rows  [kLaneRows] this lane's rows in global memory, at the first of the dims
template <DataType kQ>
HIPMLA_DEVICE RowWords<kQ> load_row_words(const char* const (&rows)[kLaneRows], int lane) {
  if constexpr (is_fp8(kQ)) {
    const Words2 w = load_global8(rows[0] + 8 * (lane / 16));
    return {{w[0], w[1]}};
  } else {
    const Words4 w = load_global16(rows[0] + 16 * (lane / 16));
    return {{w[0], w[1], w[2], w[3]}};
  }
}
// The two B fragments of kType that they make.
template <DataType kQ, DataType kType>
HIPMLA_DEVICE void make_row_fragments(Fragment (&out)[2], const RowWords<kQ>& in) {
  if constexpr (is_fp8(kQ)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x[4];
      fp8_to_f32<kQ>(x, in.words[i]);
      out[i] = Fragment{pack_exact<kType>(x[0], x[1]), pack_exact<kType>(x[2], x[3])};
    }
    schedule_fence();  // one conversion at a time: the registers for more are not there
  } else {
    out[0] = Fragment{in.words[0], in.words[1]};
    out[1] = Fragment{in.words[2], in.words[3]};
  }
}

}  // namespace hipmla::device
