// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Device memory with guards on both sides. Same source on all platforms: HIP runtime calls only.

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace hipmla::test {

// A failed HIP call in test or tool code. The library itself never throws.
class HipError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws HipError, with `what` in the text, unless `error` is hipSuccess.
void check_hip(hipError_t error, const char* what);

// A stream of its own, not the default one.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  hipStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  hipStream_t stream_ = nullptr;
};

// `bytes` of device memory, with guard_bytes on each side. All of it starts as poison: NaN as bf16,
// f16 and f32, a wild index as an integer (float_bits.h). data() is aligned to `alignment` and to
// nothing more.
class DeviceBuffer {
 public:
  static constexpr size_t kGuardBytes = 4096;

  DeviceBuffer(std::string name, size_t bytes, size_t alignment);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer();

  void* data() const { return static_cast<char*>(allocation_) + offset_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  void upload(const void* source, size_t bytes);
  void download(void* target, size_t bytes) const;
  std::vector<uint8_t> download() const;

  // What was written next to the buffer, or "".
  std::string check_guards() const;
  // "" if the buffer still holds the `bytes` at `expected`.
  std::string check_unchanged(const void* expected, size_t bytes) const;
  // "" if the buffer is still all poison.
  std::string check_untouched() const;

 private:
  std::string name_;
  size_t bytes_;
  size_t offset_ = 0;  // of data() in the allocation
  size_t total_bytes_ = 0;
  void* allocation_ = nullptr;
};

}  // namespace hipmla::test
