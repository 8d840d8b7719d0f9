// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// What a MlaDecodePlan holds.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hipmla/mla_decode.h"
#include "kernels/mla/stage1_configs.h"
#include "src/workspace.h"

namespace hipmla {

struct MlaDecodePlan::Impl {
  MlaDecodeShape shape;
  MlaDecodeOptions options;
  DeviceInfo device;
  int config_index = -1;

  // The lengths that the plan was built for; with topk, only those of queries. A last page length
  // is 0 where a sequence has no page.
  std::vector<int32_t> qo_indptr;          // [batch_size + 1]
  std::vector<int32_t> kv_indptr;          // [batch_size + 1]
  std::vector<int32_t> kv_last_page_lens;  // [batch_size]
  std::vector<int32_t> kv_global_lens;     // [batch_size], or empty
  std::vector<int32_t> kv_shard_begins;    // [batch_size], or empty

  internal::WorkspaceLayout layout;
  std::vector<std::byte> list;  // [layout.list_bytes] the head of the workspace, byte for byte
  int num_items = 0;
  int num_workgroups = 0;
  int num_reduce_items = 0;
  int32_t num_partials = 1;
  int64_t partial_stride = 0;
  uint64_t fingerprint = 0;

  const internal::Stage1Config& config() const { return internal::kStage1Configs[config_index]; }
  int32_t num_pages() const { return kv_indptr.empty() ? 0 : kv_indptr.back(); }  // listed ones
};

}  // namespace hipmla
