// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Random requests: what check_support accepts gives the right result, what it refuses every entry
// point refuses with the same Status and writes nothing.
//
// HIPMLA_TEST_COUNT requests (default 250), from HIPMLA_TEST_SEED on (default 1).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

// Work that a request may make: blocks of 16 rows x 16 tokens. Keeps a case well under a second.
constexpr int64_t kMaxBlocks = 500;

BatchSpec random_spec(Random& random) {
  BatchSpec spec;
  spec.type = random.below(2) ? DataType::kBf16 : DataType::kF16;
  spec.o_type = random.pick(std::vector<DataType>{DataType::kBf16, DataType::kF16, DataType::kF32});
  spec.num_heads =
      static_cast<int32_t>(random.below(3) ? random.between(1, 40) : random.between(1, 512));
  spec.page_size = static_cast<int32_t>(
      random.below(3) ? random.pick(std::vector<int32_t>{1, 2, 16, 32, 48, 64, 128})
                      : random.between(1, 4096));
  const auto batch_size = random.between(1, 9);
  const int64_t max_q = random.below(2) ? 1 : random.between(1, 9);
  const int64_t max_kv = random.pick(std::vector<int64_t>{3, 40, 300, 2000});
  int64_t blocks = 0;
  for (int64_t b = 0; b < batch_size; ++b) {
    const int64_t q_len = random.below(8) ? max_q : random.between(0, max_q);
    const int64_t row_blocks = (q_len * spec.num_heads + 15) / 16 + 1;
    const int64_t room = std::max<int64_t>(0, (kMaxBlocks - blocks) / row_blocks * 16);
    const int64_t kv_len = random.below(8) ? random.between(0, std::min(max_kv, room)) : 0;
    blocks += row_blocks * (kv_len / 16 + 1);
    spec.q_lens.push_back(static_cast<int32_t>(q_len));
    spec.kv_lens.push_back(static_cast<int32_t>(kv_len));
  }
  spec.causal = random.below(3) != 0;
  spec.softmax_scale = random.pick(std::vector<float>{1.0f / 24.0f, 0.0721687853f, -0.05f, 1e-3f});
  spec.padded = random.below(2) == 0;
  if (random.below(4) == 0) spec.pool_tokens = random.between(1, 600);
  spec.shuffle_pages = random.below(5) != 0;
  spec.seed = random.next() % 1000000;
  return spec;
}

DecodeRun random_run(Random& random) {
  DecodeRun run;
  run.options.schedule = random.pick(
      std::vector<Schedule>{Schedule::kAuto, Schedule::kPersistent, Schedule::kSplitKv});
  if (run.options.schedule == Schedule::kSplitKv && random.below(2))
    run.options.num_kv_splits =
        static_cast<int32_t>(random.below(5) ? random.between(1, 20) : random.between(1, 256));
  run.options.return_partials = random.below(4) == 0;
  run.with_lse = random.below(4) != 0;
  run.one_call = !run.options.return_partials && random.below(4) == 0;
  return run;
}

// Changes one thing to a value that may not be served. Only what a batch can be built for;
// configs_test has the rest.
void make_doubtful(Random& random, BatchSpec* spec, DecodeRun* run) {
  switch (random.below(6)) {
    case 0:
      spec->num_heads = static_cast<int32_t>(random.between(500, 530));
      for (int32_t& kv_len : spec->kv_lens) kv_len = std::min(kv_len, 20);
      for (int32_t& q_len : spec->q_lens) q_len = std::min(q_len, 1);
      break;
    case 1:
      spec->page_size = static_cast<int32_t>(random.between(4090, 4110));
      break;
    case 2:
      run->options.schedule = Schedule::kSplitKv;
      run->options.num_kv_splits = static_cast<int32_t>(random.between(250, 262));
      break;
    case 3:
      run->options.num_kv_splits = static_cast<int32_t>(random.between(-2, 3));
      break;
    case 4:
      run->device = test_device();
      run->device->arch = static_cast<Arch>(random.between(0, 3));
      if (run->device->arch != test_device().arch) run->device->arch = Arch::kUnknown;
      break;
    case 5:
      run->device = test_device();
      run->device->num_compute_units = static_cast<int32_t>(random.between(-1, 3));
      run->device->lds_bytes =
          random.pick(std::vector<int64_t>{0, 32 * 1024, 44 * 1024, 64 * 1024});
      break;
  }
}

TEST(Fuzz, SupportedIsRightAndRefusedIsUntouched) {
  const auto first = static_cast<uint64_t>(test_option("HIPMLA_TEST_SEED", 1));
  const int64_t count = test_option("HIPMLA_TEST_COUNT", 250);
  int64_t supported = 0;
  int64_t refused = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!begin_case()) continue;
    Random random(first + static_cast<uint64_t>(i));
    BatchSpec spec = random_spec(random);
    DecodeRun run = random_run(random);
    if (random.below(4) == 0) make_doubtful(random, &spec, &run);
    const Batch batch = build_batch(spec);
    const DeviceBatch device_batch(batch, test_device());
    const DecodeResult result = device_batch.run(run);
    const std::string what = spec.description() + "\n  run: " + run.description() +
                             "\n  plan: " + result.plan + "\n  run again: " + rerun_command();
    if (result.status.ok()) {
      ++supported;
      const MlaReference reference = mla_reference(batch.host_inputs());
      EXPECT_EQ(check_result(batch, reference, run, result, test_device().arch, rerun_command()),
                "")
          << "  " << what;
    } else {
      ++refused;
      EXPECT_EQ(result.problems, "") << "  " << what;
      EXPECT_FALSE(result.status.text().empty()) << "  " << what;
      EXPECT_TRUE(result.status.code() == StatusCode::kUnsupported ||
                  result.status.code() == StatusCode::kInvalidArgument)
          << result.status.text() << "\n  " << what;
    }
  }
  std::printf("[ FUZZ     ] %lld right or failed, %lld refused\n",
              static_cast<long long>(supported), static_cast<long long>(refused));
  if (count >= 50 && test_option("HIPMLA_TEST_CASE", 0) == 0) {
    EXPECT_GT(supported, count / 2);
    EXPECT_GT(refused, 0);
  }
}

}  // namespace
}  // namespace hipmla::test
