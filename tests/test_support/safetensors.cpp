// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace hipmla::test {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr int kMaxDepth = 4;                       // {"name": {"shape": [1]}}
constexpr size_t kMaxNdim = 16;

size_t dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, size_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

// The header as JSON. Rejects what nlohmann-json would accept silently or pay dearly for: duplicate
// names, deep nesting.
bool parse_header(const uint8_t* begin, const uint8_t* end, Json* header, std::string* error) {
  std::set<std::string> names;
  std::string problem;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth && problem.empty()) problem = "is nested too deeply";
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get_ref<const std::string&>()).second && problem.empty())
      problem = "names \"" + printable(parsed.get_ref<const std::string&>()) + "\" twice";
    return problem.empty();  // false: the value is dropped
  };
  *header = Json::parse(begin, end, callback, /*allow_exceptions=*/false);
  if (problem.empty() && header->is_discarded()) problem = "is no valid JSON";
  if (problem.empty() && !header->is_object()) problem = "is no JSON object";
  if (!problem.empty()) *error = "the header " + problem;
  return problem.empty();
}

// A JSON integer in [0, 2^63).
bool get_size(const Json& json, int64_t* out) {
  if (!json.is_number_integer()) return false;
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return false;
  *out = json.get<int64_t>();
  return *out >= 0;
}

bool parse_entry(const Json& json, size_t data_bytes, SafetensorsEntry* entry, std::string* error) {
  const auto fail = [&](const std::string& text) {
    *error = text;
    return false;
  };
  if (!json.is_object()) return fail("its entry is no JSON object");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) return fail("dtype is missing or no string");
  entry->dtype = dtype->get<std::string>();
  const size_t element_bytes = dtype_bytes(entry->dtype);
  if (element_bytes == 0)
    return fail("dtype \"" + printable(entry->dtype.substr(0, 32)) + "\" is unknown");

  if (shape == json.end() || !shape->is_array()) return fail("shape is missing or no array");
  if (shape->size() > kMaxNdim)
    return fail("shape has " + std::to_string(shape->size()) + " dimensions");
  uint64_t bytes = element_bytes;
  bool is_empty = false;
  for (const Json& value : *shape) {
    int64_t size = 0;
    if (!get_size(value, &size)) return fail("shape holds something that is no size");
    entry->shape.push_back(size);
    is_empty = is_empty || size == 0;
  }
  for (int64_t size : entry->shape)
    if (!is_empty && __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      return fail("shape " + entry->description() + " is too large");
  if (is_empty) bytes = 0;

  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2)
    return fail("data_offsets are missing or no pair");
  int64_t begin = 0;
  int64_t end = 0;
  if (!get_size((*offsets)[0], &begin) || !get_size((*offsets)[1], &end) || begin > end)
    return fail("data_offsets are no range");
  if (static_cast<uint64_t>(end) > data_bytes)
    return fail("its data ends at byte " + std::to_string(end) + " of " +
                std::to_string(data_bytes) + "; the file is truncated, or the header wrong");
  if (static_cast<uint64_t>(end - begin) != bytes)
    return fail(entry->description() + " takes " + std::to_string(bytes) +
                " bytes, data_offsets hold " + std::to_string(end - begin));
  entry->begin = static_cast<size_t>(begin);
  entry->end = static_cast<size_t>(end);
  return true;
}

bool parse_metadata(const Json& json, std::map<std::string, std::string>* metadata,
                    std::string* error) {
  if (!json.is_object()) {
    *error = "__metadata__ is no JSON object";
    return false;
  }
  for (const auto& item : json.items()) {
    if (!item.value().is_string()) {
      *error = "metadata \"" + printable(item.key()) + "\" is no string";
      return false;
    }
    (*metadata)[item.key()] = item.value().get<std::string>();
  }
  return true;
}

// Every byte belongs to exactly one tensor.
bool check_layout(const SafetensorsFile& file, std::string* error) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> entries;
  for (const auto& [name, entry] : file.tensors) entries.emplace_back(&name, &entry);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.second->begin, a.second->end) <
           std::make_pair(b.second->begin, b.second->end);
  });
  size_t next = 0;
  for (const auto& [name, entry] : entries) {
    if (entry->begin != next) {
      *error = "tensor \"" + printable(*name) + "\" begins at byte " +
               std::to_string(entry->begin) +
               (entry->begin < next ? " and overlaps the one before, which ends at "
                                    : "; no tensor holds the bytes from ") +
               std::to_string(next);
      return false;
    }
    next = entry->end;
  }
  if (next == file.data.size()) return true;
  *error = std::to_string(file.data.size() - next) + " bytes follow the last tensor";
  return false;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string out = text.substr(0, 200);
  for (char& c : out)
    if (c < ' ' || c > '~') c = '?';
  return out;
}

std::string SafetensorsEntry::description() const {
  std::string text = dtype + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

bool parse_safetensors(const std::vector<uint8_t>& bytes, SafetensorsFile* file,
                       std::string* error) {
  *file = SafetensorsFile();
  if (bytes.size() < kLengthBytes) {
    *error = "the file has " + std::to_string(bytes.size()) +
             " bytes; a safetensors file has at least 8";
    return false;
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_bytes |= uint64_t{bytes[i]} << (8 * i);
  if (header_bytes > bytes.size() - kLengthBytes || header_bytes > kMaxHeaderBytes) {
    *error = "the header should have " + std::to_string(header_bytes) +
             " bytes, but the file has " + std::to_string(bytes.size()) +
             "; it is truncated or no safetensors file";
    return false;
  }
  const uint8_t* header_begin = bytes.data() + kLengthBytes;
  const uint8_t* header_end = header_begin + header_bytes;
  Json header;
  if (!parse_header(header_begin, header_end, &header, error)) return false;
  file->data.assign(header_end, bytes.data() + bytes.size());
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") {
      if (!parse_metadata(item.value(), &file->metadata, error)) return false;
      continue;
    }
    if (!parse_entry(item.value(), file->data.size(), &file->tensors[item.key()], error)) {
      *error = "tensor \"" + printable(item.key()) + "\": " + *error;
      return false;
    }
  }
  return check_layout(*file, error);
}

bool read_safetensors(const std::string& path, SafetensorsFile* file, std::string* error) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(path.c_str(), "rb"),
                                                               &std::fclose);
  if (!stream) {
    *error = std::string("cannot be opened: ") + std::strerror(errno);
    return false;
  }
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> part(size_t{1} << 20);
  for (;;) {
    const size_t n = std::fread(part.data(), 1, part.size(), stream.get());
    bytes.insert(bytes.end(), part.begin(), part.begin() + static_cast<int64_t>(n));
    if (n < part.size()) break;
  }
  if (std::ferror(stream.get())) {
    *error = std::string("cannot be read: ") + std::strerror(errno);
    return false;
  }
  return parse_safetensors(bytes, file, error);
}

}  // namespace hipmla::test
