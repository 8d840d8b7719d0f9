// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// main of every test program: says which device it runs on, and fails if nothing was executed.

#include <gtest/gtest.h>

#include <cstdio>

#include "hipmla/device.h"
#include "hipmla/version.h"
#include "tests/test_support/decode_test.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!::testing::GTEST_FLAG(list_tests)) {
    hipmla::DeviceInfo device;
    const hipmla::Status status = hipmla::query_device(0, &device);
    std::printf("[ DEVICE   ] %s: %s, %d compute units%s%s\n", hipmla::platform_name(),
                hipmla::arch_name(device.arch), device.num_compute_units, status.ok() ? "" : ": ",
                status.text().c_str());
  }
  const int result = RUN_ALL_TESTS();
  if (::testing::GTEST_FLAG(list_tests) || result != 0) return result;
  const auto& unit = *::testing::UnitTest::GetInstance();
  if (unit.successful_test_count() == 0) {
    std::printf("No test was executed.\n");
    return 1;
  }
  if (hipmla::test::test_option("HIPMLA_TEST_CASE", 0) > 0 &&
      hipmla::test::g_case_counter.executed == 0) {
    std::printf("No selected test has such a HIPMLA_TEST_CASE.\n");
    return 1;
  }
  return 0;
}
