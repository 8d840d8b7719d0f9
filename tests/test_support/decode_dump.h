// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// A decode step from a file (docs/replay_format.md says what it holds), for tests and mla_replay.

#include <string>
#include <vector>

#include "tests/test_support/batch_builder.h"
#include "tests/test_support/safetensors.h"

namespace hipmla::test {

struct DecodeDump {
  std::string name;  // from the metadata; printable
  Batch batch;       // everything that a kernel follows has been checked: lengths, page ids, shapes
  // [total_q, num_heads, 512] and [total_q, num_heads]; empty if the file has no expectation.
  std::vector<double> o_expected;
  std::vector<double> lse_expected;
};

// On failure `*error` says what is wrong. May throw std::bad_alloc, and nothing else.
bool make_decode_dump(const SafetensorsFile& file, DecodeDump* dump, std::string* error);
bool read_decode_dump(const std::string& path, DecodeDump* dump, std::string* error);

}  // namespace hipmla::test
