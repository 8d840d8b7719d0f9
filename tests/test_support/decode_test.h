// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// GoogleTest side of decode tests: cases that can be run again one by one.
//
// A test runs many cases in order. HIPMLA_TEST_CASE=n in the environment runs only the n-th of each
// selected test; every failure prints the command for that. Read by the test programs only, never
// by the library.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/mla_cases.h"
#include "tests/test_support/batch_builder.h"
#include "tests/test_support/decode_check.h"
#include "tests/test_support/decode_runner.h"

namespace hipmla::test {

// An integer from the environment, for the tests' own options.
inline int64_t test_option(const char* name, int64_t default_value) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? default_value : std::strtoll(text, nullptr, 10);
}

// Device 0, asked once. A failed query fails the test and leaves arch kUnknown.
inline const DeviceInfo& test_device() {
  static const DeviceInfo device = [] {
    DeviceInfo info;
    const Status status = query_device(0, &info);
    EXPECT_TRUE(status.ok()) << status.text();
    return info;
  }();
  return device;
}

// Skips the test if such types are not promised on the device. For SetUp of fixtures.
#define HIPMLA_SKIP_UNLESS_PROMISED(q_type, kv_type, kv_layout)                        \
  do {                                                                                 \
    if (!is_promised(q_type, kv_type, kv_layout, test_device().arch))                  \
      GTEST_SKIP() << data_type_name(q_type) << "/" << data_type_name(kv_type) << ", " \
                   << kv_layout_name(kv_layout) << " is not promised on "              \
                   << arch_name(test_device().arch);                                   \
  } while (false)

// Number of the current case, for test_main.cpp and the functions below.
struct CaseCounter {
  const ::testing::TestInfo* test = nullptr;
  int64_t in_test = 0;  // from 1
  int64_t executed = 0;
};
inline CaseCounter g_case_counter;

// Starts the next case of the running test. False if another one was asked for: then skip it.
inline bool begin_case() {
  CaseCounter& counter = g_case_counter;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (test != counter.test) counter.in_test = 0;
  counter.test = test;
  ++counter.in_test;
  const int64_t wanted = test_option("HIPMLA_TEST_CASE", 0);
  if (wanted > 0 && wanted != counter.in_test) return false;
  ++counter.executed;
  return true;
}

// The command that runs the current case again, from the folder of the test programs.
inline std::string rerun_command() {
  const std::vector<std::string> arguments = ::testing::internal::GetArgvs();
  const std::string path = arguments.empty() ? "" : arguments[0];
  std::string command = "HIPMLA_TEST_CASE=" + std::to_string(g_case_counter.in_test);
  for (const char* name : {"HIPMLA_TEST_SEED", "HIPMLA_TEST_COUNT"})
    if (const char* value = std::getenv(name)) command += std::string(" ") + name + "=" + value;
  command += " ./" + path.substr(path.rfind('/') + 1);
  if (const auto* test = g_case_counter.test)
    command += std::string(" --gtest_filter=") + test->test_suite_name() + "." + test->name();
  return command;
}

// Runs `device_batch` in one way and compares with the reference.
inline DecodeResult expect_run(const DeviceBatch& device_batch, const MlaReference& reference,
                               const DecodeRun& run) {
  DecodeResult result = device_batch.run(run);
  const Batch& batch = device_batch.batch();
  EXPECT_EQ(check_result(batch, reference, run, result, test_device().arch, rerun_command()), "")
      << "  " << batch.spec.description() << "\n  run: " << run.description()
      << "\n  plan: " << result.plan;
  return result;
}

// One case: builds the batch, runs it every way in `runs`, and compares each result with the
// reference.
inline void expect_decode(const BatchSpec& spec, const std::vector<DecodeRun>& runs) {
  if (!begin_case()) return;
  const Batch batch = build_batch(spec);
  const MlaReference reference = mla_reference(batch.host_inputs());
  const DeviceBatch device_batch(batch, test_device());
  for (const DecodeRun& run : runs) (void)expect_run(device_batch, reference, run);
}

}  // namespace hipmla::test
