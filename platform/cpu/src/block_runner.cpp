// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "block_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define HIP_CPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HIP_CPU_ASAN 1
#endif
#endif

#if defined(HIP_CPU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace hip_cpu {

namespace internal {

__thread const ThreadInfo* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

constexpr size_t kLdsAlignment = 128;
#if defined(HIP_CPU_ASAN)
constexpr size_t kDefaultStackBytes = 256 * 1024;
// What the frames of thread_main and its callers can occupy; they never return and so never clear
// their shadow.
constexpr size_t kEntryFrameBytes = 4096;
#else
constexpr size_t kDefaultStackBytes = 128 * 1024;
#endif

Thread* running_thread() { return const_cast<Thread*>(static_cast<const Thread*>(current_thread)); }

uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::string format_index(const dim3& index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," +
         std::to_string(index.z) + ")";
}

std::string format_site(const void* site) {
  const auto packed = reinterpret_cast<uintptr_t>(site);
  const uintptr_t line = packed >> 48;
  if (packed == 0) return "an unnamed site";
  if (line == 0) {
    char text[32];
    std::snprintf(text, sizeof(text), "site %p", site);
    return text;
  }
  const char* file = reinterpret_cast<const char*>(packed & ((uintptr_t{1} << 48) - 1));
  return std::string(file) + ":" + std::to_string(line);
}

// First function of every fiber. noexcept: an exception cannot leave a fiber.
void thread_main() noexcept {
  Thread* self = running_thread();
  BlockRunner* runner = self->wave->runner;
  runner->after_switch(self);
  runner->launch().invoke(runner->launch().arguments);
  runner->finish_thread(self);
}

}  // namespace

BlockRunner::BlockRunner() : threads_(kMaxBlockThreads), waves_(kMaxWaves) {}

BlockRunner::~BlockRunner() { std::free(lds_); }

BlockRunner& BlockRunner::of_this_thread() {
  static thread_local BlockRunner runner;
  return runner;
}

std::string BlockRunner::run(const KernelLaunch& launch, uint64_t block_number) {
  std::string fault;
  if (!prepare(launch, block_number, &fault)) return fault;
  fault_.clear();
  switch_to(&host_, begin_round(pick_runnable_wave()));
  current_thread = nullptr;
  return std::move(fault_);
}

bool BlockRunner::prepare(const KernelLaunch& launch, uint64_t block_number, std::string* fault) {
  launch_ = &launch;
  const dim3& grid = launch.grid_dim;
  block_.block_idx = dim3(static_cast<uint32_t>(block_number % grid.x),
                          static_cast<uint32_t>(block_number / grid.x % grid.y),
                          static_cast<uint32_t>(block_number / grid.x / grid.y));
  block_.grid_dim = grid;
  block_.block_dim = launch.block_dim;
  random_state_ = mix_bits(launch.schedule_seed ^ mix_bits(block_number));

  if (lds_ == nullptr || lds_bytes_ != launch.lds_bytes) {
    std::free(lds_);
    lds_ = nullptr;
    if (posix_memalign(&lds_, kLdsAlignment, launch.lds_bytes) != 0) lds_ = nullptr;
    lds_bytes_ = launch.lds_bytes;
  }
  prepare_shape(launch.block_dim);
  const size_t stack_bytes = launch.stack_bytes != 0 ? launch.stack_bytes : kDefaultStackBytes;
  if ((lds_ == nullptr && lds_bytes_ > 0) ||
      !stacks_.reserve(static_cast<size_t>(num_threads_), stack_bytes)) {
    *fault =
        "block " + format_index(block_.block_idx) + ": the host is out of memory for LDS or stacks";
    return false;
  }
  if (lds_bytes_ > 0) std::memset(lds_, 0xFF, lds_bytes_);
  block_.dynamic_lds = lds_;

#if defined(HIP_CPU_ASAN)
  if (stacks_dirty_) {
    for (size_t i = 0; i < stacks_.size(); ++i) {
      __asan_unpoison_memory_region(stacks_[i].bottom, stacks_[i].bytes);
    }
  }
#endif
  stacks_dirty_ = false;
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    const FiberStack& stack = stacks_[static_cast<size_t>(i)];
#if defined(HIP_CPU_ASAN)
    __asan_unpoison_memory_region(stack.top() - kEntryFrameBytes, kEntryFrameBytes);
#endif
    thread.context = make_fiber(stack.top(), stack.bytes, &thread_main);
    thread.wait_kind = WaitKind::kNone;
    thread.copies.clear();
    thread.copy_group = 0;
    thread.fake_stack = nullptr;
    thread.stack_bottom = stack.bottom;
    thread.stack_bytes = stack.bytes;
  }
  for (int i = 0; i < num_waves_; ++i) {
    Wave& wave = waves_[static_cast<size_t>(i)];
    wave.num_in_collective = 0;
    wave.num_at_barrier = 0;
    wave.num_exited = 0;
    wave.mixed = false;
    runnable_[i] = &wave;
  }
  num_runnable_ = num_waves_;
  num_parked_ = 0;
  return true;
}

// Sets what depends only on the block's shape. Consecutive blocks mostly share it.
void BlockRunner::prepare_shape(const dim3& dim) {
  if (prepared_dim_.x == dim.x && prepared_dim_.y == dim.y && prepared_dim_.z == dim.z) return;
  prepared_dim_ = dim;
  num_threads_ = static_cast<int>(dim.x * dim.y * dim.z);
  num_waves_ = (num_threads_ + kWaveSize - 1) / kWaveSize;
  for (int i = 0; i < num_waves_; ++i) {
    Wave& wave = waves_[static_cast<size_t>(i)];
    wave = Wave{};
    wave.runner = this;
    wave.threads = &threads_[static_cast<size_t>(i * kWaveSize)];
    wave.num_lanes = static_cast<uint32_t>(std::min(kWaveSize, num_threads_ - i * kWaveSize));
  }
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    const auto number = static_cast<uint32_t>(i);
    thread.thread_idx = dim3(number % dim.x, number / dim.x % dim.y, number / dim.x / dim.y);
    thread.lane_id = i % kWaveSize;
    thread.wave_id = i / kWaveSize;
    thread.wave = &waves_[static_cast<size_t>(i / kWaveSize)];
    thread.wave_lanes = static_cast<int>(thread.wave->num_lanes);
    thread.block = &block_;
  }
}

// ---- scheduling

inline uint64_t BlockRunner::next_random() {
  random_state_ = random_state_ * 6364136223846793005ull + 1442695040888963407ull;
  return random_state_ >> 32;
}

inline Thread* BlockRunner::begin_round(Wave* wave) {
  const uint64_t random = next_random();
  const uint32_t lanes = wave->num_lanes;
  if (lanes == kWaveSize) {
    wave->position = static_cast<uint32_t>(random) % kWaveSize;
    wave->stride = (static_cast<uint32_t>(random >> 8) % kWaveSize) | 1;
  } else {
    wave->position = static_cast<uint32_t>(random) % lanes;
    wave->stride = static_cast<uint32_t>(random >> 8) % lanes;
    while (std::gcd(wave->stride, lanes) != 1) wave->stride = (wave->stride + 1) % lanes;
  }
  wave->num_started = 1;
  return &wave->threads[wave->position];
}

// Requires that the round has a lane left.
inline Thread* next_lane(Wave* wave) {
  ++wave->num_started;
  uint32_t position = wave->position + wave->stride;
  if (position >= wave->num_lanes) position -= wave->num_lanes;
  wave->position = position;
  return &wave->threads[position];
}

Wave* BlockRunner::pick_runnable_wave() {
  if (num_runnable_ == 1) return runnable_[0];
  return runnable_[next_random() % static_cast<uint64_t>(num_runnable_)];
}

void BlockRunner::remove_runnable(const Wave* wave) {
  for (int i = 0; i < num_runnable_; ++i) {
    if (runnable_[i] == wave) {
      runnable_[i] = runnable_[--num_runnable_];
      return;
    }
  }
}

inline void BlockRunner::after_switch(Thread* self) {
#if defined(HIP_CPU_ASAN)
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
  if (host_.stack_bottom ==
      nullptr) {  // this is the first switch, which came from the OS thread's stack
    host_.stack_bottom = bottom;
    host_.stack_bytes = bytes;
  }
#else
  (void)self;
#endif
}

inline void BlockRunner::switch_to(Thread* self, Thread* next) {
  current_thread = next;
#if defined(HIP_CPU_ASAN)
  __sanitizer_start_switch_fiber(&self->fake_stack, next->stack_bottom, next->stack_bytes);
#endif
  switch_fiber(&self->context, next->context);
  after_switch(self);
}

// `self` never runs again.
inline void BlockRunner::switch_to_last_time(Thread* self, Thread* next) {
  current_thread = next;
#if defined(HIP_CPU_ASAN)
  __sanitizer_start_switch_fiber(nullptr, next->stack_bottom, next->stack_bytes);
#endif
  switch_fiber(&self->context, next->context);
}

void BlockRunner::wait_collective(Thread* self, CollectiveOp op, void* operand, void* context,
                                  const void* site) {
  Wave* wave = self->wave;
  self->wait_kind = WaitKind::kCollective;
  self->wait_site = site;
  wave->operands[self->lane_id] = operand;
  if (wave->num_in_collective++ == 0) {
    wave->op = op;
    wave->site = site;
  }
  wave->mixed |= (op != wave->op) | (site != wave->site);
  if (wave->num_started < wave->num_lanes) {
    switch_to(self, next_lane(wave));
    return;
  }
  if (wave->num_in_collective != wave->num_lanes || wave->mixed) {
    abandon_block(self, describe_divergence(*wave));
  }
  op(wave->operands, context);
  wave->num_in_collective = 0;
  // Now and then another wave gets its turn here, so that waves also interleave between barriers.
  Wave* next_wave = wave;
  if (num_runnable_ > 1 && next_random() % 8 == 0) next_wave = pick_runnable_wave();
  Thread* next = begin_round(next_wave);
  if (next != self) switch_to(self, next);
}

Thread* BlockRunner::end_round(Thread* self, WaitKind kind) {
  Wave* wave = self->wave;
  const uint32_t num_stopped = kind == WaitKind::kBarrier ? wave->num_at_barrier : wave->num_exited;
  if (num_stopped != wave->num_lanes || wave->mixed) {
    abandon_block(self, describe_divergence(*wave));
  }
  remove_runnable(wave);
  if (kind == WaitKind::kBarrier) ++num_parked_;
  if (num_runnable_ == 0) {
    if (num_parked_ == 0) return &host_;
    if (num_parked_ != num_waves_) abandon_block(self, describe_barrier());
    num_parked_ = 0;
    num_runnable_ = num_waves_;
    for (int i = 0; i < num_waves_; ++i) {
      runnable_[i] = &waves_[static_cast<size_t>(i)];
      runnable_[i]->num_at_barrier = 0;
    }
  }
  return begin_round(pick_runnable_wave());
}

void BlockRunner::wait_barrier(Thread* self, const void* site) {
  Wave* wave = self->wave;
  self->wait_kind = WaitKind::kBarrier;
  self->wait_site = site;
  if (wave->num_at_barrier++ == 0) wave->site = site;
  wave->mixed |= site != wave->site;
  Thread* next =
      wave->num_started < wave->num_lanes ? next_lane(wave) : end_round(self, WaitKind::kBarrier);
  if (next != self) switch_to(self, next);
}

void BlockRunner::finish_thread(Thread* self) {
  Wave* wave = self->wave;
  self->wait_kind = WaitKind::kExited;
  ++wave->num_exited;
  switch_to_last_time(self, wave->num_started < wave->num_lanes
                                ? next_lane(wave)
                                : end_round(self, WaitKind::kExited));
  std::abort();  // not reached
}

// ---- copies

namespace {

constexpr size_t kCopyBytes = 16;

void land(const AsyncCopy& copy) {
  if (copy.source != nullptr) {
    std::memcpy(copy.lds, copy.source, kCopyBytes);
  } else {
    std::memset(copy.lds, 0, kCopyBytes);
  }
}

}  // namespace

void BlockRunner::start_copy(Thread* self, void* lds, const void* source) {
  const AsyncCopy copy{lds, source, self->copy_group};
  if (next_random() % 2 == 0) {
    land(copy);
  } else {
    std::memset(lds, 0xFF, kCopyBytes);
    self->copies.push_back(copy);
  }
}

// ---- faults

void BlockRunner::abandon_block(Thread* self, std::string fault) {
  fault_ = std::move(fault);
  stacks_dirty_ = true;
  switch_to_last_time(self, &host_);
  std::abort();  // not reached
}

std::string BlockRunner::describe_waits(const Thread* threads, int count) const {
  std::string text;
  std::vector<bool> told(static_cast<size_t>(count), false);
  for (int i = 0; i < count; ++i) {
    if (told[static_cast<size_t>(i)]) continue;
    const Thread& first = threads[i];
    int num_same = 0;
    for (int k = i; k < count; ++k) {
      const Thread& other = threads[k];
      if (other.wait_kind != first.wait_kind) continue;
      if (first.wait_kind != WaitKind::kExited && other.wait_site != first.wait_site) continue;
      told[static_cast<size_t>(k)] = true;
      ++num_same;
    }
    if (!text.empty()) text += "; ";
    text += std::to_string(num_same) + (num_same == 1 ? " thread, " : " threads, first ");
    text += format_index(first.thread_idx) + ", ";
    switch (first.wait_kind) {
      case WaitKind::kNone:
        text += "not started";
        break;
      case WaitKind::kCollective:
        text += "in a wave collective at " + format_site(first.wait_site);
        break;
      case WaitKind::kBarrier:
        text += "at the block barrier at " + format_site(first.wait_site);
        break;
      case WaitKind::kExited:
        text += "exited";
        break;
    }
  }
  return text;
}

std::string BlockRunner::describe_divergence(const Wave& wave) const {
  return "block " + format_index(block_.block_idx) + ", wave " +
         std::to_string(wave.threads->wave_id) + ": its lanes do not reach the same sync point: " +
         describe_waits(wave.threads, static_cast<int>(wave.num_lanes));
}

std::string BlockRunner::describe_barrier() const {
  return "block " + format_index(block_.block_idx) + ": not all threads reach the block barrier: " +
         describe_waits(threads_.data(), num_threads_);
}

}  // namespace internal

void wave_collective(CollectiveOp op, void* operand, void* context, const void* site) {
  internal::Thread* self = internal::running_thread();
  self->wave->runner->wait_collective(self, op, operand, context, site);
}

void block_barrier(const void* site) {
  internal::Thread* self = internal::running_thread();
  self->wave->runner->wait_barrier(self, site);
}

void async_copy16(void* lds, const void* source) {
  internal::Thread* self = internal::running_thread();
  if (reinterpret_cast<uintptr_t>(lds) % 16 != 0 || reinterpret_cast<uintptr_t>(source) % 16 != 0)
    fail("an asynchronous copy needs addresses that are 16-byte aligned");
  self->wave->runner->start_copy(self, lds, source);
}

void async_commit() { ++internal::running_thread()->copy_group; }

void async_wait(int num_pending) {
  internal::Thread* self = internal::running_thread();
  auto& copies = self->copies;
  auto copy = copies.begin();
  for (;
       copy != copies.end() && copy->group + static_cast<uint32_t>(num_pending) < self->copy_group;
       ++copy)
    internal::land(*copy);
  copies.erase(copies.begin(), copy);
}

void fail(const char* what) {
  internal::Thread* self = internal::running_thread();
  // Nothing is unwound from here: all temporaries must be gone before the block is left.
  std::string text = "block " + internal::format_index(self->block->block_idx) + ", thread " +
                     internal::format_index(self->thread_idx) + ": " + what;
  self->wave->runner->abandon_block(self, std::move(text));
}

}  // namespace hip_cpu
