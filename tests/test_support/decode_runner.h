// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Runs the library on a batch, with every check that needs no expected values: equal Status from
// all entry points, guards, inputs and padding unchanged, workspace within what was announced. Free
// of GoogleTest; mla_replay uses it too.

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "tests/test_support/batch_builder.h"
#include "tests/test_support/device_buffer.h"

namespace hipmla::test {

struct DecodeRun {
  MlaDecodeOptions options;  // mask, LSE base and shard are the batch's, whatever it says here
  bool with_lse = true;
  bool one_call = false;             // the entry point that plans inside
  std::optional<DeviceInfo> device;  // what the plan is made for; none: the device of the batch
  // Last changes to the options, beside what the batch sets; may be none.
  std::function<void(MlaDecodeOptions*)> change_options;

  // "persistent", "split 5 partials", ...
  std::string description() const;
};

DecodeRun persistent_run();
DecodeRun split_run(int32_t num_kv_splits = 0);

struct DecodeResult {
  Status status;
  std::string problems;  // what the checks found; "" if nothing

  // Only if ok(), in the caller's shape, dense.
  std::vector<float> o;    // [total_q, num_heads, 512]
  std::vector<float> lse;  // [total_q, num_heads]; empty without with_lse
  int32_t num_partials = 0;
  std::vector<float> partial_o;    // [num_partials, total_q, num_heads, 512], if asked for
  std::vector<float> partial_lse;  // [num_partials, total_q, num_heads]
  Schedule schedule = Schedule::kAuto;
  std::string plan;
  double milliseconds = 0.0;  // of the call and its kernels, wall clock

  bool ok() const { return status.ok() && problems.empty(); }
};

// A batch in device memory, for any number of runs.
class DeviceBatch {
 public:
  // `batch` must outlive this object. Throws HipError.
  DeviceBatch(const Batch& batch, const DeviceInfo& device);

  DecodeResult run(const DecodeRun& requested) const;

  // Views of the inputs, without o, final_lse and partials.
  MlaDecodeTensors tensors() const;
  // Guards and contents of all inputs; "" if nothing was written.
  std::string check_inputs() const;
  const Batch& batch() const { return batch_; }

 private:
  struct Outputs;
  void launch(const DecodeRun& run, const DeviceInfo& device, const MlaDecodePlan& plan,
              size_t announced_bytes, DecodeResult* result) const;
  void refuse(const DecodeRun& run, const DeviceInfo& device, DecodeResult* result) const;
  void collect(const Outputs& outputs, DecodeResult* result) const;

  const Batch& batch_;
  DeviceInfo device_;
  // An input on the device and what it must still hold after a run.
  struct Input {
    DeviceBuffer buffer;
    const void* host;
  };
  // Data of an input that was uploaded under this name; null if there is none.
  void* find(const char* name) const;
  TensorView indices(const char* name) const;

  std::vector<Input> inputs_;
};

// True if both hold the same bits, NaN included.
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace hipmla::test
