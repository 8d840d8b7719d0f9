// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// What the README shows of the code must be what the code is.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tools/support_matrix.h"

namespace hipmla {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(HIPMLA_SOURCE_DIR) + "/" + name);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Readme, SupportMatrixIsTheTable) {
  const std::string begin = "<!-- support matrix: printed by tools/support_matrix -->\n";
  const std::string end = "<!-- end of support matrix -->";
  const std::string readme = read_file("README.md");
  const size_t first = readme.find(begin);
  const size_t last = readme.find(end);
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(last, std::string::npos);
  EXPECT_EQ(readme.substr(first + begin.size(), last - first - begin.size()),
            tools::support_matrix());
}

}  // namespace
}  // namespace hipmla
