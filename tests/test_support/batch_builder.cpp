// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/batch_builder.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

constexpr int kQkDim = kHeadDimQk;
// Every q row holds this much of a fixed direction; a token that holds c of it scores softmax_scale
// * 24 c more.
constexpr double kAlongQ = 24.0;

// 4096 values with the distribution of N(0, 1), so that a normal number costs a look-up.
const std::array<float, 4096>& normal_table() {
  static const std::array<float, 4096> table = [] {
    std::array<float, 4096> values{};
    double x = -4.0;
    for (int i = 0; i < 4096; ++i) {
      const double target = (i + 0.5) / 4096.0;
      while (0.5 * std::erfc(-x / std::sqrt(2.0)) < target) x += 1e-4;
      values[static_cast<size_t>(i)] = static_cast<float>(x);
    }
    return values;
  }();
  return table;
}

// Unit vector of alternating, uneven entries over all 576 dims.
const std::array<float, kQkDim>& direction() {
  static const std::array<float, kQkDim> values = [] {
    std::array<float, kQkDim> v{};
    double norm = 0.0;
    for (int d = 0; d < kQkDim; ++d) {
      v[static_cast<size_t>(d)] =
          static_cast<float>((d % 3 == 0 ? -1.0 : 1.0) * (0.5 + d % 7 / 6.0));
      norm += static_cast<double>(v[static_cast<size_t>(d)]) * v[static_cast<size_t>(d)];
    }
    for (float& x : v) x = static_cast<float>(x / std::sqrt(norm));
    return v;
  }();
  return values;
}

// gain * noise + along * direction, rounded to `type`.
void fill_vector(DataType type, Random& random, float gain, float along, uint16_t* out) {
  const std::array<float, 4096>& normal = normal_table();
  const std::array<float, kQkDim>& unit = direction();
  for (int d = 0; d < kQkDim; d += 4) {
    uint64_t bits = random.next();
    for (int i = 0; i < 4; ++i, bits >>= 16)
      out[d + i] = float_to_16bit(type, gain * normal[bits & 4095] + along * unit[d + i]);
  }
}

// Extra score of each position of a sequence. The newest tokens, where the causal limit is, are
// never negligible.
std::vector<float> make_trend(ScoreTrend trend, int32_t kv_len, int32_t q_len, Random& random) {
  std::vector<float> extra(static_cast<size_t>(kv_len), 0.0f);
  if (trend == ScoreTrend::kMixed)
    trend = static_cast<ScoreTrend>(random.between(1, kNumScoreTrends - 1));
  const float as_all_others = std::log(static_cast<float>(kv_len) + 1.0f);
  float level = 0.0f;
  float highest = 0.0f;
  for (int32_t p = 0; p < kv_len; ++p) {
    float& x = extra[static_cast<size_t>(p)];
    const bool is_newest = p >= kv_len - q_len - 1;
    switch (trend) {
      case ScoreTrend::kMixed:
      case ScoreTrend::kFlat:
        break;
      case ScoreTrend::kSlowGrowth:
        x = 60.0f * static_cast<float>(p) / static_cast<float>(kv_len);
        break;
      case ScoreTrend::kJumps:
        if (random.below(24) == 0) level = static_cast<float>(random.uniform() * 40.0);
        highest = std::max(highest, level);
        x = is_newest || random.below(8) == 0 ? highest : level;
        break;
      case ScoreTrend::kSink:
        if (p == 0 || is_newest) x = as_all_others;
        break;
      case ScoreTrend::kTail:
        if (is_newest) x = as_all_others;
        break;
    }
  }
  return extra;
}

template <typename T>
std::string list_text(const std::vector<T>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i == 12 && values.size() > 16) {
      text += ",... " + std::to_string(values.size()) + " in all";
      break;
    }
    text += (i ? "," : "") + std::to_string(values[i]);
  }
  return text + "]";
}

void build_lengths(const BatchSpec& spec, Batch* batch) {
  batch->batch_size = static_cast<int32_t>(spec.q_lens.size());
  batch->qo_indptr.push_back(0);
  batch->kv_indptr.push_back(0);
  for (size_t b = 0; b < spec.q_lens.size(); ++b) {
    const int32_t pages = (spec.kv_lens[b] + spec.page_size - 1) / spec.page_size;
    batch->qo_indptr.push_back(batch->qo_indptr.back() + spec.q_lens[b]);
    batch->kv_indptr.push_back(batch->kv_indptr.back() + pages);
    batch->kv_last_page_lens.push_back(pages == 0 ? static_cast<int32_t>(kPoison32)
                                                  : spec.kv_lens[b] - (pages - 1) * spec.page_size);
  }
  batch->total_q = batch->qo_indptr.back();
}

// Physical pages of the batch: all different, or drawn from a pool that is too small for that. Page
// 0 is never listed.
void build_page_table(const BatchSpec& spec, Random& random, Batch* batch) {
  const int64_t listed = batch->kv_indptr.back();
  int64_t distinct = listed;
  if (spec.pool_tokens > 0)
    distinct =
        std::clamp<int64_t>(spec.pool_tokens / spec.page_size, 1, std::max<int64_t>(listed, 1));
  batch->num_pages = distinct + std::max<int64_t>(2, std::min<int64_t>(distinct / 4, 512)) + 1;
  std::vector<int32_t> pool;
  for (int64_t page = 1; page < batch->num_pages; ++page)
    pool.push_back(static_cast<int32_t>(page));
  if (spec.shuffle_pages) random.shuffle(pool);
  pool.resize(static_cast<size_t>(distinct));
  batch->kv_indices.assign(static_cast<size_t>(listed) + 5, static_cast<int32_t>(kPoison32));
  for (int64_t i = 0; i < listed; ++i) {
    if (i > 0 && i % distinct == 0 && spec.shuffle_pages) random.shuffle(pool);
    batch->kv_indices[static_cast<size_t>(i)] = pool[static_cast<size_t>(i % distinct)];
  }
}

// A token's values follow from the seed, its sequence and its position, not from its page: page
// sizes can be compared.
void fill_kv(const BatchSpec& spec, Batch* batch) {
  batch->kv_stride[1] = spec.padded ? kQkDim + 24 : kQkDim;
  batch->kv_stride[0] = batch->kv_stride[1] * spec.page_size + (spec.padded ? 40 : 0);
  batch->kv.assign(static_cast<size_t>(batch->num_pages * batch->kv_stride[0]), spec.unused);
  std::vector<int32_t> filled(static_cast<size_t>(batch->num_pages), 0);  // tokens of each page
  for (int32_t b = 0; b < batch->batch_size; ++b) {
    const int32_t kv_len = spec.kv_lens[static_cast<size_t>(b)];
    Random sequence_random(spec.seed * 1000003u + static_cast<uint64_t>(b));
    const std::vector<float> extra =
        make_trend(spec.trend, kv_len, spec.q_lens[static_cast<size_t>(b)], sequence_random);
    for (int32_t p = 0; p < kv_len; ++p) {
      const int64_t page =
          batch->kv_indices[static_cast<size_t>(batch->kv_indptr[b] + p / spec.page_size)];
      const int32_t slot = p % spec.page_size;
      if (slot < filled[static_cast<size_t>(page)])
        continue;  // a shared page keeps its first owner's values
      filled[static_cast<size_t>(page)] = slot + 1;
      Random random(spec.seed ^ (static_cast<uint64_t>(b) << 40) ^ static_cast<uint64_t>(p));
      const double along = extra[static_cast<size_t>(p)] / (kAlongQ * spec.softmax_scale);
      fill_vector(spec.type, random, 1.0f, static_cast<float>(along),
                  batch->kv.data() + page * batch->kv_stride[0] + slot * batch->kv_stride[1]);
    }
  }
}

// Rows differ in how peaked their softmax is: noise of 0.25, 1 or 4 in the scores.
void fill_q(const BatchSpec& spec, Batch* batch) {
  batch->q_stride[1] = spec.padded ? kQkDim + 8 : kQkDim;
  batch->q_stride[0] = batch->q_stride[1] * spec.num_heads + (spec.padded ? 16 : 0);
  batch->q.assign(static_cast<size_t>(batch->total_q * batch->q_stride[0]), kPoison16);
  const double standard = 1.0 / (24.0 * std::abs(static_cast<double>(spec.softmax_scale)));
  for (int64_t t = 0; t < batch->total_q; ++t)
    for (int32_t h = 0; h < spec.num_heads; ++h) {
      Random random(spec.seed * 7919u + static_cast<uint64_t>(t) * 1024u +
                    static_cast<uint64_t>(h) + (uint64_t{1} << 60));
      const double gain =
          std::array<double, 3>{1.0, 0.25, 4.0}[static_cast<size_t>(random.below(3))];
      fill_vector(spec.type, random, static_cast<float>(gain * std::min(standard, 4.0)),
                  static_cast<float>(kAlongQ),
                  batch->q.data() + t * batch->q_stride[0] + h * batch->q_stride[1]);
    }
}

}  // namespace

uint64_t Random::next() {  // splitmix64
  uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::string BatchSpec::description() const {
  return std::string(data_type_name(type)) + "->" + data_type_name(o_type) + " heads " +
         std::to_string(num_heads) + " page_size " + std::to_string(page_size) + " q_lens " +
         list_text(q_lens) + " kv_lens " + list_text(kv_lens) +
         (causal ? " causal" : " not causal") + " scale " + std::to_string(softmax_scale) +
         " trend " + std::to_string(static_cast<int>(trend)) + (padded ? " padded" : "") +
         (pool_tokens > 0 ? " pool " + std::to_string(pool_tokens) : "") + " seed " +
         std::to_string(seed);
}

MlaHostInputs Batch::host_inputs() const {
  MlaHostInputs in;
  in.q = dense_view(const_cast<uint16_t*>(q.data()), spec.type, total_q, spec.num_heads, kQkDim);
  in.q.stride[0] = q_stride[0];
  in.q.stride[1] = q_stride[1];
  in.kv_buffer =
      dense_view(const_cast<uint16_t*>(kv.data()), spec.type, num_pages, spec.page_size, 1, kQkDim);
  in.kv_buffer.stride[0] = kv_stride[0];
  in.kv_buffer.stride[1] = kv_stride[1];
  in.batch_size = batch_size;
  in.qo_indptr = qo_indptr.data();
  in.kv_indptr = kv_indptr.data();
  in.kv_indices = kv_indices.data();
  in.kv_last_page_lens = kv_last_page_lens.data();
  in.softmax_scale = static_cast<double>(spec.softmax_scale);
  in.causal = spec.causal;
  return in;
}

MlaDecodeShape Batch::shape() const {
  MlaDecodeShape shape;
  shape.q_type = spec.type;
  shape.kv_type = spec.type;
  shape.o_type = spec.o_type;
  shape.num_heads = spec.num_heads;
  shape.page_size = spec.page_size;
  shape.batch_size = batch_size;
  shape.max_seqlen_q = spec.max_seqlen_q;
  shape.total_q = total_q;
  return shape;
}

MlaDecodeLengths Batch::lengths() const {
  MlaDecodeLengths lengths;
  lengths.batch_size = batch_size;
  lengths.qo_indptr = qo_indptr.data();
  lengths.kv_indptr = kv_indptr.data();
  lengths.kv_last_page_lens = kv_last_page_lens.data();
  return lengths;
}

Batch build_batch(const BatchSpec& spec) {
  Batch batch;
  batch.spec = spec;
  if (batch.spec.max_seqlen_q == 0)
    batch.spec.max_seqlen_q =
        spec.q_lens.empty()
            ? 1
            : std::max(1, *std::max_element(spec.q_lens.begin(), spec.q_lens.end()));
  Random random(spec.seed);
  build_lengths(spec, &batch);
  build_page_table(spec, random, &batch);
  fill_kv(spec, &batch);
  fill_q(spec, &batch);
  const int64_t o_align = spec.o_type == DataType::kF32 ? 4 : 8;
  batch.o_stride[1] = kHeadDimV + (spec.padded ? o_align : 0);
  batch.o_stride[0] = batch.o_stride[1] * spec.num_heads + (spec.padded ? 3 * o_align : 0);
  batch.lse_stride[1] = spec.padded ? 3 : 1;
  batch.lse_stride[0] = batch.lse_stride[1] * spec.num_heads + (spec.padded ? 5 : 0);
  return batch;
}

BatchSpec uniform_spec(DataType type, int32_t num_heads, int32_t seqlen_q, int32_t kv_len,
                       int32_t batch_size, int32_t page_size) {
  BatchSpec spec;
  spec.type = type;
  spec.o_type = type;
  spec.num_heads = num_heads;
  spec.page_size = page_size;
  spec.q_lens.assign(static_cast<size_t>(batch_size), seqlen_q);
  spec.kv_lens.assign(static_cast<size_t>(batch_size), kv_len);
  return spec;
}

}  // namespace hipmla::test
