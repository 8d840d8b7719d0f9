// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/mla_reference.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <unordered_map>

#include "hipmla/mla_decode.h"
#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

constexpr int64_t kMaxRowsPerJob = 64;
constexpr int64_t kMaxScoresPerJob = int64_t{1} << 24;  // rows x kv_len doubles, at least one row

// A run of queries that see the same keys, but for the mask: a sequence, or one query token with
// topk.
struct Sequence {
  int32_t batch;  // or the query token
  int64_t first_q;
  int64_t num_q;
  int64_t kv_len;
};

// Rows [row_begin, row_end) of a sequence; row r is query r / num_heads, head r % num_heads.
struct Job {
  Sequence sequence;
  int64_t row_begin;
  int64_t row_end;
  double cost;
};

// A position of a sequence.
struct Key {
  int64_t slot;      // of its token: page * page_size + offset in the page; -1: none
  int64_t position;  // in the whole sequence, over all shards
};

void load_vector(const TensorView& view, int64_t offset, int size, double* out) {
  if (view.dtype == DataType::kBf16) {
    const uint16_t* bits = static_cast<const uint16_t*>(view.data) + offset;
    for (int d = 0; d < size; ++d) out[d] = bf16_to_float(bits[d]);
    return;
  }
  if (is_fp8(view.dtype)) {
    const std::array<float, 256>& values = fp8_values(view.dtype);
    const uint8_t* bits = static_cast<const uint8_t*>(view.data) + offset;
    for (int d = 0; d < size; ++d) out[d] = values[bits[d]];
    return;
  }
  for (int d = 0; d < size; ++d) out[d] = load_element(view.data, view.dtype, offset + d);
}

// The 576 values of a token with all their factors.
void load_token(const MlaHostInputs& in, int64_t slot, double* out) {
  const int64_t page = slot / in.kv_buffer.shape[1];
  const int64_t in_page = slot % in.kv_buffer.shape[1];
  const int64_t offset = page * in.kv_buffer.stride[0] + in_page * in.kv_buffer.stride[1];
  if (in.kv_layout == KvLayout::kPacked) {  // 512 fp8, 4 f32, 64 bf16
    load_vector(in.kv_buffer, offset, kHeadDimV, out);
    const uint8_t* rest = static_cast<const uint8_t*>(in.kv_buffer.data) + offset + kHeadDimV;
    float scales[4];
    uint16_t rotary[kHeadDimQk - kHeadDimV];
    std::memcpy(scales, rest, sizeof(scales));
    std::memcpy(rotary, rest + sizeof(scales), sizeof(rotary));
    for (int d = 0; d < kHeadDimV; ++d) out[d] *= static_cast<double>(scales[d / 128]);
    for (int d = kHeadDimV; d < kHeadDimQk; ++d) out[d] = bf16_to_float(rotary[d - kHeadDimV]);
    return;
  }
  load_vector(in.kv_buffer, offset, kHeadDimQk, out);
  double factor = in.kv_scale;
  if (const TensorView& scales = in.kv_token_scales; scales.data != nullptr)
    factor *= static_cast<const float*>(
        scales.data)[page * scales.stride[0] + in_page * scales.stride[1]];
  if (factor != 1.0)
    for (int d = 0; d < kHeadDimQk; ++d) out[d] *= factor;
}

NonFinite find_non_finite(const double* k) {
  NonFinite worst = NonFinite::kNothing;
  for (int d = 0; d < kHeadDimQk; ++d)
    if (!std::isfinite(k[d]))
      worst = std::max(worst, std::isnan(k[d]) ? NonFinite::kNan : NonFinite::kInfinity);
  return worst;
}

double dot(const double* a, const double* b) {
  double sums[8] = {};  // independent sums, so that the compiler may use vectors
  for (int d = 0; d < kHeadDimQk; d += 8)
    for (int i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Values of a token that share one relative rounding error when they are multiplied with their
// factor: those with the same factor (one for the token, or one for each 128) and the same 3 bits
// of mantissa.
constexpr int kErrorGroups = 33;
constexpr uint8_t kExactGroup = 32;  // values without a factor
void find_error_groups(const MlaHostInputs& in, int64_t slot, uint8_t* groups) {
  const int64_t offset = slot / in.kv_buffer.shape[1] * in.kv_buffer.stride[0] +
                         slot % in.kv_buffer.shape[1] * in.kv_buffer.stride[1];
  const bool is_packed = in.kv_layout == KvLayout::kPacked;
  for (int d = 0; d < kHeadDimQk; ++d) {
    groups[d] = kExactGroup;
    if (is_packed && d >= kHeadDimV) continue;
    const float x = load_element(in.kv_buffer.data, in.kv_buffer.dtype, offset + d);
    groups[d] = static_cast<uint8_t>((is_packed ? d / 128 * 8 : 0) + (bits_of_float(x) >> 20 & 7));
  }
}
double sum_of_group_squares(const double* a, const double* b, const uint8_t* groups) {
  double sums[kErrorGroups] = {};
  for (int d = 0; d < kHeadDimQk; ++d) sums[groups[d]] += a[d] * b[d];
  double total = 0.0;
  for (int i = 0; i < kExactGroup; ++i) total += sums[i] * sums[i];
  return total;
}

template <typename T>
void add_scaled(T* __restrict acc, T scale, const T* __restrict x) {
  for (int d = 0; d < kHeadDimV; ++d) acc[d] += scale * x[d];
}

// What each position of a sequence is.
std::vector<Key> list_keys(const MlaHostInputs& in, const Sequence& sequence) {
  std::vector<Key> keys;
  keys.reserve(static_cast<size_t>(sequence.kv_len));
  const int64_t page_size = in.kv_buffer.shape[1];
  const int64_t num_slots = in.kv_buffer.shape[0] * page_size;
  for (int64_t p = 0; p < sequence.kv_len; ++p) {
    if (in.topk > 0) {
      const int64_t slot = in.topk_indices[sequence.first_q * in.topk + p];
      keys.push_back({slot >= 0 && slot < num_slots ? slot : -1, p});
      continue;
    }
    const int64_t page = in.kv_indices[in.kv_indptr[sequence.batch] + p / page_size];
    int64_t position = p;
    if (in.kv_shard == KvShard::kRoundRobin) position = p * in.cp_world_size + in.cp_rank;
    if (in.kv_shard == KvShard::kContiguous) position = in.kv_shard_begins[sequence.batch] + p;
    keys.push_back({page * page_size + p % page_size, position});
  }
  return keys;
}

// Positions [begin, end) of the whole sequence that a query sees.
struct Visible {
  int64_t begin;
  int64_t end;
};
Visible visible_positions(const MlaHostInputs& in, const Sequence& sequence, int64_t query) {
  if (in.topk > 0) return {0, in.topk};
  const int64_t global_len =
      in.kv_shard == KvShard::kWhole ? sequence.kv_len : in.kv_global_lens[sequence.batch];
  const int64_t own = global_len - sequence.num_q + query;
  return {in.sliding_window > 0 ? own - in.sliding_window + 1 : 0,
          in.causal ? own + 1 : global_len};
}

class RowBlock {
 public:
  RowBlock(const MlaHostInputs& in, const Job& job, MlaReference* out)
      : in_(in),
        out_(out),
        num_rows_(static_cast<int>(job.row_end - job.row_begin)),
        kv_len_(job.sequence.kv_len),
        keys_(list_keys(in, job.sequence)),
        q_(static_cast<size_t>(num_rows_) * kHeadDimQk),
        scores_(static_cast<size_t>(num_rows_) * kv_len_, -kInfinity) {
    for (int r = 0; r < num_rows_; ++r) {
      const int64_t query = (job.row_begin + r) / out->num_heads;
      const int64_t head = (job.row_begin + r) % out->num_heads;
      const int64_t token = job.sequence.first_q + query;
      visible_.push_back(visible_positions(in, job.sequence, query));
      head_.push_back(head);
      out_row_.push_back(token * out->num_heads + head);
      load_vector(in.q, token * in.q.stride[0] + head * in.q.stride[1], kHeadDimQk, q_row(r));
      for (int d = 0; d < kHeadDimQk; ++d) q_row(r)[d] *= in.q_scale;
      q_norm_.push_back(std::sqrt(dot(q_row(r), q_row(r))));
    }
  }

  void run() {
    compute_scores();
    for (int r = 0; r < num_rows_; ++r) softmax(r);
    accumulate();
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  double* q_row(int r) { return q_.data() + static_cast<size_t>(r) * kHeadDimQk; }
  double* score_row(int r) { return scores_.data() + static_cast<size_t>(r) * kv_len_; }
  bool sees(int r, int64_t p) const {
    const Key& key = keys_[static_cast<size_t>(p)];
    return key.slot >= 0 && key.position >= visible_[r].begin && key.position < visible_[r].end;
  }

  // score(row, p) = softmax_scale * sum_d q[row, d] * kv[p, d], then capped
  void compute_scores() {
    const double scale = in_.softmax_scale;
    double k[kHeadDimQk];
    uint8_t groups[kHeadDimQk];
    for (int64_t p = 0; p < kv_len_; ++p) {
      if (keys_[static_cast<size_t>(p)].slot < 0) continue;
      if (in_.has_token_factors())
        find_error_groups(in_, keys_[static_cast<size_t>(p)].slot, groups);
      load_token(in_, keys_[static_cast<size_t>(p)].slot, k);
      const double k_norm = std::sqrt(dot(k, k));
      const NonFinite non_finite = find_non_finite(k);
      for (int r = 0; r < num_rows_; ++r) {
        if (!sees(r, p)) continue;
        const double score = scale * dot(q_row(r), k);
        const double cap = in_.logits_soft_cap;
        score_row(r)[p] = cap > 0.0 ? cap * std::tanh(score / cap) : score;
        if (non_finite != NonFinite::kNothing) {
          NonFinite& worst = out_->non_finite[out_row_[r]];
          worst = std::max(worst, non_finite);
          continue;
        }
        double& bound = out_->score_abs[out_row_[r]];
        bound = std::max(bound, std::abs(scale) * q_norm_[r] * k_norm);
        if (in_.has_token_factors()) {
          double& root = out_->score_root[out_row_[r]];
          root = std::max(root,
                          std::abs(scale) * std::sqrt(sum_of_group_squares(q_row(r), k, groups)));
        }
      }
    }
  }

  // lse = ln sum_p exp(score); the scores become the weights exp(score) / (sum_p exp(score) +
  // exp(sink)).
  void softmax(int r) {
    double* score = score_row(r);
    const int64_t row = out_row_[r];
    double max = -kInfinity;
    int64_t num_keys = 0;
    for (int64_t p = 0; p < kv_len_; ++p) {
      if (!sees(r, p)) continue;
      ++num_keys;
      max = std::max(max, score[p]);
    }
    out_->num_keys[row] = num_keys;
    if (num_keys == 0) return;  // as the outputs start
    double sum = 0.0;
    for (int64_t p = 0; p < kv_len_; ++p)
      if (sees(r, p)) sum += std::exp(score[p] - max);
    const double lse = max + std::log(sum);
    double norm = lse;  // ln of the denominator
    if (in_.sink != nullptr) {
      const double sink = in_.sink[head_[r]];
      const double larger = std::max(lse, sink);
      norm = larger + std::log(std::exp(lse - larger) + std::exp(sink - larger));
      if (sink > lse - 100.0) out_->score_abs[row] = std::max(out_->score_abs[row], std::abs(sink));
    }
    for (int64_t p = 0; p < kv_len_; ++p) score[p] = sees(r, p) ? std::exp(score[p] - norm) : 0.0;
    out_->lse[row] = lse * out_->lse_unit;
    out_->p_max[row] = std::exp(max - norm);
  }

  // o = sum_p weight(p) * kv[p, 0:512]
  void accumulate() {
    double v[kHeadDimQk];
    float v_abs[kHeadDimV];
    float v_squared[kHeadDimV];
    std::unordered_map<int64_t, int> copies;  // how often the sequence lists a token
    for (const Key& key : keys_) ++copies[key.slot];
    for (int64_t p = 0; p < kv_len_; ++p) {
      const int64_t slot = keys_[static_cast<size_t>(p)].slot;
      if (slot < 0) continue;
      // Equal keys have equal rounding errors: m of them count as one of weight m p, that is each
      // as sqrt(m) p.
      const auto equal_keys = static_cast<float>(copies[slot]);
      load_token(in_, slot, v);
      for (int d = 0; d < kHeadDimV; ++d) {
        v_abs[d] = static_cast<float>(std::abs(v[d]));
        v_squared[d] = equal_keys * v_abs[d] * v_abs[d];
      }
      const double token_max = *std::max_element(v_abs, v_abs + kHeadDimV);
      for (int r = 0; r < num_rows_; ++r) {
        if (!sees(r, p)) continue;
        double& v_max = out_->v_max[out_row_[r]];
        if (std::isfinite(token_max)) v_max = std::max(v_max, token_max);
        const double weight = score_row(r)[p];
        const size_t out = static_cast<size_t>(out_row_[r]) * kHeadDimV;
        add_scaled<double>(out_->o.data() + out, weight, v);
        const float weight_f32 = static_cast<float>(weight);
        add_scaled<float>(out_->o_abs_sum.data() + out, weight_f32, v_abs);
        add_scaled<float>(out_->o_root_sum.data() + out, weight_f32 * weight_f32, v_squared);
      }
    }
    for (int r = 0; r < num_rows_; ++r) {
      float* root = out_->o_root_sum.data() + static_cast<size_t>(out_row_[r]) * kHeadDimV;
      for (int d = 0; d < kHeadDimV; ++d) root[d] = std::sqrt(root[d]);
    }
  }

  const MlaHostInputs& in_;
  MlaReference* out_;
  int num_rows_;
  int64_t kv_len_;
  std::vector<Key> keys_;         // [kv_len]
  std::vector<double> q_;         // [num_rows, 576]
  std::vector<double> scores_;    // [num_rows, kv_len]
  std::vector<Visible> visible_;  // [num_rows]
  std::vector<int64_t> head_;
  std::vector<int64_t> out_row_;
  std::vector<double> q_norm_;
};

std::vector<Sequence> list_sequences(const MlaHostInputs& in) {
  std::vector<Sequence> sequences;
  if (in.topk > 0) {
    for (int64_t token = 0; token < in.q.shape[0]; ++token)
      sequences.push_back({static_cast<int32_t>(token), token, 1, in.topk});
    return sequences;
  }
  for (int32_t b = 0; b < in.batch_size; ++b)
    sequences.push_back(
        {b, in.qo_indptr[b], in.qo_indptr[b + 1] - in.qo_indptr[b], sequence_kv_len(in, b)});
  return sequences;
}

std::vector<Job> cut_into_jobs(const MlaHostInputs& in) {
  std::vector<Job> jobs;
  const int64_t num_heads = in.q.shape[1];
  for (const Sequence& sequence : list_sequences(in)) {
    const int64_t rows = sequence.num_q * num_heads;
    // At least two jobs for a sequence, so that one long sequence keeps two cores busy.
    const int64_t kv_len = sequence.kv_len;
    const int64_t most = std::min(kMaxRowsPerJob, kMaxScoresPerJob / std::max<int64_t>(kv_len, 1));
    const int64_t step = std::clamp<int64_t>((rows + 1) / 2, 1, std::max<int64_t>(most, 1));
    for (int64_t r = 0; r < rows; r += step) {
      const int64_t end = std::min(rows, r + step);
      jobs.push_back(
          {sequence, r, end, static_cast<double>(end - r) * (static_cast<double>(kv_len) + 1.0)});
    }
  }
  // Long ones first, so that the cores finish together.
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tie(b.cost, a.sequence.batch, a.row_begin) <
           std::tie(a.cost, b.sequence.batch, b.row_begin);
  });
  return jobs;
}

}  // namespace

int64_t sequence_kv_len(const MlaHostInputs& in, int32_t b) {
  const int64_t pages = in.kv_indptr[b + 1] - in.kv_indptr[b];
  return pages == 0 ? 0 : (pages - 1) * in.kv_buffer.shape[1] + in.kv_last_page_lens[b];
}

MlaReference mla_reference(const MlaHostInputs& in,
                           const std::function<void(double done)>& progress) {
  MlaReference out;
  out.total_q = in.q.shape[0];
  out.num_heads = in.q.shape[1];
  out.lse_unit = in.lse_base2 ? 1.0 / std::log(2.0) : 1.0;
  out.kv_scale = std::abs(in.kv_scale);
  out.soft_cap = in.logits_soft_cap;
  const size_t rows = static_cast<size_t>(out.num_rows());
  out.o.assign(rows * kHeadDimV, 0.0);
  out.o_abs_sum.assign(rows * kHeadDimV, 0.0f);
  out.o_root_sum.assign(rows * kHeadDimV, 0.0f);
  out.lse.assign(rows, -std::numeric_limits<double>::infinity());
  out.score_abs.assign(rows, 0.0);
  out.score_root.assign(rows, 0.0);
  out.p_max.assign(rows, 0.0);
  out.v_max.assign(rows, 0.0);
  out.num_keys.assign(rows, 0);
  out.non_finite.assign(rows, NonFinite::kNothing);

  const std::vector<Job> jobs = cut_into_jobs(in);
  double total_cost = 0.0;
  for (const Job& job : jobs) total_cost += job.cost;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  double done_cost = 0.0;
  std::exception_ptr error;
  const auto work = [&](bool reports) {
    try {
      for (size_t i = next++; i < jobs.size(); i = next++) {
        RowBlock(in, jobs[i], &out).run();
        const std::lock_guard<std::mutex> lock(mutex);
        done_cost += jobs[i].cost;
        if (reports && progress) progress(done_cost / total_cost);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      error = std::current_exception();
      next = jobs.size();
    }
  };
  const size_t num_threads =
      std::min<size_t>(jobs.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work, false);
  } catch (const std::system_error&) {
    // Fewer threads do it too.
  }
  work(true);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return out;
}

}  // namespace hipmla::test
