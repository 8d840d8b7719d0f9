// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include "hipmla/export.h"

#define HIPMLA_VERSION_MAJOR 0
#define HIPMLA_VERSION_MINOR 1
#define HIPMLA_VERSION_PATCH 0

#ifdef __cplusplus
namespace hipmla {

/// Version of the library that is linked, "major.minor.patch"; the macros tell the headers' version.
HIPMLA_API const char* version();

/// "amd" or "cpu": what the library that is linked was built for.
HIPMLA_API const char* platform_name();

}  // namespace hipmla
#endif
