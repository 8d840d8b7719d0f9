// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "hipmla/device.h"
#include "hipmla/export.h"
#include "hipmla/status.h"
#include "hipmla/types.h"

// One decode step of absorbed multi-head latent attention (MLA) over a paged latent cache.
//
//   score(t, h, p) = softmax_scale * sum_d q[t, h, d] * kv[p, d]              d in [0, 576), optionally soft-capped
//   o[t, h, :]     = sum_p softmax_p(score)(p) * kv[p, 0:512]
//   lse[t, h]      = ln sum_p exp(score(t, h, p))
//
// over the positions p that query t may see: with n queries and kv_len cached tokens in its sequence, query
// i sees p < kv_len - n + i + 1 if causal, else p < kv_len. A row that sees no key gets o = 0 and lse = -inf.
//
// What the cache holds that a row does not see never reaches that row, NaN and infinity included: the rest of its pages, and
// tokens of its sequence that are masked for it. A row that sees a token with NaN among its values is NaN, o and lse; what
// becomes of a row that sees an infinity is not specified.

struct ihipStream_t;

namespace hipmla {

/// A hipStream_t of the AMD and CPU platforms, without their header. nullptr is the default stream.
using Stream = ihipStream_t*;

constexpr int32_t kHeadDimQk = 576;  ///< 512 latent + 64 rotary
constexpr int32_t kHeadDimV = 512;   ///< V is the latent part of each cached token

/// Which part of each sequence's KV this call holds, under context parallelism.
enum class KvShard : int32_t {
  kWhole = 0,  ///< all of it
  kRoundRobin =
      1,  ///< global position p is local position p / cp_world_size of rank p mod cp_world_size
  kContiguous = 2,  ///< local position p is global position kv_shard_begins[b] + p
};

/// What a decode step is made of, known before any length is. Bounds, not exact sizes, are enough to ask
/// for support and workspace; a plan is then built for lengths within them.
struct MlaDecodeShape {
  DataType q_type = DataType::kBf16;      ///< bf16, f16 or fp8
  DataType kv_type = DataType::kBf16;     ///< q_type, or fp8
  DataType o_type = DataType::kBf16;      ///< bf16, f16 or f32
  KvLayout kv_layout = KvLayout::kDense;  ///< kPacked: kv_type fp8, q_type bf16
  int32_t num_heads = 0;                  ///< 1..512
  int32_t head_dim_qk = kHeadDimQk;       ///< 576
  int32_t head_dim_v = kHeadDimV;         ///< 512
  int32_t page_size = 1;                  ///< tokens per page, 1..4096, any value
  int32_t batch_size = 0;                 ///< sequences
  int32_t max_seqlen_q = 1;               ///< no sequence has more query tokens, 1..1024
  int64_t total_q = 0;                    ///< query tokens; at most batch_size * max_seqlen_q
  /// 0: queries see their sequence's pages. Else sparse: each query token sees the topk tokens that
  /// `topk_indices` names, 1..65536; no page table, lengths.kv_* and causal are then not read.
  int32_t topk = 0;
};

struct MlaDecodeOptions {
  Schedule schedule = Schedule::kAuto;
  /// Parts per sequence for kSplitKv, 1..256; 0: from occupancy. Must be 0 for other schedules.
  int32_t num_kv_splits = 0;
  bool causal = true;
  /// 0: none. Else a query at global position p sees no key before p - sliding_window + 1.
  int32_t sliding_window = 0;
  /// final_lse in base 2 instead of e. Partials are natural in any case.
  bool lse_base2 = false;
  /// Write `partial_o` and `partial_lse` as well; see MlaDecodeTensors.
  bool return_partials = false;
  KvShard kv_shard = KvShard::kWhole;
  int32_t cp_world_size = 1;  ///< ranks, for kRoundRobin
  int32_t cp_rank = 0;        ///< 0..cp_world_size - 1, for kRoundRobin
};

/// Lengths of a batch in host memory, as the kernels find them in device memory.
struct MlaDecodeLengths {
  int32_t batch_size = 0;
  const int32_t* qo_indptr = nullptr;  ///< [batch_size + 1], starts at 0, never falls
  const int32_t* kv_indptr = nullptr;  ///< [batch_size + 1] in pages, starts at 0, never falls
  /// [batch_size] in 1..page_size; not read where no page is.
  const int32_t* kv_last_page_lens = nullptr;
  /// [batch_size] tokens of the whole sequence over all shards. Only with a kv_shard other than kWhole.
  const int32_t* kv_global_lens = nullptr;
  /// [batch_size] global position of the first local token. Only with kContiguous.
  const int32_t* kv_shard_begins = nullptr;
};

/// A factor per tensor: *device (read when the kernel runs; if given) times host.
struct Scale {
  const float* device = nullptr;
  float host = 1.0f;  ///< finite
};

/// Everything one decode call reads and writes. Views are of device memory; nothing is retained.
///
/// Every pointer is aligned to its element; q, kv_buffer, o and partial_o to 16 bytes. q, kv_buffer and o have
/// a dense last dimension and other strides that are multiples of 16 bytes; final_lse may have any strides; index
/// arrays are dense. No stride is negative. What is written may not overlap any other tensor or the workspace,
/// counted from a tensor's first byte to its last.
struct MlaDecodeTensors {
  TensorView q;  ///< [total_q, num_heads, 576]
  /// [num_pages, page_size, 1, 576]; kPacked: [num_pages, page_size, 1, 656] of kv_type, one element a byte.
  TensorView kv_buffer;
  /// These four are not looked at with topk.
  TensorView qo_indptr;          ///< [batch_size + 1] i32
  TensorView kv_indptr;          ///< [batch_size + 1] i32, counts pages
  TensorView kv_indices;         ///< [>= kv_indptr[batch_size]] i32, physical pages in any order
  TensorView kv_last_page_lens;  ///< [batch_size] i32
  TensorView kv_global_lens;     ///< [batch_size] i32, with a kv_shard other than kWhole
  TensorView kv_shard_begins;    ///< [batch_size] i32, with kContiguous
  /// [total_q, topk] i32, dense, with topk: token slots page * page_size + offset; -1, or any value outside
  /// the buffer: none.
  TensorView topk_indices;
  TensorView o;          ///< [total_q, num_heads, 512], written
  TensorView final_lse;  ///< [total_q, num_heads] f32, written; optional
  /// Only with `return_partials`, both dense: the states that stage 2 merged, in the caller's shape. Part s
  /// of a row is its s-th KV range; parts that a row does not have are o = 0, lse = -inf.
  TensorView partial_o;    ///< [plan.num_partials(), total_q, num_heads, 512] f32, written
  TensorView partial_lse;  ///< [plan.num_partials(), total_q, num_heads] f32, written

  float softmax_scale = 0.0f;  ///< finite
  Scale q_scale;               ///< q is this times its stored values
  Scale kv_scale;              ///< likewise the cache; kDense only
  /// [num_pages, page_size] f32, any strides; optional, for a dense fp8 cache: token factors on top of kv_scale.
  TensorView kv_token_scales;
  /// 0: none. Else scores s become logits_soft_cap * tanh(s / logits_soft_cap), before the mask. Not negative, finite.
  float logits_soft_cap = 0.0f;
  /// [num_heads] f32, dense; optional: exp(sink) joins the denominator of o. The LSE leaves it out, so that
  /// states still merge; give it only where o is final, not to the shards of a merge.
  TensorView sink;

  /// Host copy of the lengths. Required by the call that plans inside; where given with a plan, a plan built
  /// for other lengths is refused.
  MlaDecodeLengths lengths;
};

/// Device memory for the work list and the partial results. The library never allocates.
struct Workspace {
  void* data = nullptr;  ///< aligned to kWorkspaceAlignment
  size_t bytes = 0;
};
constexpr size_t kWorkspaceAlignment = 256;

/// The work list of one decode step: depends on lengths, not on data, and serves every layer of the step.
///
/// Copies share one immutable list. A default-constructed plan fits no call.
class HIPMLA_API MlaDecodePlan {
 public:
  MlaDecodePlan();
  ~MlaDecodePlan();
  MlaDecodePlan(const MlaDecodePlan&);
  MlaDecodePlan(MlaDecodePlan&&) noexcept;
  MlaDecodePlan& operator=(const MlaDecodePlan&);
  MlaDecodePlan& operator=(MlaDecodePlan&&) noexcept;

  /// Bytes that the workspace of this plan needs; never more than mla_decode_workspace_size announced.
  size_t workspace_bytes() const;
  /// The schedule that was chosen; never kAuto for a built plan.
  Schedule schedule() const;
  /// The largest number of parts that the KV of any row was cut into; at least 1 for a built plan.
  int32_t num_partials() const;
  /// Hash of everything that the plan was built for; equal inputs give equal values.
  uint64_t fingerprint() const;
  /// Text for logs: schedule, kernel, work items, parts.
  std::string description() const;

  /// The library's own view of the plan.
  struct Impl;
  const Impl* impl() const { return impl_.get(); }

 private:
  friend HIPMLA_API Status mla_decode_plan(const MlaDecodeShape&, const MlaDecodeOptions&,
                                           const DeviceInfo&, const MlaDecodeLengths&,
                                           MlaDecodePlan*);
  std::shared_ptr<const Impl> impl_;
};

/// Says whether a decode of this shape runs on `device`: ok, or the same Status that every other entry point
/// would give. Pure; needs no device.
HIPMLA_API Status mla_decode_check_support(const MlaDecodeShape& shape,
                                           const MlaDecodeOptions& options,
                                           const DeviceInfo& device);

/// Bytes of workspace that suffice for any lengths within `shape`, and for any shape with a smaller batch_size,
/// total_q or max_seqlen_q: ask once, for the largest step. Pure; needs no device.
HIPMLA_API Status mla_decode_workspace_size(const MlaDecodeShape& shape,
                                            const MlaDecodeOptions& options,
                                            const DeviceInfo& device, size_t* bytes);

/// Builds the plan for one step on the host. Pure; needs no device. `*plan` is left as it was on failure.
///
/// `lengths` must lie within `shape` (same batch_size, qo_indptr[batch_size] == total_q); else
/// kInvalidArgument with the offending sequence in the text.
HIPMLA_API Status mla_decode_plan(const MlaDecodeShape& shape, const MlaDecodeOptions& options,
                                  const DeviceInfo& device, const MlaDecodeLengths& lengths,
                                  MlaDecodePlan* plan);

/// Queues the copy of the work list into the head of `workspace`, for `mla_decode_fwd` calls that follow on
/// `stream` (or are ordered after it). The plan must stay alive until the stream has passed the copy.
HIPMLA_API Status mla_decode_upload_plan(const MlaDecodePlan& plan, const Workspace& workspace,
                                         Stream stream);

/// Runs one MLA decode step and writes `tensors.o` (and `tensors.final_lse`, if set).
///
/// `workspace` holds this plan's list (mla_decode_upload_plan); all layers of a step may share it, one after
/// the other. It must stay alive until the stream has passed the call.
///
/// Returns kStalePlan if `plan` was built for something else than `tensors`, kWorkspaceTooSmall if `workspace`
/// has fewer than `plan.workspace_bytes()` bytes. Nothing is launched or written unless the call is ok. If the
/// lengths in device memory differ from the plan's, results are wrong, but every access stays within what
/// those lengths and indices describe.
HIPMLA_API Status mla_decode_fwd(const MlaDecodePlan& plan, const MlaDecodeTensors& tensors,
                                 const Workspace& workspace, Stream stream);

/// Plans, uploads and runs in one call; `tensors.lengths` is required. The rest of the shape is that of the tensors:
/// topk is topk_indices.shape[1], a cache of 656 fp8 elements a token is kPacked. For a single layer or a first try:
/// an engine plans once per step instead. Not for stream capture: the list is gone from the host when it returns.
HIPMLA_API Status mla_decode_fwd(const MlaDecodeTensors& tensors, const MlaDecodeOptions& options,
                                 const DeviceInfo& device, const Workspace& workspace,
                                 Stream stream);

}  // namespace hipmla
