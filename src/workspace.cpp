// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "src/workspace.h"

#include <cstdint>

namespace hipmla::internal {
namespace {

// Advances `*end` by `count` elements, rounded up to the alignment, and returns where they start.
size_t place(size_t* end, int64_t count, size_t bytes_each) {
  const size_t begin = *end;
  const size_t bytes = static_cast<size_t>(count) * bytes_each;
  *end += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  return begin;
}

}  // namespace

WorkspaceLayout layout_workspace(const WorkSize& size) {
  WorkspaceLayout layout;
  size_t end = 0;
  layout.items = place(&end, size.num_items, sizeof(WorkItem));
  layout.slot_item_begin = place(&end, size.num_slot_begins, sizeof(int32_t));
  layout.reduce_items = place(&end, size.num_reduce_items, sizeof(ReduceItem));
  layout.list_bytes = end;
  layout.partial_o = place(&end, size.partial_rows, kVDim * sizeof(float));
  layout.partial_lse = place(&end, size.partial_rows, sizeof(float));
  layout.total_bytes = end;
  return layout;
}

}  // namespace hipmla::internal
