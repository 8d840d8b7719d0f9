// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The emulated sm_90's matrix instructions, against the matrices that the PTX ISA documents.

#include <gtest/gtest.h>
#include <hip/hip_runtime.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "hip_cpu/control.h"

namespace {

constexpr int kOps = 3;

struct Registers {
  float acc[kOps][32][4];
  alignas(16) uint16_t a[kOps][32][8];
  uint32_t b[kOps][32][2];
};

// How the ops of one call share operands.
enum class Sharing { kNone, kChain, kSameA };

__global__ void run_mma(Registers* registers, bool bf16, Sharing sharing) {
  const int lane = hip_cpu::lane_id();
  hip_cpu::MmaOperands ops[kOps];
  for (int i = 0; i < kOps; ++i) {
    ops[i] = {registers->acc[sharing == Sharing::kChain ? 0 : i][lane],
              registers->a[sharing == Sharing::kSameA ? 0 : i][lane],
              {registers->b[i][lane][0], registers->b[i][lane][1]}};
  }
  if (bf16)
    hip_cpu::mma_m16n8k16_bf16(ops, kOps);
  else
    hip_cpu::mma_m16n8k16_f16(ops, kOps);
}

class Mma : public ::testing::TestWithParam<std::tuple<bool, Sharing>> {};

TEST_P(Mma, MultipliesTheDocumentedMatrices) {
  const auto [bf16, sharing] = GetParam();
  const auto encode = [&](float x) {
    return bf16 ? hip_cpu::f32_to_bf16(x) : hip_cpu::f32_to_f16(x);
  };
  const auto decode = [&](uint16_t x) {
    return bf16 ? hip_cpu::bf16_to_f32(x) : hip_cpu::f16_to_f32(x);
  };
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  static float a[kOps][16][16], b[kOps][16][8], c[kOps][16][8];
  for (int op = 0; op < kOps; ++op)
    for (int m = 0; m < 16; ++m) {
      for (float& x : a[op][m]) x = decode(encode(normal(random)));
      for (float& x : b[op][m]) x = decode(encode(normal(random)));
      for (float& x : c[op][m]) x = normal(random);
    }
  Registers* registers = nullptr;
  ASSERT_EQ(hipMalloc(&registers, sizeof(Registers)), hipSuccess);
  auto host = std::make_unique<Registers>();
  for (int op = 0; op < kOps; ++op)
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      // Registers in the order of the PTX ISA's figures.
      const int a_row[8] = {g, g, g + 8, g + 8, g, g, g + 8, g + 8};
      const int a_col[8] = {0, 1, 0, 1, 8, 9, 8, 9};
      for (int i = 0; i < 8; ++i) host->a[op][lane][i] = encode(a[op][a_row[i]][2 * t + a_col[i]]);
      for (int i = 0; i < 2; ++i)
        host->b[op][lane][i] = encode(b[op][2 * t + 8 * i][g]) |
                               static_cast<uint32_t>(encode(b[op][2 * t + 8 * i + 1][g])) << 16;
      for (int i = 0; i < 4; ++i) host->acc[op][lane][i] = c[op][g + i / 2 * 8][2 * t + i % 2];
    }
  ASSERT_EQ(hipMemcpy(registers, host.get(), sizeof(Registers), hipMemcpyHostToDevice), hipSuccess);
  hipLaunchKernelGGL(run_mma, dim3(1), dim3(32), 0, nullptr, registers, bf16, sharing);
  ASSERT_EQ(hipMemcpy(host.get(), registers, sizeof(Registers), hipMemcpyDeviceToHost), hipSuccess)
      << hip_cpu::last_fault();
  ASSERT_EQ(hipFree(registers), hipSuccess);

  for (int op = 0; op < kOps; ++op) {
    const int acc = sharing == Sharing::kChain ? 0 : op;
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 8; ++n)
        for (int k = 0; k < 16; ++k) {
          volatile float product = a[sharing == Sharing::kSameA ? 0 : op][m][k] * b[op][k][n];
          c[acc][m][n] += product;
        }
  }
  for (int op = 0; op < (sharing == Sharing::kChain ? 1 : kOps); ++op)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        EXPECT_EQ(host->acc[op][lane][i], c[op][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2])
            << "op " << op << ", lane " << lane << ", register " << i;
}

INSTANTIATE_TEST_SUITE_P(Types, Mma,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Sharing::kNone, Sharing::kChain,
                                                              Sharing::kSameA)));

constexpr int kRowBytes = 48;

__global__ void run_loads(uint32_t* out, bool transposed) {
  HIP_DYNAMIC_SHARED(uint16_t, lds);
  const int lane = hip_cpu::lane_id();
  for (int i = lane; i < 32 * kRowBytes / 2; i += 32) lds[i] = static_cast<uint16_t>(i);
  __syncthreads();
  uint32_t words[2][4];
  hip_cpu::load_matrices(words, reinterpret_cast<const char*>(lds) + lane * kRowBytes, 16, 2,
                         transposed);
  std::memcpy(out + lane * 8, words, sizeof(words));
}

TEST(LoadMatrices, GivesTheDocumentedElements) {
  uint32_t* out = nullptr;
  ASSERT_EQ(hipMalloc(&out, 32 * 8 * 4), hipSuccess);
  for (bool transposed : {false, true}) {
    hipLaunchKernelGGL(run_loads, dim3(1), dim3(32), 32 * kRowBytes, nullptr, out, transposed);
    std::vector<uint32_t> words(32 * 8);
    ASSERT_EQ(hipMemcpy(words.data(), out, 32 * 8 * 4, hipMemcpyDeviceToHost), hipSuccess)
        << hip_cpu::last_fault();
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 2; ++n)
        for (int matrix = 0; matrix < 4; ++matrix)
          for (int e = 0; e < 2; ++e) {
            int row = lane / 4, column = lane % 4 * 2 + e;
            if (transposed) std::swap(row, column);
            EXPECT_EQ(words[static_cast<size_t>(lane * 8 + n * 4 + matrix)] >> (16 * e) & 0xFFFFu,
                      static_cast<uint32_t>((8 * matrix + row) * kRowBytes / 2 + 8 * n + column))
                << lane << " " << n << " " << matrix << " " << e << " " << transposed;
          }
  }
  ASSERT_EQ(hipFree(out), hipSuccess);
}

}  // namespace
