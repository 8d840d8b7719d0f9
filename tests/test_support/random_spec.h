// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Random decode steps, over everything that the library promises.

#include "tests/test_support/batch_builder.h"

namespace hipmla::test {

// A step that takes well under a second on the CPU platform, of types that `arch` is promised to
// serve.
BatchSpec random_spec(Random& random, Arch arch);

}  // namespace hipmla::test
