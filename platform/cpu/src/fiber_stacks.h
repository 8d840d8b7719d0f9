// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

namespace hip_cpu::internal {

struct FiberStack {
  char* bottom = nullptr;
  size_t bytes = 0;
  char* top() const { return bottom + bytes; }
};

// The stacks of one OS thread's fibers: mapped on first use, each with a guard page below it,
// reused by later blocks.
class FiberStacks {
 public:
  FiberStacks() = default;
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;
  ~FiberStacks() { release(); }

  // Makes at least `count` stacks of `stack_bytes` bytes (rounded up to pages). False if memory
  // runs out.
  bool reserve(size_t count, size_t stack_bytes);

  const FiberStack& operator[](size_t index) const { return stacks_[index]; }
  size_t size() const { return stacks_.size(); }

 private:
  struct Slab {
    void* address;
    size_t bytes;
  };

  bool add_slab();
  void release();

  std::vector<Slab> slabs_;
  std::vector<FiberStack> stacks_;
  size_t stack_bytes_ = 0;
};

}  // namespace hip_cpu::internal
