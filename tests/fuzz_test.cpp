// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Random requests: what check_support accepts gives the right result, what it refuses every entry
// point refuses with the same Status and writes nothing.
//
// HIPMLA_TEST_COUNT requests (default 250), from HIPMLA_TEST_SEED on (default 1).

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/random_spec.h"

namespace hipmla::test {
namespace {

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

// Types that no kernel combines, or a type of o that none writes.
void make_types_doubtful(Random& random, BatchSpec* spec) {
  const std::vector<DataType> types = {DataType::kBf16, DataType::kF16, DataType::kFp8E4m3Fn,
                                       DataType::kFp8E4m3Fnuz};
  const auto set_scale = [](DataType type, float* host) { *host = is_fp8(type) ? 0.08f : 1.0f; };
  spec->q_type = random.pick(types);
  spec->kv_type = random.pick(types);
  spec->q_scale_device = spec->kv_scale_device = 0.0f;
  set_scale(spec->q_type, &spec->q_scale_host);
  set_scale(spec->kv_type, &spec->kv_scale_host);
  spec->kv_layout =
      is_fp8(spec->kv_type) && random.below(3) == 0 ? KvLayout::kPacked : KvLayout::kDense;
  if (spec->kv_layout == KvLayout::kPacked) spec->kv_scale_host = 1.0f;
  spec->token_scales = false;
  if (random.below(4) == 0)
    spec->o_type = random.pick(std::vector<DataType>{DataType::kFp8E4m3Fn, DataType::kI32});
}

// Options that contradict the shape or each other.
void make_options_doubtful(Random& random, const BatchSpec& spec, DecodeRun* run) {
  const auto value = static_cast<int32_t>(random.between(-2, 4));
  const bool is_sparse = spec.topk > 0;
  const bool is_round_robin = spec.kv_shard == KvShard::kRoundRobin;
  switch (random.below(5)) {
    case 0:  // a valid window would change the result
      run->change_options = [value, is_sparse](MlaDecodeOptions* options) {
        options->sliding_window = is_sparse ? value : -1 - std::abs(value);
      };
      break;
    case 1:  // as would another rank
      run->change_options = [value, is_round_robin](MlaDecodeOptions* options) {
        options->cp_world_size = is_round_robin ? 1025 + std::abs(value) : value;
      };
      break;
    case 2:
      run->change_options = [value, is_round_robin](MlaDecodeOptions* options) {
        options->cp_rank = is_round_robin ? options->cp_world_size + std::abs(value) : value;
      };
      break;
    case 3:
      run->change_options = [value](MlaDecodeOptions* options) {
        options->schedule = static_cast<Schedule>(value);
      };
      break;
    case 4:
      run->change_options = [value, is_sparse](MlaDecodeOptions* options) {
        options->kv_shard = static_cast<KvShard>(is_sparse ? value : 3 + std::abs(value));
      };
      break;
  }
}

// Changes one thing to a value that may not be served. Only what a batch can be built for;
// configs_test has the rest.
void make_doubtful(Random& random, BatchSpec* spec, DecodeRun* run) {
  switch (random.below(8)) {
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
    case 6:
      make_types_doubtful(random, spec);
      break;
    case 7:
      make_options_doubtful(random, *spec, run);
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
    BatchSpec spec = random_spec(random, test_device().arch);
    DecodeRun run = random_run(random);
    if (random.below(4) == 0) make_doubtful(random, &spec, &run);
    const Batch batch = build_batch(spec);
    const DeviceBatch device_batch(batch, test_device());
    const DecodeResult result = device_batch.run(run);
    const std::string what = "request seed " + std::to_string(first + static_cast<uint64_t>(i)) +
                             ": " + spec.description() + "\n  run: " + run.description() +
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
