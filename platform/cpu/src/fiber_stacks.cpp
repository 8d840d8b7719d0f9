// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "fiber_stacks.h"

#include <sys/mman.h>
#include <unistd.h>

namespace hip_cpu::internal {

namespace {

// One mapping for the stacks of a wave.
constexpr size_t kStacksPerSlab = 64;

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Fibers of a wave touch the same few hundred bytes of their stacks in turn. Were the stacks
// equally aligned, these would share a few cache sets and evict each other; so each stack starts at
// another cache line of its page.
size_t top_offset(size_t index) { return index * 9 % 64 * 64; }

}  // namespace

bool FiberStacks::reserve(size_t count, size_t stack_bytes) {
  const size_t page = page_bytes();
  stack_bytes = (stack_bytes + page - 1) / page * page;
  if (stack_bytes != stack_bytes_) {
    release();
    stack_bytes_ = stack_bytes;
  }
  while (stacks_.size() < count) {
    if (!add_slab()) return false;
  }
  return true;
}

bool FiberStacks::add_slab() {
  // One more page takes the offset, one is the guard. The distance of stacks is an even number of
  // pages in most cases, so a third page makes it odd and spreads them over the sets of a larger
  // cache as well.
  const size_t page = page_bytes();
  size_t slot_bytes = stack_bytes_ + 2 * page;
  if (slot_bytes / page % 2 == 0) slot_bytes += page;
  const size_t bytes = slot_bytes * kStacksPerSlab;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  slabs_.push_back({address, bytes});
  for (size_t i = 0; i < kStacksPerSlab; ++i) {
    char* slot = static_cast<char*>(address) + i * slot_bytes;
    // Best effort: a process has a limited number of mappings. Without a guard, an overrun ends in
    // a neighbour.
    (void)mprotect(slot, page, PROT_NONE);
    stacks_.push_back({slot + page, slot_bytes - page - top_offset(i)});
  }
  return true;
}

void FiberStacks::release() {
  for (const Slab& slab : slabs_) munmap(slab.address, slab.bytes);
  slabs_.clear();
  stacks_.clear();
}

}  // namespace hip_cpu::internal
