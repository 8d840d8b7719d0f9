// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

/// HIPMLA_API marks what the shared library exports.
#if defined(HIPMLA_SHARED) && defined(__GNUC__)
#define HIPMLA_API __attribute__((visibility("default")))
#else
#define HIPMLA_API
#endif
