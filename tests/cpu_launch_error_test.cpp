// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Whose a runtime error is: the library reports its own and leaves others' where they are. On the
// CPU platform, where a launch can be made to fail: by less LDS than the plan was made for.

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <string>

#include "hip_cpu/control.h"
#include "hipmla/mla_decode.h"
#include "hipmla/mla_merge.h"
#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

// A decode step whose kernels need more LDS than the device has while this object lives.
class TooLittleLds {
 public:
  TooLittleLds() {
    hip_cpu::DeviceConfig config = saved_;
    config.lds_bytes = 16 * 1024;
    hip_cpu::set_device_config(config);
  }
  ~TooLittleLds() { hip_cpu::set_device_config(saved_); }
  TooLittleLds(const TooLittleLds&) = delete;
  TooLittleLds& operator=(const TooLittleLds&) = delete;

 private:
  const hip_cpu::DeviceConfig saved_ = hip_cpu::get_device_config();
};

// Leaves an error in the runtime, as an engine's failed allocation does.
void leave_an_error() {
  void* memory = nullptr;
  ASSERT_EQ(hipMalloc(&memory, size_t{1} << 62), hipErrorOutOfMemory);
}

class LaunchError : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)hipGetLastError();
    (void)test_device();
  }
  void TearDown() override { (void)hipGetLastError(); }

  const Batch batch_ = build_batch(uniform_spec(DataType::kBf16, 20, 2, 90, 3, 16));
};

TEST_F(LaunchError, SomebodyElsesIsNeitherReportedNorCleared) {
  const MlaReference reference = mla_reference(batch_.host_inputs());
  const DeviceBatch device_batch(batch_, test_device());
  for (const DecodeRun& run : {persistent_run(), split_run(2)}) {
    if (!begin_case()) continue;
    leave_an_error();
    (void)expect_run(device_batch, reference, run);
    EXPECT_EQ(hipPeekAtLastError(), hipErrorOutOfMemory);
    EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
    EXPECT_EQ(hipGetLastError(), hipSuccess);
  }
}

TEST_F(LaunchError, OursNamesKernelAndShapeAndIsTakenOut) {
  const DeviceBatch device_batch(batch_, test_device());
  for (const DecodeRun& run : {persistent_run(), split_run(2)}) {
    if (!begin_case()) continue;
    const TooLittleLds too_little;
    const Status status = device_batch.run(run).status;
    EXPECT_EQ(status.code(), StatusCode::kDeviceError);
    const char* schedule =
        run.options.schedule == Schedule::kPersistent ? "persistent" : "split-KV";
    for (const std::string& part :
         {std::string("launch of stage 1"), std::string(schedule), std::string("bf16/bf16"),
          std::string("20 heads"), std::string("3 sequences"), std::string("hipErrorInvalidValue")})
      EXPECT_NE(status.text().find(part), std::string::npos) << part << " in " << status.text();
    EXPECT_EQ(hipGetLastError(), hipSuccess) << "left for the next launch to report";
  }
}

TEST_F(LaunchError, AfterSomebodyElsesThereIsStillOne) {
  if (!begin_case()) return;
  const DeviceBatch device_batch(batch_, test_device());
  leave_an_error();
  const TooLittleLds too_little;
  EXPECT_EQ(device_batch.run(persistent_run()).status.code(), StatusCode::kDeviceError);
  EXPECT_NE(hipGetLastError(), hipSuccess);
}

TEST_F(LaunchError, DeviceQueryLeavesItToo) {
  leave_an_error();
  DeviceInfo info;
  EXPECT_TRUE(query_device(0, &info).ok());
  EXPECT_EQ(hipGetLastError(), hipErrorOutOfMemory);
  EXPECT_EQ(query_device(77, &info).code(), StatusCode::kDeviceError);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
}

}  // namespace
}  // namespace hipmla::test
