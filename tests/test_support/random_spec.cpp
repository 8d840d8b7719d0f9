// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/random_spec.h"

#include <algorithm>
#include <climits>
#include <iterator>
#include <vector>

#include "tests/mla_cases.h"

namespace hipmla::test {
namespace {

// Work that a request may make: blocks of 16 rows x 16 tokens. Keeps a case well under a second.
constexpr int64_t kMaxBlocks = 500;

void random_types(Random& random, Arch arch, BatchSpec* spec) {
  std::vector<PromisedTypes> choice;
  for (const PromisedTypes& types : kPromisedTypes)
    if (includes(types.on, arch)) choice.push_back(types);
  const PromisedTypes& types = random.pick(choice);
  spec->q_type = types.q_type;
  spec->kv_type = types.kv_type;
  spec->kv_layout = types.kv_layout;
  spec->o_type = kPromisedOTypes[random.below(std::size(kPromisedOTypes))];
  if (is_fp8(spec->kv_type) && spec->kv_layout == KvLayout::kDense && random.below(3) == 0)
    spec->token_scales = true;
  // Factors of stored values, a few dozen of them to 1; also of 16-bit tensors, and negative ones.
  const auto random_scale = [&](bool is_small, float* host, float* device) {
    const double size = is_small ? 0.03 + 0.1 * random.uniform() : 0.5 + random.uniform();
    const double sign = random.below(8) == 0 ? -1.0 : 1.0;
    switch (random.below(3)) {
      case 0:
        *host = static_cast<float>(size * sign);
        break;
      case 1:
        *device = static_cast<float>(size * sign);
        break;
      case 2:
        *host = static_cast<float>(2.0 * sign);
        *device = static_cast<float>(size / 2.0);
        break;
    }
  };
  if (is_fp8(spec->q_type) || random.below(8) == 0)
    random_scale(is_fp8(spec->q_type), &spec->q_scale_host, &spec->q_scale_device);
  if (spec->kv_layout == KvLayout::kDense && (is_fp8(spec->kv_type) || random.below(8) == 0))
    random_scale(is_fp8(spec->kv_type) && !spec->token_scales, &spec->kv_scale_host,
                 &spec->kv_scale_device);
}

// What changes the softmax and the keys of a query.
void random_modifiers(Random& random, int64_t max_kv, BatchSpec* spec) {
  spec->causal = random.below(3) != 0;
  spec->softmax_scale = random.pick(std::vector<float>{1.0f / 24.0f, 0.0721687853f, -0.05f, 1e-3f});
  if (random.below(4) == 0)
    spec->logits_soft_cap = random.pick(std::vector<float>{0.7f, 15.0f, 50.0f, 3000.0f});
  spec->sink = random.below(4) == 0;
  spec->lse_base2 = random.below(4) == 0;
  switch (random.below(6)) {
    case 0:
      spec->topk = static_cast<int32_t>(random.between(1, std::min<int64_t>(max_kv, 300)));
      spec->topk_holes = static_cast<TopkHoles>(random.below(kNumTopkHoles));
      return;
    case 1:
    case 2:
      spec->kv_shard = random.below(2) ? KvShard::kRoundRobin : KvShard::kContiguous;
      spec->cp_world_size =
          static_cast<int32_t>(random.below(8) ? random.between(1, 8) : random.between(1, 1024));
      spec->cp_rank = static_cast<int32_t>(random.below(spec->cp_world_size));
      break;
    default:
      break;
  }
  if (random.below(4) == 0)
    spec->sliding_window = static_cast<int32_t>(random.below(8) ? random.between(1, max_kv + 9)
                                                                : random.between(1, INT32_MAX));
}

}  // namespace

BatchSpec random_spec(Random& random, Arch arch) {
  BatchSpec spec;
  random_types(random, arch, &spec);
  spec.num_heads =
      static_cast<int32_t>(random.below(3) ? random.between(1, 40) : random.between(1, 512));
  spec.page_size = static_cast<int32_t>(
      random.below(3) ? random.pick(std::vector<int32_t>{1, 2, 16, 32, 48, 64, 128})
                      : random.between(1, random.below(3) ? 500 : 4096));
  const auto batch_size = random.between(1, 9);
  const int64_t max_q = random.below(2) ? 1 : random.between(1, random.below(4) ? 9 : 64);
  const int64_t max_kv = random.pick(std::vector<int64_t>{3, 40, 300, 2000});
  random_modifiers(random, max_kv, &spec);
  int64_t blocks = 0;
  for (int64_t b = 0; b < batch_size; ++b) {
    int64_t q_len = random.below(8) ? max_q : random.between(0, max_q);
    if (spec.topk > 0)  // each query reads tokens of its own
      q_len = std::min(
          q_len, kMaxBlocks / ((spec.num_heads / 16 + 1) * (spec.topk / 16 + 1) * batch_size));
    const int64_t row_blocks = (q_len * spec.num_heads + 15) / 16 + 1;
    const int64_t room = std::max<int64_t>(0, (kMaxBlocks - blocks) / row_blocks * 16);
    const int64_t kv_len = random.below(8) ? random.between(0, std::min(max_kv, room)) : 0;
    blocks += row_blocks * (kv_len / 16 + 1);
    spec.q_lens.push_back(static_cast<int32_t>(q_len));
    spec.kv_lens.push_back(static_cast<int32_t>(kv_len));
  }
  spec.padded = random.below(2) == 0;
  if (random.below(4) == 0 && spec.kv_shard == KvShard::kWhole)
    spec.pool_tokens = random.between(1, 600);
  spec.shuffle_pages = random.below(5) != 0;
  // Tokens that hold NaN or infinity, most of them where the causal limit is.
  for (int64_t i = random.below(4) == 0 ? random.between(1, 3) : 0; i > 0; --i) {
    const auto b = static_cast<int32_t>(random.below(batch_size));
    const int32_t kv_len = spec.kv_lens[static_cast<size_t>(b)];
    if (kv_len == 0) continue;
    const int64_t from_end =
        random.below(3) ? random.below(std::min<int64_t>(kv_len, max_q + 2)) : random.below(kv_len);
    spec.poisoned.push_back({b, static_cast<int32_t>(kv_len - 1 - from_end),
                             static_cast<Poison>(random.below(kNumPoisons))});
  }
  spec.seed = random.next() % 1000000;
  return spec;
}

}  // namespace hipmla::test
