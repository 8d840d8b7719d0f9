// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Layouts of NVIDIA's matrix operations and what follows from them. Included by nvidia.h and, for an emulated sm_90, by
// cpu.h, so that the CPU platform runs these very functions.
//
// mma.m16n8k16 computes D[m][n] += sum_k A[m][k] B[k][n]. With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments
// for mma.m16n8k16"):
//
//   A   a0 = (g, 2t..2t+1)   a1 = (g + 8, 2t..)   a2 = (g, 2t + 8..)   a3 = (g + 8, 2t + 8..)     (m, k)
//   B   b0 = (2t..2t+1, g)   b1 = (2t + 8.., g)                                                    (k, n)
//   D   d0, d1 = (g, 2t), (g, 2t + 1)   d2, d3 = (g + 8, 2t), (g + 8, 2t + 1)                      (m, n)
//
// Scores:  S[row][token] = Q K^T   A = Q, B = K^T.
// Output:  O[row][dim]   = P V     A = P, B = V. S in the D layout, rounded, is P in the A layout: no shuffle.
//
// A tile of 16 x 16 is two such operations side by side. A lane has values of rows g and g + 8.
//
// The platform header defines, before it includes this: MatrixOps (operations in order, done when run() returns) and
// load_matrices (ldmatrix).

namespace hipmla::device {

// Whether a kernel for `arch` can be written in this vocabulary.
constexpr bool platform_has(Arch arch) { return arch == Arch::kSm80 || arch == Arch::kSm90; }

using Fragment = Words4;      // 16 x 16 values of 16 bits
struct alignas(16) AccTile {  // 16 x 16 of f32: columns 0-7 in 0-3, columns 8-15 in 4-7
  float values[8];
  HIPMLA_DEVICE float& operator[](int i) { return values[i]; }
  HIPMLA_DEVICE float operator[](int i) const { return values[i]; }
  HIPMLA_DEVICE AccTile& operator+=(const AccTile& other) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] += other.values[i];
    return *this;
  }
};

constexpr int kAccElements = 8;
constexpr int kLaneRows = 2;

HIPMLA_DEVICE constexpr int acc_slot(int r) { return r % 4 / 2; }
HIPMLA_DEVICE int acc_row(int lane, int slot) { return lane / 4 + 8 * slot; }
HIPMLA_DEVICE int acc_col(int lane, int r) { return 8 * (r / 4) + 2 * (lane % 4) + r % 2; }
HIPMLA_DEVICE bool leads_row(int lane) { return lane % 4 == 0; }
HIPMLA_DEVICE float row_max(float x) {
  x = max_of(x, shuffle_xor(x, 1));
  return max_of(x, shuffle_xor(x, 2));
}
HIPMLA_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// acc += kv x rows, as two operations of `ops`.
template <typename Ops>
HIPMLA_DEVICE void add_tile(Ops& ops, AccTile& acc, const Fragment& kv, const Fragment& rows) {
  ops.add(acc.values, rows, kv[0], kv[1]);
  ops.add(acc.values + 4, rows, kv[2], kv[3]);
}
// acc += sum_i kv[i] x rows[i]
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_chain(AccTile& acc, const Fragment (&kv)[kCount],
                             const Fragment (&rows)[kCount]) {
  MatrixOps<kType, 2 * kCount> ops;
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_tile(ops, acc, kv[i], rows[i]);
  ops.run();
}
// acc[i] += kv[i] x rows
template <DataType kType, int kCount>
HIPMLA_DEVICE void mma_spread(AccTile* acc, const Fragment (&kv)[kCount], const Fragment& rows) {
  MatrixOps<kType, 2 * kCount> ops;
#pragma unroll
  for (int i = 0; i < kCount; ++i) add_tile(ops, acc[i], kv[i], rows);
  ops.run();
}

// 16 rows x 32 dims of kQ, as this lane loads them: words in the order of A's registers, two fragments.
template <DataType kQ>
struct RowWords {
  uint32_t words[8];
};
template <DataType kQ>
HIPMLA_DEVICE RowWords<kQ> load_row_words(const char* const (&rows)[kLaneRows], int lane) {
  RowWords<kQ> out;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int dim = 16 * (i / 4) + 8 * (i % 4 / 2) + 2 * (lane % 4);
    const char* source = rows[i % 2] + dim * static_cast<int>(element_bytes(kQ));
    if constexpr (is_fp8(kQ))
      out.words[i] = *reinterpret_cast<const uint16_t*>(source);
    else
      out.words[i] = *reinterpret_cast<const uint32_t*>(source);
  }
  return out;
}
template <DataType kQ, DataType kType>
HIPMLA_DEVICE void make_row_fragments(Fragment (&out)[2], const RowWords<kQ>& in) {
  const auto word = [&](int i) {
    if constexpr (is_fp8(kQ)) {
      float x[4];
      fp8_to_f32<kQ>(x, in.words[i]);
      return pack_exact<kType>(x[0], x[1]);
    } else {
      return in.words[i];
    }
  };
  out[0] = Fragment{word(0), word(1), word(2), word(3)};
  out[1] = Fragment{word(4), word(5), word(6), word(7)};
}
// The same two fragments, put aside in LDS: [2][lanes] of 16 bytes.
constexpr int kRowFragmentsBytes = 2 * 16 * kWaveSize;
HIPMLA_DEVICE void store_row_fragments(char* lds, const Fragment (&in)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) store_lds16(lds + (i * kWaveSize + lane) * 16, in[i]);
}
HIPMLA_DEVICE void reload_row_fragments(Fragment (&out)[2], const char* lds, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = load_lds16(lds + (i * kWaveSize + lane) * 16);
}

// Two fragments: 16 tokens x 32 dims. Matrices of ldmatrix, in order: tokens 0-7 at dims 0-7 and 8-15, tokens 8-15 likewise.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_k_fragments(Fragment (&out)[2], const char* tokens, int row_bytes,
                                    int lane) {
  const char* row = tokens + (lane / 16 * 8 + lane % 8) * row_bytes + lane / 8 % 2 * 16;
  load_matrices<false>(out, row, 32);
}

// Eight fragments of V, 16 tokens x 128 dims; fragment e has dims 16 e .. 16 e + 15. Matrices of ldmatrix, transposed:
// dims 0-7 at tokens 0-7 and 8-15, dims 8-15 likewise.
//   tokens [16][row_bytes] in LDS, at the first token and dim
HIPMLA_DEVICE void load_v_fragments(Fragment (&out)[8], const char* tokens, int row_bytes,
                                    int lane) {
  const char* row = tokens + (lane / 8 % 2 * 8 + lane % 8) * row_bytes + lane / 16 * 16;
  load_matrices<true>(out, row, 32);
}

// The output of mma_spread over such fragments: run r is kRunElements neighbouring dims of one of the lane's rows.
constexpr int kOutputRuns = 32;
constexpr int kRunElements = 2;
HIPMLA_DEVICE constexpr int output_run_slot(int r) { return r % 2; }
HIPMLA_DEVICE int output_run_dim(int lane, int r) { return 8 * (r / 2) + 2 * (lane % 4); }
HIPMLA_DEVICE void output_run(float (&out)[kRunElements], const AccTile* acc, int r, float factor) {
#pragma unroll
  for (int i = 0; i < kRunElements; ++i)
    out[i] = acc[r / 4][r / 2 % 2 * 4 + r % 2 * 2 + i] * factor;
}

// Probabilities of one accumulator tile as an A fragment.
template <DataType kType>
HIPMLA_DEVICE Fragment pack_probabilities(const AccTile& p) {
  return Fragment{pack_nearest<kType>(p[0], p[1]), pack_nearest<kType>(p[2], p[3]),
                  pack_nearest<kType>(p[4], p[5]), pack_nearest<kType>(p[6], p[7])};
}

constexpr bool kHasAccumulatorFile = false;
HIPMLA_DEVICE void schedule_fence() {}
HIPMLA_DEVICE int not_before_here(int x) { return x; }
HIPMLA_DEVICE void keep_in_accumulator(AccTile&) {}

}  // namespace hipmla::device
