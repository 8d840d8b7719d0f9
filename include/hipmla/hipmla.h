// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// The C interface, for engines in other languages: C99, and stable in binary form within a minor
/// version. It mirrors hipmla/mla_decode.h, hipmla/mla_merge.h and hipmla/device.h, which say what
/// everything means: each struct has the fields of its C++ namesake, in the same units.
///
/// Structs that may grow begin with their size in the caller's headers, and are set to defaults by
/// a function that is told that size:
///
///     hipmla_shape_t shape;
///     hipmla_shape_init(&shape, sizeof(shape));
///     shape.num_heads = 16;
///
/// Fields that a caller's older struct does not have get their defaults. A newer caller's struct is
/// accepted as long as what this library does not know of it is zero.
///
/// Functions that can fail return a code and copy a text with the values at fault, cut to fit and
/// ended by a zero, to `text`, an optional buffer of `text_bytes` bytes. It is empty on success.
/// Thread safe, but for the use of one plan while it is being destroyed. `stream` is a hipStream_t.

#include <stddef.h>
#include <stdint.h>

#include "hipmla/export.h"
#include "hipmla/version.h"

// NOLINTBEGIN(readability-identifier-naming): names as C libraries have them
#ifdef __cplusplus
extern "C" {
#endif

typedef enum hipmla_status {
  HIPMLA_OK = 0,
  HIPMLA_INVALID_ARGUMENT = 1,
  HIPMLA_UNSUPPORTED = 2,
  HIPMLA_WORKSPACE_TOO_SMALL = 3,
  HIPMLA_STALE_PLAN = 4,
  HIPMLA_DEVICE_ERROR = 5
} hipmla_status_t;

/// Values of fields named dtype and *_type.
typedef enum hipmla_data_type {
  HIPMLA_BF16 = 0,
  HIPMLA_F16 = 1,
  HIPMLA_F32 = 2,
  HIPMLA_I32 = 3,
  HIPMLA_FP8_E4M3FN = 4,
  HIPMLA_FP8_E4M3FNUZ = 5
} hipmla_data_type_t;

/// Values of `arch`.
typedef enum hipmla_arch {
  HIPMLA_ARCH_UNKNOWN = 0,
  HIPMLA_GFX90A = 1,
  HIPMLA_GFX942 = 2,
  HIPMLA_GFX950 = 3,
  HIPMLA_SM80 = 4,
  HIPMLA_SM90 = 5
} hipmla_arch_t;

/// Values of `kv_layout`.
typedef enum hipmla_kv_layout { HIPMLA_KV_DENSE = 0, HIPMLA_KV_PACKED = 1 } hipmla_kv_layout_t;

/// Values of `schedule`.
typedef enum hipmla_schedule {
  HIPMLA_SCHEDULE_AUTO = 0,
  HIPMLA_SCHEDULE_PERSISTENT = 1,
  HIPMLA_SCHEDULE_SPLIT_KV = 2
} hipmla_schedule_t;

/// Values of `kv_shard`.
typedef enum hipmla_kv_shard {
  HIPMLA_KV_WHOLE = 0,
  HIPMLA_KV_ROUND_ROBIN = 1,
  HIPMLA_KV_CONTIGUOUS = 2
} hipmla_kv_shard_t;

/// A strided view of device memory; data == NULL: not given. Never grows.
typedef struct hipmla_tensor {
  void* data;
  int32_t dtype;
  int32_t ndim;
  int64_t shape[4];
  int64_t stride[4];  ///< in elements
} hipmla_tensor_t;

/// *device (device memory; NULL: 1) times host. Never grows.
typedef struct hipmla_scale {
  const float* device;
  float host;
  int32_t reserved;  ///< 0
} hipmla_scale_t;

typedef struct hipmla_device_info {
  size_t struct_size;
  int32_t arch;
  int32_t num_compute_units;
  int64_t lds_bytes;
} hipmla_device_info_t;

typedef struct hipmla_shape {
  size_t struct_size;
  int32_t q_type;
  int32_t kv_type;
  int32_t o_type;
  int32_t kv_layout;
  int32_t num_heads;
  int32_t head_dim_qk;
  int32_t head_dim_v;
  int32_t page_size;
  int32_t batch_size;
  int32_t max_seqlen_q;
  int64_t total_q;
  int32_t topk;
  int32_t reserved;  ///< 0
} hipmla_shape_t;

typedef struct hipmla_options {
  size_t struct_size;
  int32_t schedule;
  int32_t num_kv_splits;
  int32_t causal;  ///< 0 or 1
  int32_t sliding_window;
  int32_t lse_base2;        ///< 0 or 1
  int32_t return_partials;  ///< 0 or 1
  int32_t kv_shard;
  int32_t cp_world_size;
  int32_t cp_rank;
  int32_t reserved;  ///< 0
} hipmla_options_t;

/// Arrays in host memory.
typedef struct hipmla_lengths {
  size_t struct_size;
  int32_t batch_size;
  int32_t reserved;  ///< 0
  const int32_t* qo_indptr;
  const int32_t* kv_indptr;
  const int32_t* kv_last_page_lens;
  const int32_t* kv_global_lens;
  const int32_t* kv_shard_begins;
} hipmla_lengths_t;

typedef struct hipmla_tensors {
  size_t struct_size;
  hipmla_tensor_t q;
  hipmla_tensor_t kv_buffer;
  hipmla_tensor_t qo_indptr;
  hipmla_tensor_t kv_indptr;
  hipmla_tensor_t kv_indices;
  hipmla_tensor_t kv_last_page_lens;
  hipmla_tensor_t kv_global_lens;
  hipmla_tensor_t kv_shard_begins;
  hipmla_tensor_t topk_indices;
  hipmla_tensor_t o;
  hipmla_tensor_t final_lse;
  hipmla_tensor_t partial_o;
  hipmla_tensor_t partial_lse;
  hipmla_tensor_t kv_token_scales;
  hipmla_tensor_t sink;
  hipmla_scale_t q_scale;
  hipmla_scale_t kv_scale;
  float softmax_scale;
  float logits_soft_cap;
  const hipmla_lengths_t* lengths;  ///< or NULL
} hipmla_tensors_t;

/// The work list of one decode step.
typedef struct hipmla_plan hipmla_plan_t;

/// "major.minor.patch" of the library; the HIPMLA_VERSION_ macros tell the headers'.
HIPMLA_API const char* hipmla_version(void);
/// "amd" or "cpu".
HIPMLA_API const char* hipmla_platform(void);
/// "ok", "invalid argument", ...; "unknown" for what is no status.
HIPMLA_API const char* hipmla_status_name(hipmla_status_t status);

/// Set a struct of `struct_size` bytes to its defaults. NULL is ignored.
HIPMLA_API void hipmla_device_info_init(hipmla_device_info_t* device, size_t struct_size);
HIPMLA_API void hipmla_shape_init(hipmla_shape_t* shape, size_t struct_size);
HIPMLA_API void hipmla_options_init(hipmla_options_t* options, size_t struct_size);
HIPMLA_API void hipmla_lengths_init(hipmla_lengths_t* lengths, size_t struct_size);
HIPMLA_API void hipmla_tensors_init(hipmla_tensors_t* tensors, size_t struct_size);

/// A dense, row-major view of `ndim` dimensions, 1..4. Anything else gives a view that every call
/// refuses.
HIPMLA_API hipmla_tensor_t hipmla_dense_tensor(void* data, int32_t dtype, int32_t ndim,
                                               const int64_t* shape);

/// Fills `*device`, whose struct_size is set.
HIPMLA_API hipmla_status_t hipmla_query_device(int32_t device_id, hipmla_device_info_t* device,
                                               char* text, size_t text_bytes);

// In all that follows, `options` may be NULL: the defaults.

HIPMLA_API hipmla_status_t hipmla_check_support(const hipmla_shape_t* shape,
                                                const hipmla_options_t* options,
                                                const hipmla_device_info_t* device, char* text,
                                                size_t text_bytes);

HIPMLA_API hipmla_status_t hipmla_workspace_size(const hipmla_shape_t* shape,
                                                 const hipmla_options_t* options,
                                                 const hipmla_device_info_t* device,
                                                 size_t* workspace_bytes, char* text,
                                                 size_t text_bytes);

/// Makes a plan, to be destroyed by hipmla_plan_destroy. `*plan` is left as it was on failure.
HIPMLA_API hipmla_status_t hipmla_plan_create(const hipmla_shape_t* shape,
                                              const hipmla_options_t* options,
                                              const hipmla_device_info_t* device,
                                              const hipmla_lengths_t* lengths, hipmla_plan_t** plan,
                                              char* text, size_t text_bytes);

/// NULL is ignored. A plan that was uploaded must stay alive until the stream has passed the copy.
HIPMLA_API void hipmla_plan_destroy(hipmla_plan_t* plan);

/// Of a plan; 0 for NULL.
HIPMLA_API size_t hipmla_plan_workspace_bytes(const hipmla_plan_t* plan);
HIPMLA_API int32_t hipmla_plan_schedule(const hipmla_plan_t* plan);
HIPMLA_API int32_t hipmla_plan_num_partials(const hipmla_plan_t* plan);
HIPMLA_API uint64_t hipmla_plan_fingerprint(const hipmla_plan_t* plan);
/// Copies the text for logs like any other text.
HIPMLA_API hipmla_status_t hipmla_plan_description(const hipmla_plan_t* plan, char* text,
                                                   size_t text_bytes);

HIPMLA_API hipmla_status_t hipmla_upload_plan(const hipmla_plan_t* plan, void* workspace,
                                              size_t workspace_bytes, void* stream, char* text,
                                              size_t text_bytes);

/// Runs one decode step with an uploaded plan.
HIPMLA_API hipmla_status_t hipmla_decode(const hipmla_plan_t* plan, const hipmla_tensors_t* tensors,
                                         void* workspace, size_t workspace_bytes, void* stream,
                                         char* text, size_t text_bytes);

/// Plans, uploads and runs in one call; `tensors->lengths` is required.
HIPMLA_API hipmla_status_t hipmla_decode_once(const hipmla_tensors_t* tensors,
                                              const hipmla_options_t* options,
                                              const hipmla_device_info_t* device, void* workspace,
                                              size_t workspace_bytes, void* stream, char* text,
                                              size_t text_bytes);

/// Merges attention states of KV shards. `lse` may be NULL.
HIPMLA_API hipmla_status_t hipmla_merge_states(const hipmla_tensor_t* o_shards,
                                               const hipmla_tensor_t* lse_shards,
                                               int32_t num_shards, const hipmla_tensor_t* o,
                                               const hipmla_tensor_t* lse, void* stream, char* text,
                                               size_t text_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif
// NOLINTEND(readability-identifier-naming)
