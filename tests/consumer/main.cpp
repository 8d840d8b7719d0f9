// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// Links the installed library and asks it what needs no device.

#include <hipmla/device.h>
#include <hipmla/mla_decode.h>
#include <hipmla/version.h>

#include <cstdio>
#include <string>

int main() {
  const std::string header_version = std::to_string(HIPMLA_VERSION_MAJOR) + "." +
                                     std::to_string(HIPMLA_VERSION_MINOR) + "." +
                                     std::to_string(HIPMLA_VERSION_PATCH);
  std::printf("hipmla %s (%s)\n", hipmla::version(), hipmla::platform_name());
  if (hipmla::version() != header_version) {
    std::printf("but the headers are of %s\n", header_version.c_str());
    return 1;
  }

  hipmla::DeviceInfo device;
  device.arch = hipmla::Arch::kGfx942;
  device.num_compute_units = 304;
  device.lds_bytes = 64 * 1024;

  hipmla::MlaDecodeShape shape;
  shape.num_heads = 16;
  shape.page_size = 64;
  shape.batch_size = 4;
  shape.total_q = 4;
  const hipmla::Status supported = hipmla::mla_decode_check_support(shape, {}, device);
  if (!supported.ok()) {
    std::printf("16 heads: %s\n", supported.text().c_str());
    return 1;
  }
  shape.num_heads = 0;
  const hipmla::Status refused = hipmla::mla_decode_check_support(shape, {}, device);
  std::printf("0 heads: %s\n", refused.text().c_str());
  return refused.code() == hipmla::StatusCode::kInvalidArgument ? 0 : 1;
}
