// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The kernel vocabulary against plain host loops: whatever kernels/platform/<target>.h does, these names must mean the
// same. Matrix tests use small integers, so results are exact and one misplaced lane fails.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/platform/platform.h"
#include "tests/test_support/float_bits.h"

namespace hipmla {
namespace {

using namespace device;

constexpr int kTokens = 16;
constexpr int kRows = 16;
constexpr int kKDims = 32;
constexpr int kVDims = 128;
constexpr int kLdsRowBytes = kVDims * 2 + 16;

// Copies [16][dims] 16-bit values into LDS rows of kLdsRowBytes.
HIPMLA_DEVICE void fill_lds(char* lds, const uint16_t* source, int dims) {
  for (int i = lane_id(); i < kTokens * dims; i += kWaveSize)
    reinterpret_cast<uint16_t*>(lds + i / dims * kLdsRowBytes)[i % dims] = source[i];
  block_barrier();
}

// scores[token][row] = sum_d k[token][d] q[row][d] over 32 dims, q of kQ; one wave.
template <DataType kQ, DataType kType>
HIPMLA_KERNEL(kWaveSize)
void scores_kernel(const uint16_t* k, const char* q, float* scores) {
  char* lds = dynamic_lds();
  fill_lds(lds, k, kKDims);
  Fragment kv[2], loaded[2], rows[2];
  load_k_fragments(kv, lds, kLdsRowBytes, lane_id());
  const char* lane_rows[kLaneRows];
  for (int slot = 0; slot < kLaneRows; ++slot)
    lane_rows[slot] = q + acc_row(lane_id(), slot) * kKDims * static_cast<int>(element_bytes(kQ));
  make_row_fragments<kQ, kType>(loaded, load_row_words<kQ>(lane_rows, lane_id()));
  char* aside = lds + kTokens * kLdsRowBytes;
  store_row_fragments(aside, loaded, lane_id());
  reload_row_fragments(rows, aside, lane_id());
  AccTile acc{};
  mma_chain<kType>(acc, kv, rows);
  for (int r = 0; r < kAccElements; ++r)
    scores[acc_col(lane_id(), r) * kRows + acc_row(lane_id(), acc_slot(r))] = acc[r];
}

// o[row][dim] = factor * sum_token p[token][row] v[token][dim] over 128 dims; one wave.
template <DataType kType>
HIPMLA_KERNEL(kWaveSize)
void output_kernel(const uint16_t* v, const float* p, float factor, float* o) {
  char* lds = dynamic_lds();
  fill_lds(lds, v, kVDims);
  AccTile probabilities{};
  for (int r = 0; r < kAccElements; ++r)
    probabilities[r] = p[acc_col(lane_id(), r) * kRows + acc_row(lane_id(), acc_slot(r))];
  Fragment kv[8];
  load_v_fragments(kv, lds, kLdsRowBytes, lane_id());
  AccTile acc[8] = {};
  mma_spread<kType>(acc, kv, pack_probabilities<kType>(probabilities));
  for (int r = 0; r < kOutputRuns; ++r) {
    float run[kRunElements];
    output_run(run, acc, r, factor);
    for (int i = 0; i < kRunElements; ++i)
      o[acc_row(lane_id(), output_run_slot(r)) * kVDims + output_run_dim(lane_id(), r) + i] =
          run[i];
  }
}

struct LaneReport {
  int thread, lane, wave, block;
  float xor_1, xor_half, wave_max, wave_sum, row_max, row_sum;
  int any_none, any_last, any_of_8, row, leads;
  uint32_t permuted;
  uint64_t from_lds;
};

HIPMLA_KERNEL(2 * kWaveSize)
void lanes_kernel(const float* x, LaneReport* out) {
  const int i = block_id() * 2 * kWaveSize + thread_id();
  char* lds = dynamic_lds();
  const uint32_t value = static_cast<uint32_t>(i);
  store_lds16(lds + thread_id() * 16, Words4{value, value + 1, value + 2, value + 3});
  block_barrier();
  const Words4 other = load_lds16(lds + (thread_id() ^ kWaveSize) * 16);
  LaneReport& report = out[i];
  report.thread = thread_id();
  report.lane = lane_id();
  report.wave = wave_id();
  report.block = block_id();
  report.xor_1 = shuffle_xor(x[i], 1);
  report.xor_half = shuffle_xor(x[i], kWaveSize / 2);
  report.wave_max = wave_max(x[i]);
  report.wave_sum = wave_sum(x[i]);
  report.row_max = row_max(x[i]);
  report.row_sum = row_sum(x[i]);
  report.any_none = any_lane(false);
  report.any_last = any_lane(lane_id() == kWaveSize - 1 && wave_id() == 1);
  report.any_of_8 = any_of_8_lanes(lane_id() % 24 == 9);
  report.row = acc_row(lane_id(), 0);
  report.leads = leads_row(lane_id());
  report.permuted = permute_bytes(0x77665544u, 0x33221100u, 0x00070502u);
  report.from_lds = other[3];
}

template <DataType kType>
HIPMLA_KERNEL(kWaveSize)
void pack_kernel(const float* x, uint32_t* out, int count) {
  const int i = block_id() * kWaveSize + thread_id();
  if (i < count) out[i] = pack_nearest<kType>(x[2 * i], x[2 * i + 1]);
}

// 16-bit pattern i alone in half i % 8 of four words.
template <DataType kType>
HIPMLA_KERNEL(kWaveSize)
void non_finite_kernel(uint32_t* out) {
  const auto i = static_cast<uint32_t>(block_id() * kWaveSize + thread_id());
  Words4 words{};
  words[i % 8 / 2] = i << (i % 2 * 16) & (i % 2 == 0 ? 0xffffu : 0xffff0000u);
  out[i] = non_finite_halves<kType>(words) != 0;
}

// The values of every pattern of a word's four bytes, and every 16-bit pattern.
template <DataType kFp8>
HIPMLA_KERNEL(kWaveSize)
void fp8_kernel(const uint32_t* words, float* out, int count) {
  const int i = block_id() * kWaveSize + thread_id();
  if (i >= count) return;
  float x[4];
  fp8_to_f32<kFp8>(x, words[i]);
  for (int j = 0; j < 4; ++j) out[4 * i + j] = x[j];
}

template <DataType kType>
HIPMLA_KERNEL(kWaveSize)
void half_kernel(float* out) {
  const int i = block_id() * kWaveSize + thread_id();
  if (i < 0x10000) out[i] = half_to_f32<kType>(static_cast<uint32_t>(i));
}

template <DataType kType>
HIPMLA_KERNEL(kWaveSize)
void pack_exact_kernel(const float* x, uint32_t* out, int count) {
  const int i = block_id() * kWaveSize + thread_id();
  if (i < count) out[i] = pack_exact<kType>(x[2 * i], x[2 * i + 1]);
}

HIPMLA_KERNEL(kWaveSize)
void functions_kernel(const float* x, float* out, int count) {
  const int i = block_id() * kWaveSize + thread_id();
  if (i >= count) return;
  out[3 * i] = exp2_fast(x[i]);
  out[3 * i + 1] = log2_fast(std::fabs(x[i]));
  out[3 * i + 2] = reciprocal_fast(x[i]);
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(hipMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), hipSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(hipMemcpy(data_, values.data(), count_ * sizeof(T), hipMemcpyHostToDevice),
              hipSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { EXPECT_EQ(hipFree(data_), hipSuccess); }
  T* data() { return data_; }
  std::vector<T> read() {
    EXPECT_EQ(hipDeviceSynchronize(), hipSuccess);
    EXPECT_EQ(hipGetLastError(), hipSuccess);
    std::vector<T> values(count_);
    EXPECT_EQ(hipMemcpy(values.data(), data_, count_ * sizeof(T), hipMemcpyDeviceToHost),
              hipSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

uint16_t to_bits(DataType type, float x) {
  return type == DataType::kBf16 ? test::float_to_bf16(x) : test::float_to_f16(x);
}

std::vector<float> small_integers(size_t count, int low, int high, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& x : values)
    x = static_cast<float>(std::uniform_int_distribution<int>(low, high)(random));
  return values;
}

std::vector<uint16_t> to_bits(DataType type, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float x : values) bits.push_back(to_bits(type, x));
  return bits;
}

// Bytes of `values` as `type`, which holds them exactly.
std::vector<char> to_bytes(DataType type, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * element_bytes(type));
  for (size_t i = 0; i < values.size(); ++i)
    test::store_element(bytes.data(), type, static_cast<int64_t>(i), values[i]);
  return bytes;
}

template <DataType kQ, DataType kType>
void check_scores() {
  const std::vector<float> k = small_integers(kTokens * kKDims, -8, 8, 1);
  const std::vector<float> q = small_integers(kRows * kKDims, -8, 8, 2);
  DeviceArray<uint16_t> device_k(to_bits(kType, k));
  DeviceArray<char> device_q(to_bytes(kQ, q));
  DeviceArray<float> scores(kTokens * kRows);
  hipLaunchKernelGGL((scores_kernel<kQ, kType>), dim3(1), dim3(kWaveSize),
                     kTokens * kLdsRowBytes + kRowFragmentsBytes, nullptr, device_k.data(),
                     device_q.data(), scores.data());
  const std::vector<float> got = scores.read();
  for (int token = 0; token < kTokens; ++token)
    for (int row = 0; row < kRows; ++row) {
      float expected = 0;
      for (int d = 0; d < kKDims; ++d) expected += k[token * kKDims + d] * q[row * kKDims + d];
      EXPECT_EQ(got[token * kRows + row], expected) << "token " << token << " row " << row;
    }
}

template <DataType kType>
void check_output() {
  const std::vector<float> v = small_integers(kTokens * kVDims, -8, 8, 3);
  const std::vector<float> p = small_integers(kTokens * kRows, 0, 8, 4);
  DeviceArray<uint16_t> device_v(to_bits(kType, v));
  DeviceArray<float> device_p(p), o(kRows * kVDims);
  hipLaunchKernelGGL((output_kernel<kType>), dim3(1), dim3(kWaveSize), kTokens * kLdsRowBytes,
                     nullptr, device_v.data(), device_p.data(), 0.5f, o.data());
  const std::vector<float> got = o.read();
  for (int row = 0; row < kRows; ++row)
    for (int d = 0; d < kVDims; ++d) {
      float expected = 0;
      for (int token = 0; token < kTokens; ++token)
        expected += p[token * kRows + row] * v[token * kVDims + d];
      EXPECT_EQ(got[row * kVDims + d], 0.5f * expected) << "row " << row << " dim " << d;
    }
}

TEST(Vocabulary, ScoresBf16) { check_scores<DataType::kBf16, DataType::kBf16>(); }
TEST(Vocabulary, ScoresF16) { check_scores<DataType::kF16, DataType::kF16>(); }
TEST(Vocabulary, ScoresFp8Fn) { check_scores<DataType::kFp8E4m3Fn, DataType::kBf16>(); }
TEST(Vocabulary, ScoresFp8Fnuz) { check_scores<DataType::kFp8E4m3Fnuz, DataType::kBf16>(); }
TEST(Vocabulary, OutputBf16) { check_output<DataType::kBf16>(); }
TEST(Vocabulary, OutputF16) { check_output<DataType::kF16>(); }

TEST(Vocabulary, LanesAndReductions) {
  const int kBlocks = 3, kThreads = 2 * kWaveSize;
  const std::vector<float> x = small_integers(kBlocks * kThreads, -1000, 1000, 5);
  DeviceArray<float> device_x(x);
  DeviceArray<LaneReport> reports(x.size());
  hipLaunchKernelGGL(lanes_kernel, dim3(kBlocks), dim3(kThreads), kThreads * 16, nullptr,
                     device_x.data(), reports.data());
  const std::vector<LaneReport> got = reports.read();
  for (int i = 0; i < static_cast<int>(x.size()); ++i) {
    SCOPED_TRACE(i);
    const int wave_begin = i / kWaveSize * kWaveSize, lane = i % kWaveSize;
    float wave_max = -1e9f, wave_sum = 0, row_max = -1e9f, row_sum = 0;
    for (int l = 0; l < kWaveSize; ++l) {
      const float y = x[wave_begin + l];
      wave_max = std::fmax(wave_max, y);
      wave_sum += y;
      if (got[wave_begin + l].row != got[i].row) continue;
      row_max = std::fmax(row_max, y);
      row_sum += y;
    }
    const LaneReport& r = got[i];
    int leaders = 0;
    for (int l = 0; l < kWaveSize; ++l)
      leaders += got[wave_begin + l].row == r.row ? got[wave_begin + l].leads : 0;
    EXPECT_EQ(leaders, 1);
    EXPECT_EQ(r.thread, i % kThreads);
    EXPECT_EQ(r.lane, lane);
    EXPECT_EQ(r.wave, i % kThreads / kWaveSize);
    EXPECT_EQ(r.block, i / kThreads);
    EXPECT_EQ(r.xor_1, x[wave_begin + (lane ^ 1)]);
    EXPECT_EQ(r.xor_half, x[wave_begin + (lane ^ (kWaveSize / 2))]);
    EXPECT_EQ(r.wave_max, wave_max);
    EXPECT_EQ(r.wave_sum, wave_sum);
    EXPECT_EQ(r.row_max, row_max);
    EXPECT_EQ(r.row_sum, row_sum);
    EXPECT_EQ(r.any_none, 0);
    EXPECT_EQ(r.any_last, r.wave == 1 ? 1 : 0);
    EXPECT_EQ(r.any_of_8, lane / 8 % 3 == 1 ? 1 : 0);
    EXPECT_EQ(r.permuted, 0x00775522u);
    EXPECT_EQ(r.from_lds, static_cast<uint64_t>((i ^ kWaveSize) + 3));
  }
}

template <DataType kType>
void check_non_finite() {
  DeviceArray<uint32_t> out(0x10000);
  hipLaunchKernelGGL((non_finite_kernel<kType>), dim3(0x10000 / kWaveSize), dim3(kWaveSize), 0,
                     nullptr, out.data());
  const std::vector<uint32_t> got = out.read();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float x =
        kType == DataType::kBf16 ? test::bf16_to_float(pattern) : test::f16_to_float(pattern);
    ASSERT_EQ(got[bits], std::isfinite(x) ? 0u : 1u) << bits;
  }
}
TEST(Vocabulary, NonFiniteBf16) { check_non_finite<DataType::kBf16>(); }
TEST(Vocabulary, NonFiniteF16) { check_non_finite<DataType::kF16>(); }

// Every pattern of the narrow type, the midpoints between neighbours, and what lies just beside them.
template <DataType kType>
void check_pack() {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = kType == DataType::kBf16 ? test::bf16_to_float(static_cast<uint16_t>(bits))
                                                 : test::f16_to_float(static_cast<uint16_t>(bits));
    const float next = kType == DataType::kBf16
                           ? test::bf16_to_float(static_cast<uint16_t>(bits + 1))
                           : test::f16_to_float(static_cast<uint16_t>(bits + 1));
    x.push_back(value);
    const float middle = std::isfinite(value) && std::isfinite(next) ? value / 2 + next / 2 : value;
    x.push_back(middle);
    x.push_back(std::nextafter(middle, -std::numeric_limits<float>::infinity()));
    x.push_back(std::nextafter(middle, std::numeric_limits<float>::infinity()));
  }
  const int count = static_cast<int>(x.size() / 2);
  DeviceArray<float> device_x(x);
  DeviceArray<uint32_t> packed(count);
  hipLaunchKernelGGL((pack_kernel<kType>), dim3((count + kWaveSize - 1) / kWaveSize),
                     dim3(kWaveSize), 0, nullptr, device_x.data(), packed.data(), count);
  const std::vector<uint32_t> got = packed.read();
  int wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t bits = static_cast<uint16_t>(got[i / 2] >> (i % 2 * 16));
    const float back =
        kType == DataType::kBf16 ? test::bf16_to_float(bits) : test::f16_to_float(bits);
    const bool right = std::isnan(x[i]) ? std::isnan(back) : bits == to_bits(kType, x[i]);
    if (!right && ++wrong < 5) ADD_FAILURE() << x[i] << " packs to " << bits << " = " << back;
  }
  EXPECT_EQ(wrong, 0);
}
TEST(Vocabulary, PackBf16) { check_pack<DataType::kBf16>(); }
TEST(Vocabulary, PackF16) { check_pack<DataType::kF16>(); }

// Equal bits, but for the payload of NaN.
void expect_same(float got, float expected, uint32_t pattern) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << "pattern " << pattern;
    return;
  }
  EXPECT_EQ(test::bits_of_float(got), test::bits_of_float(expected)) << "pattern " << pattern;
}

// All 256 patterns in each byte of a word: NaN, both zeros, subnormals.
template <DataType kFp8>
void check_fp8() {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < 256; ++i)
    words.push_back(i | (i + 1) % 256 << 8 | (i + 77) % 256 << 16 | (255 - i) << 24);
  DeviceArray<uint32_t> device_words(words);
  DeviceArray<float> out(4 * words.size());
  hipLaunchKernelGGL((fp8_kernel<kFp8>), dim3(256 / kWaveSize), dim3(kWaveSize), 0, nullptr,
                     device_words.data(), out.data(), 256);
  const std::vector<float> got = out.read();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto pattern = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
    expect_same(got[i], test::fp8_to_float(kFp8, pattern), pattern);
  }
}
TEST(Vocabulary, Fp8Fn) { check_fp8<DataType::kFp8E4m3Fn>(); }
TEST(Vocabulary, Fp8Fnuz) { check_fp8<DataType::kFp8E4m3Fnuz>(); }

template <DataType kType>
void check_half() {
  DeviceArray<float> out(0x10000);
  hipLaunchKernelGGL((half_kernel<kType>), dim3(0x10000 / kWaveSize), dim3(kWaveSize), 0, nullptr,
                     out.data());
  const std::vector<float> got = out.read();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    expect_same(got[bits],
                kType == DataType::kBf16 ? test::bf16_to_float(half) : test::f16_to_float(half),
                bits);
  }
}
TEST(Vocabulary, HalfToF32Bf16) { check_half<DataType::kBf16>(); }
TEST(Vocabulary, HalfToF32F16) { check_half<DataType::kF16>(); }

// What fp8 values become in a 16-bit type.
template <DataType kType>
void check_pack_exact() {
  std::vector<float> x;
  for (DataType format : {DataType::kFp8E4m3Fn, DataType::kFp8E4m3Fnuz})
    for (uint32_t bits = 0; bits < 256; ++bits)
      x.push_back(test::fp8_to_float(format, static_cast<uint8_t>(bits)));
  const int count = static_cast<int>(x.size() / 2);
  DeviceArray<float> device_x(x);
  DeviceArray<uint32_t> packed(count);
  hipLaunchKernelGGL((pack_exact_kernel<kType>), dim3((count + kWaveSize - 1) / kWaveSize),
                     dim3(kWaveSize), 0, nullptr, device_x.data(), packed.data(), count);
  const std::vector<uint32_t> got = packed.read();
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = static_cast<uint16_t>(got[i / 2] >> (i % 2 * 16));
    expect_same(kType == DataType::kBf16 ? test::bf16_to_float(bits) : test::f16_to_float(bits),
                x[i], static_cast<uint32_t>(i));
  }
}
TEST(Vocabulary, PackExactBf16) { check_pack_exact<DataType::kBf16>(); }
TEST(Vocabulary, PackExactF16) { check_pack_exact<DataType::kF16>(); }

TEST(Vocabulary, Functions) {
  std::vector<float> x = {-1e30f, -130.0f, -24.5f, -1.0f, -0.001f, 0.001f,
                          0.5f,   1.0f,    3.75f,  8.0f,  100.0f,  -INFINITY};
  DeviceArray<float> device_x(x), out(3 * x.size());
  hipLaunchKernelGGL(functions_kernel, dim3(1), dim3(kWaveSize), 0, nullptr, device_x.data(),
                     out.data(), static_cast<int>(x.size()));
  const std::vector<float> got = out.read();
  // The hardware's exp2, log2 and reciprocal are good to one unit in the last place, and may flush denormals.
  const double kRelative = 4e-7;
  const double kSmallestNormal = 1.2e-38;
  for (size_t i = 0; i < x.size(); ++i) {
    SCOPED_TRACE(x[i]);
    const double value = x[i];
    EXPECT_NEAR(got[3 * i], std::exp2(value), kRelative * std::exp2(value) + kSmallestNormal);
    if (std::isinf(value)) continue;
    EXPECT_NEAR(got[3 * i + 1], std::log2(std::fabs(value)),
                kRelative * (1 + std::fabs(std::log2(std::fabs(value)))));
    EXPECT_NEAR(got[3 * i + 2], 1 / value, kRelative * std::fabs(1 / value) + kSmallestNormal);
  }
}

}  // namespace
}  // namespace hipmla
