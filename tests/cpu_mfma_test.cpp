// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The CPU platform's matrix instructions, byte permute and 16-bit conversions, against plain
// definitions.

#include <gtest/gtest.h>
#include <hip/hip_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "hip_cpu/control.h"

namespace {

constexpr int kMaxOps = 8;

enum class Format { kBf16, kF16, kFp8Fn, kFp8Fnuz };

bool is_fp8(Format format) { return format == Format::kFp8Fn || format == Format::kFp8Fnuz; }
int bytes_of(Format format) { return is_fp8(format) ? 1 : 2; }
float tiniest(Format format) {
  return std::ldexp(1.0f, format == Format::kFp8Fn ? -9 : format == Format::kFp8Fnuz ? -10 : -24);
}

// The value of an fp8 pattern by the definition of its format: sign, exponent, mantissa.
float fp8_by_definition(uint8_t bits, bool fnuz) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7, bias = fnuz ? 8 : 7;
  if (fnuz ? bits == 0x80 : (bits & 0x7F) == 0x7F) return std::nanf("");
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -2 - bias)
                    : std::ldexp(1.0f + static_cast<float>(mantissa) / 8, exponent - bias);
  return bits & 0x80 ? -magnitude : magnitude;
}

// Another one for each i < 64, which the format holds exactly.
float distinct_value(Format format, int i) {
  return fp8_by_definition(static_cast<uint8_t>(0x20 + i), format == Format::kFp8Fnuz);
}

uint16_t encode(Format format, float x) {
  if (format == Format::kBf16) return hip_cpu::f32_to_bf16(x);
  if (format == Format::kF16) return hip_cpu::f32_to_f16(x);
  const bool fnuz = format == Format::kFp8Fnuz;
  if (!std::isfinite(x)) return fnuz ? 0x80 : 0x7F;
  uint16_t best = 0;
  for (uint16_t bits = 1; bits < 256; ++bits) {
    const float value = fp8_by_definition(static_cast<uint8_t>(bits), fnuz);
    if (std::fabs(value - x) < std::fabs(fp8_by_definition(static_cast<uint8_t>(best), fnuz) - x))
      best = bits;
  }
  return best;
}

float decode(Format format, uint16_t bits) {
  if (format == Format::kBf16) return hip_cpu::bf16_to_f32(bits);
  if (format == Format::kF16) return hip_cpu::f16_to_f32(bits);
  return fp8_by_definition(static_cast<uint8_t>(bits), format == Format::kFp8Fnuz);
}

template <bool kFnuz>
void mfma_fp8(const hip_cpu::MfmaOperands* ops, int count, const void* site) {
  hip_cpu::mfma_f32_16x16x32_fp8(ops, count, kFnuz, site);
}

// One instruction as AMD documents it: which matrix element each register of each lane holds.
struct Instruction {
  const char* name;
  void (*run)(const hip_cpu::MfmaOperands*, int, const void*);
  Format format;
  int size;   // rows and columns of D
  int depth;  // columns of A

  int acc_per_lane() const { return size * size / 64; }
  int input_index(int lane) const { return lane % size; }  // m or n
  int inputs_per_lane() const { return 8 / bytes_of(format); }
  int input_depth(int lane, int element) const {  // k
    return lane / size * inputs_per_lane() + element;
  }
  int acc_column(int lane) const { return lane % size; }
  int acc_row(int lane, int r) const {
    return size == 16 ? 4 * (lane / 16) + r : 8 * (r / 4) + 4 * (lane / 32) + r % 4;
  }
};

const Instruction kInstructions[] = {
    {"f32_16x16x16_bf16", hip_cpu::mfma_f32_16x16x16_bf16, Format::kBf16, 16, 16},
    {"f32_16x16x16_f16", hip_cpu::mfma_f32_16x16x16_f16, Format::kF16, 16, 16},
    {"f32_32x32x8_bf16", hip_cpu::mfma_f32_32x32x8_bf16, Format::kBf16, 32, 8},
    {"f32_32x32x8_f16", hip_cpu::mfma_f32_32x32x8_f16, Format::kF16, 32, 8},
    {"f32_16x16x32_fp8_fn", mfma_fp8<false>, Format::kFp8Fn, 16, 32},
    {"f32_16x16x32_fp8_fnuz", mfma_fp8<true>, Format::kFp8Fnuz, 16, 32},
};

// The registers of a wave for `count` instructions.
struct Registers {
  float acc[kMaxOps][64][16];
  alignas(8) uint8_t a[kMaxOps][64][8];
  alignas(8) uint8_t b[kMaxOps][64][8];
};

// How the ops of one call share operands.
enum class Sharing { kNone, kChain, kSameB };

__global__ void run_instruction(Instruction instruction, Registers* registers, int count,
                                Sharing sharing) {
  const int lane = hip_cpu::lane_id();
  hip_cpu::MfmaOperands ops[kMaxOps];
  for (int i = 0; i < count; ++i) {
    ops[i] = {registers->acc[sharing == Sharing::kChain ? 0 : i][lane], registers->a[i][lane],
              registers->b[sharing == Sharing::kSameB ? 0 : i][lane]};
  }
  instruction.run(ops, count, HIP_CPU_SITE);
}

// Row-major matrices of `count` instructions.
struct Matrices {
  std::vector<float> a[kMaxOps], b[kMaxOps], c[kMaxOps];
};

template <typename Next>
Matrices make_matrices(const Instruction& instruction, int count, Next next) {
  Matrices m;
  const auto input_size = static_cast<size_t>(instruction.size * instruction.depth);
  const auto acc_size = static_cast<size_t>(instruction.size * instruction.size);
  for (int i = 0; i < count; ++i) {
    m.a[i].resize(input_size);
    m.b[i].resize(input_size);
    m.c[i].resize(acc_size);
    for (float& x : m.a[i]) x = decode(instruction.format, encode(instruction.format, next()));
    for (float& x : m.b[i]) x = decode(instruction.format, encode(instruction.format, next()));
    for (float& x : m.c[i]) x = next();
  }
  return m;
}

Registers spread(const Instruction& instruction, const Matrices& m, int count) {
  Registers registers;
  for (int i = 0; i < count; ++i) {
    for (int lane = 0; lane < 64; ++lane) {
      const int index = instruction.input_index(lane);
      const int bytes = bytes_of(instruction.format);
      for (int j = 0; j < instruction.inputs_per_lane(); ++j) {
        const int k = instruction.input_depth(lane, j);
        const uint16_t a =
            encode(instruction.format, m.a[i][static_cast<size_t>(index * instruction.depth + k)]);
        const uint16_t b =
            encode(instruction.format, m.b[i][static_cast<size_t>(k * instruction.size + index)]);
        std::memcpy(&registers.a[i][lane][j * bytes], &a, static_cast<size_t>(bytes));
        std::memcpy(&registers.b[i][lane][j * bytes], &b, static_cast<size_t>(bytes));
      }
      for (int r = 0; r < instruction.acc_per_lane(); ++r) {
        registers.acc[i][lane][r] = m.c[i][static_cast<size_t>(
            instruction.acc_row(lane, r) * instruction.size + instruction.acc_column(lane))];
      }
    }
  }
  return registers;
}

void run_on_device(const Instruction& instruction, Registers* registers, int count,
                   Sharing sharing) {
  Registers* device;
  ASSERT_EQ(hipMalloc(&device, sizeof(Registers)), hipSuccess);
  ASSERT_EQ(hipMemcpy(device, registers, sizeof(Registers), hipMemcpyHostToDevice), hipSuccess);
  hipLaunchKernelGGL(run_instruction, 1, 64, 0, nullptr, instruction, device, count, sharing);
  ASSERT_EQ(hipMemcpy(registers, device, sizeof(Registers), hipMemcpyDeviceToHost), hipSuccess);
  ASSERT_EQ(hipFree(device), hipSuccess);
}

// D = C + A B in double, and the sum of magnitudes, which bounds the rounding error.
void multiply(const Instruction& instruction, const std::vector<float>& a,
              const std::vector<float>& b, std::vector<double>* d, std::vector<double>* magnitude) {
  for (int m = 0; m < instruction.size; ++m) {
    for (int n = 0; n < instruction.size; ++n) {
      const auto at = static_cast<size_t>(m * instruction.size + n);
      for (int k = 0; k < instruction.depth; ++k) {
        const double product =
            static_cast<double>(a[static_cast<size_t>(m * instruction.depth + k)]) *
            static_cast<double>(b[static_cast<size_t>(k * instruction.size + n)]);
        (*d)[at] += product;
        (*magnitude)[at] += std::fabs(product);
      }
    }
  }
}

// Runs `count` ops and compares every element of D; `units` is the allowed error in f32 roundings,
// 0 for exact.
void check(const Instruction& instruction, const Matrices& m, int count, Sharing sharing,
           double units) {
  SCOPED_TRACE(instruction.name);
  Registers registers = spread(instruction, m, count);
  run_on_device(instruction, &registers, count, sharing);
  const int num_results = sharing == Sharing::kChain ? 1 : count;
  for (int i = 0; i < num_results; ++i) {
    std::vector<double> d(m.c[i].begin(), m.c[i].end());
    std::vector<double> magnitude(d.size());
    for (size_t at = 0; at < d.size(); ++at) magnitude[at] = std::fabs(d[at]);
    if (sharing == Sharing::kChain) {
      for (int k = 0; k < count; ++k) multiply(instruction, m.a[k], m.b[k], &d, &magnitude);
    } else {
      multiply(instruction, m.a[i], m.b[sharing == Sharing::kSameB ? 0 : i], &d, &magnitude);
    }
    for (int lane = 0; lane < 64; ++lane) {
      for (int r = 0; r < instruction.acc_per_lane(); ++r) {
        const int row = instruction.acc_row(lane, r), column = instruction.acc_column(lane);
        const auto at = static_cast<size_t>(row * instruction.size + column);
        ASSERT_NEAR(static_cast<double>(registers.acc[i][lane][r]), d[at],
                    units * magnitude[at] * std::ldexp(1.0, -24))
            << "op " << i << ", row " << row << ", column " << column;
      }
    }
  }
}

TEST(CpuMfma, SmallIntegersAreExact) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> integer(-8, 8);
  for (const Instruction& instruction : kInstructions) {
    for (int count : {1, 2, 8}) {
      const Matrices m =
          make_matrices(instruction, count, [&] { return static_cast<float>(integer(random)); });
      for (Sharing sharing : {Sharing::kNone, Sharing::kChain, Sharing::kSameB}) {
        check(instruction, m, count, sharing, 0);
      }
    }
  }
}

TEST(CpuMfma, RandomValuesAreWithinRounding) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const Instruction& instruction : kInstructions) {
    const Matrices m = make_matrices(instruction, 8, [&] { return normal(random); });
    check(instruction, m, 8, Sharing::kNone, instruction.depth);
    check(instruction, m, 8, Sharing::kChain, instruction.depth * 8);
  }
}

// One nonzero element of A and one of B: catches any exchange of rows, columns and depth by itself.
TEST(CpuMfma, EveryElementIsInItsPlace) {
  for (const Instruction& instruction : kInstructions) {
    for (int k = 0; k < instruction.depth; ++k) {
      Matrices m = make_matrices(instruction, 1, [] { return 0.0f; });
      for (int i = 0; i < instruction.size; ++i) {
        m.a[0][static_cast<size_t>(i * instruction.depth + k)] =
            distinct_value(instruction.format, i);
        m.b[0][static_cast<size_t>(k * instruction.size + i)] =
            distinct_value(instruction.format, 32 + i);
      }
      check(instruction, m, 1, Sharing::kNone, 0);
    }
  }
}

// The order of the sum is fixed: increasing k, from C, a rounding at each step.
TEST(CpuMfma, SumIsInOrderOfDepth) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const Instruction& instruction : kInstructions) {
    const Matrices m = make_matrices(instruction, 1, [&] { return normal(random); });
    Registers registers = spread(instruction, m, 1);
    run_on_device(instruction, &registers, 1, Sharing::kNone);
    for (int lane = 0; lane < 64; ++lane) {
      for (int r = 0; r < instruction.acc_per_lane(); ++r) {
        const int row = instruction.acc_row(lane, r), column = instruction.acc_column(lane);
        float sum = m.c[0][static_cast<size_t>(row * instruction.size + column)];
        for (int k = 0; k < instruction.depth; ++k) {
          sum = std::fma(m.a[0][static_cast<size_t>(row * instruction.depth + k)],
                         m.b[0][static_cast<size_t>(k * instruction.size + column)], sum);
        }
        ASSERT_EQ(registers.acc[0][lane][r], sum);
      }
    }
  }
}

TEST(CpuMfma, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Instruction& instruction : kInstructions) {
    SCOPED_TRACE(instruction.name);
    Matrices m = make_matrices(instruction, 1, [] { return 1.0f; });
    m.a[0][0] = infinity;                                            // row 0, k 0
    m.a[0][static_cast<size_t>(instruction.depth)] = std::nanf("");  // row 1, k 0
    m.a[0][static_cast<size_t>(2 * instruction.depth)] =
        tiniest(instruction.format);  // row 2: a subnormal, but of bf16
    for (int n = 0; n < instruction.size; ++n)
      m.c[0][static_cast<size_t>(2 * instruction.size + n)] = 0;
    for (int k = 1; k < instruction.depth; ++k) {
      m.a[0][static_cast<size_t>(2 * instruction.depth + k)] = 0;
    }
    Registers registers = spread(instruction, m, 1);
    run_on_device(instruction, &registers, 1, Sharing::kNone);
    for (int lane = 0; lane < 64; ++lane) {
      for (int r = 0; r < instruction.acc_per_lane(); ++r) {
        const float x = registers.acc[0][lane][r];
        switch (instruction.acc_row(lane, r)) {
          case 0:  // fp8 has no infinity; NaN is what encode makes of it
            EXPECT_TRUE(is_fp8(instruction.format) ? std::isnan(x) : x == infinity) << x;
            break;
          case 1:
            EXPECT_TRUE(std::isnan(x));
            break;
          case 2:
            EXPECT_EQ(x, tiniest(instruction.format));
            break;
          default:
            EXPECT_EQ(x, static_cast<float>(instruction.depth + 1));
        }
      }
    }
  }
}

__global__ void uneven_counts(Registers* registers) {
  const int lane = hip_cpu::lane_id();
  const hip_cpu::MfmaOperands ops[2] = {
      {registers->acc[0][lane], registers->a[0][lane], registers->b[0][lane]},
      {registers->acc[1][lane], registers->a[1][lane], registers->b[1][lane]}};
  hip_cpu::mfma_f32_16x16x16_bf16(ops, lane == 9 ? 1 : 2);
}

TEST(CpuMfma, WrongUseIsAFault) {
  Registers* registers;
  ASSERT_EQ(hipMalloc(&registers, sizeof(Registers)), hipSuccess);
  hipLaunchKernelGGL(uneven_counts, 1, 64, 0, nullptr, registers);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  EXPECT_NE(hip_cpu::last_fault().find("different counts"), std::string::npos);
  hipLaunchKernelGGL(run_instruction, 1, 32, 0, nullptr, kInstructions[0], registers, 1,
                     Sharing::kNone);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  EXPECT_NE(hip_cpu::last_fault().find("full wave"), std::string::npos);
  hip_cpu::clear_fault();
  (void)hipGetLastError();
  EXPECT_EQ(hipFree(registers), hipSuccess);
}

// ---- fp8

TEST(CpuNumberFormats, Fp8) {
  for (int bits = 0; bits < 256; ++bits)
    for (bool fnuz : {false, true}) {
      const auto pattern = static_cast<uint8_t>(bits);
      const float expected = fp8_by_definition(pattern, fnuz);
      const float x = hip_cpu::fp8_e4m3_to_f32(pattern, fnuz);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(x)) << bits << fnuz;
      } else {
        EXPECT_EQ(hip_cpu::f32_bits(x), hip_cpu::f32_bits(expected)) << bits << fnuz;
      }
    }
  EXPECT_EQ(hip_cpu::fp8_e4m3_to_f32(0x7E, false), 448.0f);
  EXPECT_EQ(hip_cpu::fp8_e4m3_to_f32(0x7F, true), 240.0f);
}

// ---- byte permute

TEST(CpuNumberFormats, PermB32) {
  using hip_cpu::perm_b32;
  constexpr uint32_t kHigh = 0x87654321u, kLow = 0xFEDCBA98u;  // bytes 7..4 and 3..0
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x03020100u), kLow);
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x07060504u), kHigh);
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x00040703u), 0x982187FEu);
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x07060302u), 0x8765FEDCu);  // packs two high halves
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x0C0DFF80u), 0x00FFFFFFu);
  EXPECT_EQ(perm_b32(kHigh, kLow, 0x0B0A0908u), 0xFF00FFFFu);  // signs of bytes 7, 5, 3, 1
  EXPECT_EQ(perm_b32(0x00008000u, 0x80000000u, 0x0B0A0908u), 0x00FFFF00u);
}

// ---- conversions

bool is_nan_pattern(Format format, uint16_t bits) {
  return (bits & 0x7FFFu) > (format == Format::kBf16 ? 0x7F80u : 0x7C00u);
}

// Value of a finite pattern, from the format's definition.
double value_of(Format format, uint16_t bits) {
  const int fraction_bits = format == Format::kBf16 ? 7 : 10;
  const int bias = format == Format::kBf16 ? 127 : 15;
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(CpuNumberFormats, EveryPatternSurvivesTheRoundTrip) {
  for (Format format : {Format::kBf16, Format::kF16}) {
    const uint16_t infinity = format == Format::kBf16 ? 0x7F80 : 0x7C00;
    for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
      const auto bits = static_cast<uint16_t>(pattern);
      const float x = decode(format, bits);
      if (is_nan_pattern(format, bits)) {
        ASSERT_TRUE(std::isnan(x)) << pattern;
        ASSERT_TRUE(is_nan_pattern(format, encode(format, x))) << pattern;
        ASSERT_EQ(encode(format, x) & 0x8000, bits & 0x8000) << pattern;
        continue;
      }
      ASSERT_EQ(encode(format, x), bits) << pattern;
      if ((bits & 0x7FFF) == infinity) {
        ASSERT_TRUE(std::isinf(x));
      } else {
        ASSERT_EQ(static_cast<double>(x), value_of(format, bits)) << pattern;
      }
      ASSERT_EQ(std::signbit(x), (bits & 0x8000) != 0) << pattern;
    }
  }
}

// Between neighbouring patterns: below the middle down, above it up, at it to the even one. The f32
// values at and around the middle are exact for both formats.
TEST(CpuNumberFormats, RoundsToNearestEven) {
  for (Format format : {Format::kBf16, Format::kF16}) {
    const uint16_t infinity = format == Format::kBf16 ? 0x7F80 : 0x7C00;
    for (uint16_t low = 0; low < infinity; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      // The step to infinity is as wide as the one before it.
      const double low_value = value_of(format, low);
      const double high_value =
          high == infinity ? 2 * low_value - value_of(format, static_cast<uint16_t>(low - 1))
                           : value_of(format, high);
      const auto middle = static_cast<float>((low_value + high_value) / 2);
      const uint16_t even = (low & 1) == 0 ? low : high;
      ASSERT_EQ(encode(format, middle), even) << low;
      ASSERT_EQ(encode(format, std::nextafter(middle, 0.0f)), low) << low;
      ASSERT_EQ(encode(format, std::nextafter(middle, std::numeric_limits<float>::infinity())),
                high)
          << low;
      ASSERT_EQ(encode(format, -middle), even | 0x8000) << low;
    }
    ASSERT_EQ(encode(format, std::numeric_limits<float>::max()), infinity);
    ASSERT_EQ(encode(format, -std::numeric_limits<float>::infinity()), infinity | 0x8000);
  }
}

#if defined(__FLT16_MAX__)
TEST(CpuNumberFormats, F16AgreesWithTheCompiler) {
  std::mt19937 random(4);
  for (int i = 0; i < 1000000; ++i) {
    const float x = hip_cpu::f32_from_bits(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    const auto half = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof(bits));
    ASSERT_EQ(hip_cpu::f32_to_f16(x), bits) << x;
  }
}
#endif

}  // namespace
