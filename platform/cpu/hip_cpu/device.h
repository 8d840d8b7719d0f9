// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// Device side of the emulated device: what a kernel thread knows about itself, and the wave's
/// collectives. The device is a CDNA3 processor, or an sm_90 where HIPMLA_CPU_SM90 is defined.
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

#if defined(HIPMLA_CPU_SM90)
constexpr int kWaveSize = 32;
#else
constexpr int kWaveSize = 64;
#endif

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
  int wave_lanes;  // lanes that this thread's wave has: all, or fewer in a block's last wave
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
/// over the operands of all lanes, with its own `context`; then all lanes go on. Operands of
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
  return ~uint64_t{0} >> (64 - internal::current_thread->wave_lanes);
}

/// `value` of lane `source_lane` modulo the wave size; 0 from a lane that the wave does not have.
uint32_t shuffle_bits(uint32_t value, int source_lane, const void* site);
uint64_t shuffle_bits(uint64_t value, int source_lane, const void* site);

/// Starts a copy of 16 bytes from memory to LDS, both 16-byte aligned; zeros if `source` is null.
/// It happens at some time up to the end of the async_wait that waits for its group: here at once,
/// or, then with 0xFF in its place until then, at the very end. The schedule seed decides.
void async_copy16(void* lds, const void* source);

/// Closes a group: the thread's copies since the last call.
void async_commit();

/// Returns when at most `num_pending` groups of the thread are under way.
void async_wait(int num_pending);

#if defined(HIPMLA_CPU_SM90)

// mma.m16n8k16, layouts as in the PTX ISA. One operand set of one lane: `acc` is read and written,
// 4 values; `a` points to 8 consecutive 16-bit patterns, `b` holds 4. With g = lane / 4 and t =
// lane % 4:
//
//   A[m][k]      element 2 i + e of a: m = g + 8 (i % 2), k = 2 t + e + 8 (i / 2)
//   B[k][n]      element 2 i + e of b: k = 2 t + e + 8 i, n = g
//   C, D[m][n]   element 2 i + e of acc: m = g + 8 i, n = 2 t + e
//
// The order of the sum is not documented; here it is as for MFMA below: k rising, each step rounded
// to f32.
struct MmaOperands {
  float* acc;
  const void* a;
  uint32_t b[2];
};

/// Runs `count` matrix ops in order, in one rendezvous, with the rules of the MFMA functions.
void mma_m16n8k16_bf16(const MmaOperands* ops, int count, const void* site = HIP_CPU_SITE);
void mma_m16n8k16_f16(const MmaOperands* ops, int count, const void* site = HIP_CPU_SITE);

/// ldmatrix .x4, `count` times, in one rendezvous: lane 8 i + r names row r of matrix i, 8 values of
/// 16 bits at `row` (+ `stride_bytes` each time). Register i of lane l gets elements 2 (l % 4) and +
/// 1 of row l / 4 of matrix i; transposed, of column l / 4.
///   out  [count][4] words
void load_matrices(void* out, const void* row, int stride_bytes, int count, bool transposed,
                   const void* site = HIP_CPU_SITE);

#else

// MFMA. One operand set of one lane: `acc` is read and written, `a` and `b` are consecutive
// patterns: 4 of 16 bits, or 8 of fp8. Layouts as AMD documents them (lane l, element j of a and b,
// element r of acc):
//
//   16x16x16   A[m][k]  m = l%16, k = 4*(l/16)+j      B[k][n]  n = l%16, k as A
//              D[m][n]  n = l%16, m = 4*(l/16)+r      r < 4
//   16x16x32   as 16x16x16, but k = 8*(l/16)+j        j < 8, fp8
//   32x32x8    A[m][k]  m = l%32, k = 4*(l/32)+j      B[k][n]  n = l%32, k as A
//              D[m][n]  n = l%32, m = 8*(r/4)+4*(l/32)+r%4    r < 16
//
// AMD documents layouts, not the order of the sum inside an instruction. Here D = C + A[m][0]*B[0][n]
// + A[m][1]*B[1][n] + ..., k rising, each step rounded to f32. Products are exact in f32. Subnormals
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

/// v_mfma_f32_16x16x32_fp8_fp8: E4M3 FNUZ on gfx942, FN on gfx950.
void mfma_f32_16x16x32_fp8(const MfmaOperands* ops, int count, bool fnuz,
                           const void* site = HIP_CPU_SITE);

#endif

}  // namespace hip_cpu

/// Block barrier. HIP's name, also for code that includes only this header.
inline void __syncthreads(const void* site = HIP_CPU_SITE) { hip_cpu::block_barrier(site); }
