// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/device_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/test_support/float_bits.h"

namespace hipmla::test {
namespace {

// Copies in steps, so that poison for a large buffer needs no host memory of its size.
constexpr size_t kStepBytes = size_t{1} << 20;

uint8_t poison_byte(size_t position) {
  return static_cast<uint8_t>(position % 2 == 0 ? kPoison16 & 0xff : kPoison16 >> 8);
}

// First byte of [begin, end) of the allocation that is not poison, or `end`. `phase`: position of
// data().
size_t find_damage(const char* allocation, size_t begin, size_t end, size_t phase) {
  std::vector<uint8_t> host(std::min(kStepBytes, end - begin));
  for (size_t at = begin; at < end; at += host.size()) {
    const size_t n = std::min(host.size(), end - at);
    check_hip(hipMemcpy(host.data(), allocation + at, n, hipMemcpyDeviceToHost), "hipMemcpy");
    for (size_t i = 0; i < n; ++i)
      if (host[i] != poison_byte(at + i - phase)) return at + i;
  }
  return end;
}

}  // namespace

void check_hip(hipError_t error, const char* what) {
  if (error == hipSuccess) return;
  throw HipError(std::string(what) + ": " + hipGetErrorString(error));
}

DeviceStream::DeviceStream() { check_hip(hipStreamCreate(&stream_), "hipStreamCreate"); }
DeviceStream::~DeviceStream() { (void)hipStreamDestroy(stream_); }
void DeviceStream::synchronize() const {
  check_hip(hipStreamSynchronize(stream_), "hipStreamSynchronize");
}

DeviceBuffer::DeviceBuffer(std::string name, size_t bytes, size_t alignment)
    : name_(std::move(name)), bytes_(bytes) {
  // The allocation is aligned to 256; from there, `alignment` modulo twice the alignment. Even, for
  // poison's phase.
  offset_ = kGuardBytes + (alignment < 256 ? alignment : 0);
  total_bytes_ = (offset_ + bytes + kGuardBytes + 3) / 4 * 4;
  check_hip(hipMalloc(&allocation_, total_bytes_), ("hipMalloc of " + name_).c_str());
  std::vector<uint8_t> poison(std::min(kStepBytes, total_bytes_));
  for (size_t i = 0; i < poison.size(); ++i) poison[i] = poison_byte(i);
  for (size_t at = 0; at < total_bytes_; at += poison.size()) {
    const size_t n = std::min(poison.size(), total_bytes_ - at);
    check_hip(
        hipMemcpy(static_cast<char*>(allocation_) + at, poison.data(), n, hipMemcpyHostToDevice),
        "hipMemcpy");
  }
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : name_(std::move(other.name_)),
      bytes_(other.bytes_),
      offset_(other.offset_),
      total_bytes_(other.total_bytes_),
      allocation_(std::exchange(other.allocation_, nullptr)) {}

DeviceBuffer::~DeviceBuffer() {
  if (allocation_ != nullptr) (void)hipFree(allocation_);
}

void DeviceBuffer::upload(const void* source, size_t bytes) {
  if (bytes > bytes_) throw HipError("upload of too many bytes to " + name_);
  if (bytes > 0) check_hip(hipMemcpy(data(), source, bytes, hipMemcpyHostToDevice), "hipMemcpy");
}

void DeviceBuffer::download(void* target, size_t bytes) const {
  if (bytes > bytes_) throw HipError("download of too many bytes from " + name_);
  if (bytes > 0) check_hip(hipMemcpy(target, data(), bytes, hipMemcpyDeviceToHost), "hipMemcpy");
}

std::vector<uint8_t> DeviceBuffer::download() const {
  std::vector<uint8_t> host(bytes_);
  download(host.data(), bytes_);
  return host;
}

std::string DeviceBuffer::check_guards() const {
  const char* base = static_cast<const char*>(allocation_);
  const size_t before = find_damage(base, 0, offset_, offset_);
  if (before != offset_)
    return name_ + ": written " + std::to_string(offset_ - before) + " bytes before its begin";
  const size_t end = offset_ + bytes_;
  const size_t after = find_damage(base, end, total_bytes_, offset_);
  if (after != total_bytes_)
    return name_ + ": written " + std::to_string(after - end) + " bytes past its end";
  return "";
}

std::string DeviceBuffer::check_unchanged(const void* expected, size_t bytes) const {
  std::vector<uint8_t> host(std::min(kStepBytes, bytes));
  for (size_t at = 0; at < bytes; at += host.size()) {
    const size_t n = std::min(host.size(), bytes - at);
    check_hip(hipMemcpy(host.data(), static_cast<char*>(data()) + at, n, hipMemcpyDeviceToHost),
              "hipMemcpy");
    if (std::memcmp(host.data(), static_cast<const char*>(expected) + at, n) != 0)
      return name_ + ": an input was written to, between bytes " + std::to_string(at) + " and " +
             std::to_string(at + n);
  }
  return "";
}

std::string DeviceBuffer::check_untouched() const {
  const size_t end = offset_ + bytes_;
  const size_t damage = find_damage(static_cast<const char*>(allocation_), offset_, end, offset_);
  if (damage != end)
    return name_ + ": written at byte " + std::to_string(damage - offset_) +
           ", but nothing may be written";
  return "";
}

}  // namespace hipmla::test
