// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tools/support_matrix.h"

#include <cstdio>

int main() {
  std::fputs(hipmla::tools::support_matrix().c_str(), stdout);
  return 0;
}
