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
//   score(t, h, p) = softmax_scale * sum_d q[t, h, d] * kv[p, d]              d in [0, 576)
//   o[t, h, :]     = sum_p softmax_p(score)(p) * kv[p, 0:512]
//   lse[t, h]      = ln sum_p exp(score(t, h, p))
//
// over the positions p that query t may see: with n queries and kv_len cached tokens in its sequence, query
// i sees p < kv_len - n + i + 1 if causal, else p < kv_len. A row that sees no key gets o = 0 and lse = -inf.

struct ihipStream_t;

namespace hipmla {

/// A hipStream_t of the AMD and CPU platforms, without their header. nullptr is the default stream.
using Stream = ihipStream_t*;

constexpr int32_t kHeadDimQk = 576;  ///< 512 latent + 64 rotary
constexpr int32_t kHeadDimV = 512;   ///< V is the latent part of each cached token

/// What a decode step is made of, known before any length is. Bounds, not exact sizes, are enough to ask
/// for support and workspace; a plan is then built for lengths within them.
struct MlaDecodeShape {
  DataType q_type = DataType::kBf16;   ///< kBf16 or kF16
  DataType kv_type = DataType::kBf16;  ///< must equal q_type
  DataType o_type = DataType::kBf16;   ///< kBf16, kF16 or kF32
  int32_t num_heads = 0;               ///< 1..512
  int32_t head_dim_qk = kHeadDimQk;    ///< 576
  int32_t head_dim_v = kHeadDimV;      ///< 512
  int32_t page_size = 1;               ///< tokens per page, 1..4096, any value
  int32_t batch_size = 0;              ///< sequences
  int32_t max_seqlen_q = 1;            ///< no sequence has more query tokens, 1..1024
  int64_t total_q = 0;  ///< query tokens of the batch; at most batch_size * max_seqlen_q
};

struct MlaDecodeOptions {
  Schedule schedule = Schedule::kAuto;
  int32_t num_kv_splits =
      0;  ///< parts per sequence for kSplitKv, 1..256; 0: from occupancy. Else must be 0
  bool causal = true;
  bool return_partials =
      false;  ///< write `partial_o` and `partial_lse` as well; see MlaDecodeTensors
};

/// Lengths of a batch in host memory, as the kernels find them in device memory.
struct MlaDecodeLengths {
  int32_t batch_size = 0;
  const int32_t* qo_indptr = nullptr;  ///< [batch_size + 1], starts at 0, never falls
  const int32_t* kv_indptr = nullptr;  ///< [batch_size + 1] in pages, starts at 0, never falls
  const int32_t* kv_last_page_lens =
      nullptr;  ///< [batch_size] in 1..page_size; not read where no page is
};

/// Everything one decode call reads and writes. Views are of device memory; nothing is retained.
///
/// Every pointer is aligned to its element; q, kv_buffer, o and partial_o to 16 bytes. q, kv_buffer and o have
/// a dense last dimension and other strides that are multiples of 16 bytes; final_lse may have any strides; index
/// arrays are dense. No stride is negative. What is written may not overlap any other tensor or the workspace,
/// counted from a tensor's first byte to its last.
struct MlaDecodeTensors {
  TensorView q;                  ///< [total_q, num_heads, 576]
  TensorView kv_buffer;          ///< [num_pages, page_size, 1, 576]
  TensorView qo_indptr;          ///< [batch_size + 1] i32
  TensorView kv_indptr;          ///< [batch_size + 1] i32, counts pages
  TensorView kv_indices;         ///< [>= kv_indptr[batch_size]] i32, physical pages in any order
  TensorView kv_last_page_lens;  ///< [batch_size] i32
  TensorView o;                  ///< [total_q, num_heads, 512], written
  TensorView final_lse;          ///< [total_q, num_heads] f32, written; optional
  /// Only with `return_partials`, both dense: the states that stage 2 merged, in the caller's shape. Part s
  /// of a row is its s-th KV range; parts that a row does not have are o = 0, lse = -inf.
  TensorView partial_o;        ///< [plan.num_partials(), total_q, num_heads, 512] f32, written
  TensorView partial_lse;      ///< [plan.num_partials(), total_q, num_heads] f32, written
  float softmax_scale = 0.0f;  ///< finite

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

/// Plans, uploads and runs in one call; `tensors.lengths` is required. For a single layer or a first try:
/// an engine plans once per step instead. Not for stream capture: the list is gone from the host when it returns.
HIPMLA_API Status mla_decode_fwd(const MlaDecodeTensors& tensors, const MlaDecodeOptions& options,
                                 const DeviceInfo& device, const Workspace& workspace,
                                 Stream stream);

}  // namespace hipmla
