// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#include "hipmla/version.h"

#define HIPMLA_TEXT_OF(value) #value
#define HIPMLA_TEXT(macro) HIPMLA_TEXT_OF(macro)

namespace hipmla {

const char* version() {
  return HIPMLA_TEXT(HIPMLA_VERSION_MAJOR) "." HIPMLA_TEXT(HIPMLA_VERSION_MINOR) "." HIPMLA_TEXT(
      HIPMLA_VERSION_PATCH);
}

const char* platform_name() {
#if defined(HIPMLA_PLATFORM_AMD)
  return "amd";
#elif defined(HIPMLA_PLATFORM_NVIDIA)
  return "nvidia";
#elif defined(HIPMLA_PLATFORM_CPU)
  return "cpu";
#else
#error "no platform: build with -DHIPMLA_PLATFORM=amd, nvidia or cpu"
#endif
}

}  // namespace hipmla
