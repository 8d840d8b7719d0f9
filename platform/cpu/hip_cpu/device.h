// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// Device side of the emulated CDNA3 device: what a kernel thread knows about itself, and the
/// wave's collectives.
///
/// The threads of a block are fibers of one OS thread. A thread runs until it reaches a sync point:
/// a wave collective (shuffle, ballot, matrix op), a block barrier, or its end. Between sync points
/// the order of lanes and of waves is shuffled under DeviceConfig::schedule_seed. A loop that spins
/// until another thread of the block acts never ends.
///
/// Every lane of a wave must reach the same collectives, and every thread of a block the same
/// barriers. A thread that has exited does not count as present, as it may on hardware: threads
/// leave together, or after the last sync point.

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "hip_cpu/number_formats.h"

/// The source position as a value for a `site` argument. As a default argument it names the
/// caller's position.
#define HIP_CPU_SITE ::hip_cpu::source_site(__builtin_FILE(), __builtin_LINE())

namespace hip_cpu {

constexpr int kWaveSize = 64;

namespace internal {

struct BlockInfo {
  dim3 block_idx;
  dim3 block_dim;
  dim3 grid_dim;
  void* dynamic_lds;
};

// The part of a thread's state that kernels read.
struct ThreadInfo {
  dim3 thread_idx;
  int lane_id;
  int wave_id;
  int wave_lanes;  // lanes that this thread's wave has: 64, or fewer in a block's last wave
  const BlockInfo* block;
};

// The running device thread; null on host threads. Initial-exec: one load, also from a shared
// library.
extern __thread const ThreadInfo* current_thread __attribute__((tls_model("initial-exec")));

}  // namespace internal

inline const dim3& thread_index() { return internal::current_thread->thread_idx; }
inline const dim3& block_index() { return internal::current_thread->block->block_idx; }
inline const dim3& block_size() { return internal::current_thread->block->block_dim; }
inline const dim3& grid_size() { return internal::current_thread->block->grid_dim; }
inline int lane_id() { return internal::current_thread->lane_id; }
inline int wave_id() { return internal::current_thread->wave_id; }

/// The block's dynamic LDS: 128-byte aligned, exactly as long as the launch asked for, all 0xFF at
/// first.
inline void* dynamic_lds() { return internal::current_thread->block->dynamic_lds; }

/// Packs a position; the file name must live forever, as __FILE__ does.
inline const void* source_site(const char* file, int line) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(file) |
                                       static_cast<uintptr_t>(line & 0xFFFF) << 48);
}

using CollectiveOp = void (*)(void* const* lane_operands, void* context);

/// Rendezvous of all lanes of the calling thread's wave. The last lane to arrive runs `op` once
/// over the operands of all 64 lanes, with its own `context`; then all lanes go on. Operands of
/// lanes that a short last wave does not have are null. `op` must not block. All lanes must pass
/// the same `op` and `site`; anything else, and a lane that can never arrive, is a fault that ends
/// the launch (hipErrorLaunchFailure, last_fault()).
void wave_collective(CollectiveOp op, void* operand, void* context, const void* site);

/// Barrier of the block. Lanes of one wave must be at the same `site`.
void block_barrier(const void* site = HIP_CPU_SITE);

/// Barrier of the wave: LDS writes before it are seen by the wave's lanes after it.
void wave_barrier(const void* site = HIP_CPU_SITE);

/// Ends the launch with a fault: "block (..) thread (..): <what>". Does not return; nothing is
/// unwound.
[[noreturn]] void fail(const char* what);

/// Bit i is set if `predicate` is non-zero in lane i.
uint64_t ballot(int predicate, const void* site = HIP_CPU_SITE);

/// The bits of lanes that the wave has.
inline uint64_t wave_lane_mask() {
  return ~uint64_t{0} >> (kWaveSize - internal::current_thread->wave_lanes);
}

/// `value` of lane `source_lane & 63`; 0 from a lane that the wave does not have.
uint32_t shuffle_bits(uint32_t value, int source_lane, const void* site);
uint64_t shuffle_bits(uint64_t value, int source_lane, const void* site);

// Matrix ops. One operand set of one lane: `acc` is read and written, `a` and `b` are 4 consecutive
// 16-bit patterns. Layouts as AMD documents them (lane l, element j of a and b, element r of acc):
//
//              A[m][k]                     B[k][n]                     C, D[m][n]
//   16x16x16   m = l%16, k = 4*(l/16)+j    n = l%16, k = 4*(l/16)+j    n = l%16, m = 4*(l/16)+r r <
//   4 32x32x8    m = l%32, k = 4*(l/32)+j    n = l%32, k = 4*(l/32)+j    n = l%32, m =
//   8*(r/4)+4*(l/32)+r%4    r < 16
//
// AMD documents layouts, not the order of the sum inside an instruction. Here D = C +
// A[m][0]*B[0][n] + A[m][1]*B[1][n]
// + ..., k rising, each step rounded to f32. Products of bf16 or f16 are exact in f32. Subnormals
// are kept.
struct MfmaOperands {
  float* acc;
  const void* a;
  const void* b;
};

/// Runs `count` matrix ops in order, in one rendezvous. `ops` is the lane's own array. Ops may
/// share accumulators, but no accumulator may overlap an `a` or `b`. The wave must be full, and
/// `count` the same in all its lanes.
void mfma_f32_16x16x16_bf16(const MfmaOperands* ops, int count, const void* site = HIP_CPU_SITE);
void mfma_f32_16x16x16_f16(const MfmaOperands* ops, int count, const void* site = HIP_CPU_SITE);
void mfma_f32_32x32x8_bf16(const MfmaOperands* ops, int count, const void* site = HIP_CPU_SITE);
void mfma_f32_32x32x8_f16(const MfmaOperands* ops, int count, const void* site = HIP_CPU_SITE);

}  // namespace hip_cpu

/// Block barrier. HIP's name, also for code that includes only this header.
inline void __syncthreads(const void* site = HIP_CPU_SITE) { hip_cpu::block_barrier(site); }
