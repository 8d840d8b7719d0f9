// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// mla_merge_states alone, on states that no decode need be able to make.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/mla_merge.h"
#include "tests/compare.h"
#include "tests/test_support/batch_builder.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct MergeCase {
  int64_t total_q = 3;
  int64_t num_heads = 5;
  int32_t num_shards = 2;
  DataType shard_type = DataType::kF32;
  DataType o_type = DataType::kF32;
  bool padded = false;
  bool with_lse = true;
  int32_t in_place = -1;   // o and lse are those of this shard
  std::vector<float> lse;  // [num_shards, rows]
  std::vector<float> o;    // [num_shards, rows, 512], values of shard_type

  int64_t rows() const { return total_q * num_heads; }
};

float round_to(DataType type, float x) {
  if (type == DataType::kF32) return x;
  return type == DataType::kBf16 ? bf16_to_float(float_to_bf16(x)) : f16_to_float(float_to_f16(x));
}

void store(void* data, DataType type, int64_t index, float x) {
  if (type == DataType::kF32)
    static_cast<float*>(data)[index] = x;
  else
    store_element(data, type, index, x);
}

MergeCase make_case(int32_t num_shards, DataType shard_type, DataType o_type, uint64_t seed) {
  MergeCase c;
  c.num_shards = num_shards;
  c.shard_type = shard_type;
  c.o_type = o_type;
  Random random(seed);
  c.lse.resize(static_cast<size_t>(num_shards * c.rows()));
  c.o.resize(c.lse.size() * kHeadDimV);
  for (float& x : c.lse) x = static_cast<float>(random.uniform() * 12.0 - 4.0);
  for (float& x : c.o) x = round_to(shard_type, static_cast<float>(random.uniform() * 2.0 - 1.0));
  return c;
}

struct Expected {
  std::vector<double> o, lse, o_abs;
};

Expected merge(const MergeCase& c) {
  const auto rows = static_cast<size_t>(c.rows());
  const double infinity = std::numeric_limits<double>::infinity();
  Expected e{std::vector<double>(rows * kHeadDimV, 0.0), std::vector<double>(rows, -infinity),
             std::vector<double>(rows * kHeadDimV, 0.0)};
  for (size_t row = 0; row < rows; ++row) {
    double max = -infinity;
    bool has_nan = false;
    for (size_t s = 0; s < static_cast<size_t>(c.num_shards); ++s) {
      max = std::max<double>(max, c.lse[s * rows + row]);
      has_nan = has_nan || std::isnan(c.lse[s * rows + row]);
    }
    if (max == -infinity && !has_nan) continue;
    double sum = 0.0;
    for (size_t s = 0; s < static_cast<size_t>(c.num_shards); ++s)
      sum += std::exp(c.lse[s * rows + row] - max);
    e.lse[row] = max + std::log(sum);
    for (size_t s = 0; s < static_cast<size_t>(c.num_shards); ++s) {
      const double weight = std::exp(c.lse[s * rows + row] - max) / sum;
      if (weight == 0.0) continue;
      for (size_t d = 0; d < kHeadDimV; ++d) {
        const double x = c.o[(s * rows + row) * kHeadDimV + d];
        e.o[row * kHeadDimV + d] += weight * x;
        e.o_abs[row * kHeadDimV + d] += weight * std::abs(x);
      }
    }
  }
  return e;
}

// Memory of one strided tensor [total_q, num_heads, size], with poison between rows.
struct Tensor {
  TensorView view;
  int64_t elements;
  DeviceBuffer buffer;

  Tensor(const char* name, DataType type, int64_t tokens, int64_t heads, int64_t size, bool padded)
      : elements(0), buffer(make(name, type, tokens, heads, size, padded)) {
    view.data = buffer.data();
  }
  // Elements are copied from and to [rows, size].
  void fill(const float* values) {
    std::vector<uint8_t> raw = buffer.download();
    for_each(
        [&](int64_t place, int64_t index) { store(raw.data(), view.dtype, place, values[index]); });
    buffer.upload(raw.data(), raw.size());
  }
  std::vector<float> read() const {
    const std::vector<uint8_t> raw = buffer.download();
    std::vector<float> values(static_cast<size_t>(elements));
    for_each([&](int64_t place, int64_t index) {
      values[static_cast<size_t>(index)] = load_element(raw.data(), view.dtype, place);
    });
    return values;
  }
  // "" if what is between the rows is still poison.
  std::string check_padding() const {
    const std::vector<uint8_t> raw = buffer.download();
    const size_t bytes = element_bytes(view.dtype);
    std::vector<bool> is_row(raw.size() / bytes);
    for_each([&](int64_t place, int64_t) { is_row[static_cast<size_t>(place)] = true; });
    for (size_t i = 0; i < raw.size(); ++i)
      if (!is_row[i / bytes] && raw[i] != (i % 2 == 0 ? kPoison16 & 0xff : kPoison16 >> 8))
        return buffer.name() + ": padding was written to, byte " + std::to_string(i);
    return "";
  }

 private:
  template <typename F>
  void for_each(F f) const {
    const int64_t size = view.ndim == 3 ? view.shape[2] : 1;
    for (int64_t t = 0; t < view.shape[0]; ++t)
      for (int64_t h = 0; h < view.shape[1]; ++h)
        for (int64_t d = 0; d < size; ++d)
          f(t * view.stride[0] + h * view.stride[1] + d, (t * view.shape[1] + h) * size + d);
  }
  DeviceBuffer make(const char* name, DataType type, int64_t tokens, int64_t heads, int64_t size,
                    bool padded) {
    view = size == 1 ? dense_view(nullptr, type, tokens, heads)
                     : dense_view(nullptr, type, tokens, heads, size);
    elements = tokens * heads * size;
    const int64_t align = size == 1 ? 1 : 16 / static_cast<int64_t>(element_bytes(type));
    if (padded) {
      view.stride[1] = size + (size == 1 ? 2 : align);
      view.stride[0] = view.stride[1] * heads + 3 * align;
    }
    const int64_t span = (tokens - 1) * view.stride[0] + (heads - 1) * view.stride[1] + size;
    return DeviceBuffer(name, static_cast<size_t>(span) * element_bytes(type), size == 1 ? 4 : 16);
  }
};

void expect_merge(const MergeCase& c) {
  if (!begin_case()) return;
  const int64_t rows = c.rows();
  std::vector<Tensor> o_shards, lse_shards;
  std::vector<TensorView> o_views, lse_views;
  o_shards.reserve(static_cast<size_t>(c.num_shards));
  lse_shards.reserve(static_cast<size_t>(c.num_shards));
  for (int32_t s = 0; s < c.num_shards; ++s) {
    o_shards.emplace_back("o_shard", c.shard_type, c.total_q, c.num_heads, kHeadDimV, c.padded);
    o_shards.back().fill(c.o.data() + s * rows * kHeadDimV);
    lse_shards.emplace_back("lse_shard", DataType::kF32, c.total_q, c.num_heads, 1, c.padded);
    lse_shards.back().fill(c.lse.data() + s * rows);
    o_views.push_back(o_shards.back().view);
    lse_views.push_back(lse_shards.back().view);
  }
  const Tensor own_o("o", c.o_type, c.total_q, c.num_heads, kHeadDimV, c.padded);
  const Tensor own_lse("lse", DataType::kF32, c.total_q, c.num_heads, 1, c.padded);
  const Tensor& o = c.in_place >= 0 ? o_shards[static_cast<size_t>(c.in_place)] : own_o;
  const Tensor& lse = c.in_place >= 0 ? lse_shards[static_cast<size_t>(c.in_place)] : own_lse;
  std::vector<std::vector<uint8_t>> before;
  for (const Tensor& shard : o_shards) before.push_back(shard.buffer.download());
  const DeviceStream stream;
  const Status status = mla_merge_states(o_views.data(), lse_views.data(), c.num_shards, o.view,
                                         c.with_lse ? lse.view : TensorView(), stream.get());
  stream.synchronize();
  ASSERT_TRUE(status.ok()) << status.text() << "\n  run again: " << rerun_command();

  const Expected expected = merge(c);
  const double u = 0x1p-24;
  const double o_round = c.o_type == DataType::kBf16  ? 0x1p-8
                         : c.o_type == DataType::kF16 ? 0x1p-11
                                                      : u;
  CompareSpec spec;
  spec.name = "o";
  spec.shape = {c.total_q, c.num_heads, kHeadDimV};
  spec.rerun = rerun_command();
  for (size_t i = 0; i < expected.o.size(); ++i) {
    const double lse_size = std::abs(expected.lse[i / kHeadDimV]);
    const double size = std::isfinite(lse_size) ? lse_size : 0.0;
    spec.abs.push_back(expected.o_abs[i] * (2.0 * c.num_shards + 64.0 + 16.0 * size) * u +
                       std::abs(expected.o[i]) * o_round + 0x1p-25);
  }
  EXPECT_EQ(compare(spec, o.read(), expected.o).failure, "");
  if (c.with_lse) {
    CompareSpec lse_spec;
    lse_spec.name = "lse";
    lse_spec.shape = {c.total_q, c.num_heads};
    lse_spec.rerun = rerun_command();
    for (double x : expected.lse)
      lse_spec.abs.push_back((c.num_shards + 64.0) * u +
                             (std::isfinite(x) ? 16.0 * u * std::abs(x) : 0.0));
    EXPECT_EQ(compare(lse_spec, lse.read(), expected.lse).failure, "");
  } else {
    EXPECT_EQ(own_lse.buffer.check_untouched(), "");
  }
  std::string problems;
  for (int32_t s = 0; s < c.num_shards; ++s) {
    const auto i = static_cast<size_t>(s);
    for (const Tensor* tensor : {&o_shards[i], &lse_shards[i]})
      problems += tensor->buffer.check_guards() + tensor->check_padding();
    if (s != c.in_place)
      problems += o_shards[i].buffer.check_unchanged(before[i].data(), before[i].size());
  }
  for (const Tensor* tensor : {&own_o, &own_lse})
    problems += tensor->buffer.check_guards() + tensor->check_padding();
  EXPECT_EQ(problems, "") << "  run again: " << rerun_command();
}

TEST(MergeStates, NumberOfShardsAndTypes) {
  for (int32_t num_shards : {1, 2, 3, 8, 64})
    for (DataType shard_type : {DataType::kBf16, DataType::kF16, DataType::kF32})
      for (DataType o_type : {DataType::kBf16, DataType::kF16, DataType::kF32})
        for (bool padded : {false, true}) {
          MergeCase c = make_case(num_shards, shard_type, o_type, 1);
          c.padded = padded;
          c.with_lse = num_shards != 3;
          expect_merge(c);
        }
}

TEST(MergeStates, InPlace) {
  for (DataType type : {DataType::kBf16, DataType::kF16, DataType::kF32})
    for (int32_t num_shards : {1, 3, 64})
      for (int32_t k : {0, num_shards / 2, num_shards - 1}) {
        MergeCase c = make_case(num_shards, type, type, 2);
        c.padded = k % 2 == 1;
        c.in_place = k;
        expect_merge(c);
      }
}

// All subsets of three shards are empty in turn; what an empty one holds must not matter.
TEST(MergeStates, EmptyShards) {
  for (DataType type : {DataType::kBf16, DataType::kF16, DataType::kF32}) {
    MergeCase c = make_case(3, type, DataType::kF32, 3);
    const auto rows = static_cast<size_t>(c.rows());
    for (size_t row = 0; row < rows; ++row)
      for (size_t s = 0; s < 3; ++s) {
        if (row >> s & 1) continue;
        c.lse[s * rows + row] = -kInf;
        std::fill_n(c.o.begin() + static_cast<int64_t>((s * rows + row) * kHeadDimV), kHeadDimV,
                    row % 2 ? kNan : kInf);
      }
    expect_merge(c);
    std::fill(c.lse.begin(), c.lse.end(), -kInf);
    expect_merge(c);
  }
}

TEST(MergeStates, NanStaysInItsRow) {
  MergeCase c = make_case(4, DataType::kF32, DataType::kF32, 4);
  const auto rows = static_cast<size_t>(c.rows());
  c.lse[1 * rows + 5] = kNan;
  c.o[(2 * rows + 9) * kHeadDimV + 100] = kNan;
  expect_merge(c);
  // A NaN beside empty shards is no empty row.
  for (size_t s : {0u, 2u, 3u}) c.lse[s * rows + 5] = -kInf;
  expect_merge(c);
}

TEST(MergeStates, LseFarApart) {
  MergeCase c = make_case(8, DataType::kF32, DataType::kF32, 5);
  for (size_t i = 0; i < c.lse.size(); ++i)
    c.lse[i] = static_cast<float>(static_cast<int>(i * 37 % 11) - 5) * 90.0f;
  expect_merge(c);
}

TEST(MergeStates, ManyRows) {
  MergeCase c;
  c.total_q = 37;
  c.num_heads = 128;
  c.num_shards = 2;
  Random random(6);
  c.lse.resize(static_cast<size_t>(2 * c.rows()));
  c.o.resize(c.lse.size() * kHeadDimV);
  for (float& x : c.lse) x = static_cast<float>(random.uniform() * 12.0 - 4.0);
  for (float& x : c.o) x = static_cast<float>(random.uniform() * 2.0 - 1.0);
  expect_merge(c);
}

TEST(MergeStates, NoRows) {
  const TensorView o = dense_view(nullptr, DataType::kF32, 0, 16, kHeadDimV);
  const TensorView lse = dense_view(nullptr, DataType::kF32, 0, 16);
  EXPECT_TRUE(mla_merge_states(&o, &lse, 1, o, lse, nullptr).ok());
}

// Refused calls write nothing; api_test has the texts.
TEST(MergeStates, RefusedCallsWriteNothing) {
  Tensor shard("o_shard", DataType::kF32, 2, 2, kHeadDimV, false);
  Tensor shard_lse("lse_shard", DataType::kF32, 2, 2, 1, false);
  const Tensor o("o", DataType::kF32, 2, 2, kHeadDimV, false);
  const Tensor lse("lse", DataType::kF32, 2, 2, 1, false);
  const std::vector<TensorView> o_views(65, shard.view), lse_views(65, shard_lse.view);
  for (int32_t num_shards : {-1, 0, 65}) {
    const Status status =
        mla_merge_states(o_views.data(), lse_views.data(), num_shards, o.view, lse.view, nullptr);
    EXPECT_FALSE(status.ok()) << num_shards;
    check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
    EXPECT_EQ(o.buffer.check_untouched() + lse.buffer.check_untouched(), "");
  }
}

}  // namespace
}  // namespace hipmla::test
