// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The matrix instructions of an sm_90 device: mma.m16n8k16 and ldmatrix.

#include "hip_cpu/device.h"

#if defined(HIPMLA_CPU_SM90)

#include "matrix_multiply.h"

namespace hip_cpu {
namespace internal {
namespace {

constexpr int kM = 16, kN = 8, kDepth = 16;
using MmaMatrices = Matrices<kM, kN, kDepth>;

// Two values of 16 bits, as f32.
template <Format kFormat>
HIP_CPU_INLINE void widen2(float* out, uint32_t word) {
  const uint16_t low = static_cast<uint16_t>(word), high = static_cast<uint16_t>(word >> 16);
  out[0] = kFormat == Format::kBf16 ? bf16_to_f32(low) : f16_to_f32(low);
  out[1] = kFormat == Format::kBf16 ? bf16_to_f32(high) : f16_to_f32(high);
}

template <Format kFormat>
HIP_CPU_INLINE void gather_a(MmaMatrices& m, const MmaOperands* const* ops, int index) {
  for (int lane = 0; lane < kWaveSize; ++lane) {
    const auto* words = static_cast<const uint32_t*>(ops[lane][index].a);
    for (int i = 0; i < 4; ++i)
      widen2<kFormat>(&m.a[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + 8 * (i / 2)], words[i]);
  }
}

template <Format kFormat>
HIP_CPU_INLINE void gather_b(MmaMatrices& m, const MmaOperands* const* ops, int index) {
  for (int lane = 0; lane < kWaveSize; ++lane)
    for (int i = 0; i < 2; ++i) {
      float pair[2];
      widen2<kFormat>(pair, ops[lane][index].b[i]);
      const int k = 2 * (lane % 4) + 8 * i;
      m.b[k][lane / 4] = pair[0];
      m.b[k + 1][lane / 4] = pair[1];
    }
}

// Calls f(element of C, the lane's register of it).
template <typename F>
HIP_CPU_INLINE void for_each_c(MmaMatrices& m, const MmaOperands* const* ops, int index, F f) {
  for (int lane = 0; lane < kWaveSize; ++lane)
    for (int r = 0; r < 4; ++r)
      f(m.c[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2], ops[lane][index].acc[r]);
}

template <Format kFormat>
struct Mma {
  using Operands = MmaOperands;
  static constexpr int kColumns = kN;

  template <int kWidth, int kRows>
  HIP_CPU_INLINE static void run(void* const* lanes) {
    const MmaOperands* ops[kWaveSize];
    const int count = collect_operands(ops, lanes);
    MmaMatrices& m = matrices_of_this_thread<MmaMatrices>();
    bool same_a =
        false;  // as the op before, as in the two halves of a tile and in an outer product
    for (int i = 0; i < count; ++i) {
      for_each_c(m, ops, i, [](float& c, float& lane_value) { c = lane_value; });
      if (!same_a) gather_a<kFormat>(m, ops, i);
      gather_b<kFormat>(m, ops, i);
      multiply<kWidth, kRows>(m);
      for_each_c(m, ops, i, [](float& c, float& lane_value) { lane_value = c; });
      same_a = i + 1 < count && same_as_previous(ops, i + 1, &MmaOperands::a);
    }
  }
};

struct MatrixLoad {
  uint32_t* out;
  const char* row;
  int stride_bytes;
  int count;
  bool transposed;
};

void run_loads(void* const* lanes, void* /*context*/) {
  for (int lane = 0; lane < kWaveSize; ++lane) {
    const auto* load = static_cast<const MatrixLoad*>(lanes[lane]);
    for (int n = 0; n < load->count; ++n)
      for (int i = 0; i < 4; ++i) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int row = load->transposed ? 2 * (lane % 4) + e : lane / 4;
          const int column = load->transposed ? lane / 4 : 2 * (lane % 4) + e;
          const auto* source = static_cast<const MatrixLoad*>(lanes[8 * i + row]);
          std::memcpy(&pair[e], source->row + n * source->stride_bytes + 2 * column, 2);
        }
        load->out[4 * n + i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
  }
}

}  // namespace
}  // namespace internal

void mma_m16n8k16_bf16(const MmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mma<internal::Format::kBf16>>(ops, count, site);
}

void mma_m16n8k16_f16(const MmaOperands* ops, int count, const void* site) {
  internal::run_collectively<internal::Mma<internal::Format::kF16>>(ops, count, site);
}

void load_matrices(void* out, const void* row, int stride_bytes, int count, bool transposed,
                   const void* site) {
  if (internal::current_thread->wave_lanes != kWaveSize) fail("ldmatrix needs a full wave");
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0 || stride_bytes % 16 != 0)
    fail("ldmatrix needs rows that are 16-byte aligned");
  internal::MatrixLoad load{static_cast<uint32_t*>(out), static_cast<const char*>(row),
                            stride_bytes, count, transposed};
  wave_collective(&internal::run_loads, &load, nullptr, site);
}

}  // namespace hip_cpu

#endif
