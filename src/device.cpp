// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "hipmla/device.h"

#include <hip/hip_runtime_api.h>

#include <string_view>

#include "kernels/mla/stage1_configs.h"
#include "src/device_arch.h"
#include "src/guard.h"
#include "src/text.h"

namespace hipmla {

const char* arch_name(Arch arch) {
  switch (arch) {
    case Arch::kGfx90a:
      return "gfx90a";
    case Arch::kGfx942:
      return "gfx942";
    case Arch::kGfx950:
      return "gfx950";
    case Arch::kSm80:
      return "sm_80";
    case Arch::kSm90:
      return "sm_90";
    case Arch::kUnknown:
      break;
  }
  return "unknown";
}

namespace internal {

Arch parse_arch(std::string_view gcn_arch_name) {
  const std::string_view processor = gcn_arch_name.substr(0, gcn_arch_name.find(':'));
  for (Arch arch : kKnownArchs) {
    if (processor == arch_name(arch)) return arch;
  }
  return Arch::kUnknown;
}

}  // namespace internal

Status query_device(int device_id, DeviceInfo* info) {
  return internal::guard([&]() -> Status {
    if (info == nullptr) return internal::invalid_argument("info is null");
    hipDeviceProp_t properties = {};
    Status status = internal::device_call(
        [&] { return hipGetDeviceProperties(&properties, device_id); },
        [&] { return internal::concat("hipGetDeviceProperties of device ", device_id); });
    if (!status.ok()) return status;
    DeviceInfo found;
    found.arch = internal::parse_arch(properties.gcnArchName);
    if (found.arch == Arch::kUnknown) {
      return internal::unsupported("device ", device_id, " is ", properties.gcnArchName,
                                   "; no kernel is built for it");
    }
    found.num_compute_units = properties.multiProcessorCount;
    // By architecture: a runtime may report 64 KiB where 160 are there.
    found.lds_bytes = internal::lds_bytes_of(found.arch);
    *info = found;
    return Status();
  });
}

}  // namespace hipmla
