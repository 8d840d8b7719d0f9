// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fiber_stacks.h"
#include "fiber_switch.h"
#include "hip_cpu/device.h"

namespace hip_cpu::internal {

constexpr int kMaxBlockThreads = 1024;
constexpr int kMaxWaves = kMaxBlockThreads / kWaveSize;

// A validated kernel launch.
struct KernelLaunch {
  void (*invoke)(const void* arguments);
  const void* arguments;
  dim3 grid_dim;
  dim3 block_dim;
  size_t lds_bytes;
  uint64_t schedule_seed;
  size_t stack_bytes;
};

struct Wave;
class BlockRunner;

enum class WaitKind { kNone, kCollective, kBarrier, kExited };

// A copy under way; `source` is null for zeros.
struct AsyncCopy {
  void* lds;
  const void* source;
  uint32_t group;
};

// One device thread: a fiber. Also stands for the OS thread itself, as the fiber that starts and
// ends a block.
struct Thread : ThreadInfo {
  FiberContext context;
  Wave* wave;
  WaitKind wait_kind;
  const void* wait_site;
  std::vector<AsyncCopy> copies;  // under way, oldest first
  uint32_t copy_group;            // that the next copy belongs to
  // For the address sanitizer.
  void* fake_stack;
  const void* stack_bottom;
  size_t stack_bytes;
};

// A wave runs in rounds. In a round every lane runs once, from where it waits to its next sync
// point or end, in the order position, position + stride, ... modulo the number of lanes. Lanes
// switch to each other directly. After a round all lanes must have stopped in the same way: at one
// collective (its op runs, the next round begins), at the block barrier (the wave is parked), or at
// their end.
struct Wave {
  void* operands[kWaveSize];
  BlockRunner* runner;
  Thread* threads;  // of lane 0
  uint32_t num_lanes;

  uint32_t position;
  uint32_t stride;
  uint32_t num_started;  // lanes that this round has started

  uint32_t num_in_collective;
  uint32_t num_at_barrier;
  uint32_t num_exited;
  bool mixed;  // lanes of this round are at different collectives or barriers
  CollectiveOp op;
  const void* site;
};

// Runs blocks, one at a time, on the OS thread that owns it.
class BlockRunner {
 public:
  BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;
  ~BlockRunner();

  // The calling OS thread's runner.
  static BlockRunner& of_this_thread();

  // Runs block `block_number` of the grid, x fastest. Returns what went wrong, or an empty string.
  std::string run(const KernelLaunch& launch, uint64_t block_number);

  // Called by fibers.
  void wait_collective(Thread* self, CollectiveOp op, void* operand, void* context,
                       const void* site);
  void wait_barrier(Thread* self, const void* site);
  [[noreturn]] void finish_thread(Thread* self);
  [[noreturn]] void abandon_block(Thread* self, std::string fault);
  void start_copy(Thread* self, void* lds, const void* source);
  const KernelLaunch& launch() const { return *launch_; }

  // Tells the address sanitizer that `self` runs now. First thing that a fiber does.
  void after_switch(Thread* self);

 private:
  bool prepare(const KernelLaunch& launch, uint64_t block_number, std::string* fault);
  void prepare_shape(const dim3& block_dim);
  uint64_t next_random();
  Thread* begin_round(Wave* wave);
  Wave* pick_runnable_wave();
  void remove_runnable(const Wave* wave);
  void switch_to(Thread* self, Thread* next);
  void switch_to_last_time(Thread* self, Thread* next);
  // Called by the last lane of a round that did not end in a collective. Returns the thread that
  // runs next.
  Thread* end_round(Thread* self, WaitKind kind);
  std::string describe_divergence(const Wave& wave) const;
  std::string describe_barrier() const;
  std::string describe_waits(const Thread* threads, int count) const;

  const KernelLaunch* launch_ = nullptr;
  BlockInfo block_{};
  Thread host_{};
  std::vector<Thread> threads_;
  std::vector<Wave> waves_;
  FiberStacks stacks_;
  void* lds_ = nullptr;
  size_t lds_bytes_ = 0;

  dim3 prepared_dim_{0, 0, 0};
  int num_threads_ = 0;
  int num_waves_ = 0;
  Wave* runnable_[kMaxWaves];
  int num_runnable_ = 0;
  int num_parked_ = 0;
  uint64_t random_state_ = 0;
  bool stacks_dirty_ =
      false;  // an abandoned block has left frames, which the address sanitizer knows of
  std::string fault_;
};

}  // namespace hip_cpu::internal
