// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Spreads the blocks of a launch over host threads.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "runtime.h"

namespace hip_cpu::internal {

namespace {

// A launch that runs. Threads take block numbers from `next_block` until none is left or one has
// faulted.
struct RunningLaunch {
  const KernelLaunch& launch;
  uint64_t num_blocks;
  std::atomic<uint64_t> next_block{0};
  int helpers_wanted = 0;   // guarded by HelperPool::mutex_
  int helpers_running = 0;  // likewise
};

void run_blocks(RunningLaunch& running) {
  BlockRunner& runner = BlockRunner::of_this_thread();
  for (;;) {
    const uint64_t block_number = running.next_block.fetch_add(1, std::memory_order_relaxed);
    if (block_number >= running.num_blocks) return;
    std::string fault = runner.run(running.launch, block_number);
    if (!fault.empty()) {
      running.next_block.store(running.num_blocks, std::memory_order_relaxed);
      record_fault(std::move(fault));
      return;
    }
  }
}

// Threads that help any launch that has blocks to spare. They live as long as the process.
class HelperPool {
 public:
  static HelperPool& instance() {
    static auto* pool = new HelperPool;
    return *pool;
  }

  void help(RunningLaunch* running, int num_helpers) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      running->helpers_wanted = num_helpers;
      waiting_.push_back(running);
      for (; num_threads_ < num_helpers; ++num_threads_) {
        std::thread([this] { serve(); }).detach();
      }
    }
    work_.notify_all();
  }

  // No helper touches `running` after this returns.
  void wait(RunningLaunch* running) {
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_.remove(running);
    idle_.wait(lock, [running] { return running->helpers_running == 0; });
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return !waiting_.empty(); });
      RunningLaunch* running = waiting_.front();
      ++running->helpers_running;
      if (--running->helpers_wanted == 0) waiting_.pop_front();
      lock.unlock();
      run_blocks(*running);
      lock.lock();
      if (--running->helpers_running == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::list<RunningLaunch*> waiting_;
  int num_threads_ = 0;
};

}  // namespace

void run_kernel(const KernelLaunch& launch, int num_threads) {
  const dim3& grid = launch.grid_dim;
  RunningLaunch running{launch, uint64_t{grid.x} * grid.y * grid.z};
  const auto num_helpers =
      static_cast<int>(std::min(static_cast<uint64_t>(num_threads), running.num_blocks) - 1);
  if (num_helpers > 0) HelperPool::instance().help(&running, num_helpers);
  run_blocks(running);
  if (num_helpers > 0) HelperPool::instance().wait(&running);
}

}  // namespace hip_cpu::internal
