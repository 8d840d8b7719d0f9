// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// One decode step through the installed library: q = 0, so that every key weighs the same.

#include <hip/hip_runtime_api.h>
#include <hipmla/device.h>
#include <hipmla/mla_decode.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kNumHeads = 16;
constexpr int kKvLen = 3;

void check(bool ok, const char* what, const char* detail = "") {
  if (ok) return;
  std::printf("%s %s\n", what, detail);
  std::exit(1);
}

void check(const hipmla::Status& status) {
  check(status.ok(), hipmla::status_code_name(status.code()), status.text().c_str());
}

template <typename T>
T* to_device(const std::vector<T>& values) {
  T* pointer = nullptr;
  const size_t bytes = values.size() * sizeof(T);
  check(hipMalloc(&pointer, bytes) == hipSuccess, "hipMalloc");
  check(hipMemcpy(pointer, values.data(), bytes, hipMemcpyHostToDevice) == hipSuccess, "hipMemcpy");
  return pointer;
}

template <typename T>
std::vector<T> to_host(const T* pointer, size_t size) {
  std::vector<T> values(size);
  check(hipMemcpy(values.data(), pointer, size * sizeof(T), hipMemcpyDeviceToHost) == hipSuccess,
        "hipMemcpy");
  return values;
}

}  // namespace

int main() {
  using hipmla::DataType;
  using hipmla::dense_view;

  // Token p is p + 1 everywhere: 0x3F80, 0x4000, 0x4040 are 1, 2, 3 in bf16. The output is their mean.
  std::vector<uint16_t> kv;
  for (const uint16_t value : {0x3F80, 0x4000, 0x4040})
    kv.insert(kv.end(), hipmla::kHeadDimQk, value);
  const std::vector<int32_t> qo_indptr = {0, 1};
  const std::vector<int32_t> kv_indptr = {0, kKvLen};
  const std::vector<int32_t> kv_last_page_lens = {1};

  hipmla::MlaDecodeTensors tensors;
  tensors.q = dense_view(to_device(std::vector<uint16_t>(kNumHeads * hipmla::kHeadDimQk, 0)),
                         DataType::kBf16, 1, kNumHeads, hipmla::kHeadDimQk);
  tensors.kv_buffer = dense_view(to_device(kv), DataType::kBf16, kKvLen, 1, 1, hipmla::kHeadDimQk);
  tensors.qo_indptr = dense_view(to_device(qo_indptr), DataType::kI32, 2);
  tensors.kv_indptr = dense_view(to_device(kv_indptr), DataType::kI32, 2);
  tensors.kv_indices = dense_view(to_device(std::vector<int32_t>{2, 0, 1}), DataType::kI32, kKvLen);
  tensors.kv_last_page_lens = dense_view(to_device(kv_last_page_lens), DataType::kI32, 1);
  const int o_size = kNumHeads * hipmla::kHeadDimV;
  float* o = to_device(std::vector<float>(o_size, NAN));
  float* lse = to_device(std::vector<float>(kNumHeads, NAN));
  tensors.o = dense_view(o, DataType::kF32, 1, kNumHeads, hipmla::kHeadDimV);
  tensors.final_lse = dense_view(lse, DataType::kF32, 1, kNumHeads);
  tensors.softmax_scale = 0.1f;
  tensors.lengths.batch_size = 1;
  tensors.lengths.qo_indptr = qo_indptr.data();
  tensors.lengths.kv_indptr = kv_indptr.data();
  tensors.lengths.kv_last_page_lens = kv_last_page_lens.data();

  hipmla::DeviceInfo device;
  check(hipmla::query_device(0, &device));
  hipmla::MlaDecodeShape shape;
  shape.o_type = DataType::kF32;
  shape.num_heads = kNumHeads;
  shape.batch_size = 1;
  shape.total_q = 1;
  hipmla::Workspace workspace;
  check(hipmla::mla_decode_workspace_size(shape, {}, device, &workspace.bytes));
  workspace.data = to_device(std::vector<char>(workspace.bytes));

  check(hipmla::mla_decode_fwd(tensors, {}, device, workspace, nullptr));
  check(hipDeviceSynchronize() == hipSuccess, "hipDeviceSynchronize");

  for (const float value : to_host(o, o_size))
    check(std::fabs(value - 2.0f) < 0.02f, "o is not the mean of the values");
  for (const float value : to_host(lse, kNumHeads))
    check(std::fabs(value - std::log(3.0f)) < 1e-5f,
          "lse is not the logarithm of the number of keys");
  std::printf("o and lse are right\n");
  return 0;
}
