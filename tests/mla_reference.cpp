// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/mla_reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
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

// Rows [row_begin, row_end) of a sequence; row r is query r / num_heads, head r % num_heads.
struct Job {
  int32_t batch;
  int64_t row_begin;
  int64_t row_end;
  double cost;
};

void load_vector(const TensorView& view, int64_t offset, int size, double* out) {
  if (view.dtype == DataType::kBf16) {
    const uint16_t* bits = static_cast<const uint16_t*>(view.data) + offset;
    for (int d = 0; d < size; ++d) out[d] = bf16_to_float(bits[d]);
    return;
  }
  for (int d = 0; d < size; ++d) out[d] = load_element(view.data, view.dtype, offset + d);
}

double dot(const double* a, const double* b) {
  double sums[8] = {};  // independent sums, so that the compiler may use vectors
  for (int d = 0; d < kHeadDimQk; d += 8)
    for (int i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <typename T>
void add_scaled(T* __restrict acc, T scale, const T* __restrict x) {
  for (int d = 0; d < kHeadDimV; ++d) acc[d] += scale * x[d];
}

int64_t page_of(const MlaHostInputs& in, int32_t b, int64_t p) {
  return in.kv_indices[in.kv_indptr[b] + p / in.kv_buffer.shape[1]];
}

// Offset of position `p` of sequence `b` in the cache.
int64_t kv_offset(const MlaHostInputs& in, int32_t b, int64_t p) {
  return page_of(in, b, p) * in.kv_buffer.stride[0] +
         p % in.kv_buffer.shape[1] * in.kv_buffer.stride[1];
}

class RowBlock {
 public:
  RowBlock(const MlaHostInputs& in, const Job& job, MlaReference* out)
      : in_(in),
        job_(job),
        out_(out),
        num_rows_(static_cast<int>(job.row_end - job.row_begin)),
        kv_len_(sequence_kv_len(in, job.batch)),
        q_(static_cast<size_t>(num_rows_) * kHeadDimQk),
        scores_(static_cast<size_t>(num_rows_) * kv_len_) {
    const int64_t queries = in.qo_indptr[job.batch + 1] - in.qo_indptr[job.batch];
    for (int r = 0; r < num_rows_; ++r) {
      const int64_t query = (job.row_begin + r) / out->num_heads;
      const int64_t head = (job.row_begin + r) % out->num_heads;
      const int64_t token = in.qo_indptr[job.batch] + query;
      const int64_t visible = in.causal ? kv_len_ - queries + query + 1 : kv_len_;
      limit_.push_back(std::clamp<int64_t>(visible, 0, kv_len_));
      out_row_.push_back(token * out->num_heads + head);
      load_vector(in.q, token * in.q.stride[0] + head * in.q.stride[1], kHeadDimQk, q_row(r));
      q_norm_.push_back(std::sqrt(dot(q_row(r), q_row(r))));
    }
  }

  void run() {
    compute_scores();
    for (int r = 0; r < num_rows_; ++r) softmax(r);
    accumulate();
  }

 private:
  double* q_row(int r) { return q_.data() + static_cast<size_t>(r) * kHeadDimQk; }
  double* score_row(int r) { return scores_.data() + static_cast<size_t>(r) * kv_len_; }

  // score(row, p) = softmax_scale * sum_d q[row, d] * kv[p, d]
  void compute_scores() {
    double k[kHeadDimQk];
    for (int64_t p = 0; p < kv_len_; ++p) {
      load_vector(in_.kv_buffer, kv_offset(in_, job_.batch, p), kHeadDimQk, k);
      const double k_norm = std::sqrt(dot(k, k));
      for (int r = 0; r < num_rows_; ++r) {
        if (p >= limit_[r]) continue;
        score_row(r)[p] = in_.softmax_scale * dot(q_row(r), k);
        double& bound = out_->score_abs[out_row_[r]];
        bound = std::max(bound, std::abs(in_.softmax_scale) * q_norm_[r] * k_norm);
      }
    }
  }

  // lse = ln sum_p exp(score); the scores become the weights exp(score - lse).
  void softmax(int r) {
    double* score = score_row(r);
    const int64_t n = limit_[r];
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p < n; ++p) max = std::max(max, score[p]);
    double sum = 0.0;
    for (int64_t p = 0; p < n; ++p) sum += score[p] = std::exp(score[p] - max);
    for (int64_t p = 0; p < n; ++p) score[p] /= sum;
    out_->lse[out_row_[r]] =
        n == 0 ? -std::numeric_limits<double>::infinity() : max + std::log(sum);
    out_->p_max[out_row_[r]] = n == 0 ? 0.0 : 1.0 / sum;
    out_->num_keys[out_row_[r]] = n;
  }

  // o = sum_p weight(p) * kv[p, 0:512]
  void accumulate() {
    double v[kHeadDimV];
    float v_abs[kHeadDimV];
    float v_squared[kHeadDimV];
    double v_max = 0.0;
    std::unordered_map<int64_t, int> copies;  // how often the sequence lists a page
    for (int32_t i = in_.kv_indptr[job_.batch]; i < in_.kv_indptr[job_.batch + 1]; ++i)
      ++copies[in_.kv_indices[i]];
    for (int64_t p = 0; p < kv_len_; ++p) {
      // Equal keys have equal rounding errors: m of them count as one of weight m p, that is each
      // as sqrt(m) p.
      const auto equal_keys = static_cast<float>(copies[page_of(in_, job_.batch, p)]);
      load_vector(in_.kv_buffer, kv_offset(in_, job_.batch, p), kHeadDimV, v);
      for (int d = 0; d < kHeadDimV; ++d) {
        v_abs[d] = static_cast<float>(std::abs(v[d]));
        v_squared[d] = equal_keys * v_abs[d] * v_abs[d];
      }
      v_max = std::max<double>(v_max, *std::max_element(v_abs, v_abs + kHeadDimV));
      for (int r = 0; r < num_rows_; ++r) {
        if (p >= limit_[r]) continue;
        const double weight = score_row(r)[p];
        const size_t out = static_cast<size_t>(out_row_[r]) * kHeadDimV;
        add_scaled<double>(out_->o.data() + out, weight, v);
        const float weight_f32 = static_cast<float>(weight);
        add_scaled<float>(out_->o_abs_sum.data() + out, weight_f32, v_abs);
        add_scaled<float>(out_->o_root_sum.data() + out, weight_f32 * weight_f32, v_squared);
      }
    }
    for (int r = 0; r < num_rows_; ++r) {
      out_->v_max[out_row_[r]] = v_max;
      float* root = out_->o_root_sum.data() + static_cast<size_t>(out_row_[r]) * kHeadDimV;
      for (int d = 0; d < kHeadDimV; ++d) root[d] = std::sqrt(root[d]);
    }
  }

  const MlaHostInputs& in_;
  const Job& job_;
  MlaReference* out_;
  int num_rows_;
  int64_t kv_len_;
  std::vector<double> q_;       // [num_rows, 576]
  std::vector<double> scores_;  // [num_rows, kv_len]
  std::vector<int64_t> limit_;  // [num_rows] keys that the row sees: positions [0, limit)
  std::vector<int64_t> out_row_;
  std::vector<double> q_norm_;
};

std::vector<Job> cut_into_jobs(const MlaHostInputs& in) {
  std::vector<Job> jobs;
  const int64_t num_heads = in.q.shape[1];
  for (int32_t b = 0; b < in.batch_size; ++b) {
    const int64_t rows = (in.qo_indptr[b + 1] - in.qo_indptr[b]) * num_heads;
    // At least two jobs for a sequence, so that one long sequence keeps two cores busy.
    const int64_t kv_len = sequence_kv_len(in, b);
    const int64_t most = std::min(kMaxRowsPerJob, kMaxScoresPerJob / std::max<int64_t>(kv_len, 1));
    const int64_t step = std::clamp<int64_t>((rows + 1) / 2, 1, std::max<int64_t>(most, 1));
    for (int64_t r = 0; r < rows; r += step) {
      const int64_t end = std::min(rows, r + step);
      jobs.push_back(
          {b, r, end, static_cast<double>(end - r) * (static_cast<double>(kv_len) + 1.0)});
    }
  }
  // Long ones first, so that the cores finish together.
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tie(b.cost, a.batch, a.row_begin) < std::tie(a.cost, b.batch, b.row_begin);
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
  const size_t rows = static_cast<size_t>(out.num_rows());
  out.o.assign(rows * kHeadDimV, 0.0);
  out.o_abs_sum.assign(rows * kHeadDimV, 0.0f);
  out.o_root_sum.assign(rows * kHeadDimV, 0.0f);
  out.lse.assign(rows, -std::numeric_limits<double>::infinity());
  out.score_abs.assign(rows, 0.0);
  out.p_max.assign(rows, 0.0);
  out.v_max.assign(rows, 0.0);
  out.num_keys.assign(rows, 0);

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
