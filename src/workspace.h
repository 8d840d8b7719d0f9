// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Where things lie in the workspace:
//
//   items | slot_item_begin | reduce_items | partial_o [partial_rows, 512] f32 | partial_lse
//   [partial_rows] f32
//   `------- list, uploaded as one -------'
//
// Each part starts at a multiple of kWorkspaceAlignment. A part of no elements takes no bytes.

#include <cstddef>

#include "src/work_list.h"

namespace hipmla::internal {

// Offsets and sizes in bytes.
struct WorkspaceLayout {
  size_t items = 0;
  size_t slot_item_begin = 0;
  size_t reduce_items = 0;
  size_t list_bytes = 0;
  size_t partial_o = 0;
  size_t partial_lse = 0;
  size_t total_bytes = 0;
};

// Never falls in any field when a field of `size` grows.
WorkspaceLayout layout_workspace(const WorkSize& size);

}  // namespace hipmla::internal
