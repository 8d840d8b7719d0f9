// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/batch_builder.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>

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

// gain * noise + along * direction.
void make_vector(Random& random, float gain, float along, float* out) {
  const std::array<float, 4096>& normal = normal_table();
  const std::array<float, kQkDim>& unit = direction();
  for (int d = 0; d < kQkDim; d += 4) {
    uint64_t bits = random.next();
    for (int i = 0; i < 4; ++i, bits >>= 16)
      out[d + i] = gain * normal[bits & 4095] + along * unit[d + i];
  }
}

void store_vector(DataType type, const float* x, float factor, int size, uint8_t* out) {
  for (int d = 0; d < size; ++d) store_element(out, type, d, x[d] * factor);
}

// Fills bytes with NaN of `type`, or with what the spec wants in unused slots.
void fill_unused(DataType type, std::optional<uint16_t> pattern, std::vector<uint8_t>* out) {
  uint16_t bits = pattern.value_or(kPoison16);
  if (!pattern && is_fp8(type)) bits = static_cast<uint16_t>(fp8_format(type).nan * 0x101);
  for (size_t i = 0; i < out->size(); ++i)
    (*out)[i] = static_cast<uint8_t>(i % 2 == 0 ? bits & 0xff : bits >> 8);
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

// The tokens of a whole sequence that the spec's rank holds: `count` of them, the i-th is at
// global position begin + i * stride.
struct ShardTokens {
  int32_t begin;
  int32_t stride;
  int32_t count;
};
ShardTokens shard_tokens(const BatchSpec& spec, int32_t kv_len) {
  const int64_t world = spec.cp_world_size;
  if (spec.kv_shard == KvShard::kRoundRobin) {
    const int32_t count = kv_len <= spec.cp_rank
                              ? 0
                              : static_cast<int32_t>((kv_len - spec.cp_rank + world - 1) / world);
    return {spec.cp_rank, spec.cp_world_size, count};
  }
  if (spec.kv_shard == KvShard::kContiguous) {
    const auto begin = static_cast<int32_t>(kv_len * int64_t{spec.cp_rank} / world);
    const auto end = static_cast<int32_t>(kv_len * int64_t{spec.cp_rank + 1} / world);
    return {begin, 1, end - begin};
  }
  return {0, 1, kv_len};
}

void build_lengths(const BatchSpec& spec, Batch* batch) {
  batch->batch_size = static_cast<int32_t>(spec.q_lens.size());
  batch->qo_indptr.push_back(0);
  batch->kv_indptr.push_back(0);
  for (size_t b = 0; b < spec.q_lens.size(); ++b) {
    const ShardTokens tokens = shard_tokens(spec, spec.kv_lens[b]);
    const int32_t pages = (tokens.count + spec.page_size - 1) / spec.page_size;
    batch->qo_indptr.push_back(batch->qo_indptr.back() + spec.q_lens[b]);
    batch->kv_indptr.push_back(batch->kv_indptr.back() + pages);
    batch->kv_last_page_lens.push_back(pages == 0 ? static_cast<int32_t>(kPoison32)
                                                  : tokens.count - (pages - 1) * spec.page_size);
    if (spec.kv_shard != KvShard::kWhole) batch->kv_global_lens.push_back(spec.kv_lens[b]);
    if (spec.kv_shard == KvShard::kContiguous) batch->kv_shard_begins.push_back(tokens.begin);
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

// Stores the 576 values of a token as the cache holds them.
void store_token(const BatchSpec& spec, Random& random, const float* values, uint8_t* token,
                 float* token_scale) {
  if (!is_fp8(spec.kv_type)) {
    store_vector(spec.kv_type, values, 1.0f, kQkDim, token);
    return;
  }
  // Stored values reach a few dozen, factors are no powers of two.
  const auto random_scale = [&] { return static_cast<float>(0.02 + 0.1 * random.uniform()); };
  if (spec.kv_layout == KvLayout::kPacked) {
    float scales[4];
    for (int i = 0; i < 4; ++i) {
      scales[i] = random_scale();
      store_vector(spec.kv_type, values + 128 * i, 1.0f / scales[i], 128, token + 128 * i);
    }
    std::memcpy(token + kHeadDimV, scales, sizeof(scales));
    uint8_t* rotary = token + kHeadDimV + sizeof(scales);
    store_vector(DataType::kBf16, values + kHeadDimV, 1.0f, kQkDim - kHeadDimV, rotary);
    return;
  }
  float scale = spec.kv_scale();
  if (token_scale != nullptr) {
    *token_scale = random_scale();
    scale *= *token_scale;
  }
  store_vector(spec.kv_type, values, 1.0f / scale, kQkDim, token);
}

// Bytes of a packed record that no sequence uses: NaN in each of its types.
void fill_unused_packed(const BatchSpec& spec, Batch* batch) {
  for (int64_t slot = 0; slot < batch->num_pages * spec.page_size; ++slot) {
    uint8_t* token = batch->kv.data() + slot / spec.page_size * batch->kv_stride[0] +
                     slot % spec.page_size * batch->kv_stride[1];
    for (int i = kHeadDimV; i < 656; ++i)
      token[i] = static_cast<uint8_t>(i % 2 == 0 ? kPoison16 & 0xff : kPoison16 >> 8);
  }
}

// A token's values follow from the seed, its sequence and its global position, not from its page or
// shard: page sizes and shards can be compared.
void fill_kv(const BatchSpec& spec, Batch* batch) {
  const auto element = static_cast<int64_t>(element_bytes(spec.kv_type));
  batch->kv_stride[1] = spec.token_elements() + (spec.padded ? 48 / element : 0);
  batch->kv_stride[0] = batch->kv_stride[1] * spec.page_size + (spec.padded ? 80 / element : 0);
  batch->kv.resize(static_cast<size_t>(batch->num_pages * batch->kv_stride[0] * element));
  fill_unused(spec.kv_type, spec.unused, &batch->kv);
  if (spec.kv_layout == KvLayout::kPacked && !spec.unused) fill_unused_packed(spec, batch);
  if (spec.token_scales) {
    batch->scale_stride[1] = spec.padded ? 3 : 1;
    batch->scale_stride[0] = batch->scale_stride[1] * spec.page_size + (spec.padded ? 5 : 0);
    batch->kv_token_scales.assign(static_cast<size_t>(batch->num_pages * batch->scale_stride[0]),
                                  NAN);
  }
  std::vector<int32_t> filled(static_cast<size_t>(batch->num_pages), 0);  // tokens of each page
  for (int32_t b = 0; b < batch->batch_size; ++b) {
    const int32_t kv_len = spec.kv_lens[static_cast<size_t>(b)];
    const ShardTokens tokens = shard_tokens(spec, kv_len);
    Random sequence_random(spec.seed * 1000003u + static_cast<uint64_t>(b));
    const std::vector<float> extra =
        make_trend(spec.trend, kv_len, spec.q_lens[static_cast<size_t>(b)], sequence_random);
    for (int32_t p = 0; p < tokens.count; ++p) {
      const int64_t page =
          batch->kv_indices[static_cast<size_t>(batch->kv_indptr[b] + p / spec.page_size)];
      const int32_t in_page = p % spec.page_size;
      if (in_page < filled[static_cast<size_t>(page)])
        continue;  // a shared page keeps its first owner's values
      filled[static_cast<size_t>(page)] = in_page + 1;
      const int32_t position = tokens.begin + p * tokens.stride;
      Random random(spec.seed ^ (static_cast<uint64_t>(b) << 40) ^ static_cast<uint64_t>(position));
      const double along = extra[static_cast<size_t>(position)] / (kAlongQ * spec.softmax_scale);
      float values[kQkDim];
      make_vector(random, 1.0f, static_cast<float>(along), values);
      float* scale = spec.token_scales
                         ? batch->kv_token_scales.data() + page * batch->scale_stride[0] +
                               in_page * batch->scale_stride[1]
                         : nullptr;
      store_token(
          spec, random, values,
          batch->kv.data() + element * (page * batch->kv_stride[0] + in_page * batch->kv_stride[1]),
          scale);
    }
  }
}

// A packed token's infinity is a scale; all 128 values of that part become infinite, or NaN.
void poison_token(const BatchSpec& spec, Poison what, uint8_t* token) {
  const auto element = static_cast<int64_t>(element_bytes(spec.kv_type));
  const bool is_packed = spec.kv_layout == KvLayout::kPacked;
  const float infinity = std::numeric_limits<float>::infinity();
  const float value = what == Poison::kNan ? NAN : what == Poison::kInfinity ? infinity : -infinity;
  if (what == Poison::kNan) {
    for (int64_t d = 0; d < (is_packed ? kHeadDimV : kQkDim); ++d)
      store_element(token, spec.kv_type, d, value);
  } else if (is_packed) {
    std::memcpy(token + kHeadDimV + sizeof(float), &value, sizeof(float));
  } else {
    const int64_t dim = what == Poison::kInfinity ? 37 : 511;
    if (is_fp8(spec.kv_type))
      token[dim * element] = static_cast<uint8_t>(fp8_format(spec.kv_type).nan);
    else
      store_element(token, spec.kv_type, dim, value);
  }
}

void poison_tokens(const BatchSpec& spec, Batch* batch) {
  const auto element = static_cast<int64_t>(element_bytes(spec.kv_type));
  for (const PoisonedToken& token : spec.poisoned) {
    const ShardTokens tokens =
        shard_tokens(spec, spec.kv_lens[static_cast<size_t>(token.sequence)]);
    const int32_t local = (token.position - tokens.begin) / tokens.stride;
    if (local < 0 || local >= tokens.count ||
        tokens.begin + local * tokens.stride != token.position)
      continue;
    const int64_t page = batch->kv_indices[static_cast<size_t>(batch->kv_indptr[token.sequence] +
                                                               local / spec.page_size)];
    poison_token(spec, token.what,
                 batch->kv.data() + element * (page * batch->kv_stride[0] +
                                               local % spec.page_size * batch->kv_stride[1]));
  }
}

// Rows differ in how peaked their softmax is: noise of 0.25, 1 or 4 in the scores.
void fill_q(const BatchSpec& spec, Batch* batch) {
  const auto element = static_cast<int64_t>(element_bytes(spec.q_type));
  batch->q_stride[1] = kQkDim + (spec.padded ? 16 / element : 0);
  batch->q_stride[0] = batch->q_stride[1] * spec.num_heads + (spec.padded ? 32 / element : 0);
  batch->q.resize(static_cast<size_t>(batch->total_q * batch->q_stride[0] * element));
  fill_unused(spec.q_type, std::nullopt, &batch->q);
  const double standard = 1.0 / (24.0 * std::abs(static_cast<double>(spec.softmax_scale)));
  for (int64_t t = 0; t < batch->total_q; ++t)
    for (int32_t h = 0; h < spec.num_heads; ++h) {
      Random random(spec.seed * 7919u + static_cast<uint64_t>(t) * 1024u +
                    static_cast<uint64_t>(h) + (uint64_t{1} << 60));
      const double gain =
          std::array<double, 3>{1.0, 0.25, 4.0}[static_cast<size_t>(random.below(3))];
      float values[kQkDim];
      make_vector(random, static_cast<float>(gain * std::min(standard, 4.0)),
                  static_cast<float>(kAlongQ), values);
      store_vector(spec.q_type, values, 1.0f / spec.q_scale(), kQkDim,
                   batch->q.data() + element * (t * batch->q_stride[0] + h * batch->q_stride[1]));
    }
}

// Sinks from negligible to larger than all scores, and none.
void fill_sink(const BatchSpec& spec, Batch* batch) {
  if (!spec.sink) return;
  Random random(spec.seed + 77);
  for (int32_t h = 0; h < spec.num_heads; ++h) {
    const double x = random.below(8) == 0 ? -1e30 : random.uniform() * 40.0 - 10.0;
    batch->sink.push_back(h % 16 == 7 ? -std::numeric_limits<float>::infinity()
                                      : static_cast<float>(x));
  }
}

// Entries name tokens of the query's sequence in any order, some twice; a hole is -1 or another
// value outside the cache.
void fill_topk(const BatchSpec& spec, Batch* batch) {
  if (spec.topk == 0) return;
  Random random(spec.seed + 99);
  const auto num_slots =
      static_cast<int32_t>(batch->num_pages * static_cast<int64_t>(spec.page_size));
  const auto hole = [&] {
    const std::vector<int32_t> others = {num_slots, num_slots + 1, -2, INT32_MIN, INT32_MAX};
    return random.below(4) ? -1 : random.pick(others);
  };
  for (int32_t b = 0; b < batch->batch_size; ++b)
    for (int32_t t = batch->qo_indptr[b]; t < batch->qo_indptr[b + 1]; ++t) {
      const int32_t kv_len = shard_tokens(spec, spec.kv_lens[static_cast<size_t>(b)]).count;
      TopkHoles holes = spec.topk_holes;
      if (holes == TopkHoles::kMixed)
        holes = static_cast<TopkHoles>(random.between(1, kNumTopkHoles - 1));
      for (int32_t i = 0; i < spec.topk; ++i) {
        const bool is_hole = kv_len == 0 || holes == TopkHoles::kAll ||
                             (holes == TopkHoles::kSome && random.below(3) == 0) ||
                             (holes == TopkHoles::kFirst && i < 40) ||
                             (holes == TopkHoles::kLast && i >= 3);
        if (is_hole) {
          batch->topk_indices.push_back(hole());
          continue;
        }
        const auto p = static_cast<int32_t>(random.below(kv_len));
        const int32_t page =
            batch->kv_indices[static_cast<size_t>(batch->kv_indptr[b] + p / spec.page_size)];
        batch->topk_indices.push_back(page * spec.page_size + p % spec.page_size);
      }
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
  std::string text = std::string(data_type_name(q_type)) + "/" + data_type_name(kv_type) + "->" +
                     data_type_name(o_type) + (kv_layout == KvLayout::kPacked ? " packed" : "") +
                     " heads " + std::to_string(num_heads) + " page_size " +
                     std::to_string(page_size) + " q_lens " + list_text(q_lens) + " kv_lens " +
                     list_text(kv_lens) + (causal ? " causal" : " not causal") + " scale " +
                     std::to_string(softmax_scale) + " trend " +
                     std::to_string(static_cast<int>(trend));
  if (padded) text += " padded";
  if (pool_tokens > 0) text += " pool " + std::to_string(pool_tokens);
  const auto add_scale = [&](const char* name, float host, float device) {
    if (host != 1.0f || device != 0.0f)
      text += std::string(" ") + name + " " + std::to_string(host) + "*" + std::to_string(device);
  };
  add_scale("q_scale", q_scale_host, q_scale_device);
  add_scale("kv_scale", kv_scale_host, kv_scale_device);
  if (token_scales) text += " token_scales";
  if (logits_soft_cap > 0.0f) text += " soft_cap " + std::to_string(logits_soft_cap);
  if (sink) text += " sink";
  if (sliding_window > 0) text += " window " + std::to_string(sliding_window);
  if (lse_base2) text += " lse_base2";
  if (kv_shard != KvShard::kWhole)
    text += std::string(kv_shard == KvShard::kRoundRobin ? " round_robin" : " contiguous") +
            " rank " + std::to_string(cp_rank) + " of " + std::to_string(cp_world_size);
  for (const PoisonedToken& token : poisoned)
    text += " poison " + std::to_string(static_cast<int>(token.what)) + " at " +
            std::to_string(token.sequence) + ":" + std::to_string(token.position);
  if (topk > 0)
    text +=
        " topk " + std::to_string(topk) + " holes " + std::to_string(static_cast<int>(topk_holes));
  return text + " seed " + std::to_string(seed);
}

MlaHostInputs Batch::host_inputs() const {
  MlaHostInputs in;
  in.q = dense_view(const_cast<uint8_t*>(q.data()), spec.q_type, total_q, spec.num_heads, kQkDim);
  in.q.stride[0] = q_stride[0];
  in.q.stride[1] = q_stride[1];
  in.kv_buffer = dense_view(const_cast<uint8_t*>(kv.data()), spec.kv_type, num_pages,
                            spec.page_size, 1, spec.token_elements());
  in.kv_buffer.stride[0] = kv_stride[0];
  in.kv_buffer.stride[1] = kv_stride[1];
  in.kv_layout = spec.kv_layout;
  in.q_scale = static_cast<double>(spec.q_scale());
  in.kv_scale = static_cast<double>(spec.kv_scale());
  if (!kv_token_scales.empty()) {
    in.kv_token_scales = dense_view(const_cast<float*>(kv_token_scales.data()), DataType::kF32,
                                    num_pages, spec.page_size);
    in.kv_token_scales.stride[0] = scale_stride[0];
    in.kv_token_scales.stride[1] = scale_stride[1];
  }
  in.batch_size = batch_size;
  in.qo_indptr = qo_indptr.data();
  in.kv_indptr = kv_indptr.data();
  in.kv_indices = kv_indices.data();
  in.kv_last_page_lens = kv_last_page_lens.data();
  in.kv_shard = spec.kv_shard;
  in.cp_world_size = spec.cp_world_size;
  in.cp_rank = spec.cp_rank;
  in.kv_global_lens = kv_global_lens.empty() ? nullptr : kv_global_lens.data();
  in.kv_shard_begins = kv_shard_begins.empty() ? nullptr : kv_shard_begins.data();
  in.topk = spec.topk;
  in.topk_indices = topk_indices.data();
  in.softmax_scale = static_cast<double>(spec.softmax_scale);
  in.logits_soft_cap = static_cast<double>(spec.logits_soft_cap);
  in.sink = sink.empty() ? nullptr : sink.data();
  in.causal = spec.causal;
  in.sliding_window = spec.sliding_window;
  in.lse_base2 = spec.lse_base2;
  return in;
}

MlaDecodeShape Batch::shape() const {
  MlaDecodeShape shape;
  shape.q_type = spec.q_type;
  shape.kv_type = spec.kv_type;
  shape.o_type = spec.o_type;
  shape.kv_layout = spec.kv_layout;
  shape.num_heads = spec.num_heads;
  shape.page_size = spec.page_size;
  shape.batch_size = batch_size;
  shape.max_seqlen_q = spec.max_seqlen_q;
  shape.total_q = total_q;
  shape.topk = spec.topk;
  return shape;
}

MlaDecodeLengths Batch::lengths() const {
  MlaDecodeLengths lengths;
  lengths.batch_size = batch_size;
  lengths.qo_indptr = qo_indptr.data();
  if (spec.topk > 0) return lengths;
  lengths.kv_indptr = kv_indptr.data();
  lengths.kv_last_page_lens = kv_last_page_lens.data();
  lengths.kv_global_lens = kv_global_lens.empty() ? nullptr : kv_global_lens.data();
  lengths.kv_shard_begins = kv_shard_begins.empty() ? nullptr : kv_shard_begins.data();
  return lengths;
}

void Batch::set_options(MlaDecodeOptions* options) const {
  options->causal = spec.causal;
  options->sliding_window = spec.sliding_window;
  options->lse_base2 = spec.lse_base2;
  options->kv_shard = spec.kv_shard;
  const bool is_round_robin = spec.kv_shard == KvShard::kRoundRobin;
  options->cp_world_size = is_round_robin ? spec.cp_world_size : 1;
  options->cp_rank = is_round_robin ? spec.cp_rank : 0;
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
  poison_tokens(spec, &batch);
  fill_q(spec, &batch);
  fill_sink(spec, &batch);
  fill_topk(spec, &batch);
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
  spec.q_type = spec.kv_type = type;
  spec.o_type = is_fp8(type) ? DataType::kBf16 : type;
  spec.num_heads = num_heads;
  spec.page_size = page_size;
  spec.q_lens.assign(static_cast<size_t>(batch_size), seqlen_q);
  spec.kv_lens.assign(static_cast<size_t>(batch_size), kv_len);
  return spec;
}

}  // namespace hipmla::test
