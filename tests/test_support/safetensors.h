// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Reads safetensors files that may be damaged or hostile: every field is checked before it is used.
//
//   8 bytes   length n of the header, little endian
//   n bytes   JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//                    "__metadata__": {"key": "value", ...}}
//   rest      the tensors; offsets count from here. They cover it without holes or overlaps.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hipmla::test {

struct SafetensorsEntry {
  std::string dtype;           // as in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;  // the product does not overflow and fits the bytes
  size_t begin = 0;            // in SafetensorsFile::data
  size_t end = 0;

  // "BF16 [2, 3]"
  std::string description() const;
};

struct SafetensorsFile {
  std::vector<uint8_t> data;  // what follows the header; tensors in it need not be aligned
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parse `bytes`, or the file at `path`. On failure `*error` says what is wrong, and `*file` is
// unspecified. May throw std::bad_alloc, and nothing else.
bool parse_safetensors(const std::vector<uint8_t>& bytes, SafetensorsFile* file,
                       std::string* error);
bool read_safetensors(const std::string& path, SafetensorsFile* file, std::string* error);

// A copy of `text` in which every byte that is not printable ASCII is replaced: file contents may
// end up on a terminal.
std::string printable(const std::string& text);

}  // namespace hipmla::test
