// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The reduction alone (case 15 of docs/testing.md), on partials that stage 1 need not be able to
// make.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/launch.h"
#include "tests/compare.h"
#include "tests/test_support/batch_builder.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One sequence of `num_queries` queries; row groups of `tile_rows` rows with `num_partials`
// partials each.
struct ReduceCase {
  int32_t num_heads = 16;
  int32_t num_queries = 1;
  int32_t tile_rows = 16;
  int32_t num_partials = 1;
  int32_t fill_partials = 0;
  DataType o_type = DataType::kF32;
  bool with_lse = true;
  std::vector<float> lse;  // [num_partials, rows]
  std::vector<float> o;    // [num_partials, rows, 512]

  int32_t rows() const { return num_heads * num_queries; }
};

ReduceCase make_case(int32_t num_heads, int32_t num_queries, int32_t num_partials, uint64_t seed) {
  ReduceCase c;
  c.num_heads = num_heads;
  c.num_queries = num_queries;
  c.num_partials = num_partials;
  Random random(seed);
  c.lse.resize(static_cast<size_t>(num_partials * c.rows()));
  c.o.resize(c.lse.size() * kHeadDimV);
  for (float& x : c.lse) x = static_cast<float>(random.uniform() * 12.0 - 4.0);
  for (float& x : c.o) x = static_cast<float>(random.uniform() * 2.0 - 1.0);
  return c;
}

struct Expected {
  std::vector<double> o, lse, o_abs;
};

Expected merge(const ReduceCase& c) {
  const auto rows = static_cast<size_t>(c.rows());
  Expected e{std::vector<double>(rows * kHeadDimV, 0.0),
             std::vector<double>(rows, -std::numeric_limits<double>::infinity()),
             std::vector<double>(rows * kHeadDimV, 0.0)};
  for (size_t row = 0; row < rows; ++row) {
    double max = -kInf;
    bool has_nan = false;
    for (size_t s = 0; s < static_cast<size_t>(c.num_partials); ++s) {
      max = std::max<double>(max, c.lse[s * rows + row]);
      has_nan = has_nan || std::isnan(c.lse[s * rows + row]);
    }
    if (max == -kInf && !has_nan) continue;
    double sum = 0.0;
    for (size_t s = 0; s < static_cast<size_t>(c.num_partials); ++s)
      sum += std::exp(c.lse[s * rows + row] - max);
    e.lse[row] = max + std::log(sum);
    for (size_t s = 0; s < static_cast<size_t>(c.num_partials); ++s) {
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

// Partial s of row r is at s * stride + r, with poison rows in between and around.
void expect_merge(const ReduceCase& c) {
  if (!begin_case()) return;
  using internal::ReduceItem;
  const int64_t rows = c.rows();
  const int64_t stride = rows + 3;
  const int64_t first = 2;
  const int32_t slots = std::max(c.num_partials, c.fill_partials);
  const auto partial_rows = static_cast<size_t>(first + stride * slots);
  DeviceBuffer partial_o("partial_o", partial_rows * kHeadDimV * 4, 16);
  DeviceBuffer partial_lse("partial_lse", partial_rows * 4, 4);
  std::vector<uint32_t> host_o(partial_rows * kHeadDimV, kPoison32);
  std::vector<uint32_t> host_lse(partial_rows, kPoison32);
  for (int64_t s = 0; s < c.num_partials; ++s)
    for (int64_t r = 0; r < rows; ++r) {
      const auto place = static_cast<size_t>(first + s * stride + r);
      host_lse[place] = bits_of_float(c.lse[static_cast<size_t>(s * rows + r)]);
      for (size_t d = 0; d < kHeadDimV; ++d)
        host_o[place * kHeadDimV + d] =
            bits_of_float(c.o[static_cast<size_t>(s * rows + r) * kHeadDimV + d]);
    }
  partial_o.upload(host_o.data(), partial_o.bytes());
  partial_lse.upload(host_lse.data(), partial_lse.bytes());

  std::vector<ReduceItem> items;
  for (int32_t begin = 0; begin < c.rows(); begin += c.tile_rows)
    items.push_back(
        {0, begin, std::min(c.rows(), begin + c.tile_rows), c.num_partials, first + begin});
  DeviceBuffer device_items("reduce_items", items.size() * sizeof(ReduceItem), 16);
  device_items.upload(items.data(), device_items.bytes());
  const int32_t indptr[] = {0, c.num_queries};
  DeviceBuffer qo_indptr("qo_indptr", sizeof(indptr), 4);
  qo_indptr.upload(indptr, sizeof(indptr));
  const int32_t no_pages[] = {0, 0};  // stage 2 has nothing to do with KV
  DeviceBuffer kv_indptr("kv_indptr", sizeof(no_pages), 4);
  kv_indptr.upload(no_pages, sizeof(no_pages));
  const DeviceBuffer o("o", static_cast<size_t>(rows) * kHeadDimV * element_bytes(c.o_type), 16);
  const DeviceBuffer lse("final_lse", static_cast<size_t>(rows) * 4, 4);

  internal::MlaParams params = {};
  params.qo_indptr = static_cast<const int32_t*>(qo_indptr.data());
  params.kv_indptr = static_cast<const int32_t*>(kv_indptr.data());
  params.o = o.data();
  params.o_stride_head = kHeadDimV;
  params.o_stride_token = int64_t{kHeadDimV} * c.num_heads;
  params.lse = c.with_lse ? static_cast<float*>(lse.data()) : nullptr;
  params.lse_stride_head = 1;
  params.lse_stride_token = c.num_heads;
  params.partial_o = static_cast<float*>(partial_o.data());
  params.partial_lse = static_cast<float*>(partial_lse.data());
  params.partial_stride = stride;
  params.fill_partials = c.fill_partials;
  params.reduce_items = static_cast<const ReduceItem*>(device_items.data());
  params.num_heads = internal::make_fast_divisor(static_cast<uint32_t>(c.num_heads));
  params.page_size = internal::make_fast_divisor(1);
  params.o_type = c.o_type;
  check_hip(internal::launch_stage2(params, static_cast<int>(items.size()), c.tile_rows, nullptr),
            "launch_stage2");
  check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");

  // Weights err by a few roundings of LSE differences up to their spread (below 1000 here), sums by
  // one per partial.
  const Expected expected = merge(c);
  const double u = 0x1p-24;
  const double o_round = c.o_type == DataType::kBf16  ? 0x1p-8
                         : c.o_type == DataType::kF16 ? 0x1p-11
                                                      : u;
  CompareSpec spec;
  spec.name = "o";
  spec.shape = {c.num_queries, c.num_heads, kHeadDimV};
  spec.rerun = rerun_command();
  for (size_t i = 0; i < expected.o.size(); ++i) {
    const double lse_size = std::abs(expected.lse[i / kHeadDimV]);
    const double size = std::isfinite(lse_size) ? lse_size : 0.0;
    spec.abs.push_back(expected.o_abs[i] * (2.0 * c.num_partials + 64.0 + 16.0 * size) * u +
                       std::abs(expected.o[i]) * o_round + 0x1p-25);
  }
  const auto raw = o.download();
  std::vector<float> actual(static_cast<size_t>(rows) * kHeadDimV);
  for (size_t i = 0; i < actual.size(); ++i)
    actual[i] = load_element(raw.data(), c.o_type, static_cast<int64_t>(i));
  EXPECT_EQ(compare(spec, actual, expected.o).failure, "");

  if (c.with_lse) {
    CompareSpec lse_spec;
    lse_spec.name = "final_lse";
    lse_spec.shape = {c.num_queries, c.num_heads};
    lse_spec.rerun = rerun_command();
    for (double x : expected.lse)
      lse_spec.abs.push_back((c.num_partials + 64.0) * u +
                             (std::isfinite(x) ? 16.0 * u * std::abs(x) : 0.0));
    std::vector<float> actual_lse(static_cast<size_t>(rows));
    lse.download(actual_lse.data(), lse.bytes());
    EXPECT_EQ(compare(lse_spec, actual_lse, expected.lse).failure, "");
  } else {
    EXPECT_EQ(lse.check_untouched(), "");
  }

  // Partials stay as they were; those that a row does not have become (0, -inf), if asked for.
  for (int64_t s = c.num_partials; s < c.fill_partials; ++s)
    for (int64_t r = 0; r < rows; ++r) {
      const auto place = static_cast<size_t>(first + s * stride + r);
      host_lse[place] = bits_of_float(-kInf);
      std::fill_n(host_o.begin() + static_cast<int64_t>(place) * kHeadDimV, kHeadDimV, 0u);
    }
  EXPECT_EQ(partial_o.check_unchanged(host_o.data(), partial_o.bytes()), "");
  EXPECT_EQ(partial_lse.check_unchanged(host_lse.data(), partial_lse.bytes()), "");
  EXPECT_EQ(
      o.check_guards() + lse.check_guards() + partial_o.check_guards() + partial_lse.check_guards(),
      "");
}

TEST(Stage2Reduce, Case15NumberOfPartials) {
  for (int32_t heads : {16, 128})
    for (int32_t num_partials : {1, 2, 3, 17, 63, 64, 65, 256, 400})
      expect_merge(make_case(heads, num_partials < 64 ? 2 : 1, num_partials, 1));
}

TEST(Stage2Reduce, Case15EmptyPartials) {
  for (int32_t heads : {16, 128}) {
    ReduceCase c = make_case(heads, 1, 3, 2);
    const auto rows = static_cast<size_t>(c.rows());
    for (size_t row = 0; row < rows; ++row)
      for (size_t s = 0; s < 3; ++s) {
        // All subsets of the three partials take turns; what an empty one holds must not matter.
        if (row >> s & 1) continue;
        c.lse[s * rows + row] = -kInf;
        std::fill_n(c.o.begin() + static_cast<int64_t>((s * rows + row) * kHeadDimV), kHeadDimV,
                    row % 2 ? kNan : 0.0f);
      }
    expect_merge(c);
    std::fill(c.lse.begin(), c.lse.end(), -kInf);
    expect_merge(c);
  }
}

TEST(Stage2Reduce, Case15NanStaysInItsRow) {
  for (int32_t heads : {16, 128}) {
    ReduceCase c = make_case(heads, 2, 4, 3);
    const auto rows = static_cast<size_t>(c.rows());
    c.lse[1 * rows + 5] = kNan;                    // all of row 5
    c.o[(2 * rows + 9) * kHeadDimV + 100] = kNan;  // one element of row 9
    expect_merge(c);
  }
}

TEST(Stage2Reduce, Case15LseFarApart) {
  ReduceCase c = make_case(16, 2, 5, 4);
  for (size_t i = 0; i < c.lse.size(); ++i)
    c.lse[i] = static_cast<float>(static_cast<int>(i * 37 % 11) - 5) * 90.0f;
  expect_merge(c);
  for (float& x : c.lse) x += 1e4f;
  expect_merge(c);
}

TEST(Stage2Reduce, Case15TypesTilesAndFill) {
  for (DataType o_type : {DataType::kBf16, DataType::kF16, DataType::kF32})
    for (int32_t tile_rows : {16, 32, 64, 128})
      for (int32_t heads : {5, 16, 128}) {
        ReduceCase c = make_case(heads, 3, 3, 5);
        c.o_type = o_type;
        c.tile_rows = tile_rows;
        c.fill_partials = tile_rows == 32 ? 6 : 0;
        c.with_lse = tile_rows != 64;
        expect_merge(c);
      }
}

}  // namespace
}  // namespace hipmla::test
