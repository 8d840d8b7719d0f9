// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Caches of more than 2 and 4 GiB, without the memory: on the CPU platform device memory is host
// memory, so a pool may be an address range of which only the pages in use exist. A step whose pages
// are moved up the pool must give the same bits as before.

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/decode_test.h"

namespace hipmla::test {
namespace {

// An address range of zeros; what is written to it takes memory until clear().
class AddressRange {
 public:
  explicit AddressRange(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
  }
  ~AddressRange() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  void clear() { ASSERT_EQ(madvise(data_, bytes_, MADV_DONTNEED), 0); }
  uint8_t* data() const { return data_; }

 private:
  size_t bytes_;
  uint8_t* data_;
};

struct Outputs {
  std::vector<uint8_t> o, lse;
};

Outputs decode(const Batch& batch, MlaDecodeTensors tensors, const DecodeRun& run) {
  MlaDecodeOptions options = run.options;
  batch.set_options(&options);
  MlaDecodePlan plan;
  Status status = mla_decode_plan(batch.shape(), options, test_device(), batch.lengths(), &plan);
  EXPECT_TRUE(status.ok()) << status.text();
  const BatchSpec& spec = batch.spec;
  const auto rows = static_cast<size_t>(batch.total_q * spec.num_heads);
  const DeviceBuffer o("o", rows * kHeadDimV * element_bytes(spec.o_type), 16);
  const DeviceBuffer lse("final_lse", rows * 4, 4);
  const DeviceBuffer memory("workspace", plan.workspace_bytes(), kWorkspaceAlignment);
  const Workspace workspace{memory.data(), memory.bytes()};
  tensors.o = dense_view(o.data(), spec.o_type, batch.total_q, spec.num_heads, kHeadDimV);
  tensors.final_lse = dense_view(lse.data(), DataType::kF32, batch.total_q, spec.num_heads);
  status = mla_decode_upload_plan(plan, workspace, nullptr);
  EXPECT_TRUE(status.ok()) << status.text();
  status = mla_decode_fwd(plan, tensors, workspace, nullptr);
  EXPECT_TRUE(status.ok()) << status.text();
  check_hip(hipDeviceSynchronize(), "hipDeviceSynchronize");
  return {o.download(), lse.download()};
}

// The pool of a batch laid out anew over `pool_pages` pages from `pool` on, in the batch's order: its page i becomes page
// first + i.
struct MovedPool {
  TensorView kv_buffer;
  TensorView token_scales;
  std::vector<int32_t> places;  // kv_indices, or topk_indices
};
MovedPool move_pool(const Batch& batch, uint8_t* pool, uint8_t* scale_pool, int64_t pool_pages,
                    int64_t first) {
  const MlaHostInputs host = batch.host_inputs();
  const auto element = static_cast<int64_t>(element_bytes(batch.spec.kv_type));
  const int64_t page_bytes = batch.kv_stride[0] * element;
  MovedPool moved;
  moved.kv_buffer = host.kv_buffer;
  moved.kv_buffer.data = pool;
  moved.kv_buffer.shape[0] = pool_pages;
  std::memcpy(pool + first * page_bytes, batch.kv.data(), batch.kv.size());
  if (!batch.kv_token_scales.empty()) {
    moved.token_scales = host.kv_token_scales;
    moved.token_scales.data = scale_pool;
    moved.token_scales.shape[0] = pool_pages;
    std::memcpy(scale_pool + first * batch.scale_stride[0] * 4, batch.kv_token_scales.data(),
                batch.kv_token_scales.size() * 4);
  }
  if (batch.spec.topk == 0) {
    moved.places = batch.kv_indices;
    for (int32_t i = 0; i < batch.kv_indptr.back(); ++i)
      moved.places[static_cast<size_t>(i)] += static_cast<int32_t>(first);
    return moved;
  }
  moved.places = batch.topk_indices;
  const int64_t num_slots = batch.num_pages * batch.spec.page_size;
  for (int32_t& slot : moved.places)
    if (slot >= 0)
      slot = slot < num_slots ? slot + static_cast<int32_t>(first * batch.spec.page_size) : -1;
  return moved;
}

constexpr int64_t kGiB = int64_t{1} << 30;

class LargePool : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const PromisedTypes& types = kPromisedTypes[GetParam()];
    HIPMLA_SKIP_UNLESS_PROMISED(types.q_type, types.kv_type, types.kv_layout);
    ASSERT_NE(pool_.data(), nullptr);
    ASSERT_NE(scale_pool_.data(), nullptr);
  }

  BatchSpec spec(int32_t heads, int32_t page_size) const {
    const PromisedTypes& types = kPromisedTypes[GetParam()];
    BatchSpec s = uniform_spec(types.q_type, heads, 2, 0, 3, page_size);
    s.kv_type = types.kv_type;
    s.kv_layout = types.kv_layout;
    if (is_fp8(s.q_type)) s.q_scale_host = 0.08f;
    s.token_scales = is_fp8(s.kv_type) && s.kv_layout == KvLayout::kDense;
    s.kv_lens = {77, 5, 33};
    return s;
  }

  // Runs the batch low, and in a pool of `pool_pages` pages at each of the places in `first`.
  void expect_same(const BatchSpec& s, int64_t pool_pages, const std::vector<int64_t>& first) {
    if (!begin_case()) return;
    const Batch batch = build_batch(s);
    const MlaReference reference = mla_reference(batch.host_inputs());
    const DeviceBatch device_batch(batch, test_device());
    for (const DecodeRun& run : {persistent_run(), split_run(2)}) {
      (void)expect_run(device_batch, reference, run);
      const Outputs low = decode(batch, device_batch.tensors(), run);
      for (int64_t page : first) {
        ASSERT_GE(page, 0);
        ASSERT_LE(page + batch.num_pages, pool_pages);
        const MovedPool moved =
            move_pool(batch, pool_.data(), scale_pool_.data(), pool_pages, page);
        DeviceBuffer places("places", moved.places.size() * 4, 4);
        places.upload(moved.places.data(), places.bytes());
        MlaDecodeTensors tensors = device_batch.tensors();
        tensors.kv_buffer = moved.kv_buffer;
        tensors.kv_token_scales = moved.token_scales;
        (s.topk > 0 ? tensors.topk_indices : tensors.kv_indices).data = places.data();
        const Outputs high = decode(batch, tensors, run);
        EXPECT_TRUE(low.o == high.o && low.lse == high.lse)
            << "pages from " << page << " of " << pool_pages << " on: " << s.description()
            << "\n  run: " << run.description() << "\n  run again: " << rerun_command();
        pool_.clear();
        scale_pool_.clear();
      }
    }
  }

  static int64_t page_bytes(const BatchSpec& s) {
    return s.token_elements() * s.page_size * static_cast<int64_t>(element_bytes(s.kv_type));
  }

  static constexpr int64_t kPoolBytes = 20 * kGiB;  // 2^24 tokens of bf16
  AddressRange pool_{kPoolBytes};
  AddressRange scale_pool_{kGiB};
};

// First pages such that the batch's lie on both sides of 2, 4 and 8 GiB, and of page 2^24 where there is one.
std::vector<int64_t> places_of(int64_t page_bytes, int64_t pool_pages) {
  std::vector<int64_t> first;
  for (int64_t boundary : {2 * kGiB, 4 * kGiB, 8 * kGiB})
    first.push_back(boundary / page_bytes - 2);
  if (pool_pages > (1 << 24) + 1000) first.push_back((1 << 24) - 2);
  return first;
}

TEST_P(LargePool, PagesAcrossEachPowerOfTwo) {
  for (int32_t page_size : {1, 48, 64, 480})
    for (int32_t heads : {16, 40}) {
      const BatchSpec s = spec(heads, page_size);
      const int64_t pages = kPoolBytes / page_bytes(s);
      expect_same(s, pages, places_of(page_bytes(s), pages));
    }
}

TEST_P(LargePool, SlotsOfSparseLists) {
  for (int32_t page_size : {1, 64}) {
    BatchSpec s = spec(16, page_size);
    s.topk = 70;
    s.topk_holes = TopkHoles::kSome;
    const int64_t pages = kPoolBytes / page_bytes(s);
    std::vector<int64_t> first = places_of(page_bytes(s), pages);
    first.push_back((int64_t{1} << 31) / kHeadDimQk / page_size - 2);  // elements beyond 2^31
    expect_same(s, pages, first);
  }
}

// The last pages of a pool that ends one page before, at, and one page after 2 and 4 GiB.
TEST_P(LargePool, EndsNearAPowerOfTwo) {
  for (int32_t page_size : {1, 64}) {
    const BatchSpec s = spec(16, page_size);
    const int64_t used = build_batch(s).num_pages;
    for (int64_t bytes : {2 * kGiB, 4 * kGiB})
      for (int64_t more : {-1, 0, 1}) {
        const int64_t pages = bytes / page_bytes(s) + more;
        expect_same(s, pages, {pages - used});
      }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LargePool,
                         ::testing::Range(0, static_cast<int>(std::size(kPromisedTypes))),
                         [](const auto& info) {
                           const PromisedTypes& t = kPromisedTypes[info.param];
                           return std::string(data_type_name(t.q_type)) + "_" +
                                  data_type_name(t.kv_type) + "_" + kv_layout_name(t.kv_layout);
                         });

}  // namespace
}  // namespace hipmla::test
