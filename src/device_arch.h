// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

#include "hipmla/types.h"

namespace hipmla::internal {

// Every Arch but kUnknown.
constexpr Arch kKnownArchs[] = {Arch::kGfx90a, Arch::kGfx942, Arch::kGfx950, Arch::kSm80,
                                Arch::kSm90};

// The one reader of the runtime's names: "gfx942:sramecc+:xnack-" is kGfx942.
Arch parse_arch(std::string_view gcn_arch_name);

}  // namespace hipmla::internal
