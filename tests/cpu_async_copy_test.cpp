// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Asynchronous copies of the CPU platform: when they land, and what a kernel sees that does not wait.

#include <gtest/gtest.h>
#include <hip/hip_runtime.h>

#include <set>
#include <vector>

#include "hip_cpu/control.h"

namespace {

constexpr int kGroups = 4;

class ScopedSeed {
 public:
  explicit ScopedSeed(uint64_t seed) {
    hip_cpu::DeviceConfig config = saved_;
    config.schedule_seed = seed;
    hip_cpu::set_device_config(config);
  }
  ~ScopedSeed() { hip_cpu::set_device_config(saved_); }

 private:
  const hip_cpu::DeviceConfig saved_ = hip_cpu::get_device_config();
};

// Copies group g from source + 4 g, and looks when `pending` groups may be under way.
__global__ void copy_groups(const uint32_t* source, uint32_t* out, int pending) {
  HIP_DYNAMIC_SHARED(uint32_t, lds);
  uint32_t* mine = lds + threadIdx.x * 4 * kGroups;
  for (int g = 0; g < kGroups; ++g) {
    hip_cpu::async_copy16(mine + 4 * g, g == 1 ? nullptr : source + 4 * g);
    hip_cpu::async_commit();
  }
  hip_cpu::async_wait(pending);
  for (int i = 0; i < 4 * kGroups; ++i) out[threadIdx.x * 4 * kGroups + i] = mine[i];
}

TEST(AsyncCopy, LandsAtTheWaitAtTheLatest) {
  constexpr int kThreads = 64;
  uint32_t *source = nullptr, *out = nullptr;
  ASSERT_EQ(hipMalloc(&source, 16 * kGroups), hipSuccess);
  ASSERT_EQ(hipMalloc(&out, 16 * kGroups * kThreads), hipSuccess);
  std::vector<uint32_t> values(4 * kGroups);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(100 + i);
  ASSERT_EQ(hipMemcpy(source, values.data(), 16 * kGroups, hipMemcpyHostToDevice), hipSuccess);
  for (int pending = 0; pending <= kGroups; ++pending) {
    std::set<uint32_t> late;  // what is there where the copy may be under way
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const ScopedSeed scoped(seed);
      hipLaunchKernelGGL(copy_groups, dim3(1), dim3(kThreads), 16 * kGroups * kThreads, nullptr,
                         source, out, pending);
      std::vector<uint32_t> seen(4 * kGroups * kThreads);
      ASSERT_EQ(hipMemcpy(seen.data(), out, seen.size() * 4, hipMemcpyDeviceToHost), hipSuccess)
          << hip_cpu::last_fault();
      for (int i = 0; i < 4 * kGroups * kThreads; ++i) {
        const int group = i / 4 % kGroups;
        const uint32_t expected = group == 1 ? 0 : values[static_cast<size_t>(i % (4 * kGroups))];
        const uint32_t got = seen[static_cast<size_t>(i)];
        if (group < kGroups - pending) {
          EXPECT_EQ(got, expected) << "pending " << pending << ", word " << i;
        } else {
          late.insert(got == expected ? 1u : got);
        }
      }
    }
    if (pending > 0) {
      EXPECT_EQ(late, (std::set<uint32_t>{1u, 0xFFFFFFFFu})) << "both must be seen";
    }
  }
  ASSERT_EQ(hipFree(source), hipSuccess);
  ASSERT_EQ(hipFree(out), hipSuccess);
}

__global__ void copy_unaligned(const char* source) {
  HIP_DYNAMIC_SHARED(char, lds);
  hip_cpu::async_copy16(lds, source + 4);
}

TEST(AsyncCopy, RefusesUnalignedAddresses) {
  char* source = nullptr;
  ASSERT_EQ(hipMalloc(&source, 64), hipSuccess);
  hipLaunchKernelGGL(copy_unaligned, dim3(1), dim3(1), 64, nullptr, source);
  EXPECT_EQ(hipDeviceSynchronize(), hipErrorLaunchFailure);
  EXPECT_NE(hip_cpu::last_fault().find("16-byte aligned"), std::string::npos);
  hip_cpu::clear_fault();
  ASSERT_EQ(hipFree(source), hipSuccess);
}

}  // namespace
