// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

#include "tests/test_support/decode_dump.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace hipmla::test {
namespace {

// Thrown and caught in this file only.
struct BadDump {
  std::string text;
};

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string text;
  const auto append = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      text += std::to_string(part);
    else
      text += part;
  };
  (append(parts), ...);
  throw BadDump{text};
}

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : file_(file) {}

  const SafetensorsEntry* find(const std::string& name) const {
    const auto found = file_.tensors.find(name);
    return found == file_.tensors.end() ? nullptr : &found->second;
  }
  // `shape`: -1 stands for any size of at least 1.
  const SafetensorsEntry& get(const std::string& name, const std::vector<int64_t>& shape,
                              const std::vector<std::string>& dtypes) const {
    const SafetensorsEntry* entry = find(name);
    if (entry == nullptr) fail("tensor \"", name, "\" is missing");
    if (std::find(dtypes.begin(), dtypes.end(), entry->dtype) == dtypes.end()) {
      std::string list;
      for (const std::string& dtype : dtypes) list += (list.empty() ? "" : " or ") + dtype;
      fail(name, " is ", entry->description(), "; must be ", list);
    }
    bool fits = entry->shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i)
      fits = shape[i] < 0 ? entry->shape[i] >= 1 : entry->shape[i] == shape[i];
    if (!fits) {
      std::string list;
      for (int64_t size : shape)
        list += (list.empty() ? "" : ", ") + (size < 0 ? "n" : std::to_string(size));
      fail(name, " is ", entry->description(), "; its shape must be [", list, "]");
    }
    return *entry;
  }
  template <typename T>
  std::vector<T> copy(const SafetensorsEntry& entry) const {
    std::vector<T> values((entry.end - entry.begin) / sizeof(T));
    if (!values.empty())
      std::memcpy(values.data(), file_.data.data() + entry.begin, values.size() * sizeof(T));
    return values;
  }
  std::string metadata(const std::string& key) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) fail("metadata \"", key, "\" is missing");
    return found->second;
  }
  bool has_metadata(const std::string& key) const { return file_.metadata.count(key) > 0; }

 private:
  const SafetensorsFile& file_;
};

std::vector<int32_t> read_indices(const Reader& reader, const std::string& name, int64_t size) {
  return reader.copy<int32_t>(reader.get(name, {size}, {"I32"}));
}

double parse_number(const std::string& key, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value))
    fail("metadata ", key, " is \"", printable(text), "\"; must be a finite number");
  return value;
}

void read_options(const Reader& reader, BatchSpec* spec) {
  const double scale = parse_number("sm_scale", reader.metadata("sm_scale"));
  if (std::abs(scale) > static_cast<double>(std::numeric_limits<float>::max()))
    fail("metadata sm_scale is ", scale, "; does not fit a float");
  spec->softmax_scale = static_cast<float>(scale);
  const std::string causal = reader.metadata("causal");
  if (causal != "0" && causal != "1" && causal != "true" && causal != "false")
    fail("metadata causal is \"", printable(causal), "\"; must be 0 or 1");
  spec->causal = causal == "1" || causal == "true";
}

void read_tensors(const Reader& reader, Batch* batch) {
  const SafetensorsEntry& q = reader.get("q", {-1, -1, kHeadDimQk}, {"BF16", "F16"});
  const SafetensorsEntry& kv = reader.get("kv_buffer", {-1, -1, 1, kHeadDimQk}, {"BF16", "F16"});
  if (q.dtype != kv.dtype) fail("q is ", q.dtype, ", kv_buffer ", kv.dtype, "; must be equal");
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  if (q.shape[1] > kMaxInt || kv.shape[1] > kMaxInt || q.shape[0] > kMaxInt)
    fail("q is ", q.description(), ", kv_buffer ", kv.description(), "; too large");
  batch->spec.type = batch->spec.o_type = q.dtype == "BF16" ? DataType::kBf16 : DataType::kF16;
  batch->spec.num_heads = static_cast<int32_t>(q.shape[1]);
  batch->spec.page_size = static_cast<int32_t>(kv.shape[1]);
  batch->total_q = q.shape[0];
  batch->num_pages = kv.shape[0];
  batch->q = reader.copy<uint16_t>(q);
  batch->kv = reader.copy<uint16_t>(kv);
  batch->q_stride[0] = q.shape[1] * kHeadDimQk;
  batch->q_stride[1] = kHeadDimQk;
  batch->kv_stride[0] = kv.shape[1] * kHeadDimQk;
  batch->kv_stride[1] = kHeadDimQk;
  batch->o_stride[0] = q.shape[1] * kHeadDimV;
  batch->o_stride[1] = kHeadDimV;
  batch->lse_stride[0] = q.shape[1];
  batch->lse_stride[1] = 1;
}

void check_indptr(const char* name, const std::vector<int32_t>& indptr) {
  if (indptr[0] != 0) fail(name, "[0] is ", indptr[0], "; must be 0");
  for (size_t b = 0; b + 1 < indptr.size(); ++b)
    if (indptr[b + 1] < indptr[b])
      fail(name, "[", b + 1, "] is ", indptr[b + 1], ", less than ", indptr[b], " before it");
}

void read_lengths(const Reader& reader, Batch* batch) {
  batch->qo_indptr = read_indices(reader, "qo_indptr", -1);
  const auto num_indptr = static_cast<int64_t>(batch->qo_indptr.size());
  if (num_indptr < 2)
    fail("qo_indptr has ", num_indptr, " elements; must have one more than sequences");
  batch->batch_size = static_cast<int32_t>(num_indptr - 1);
  batch->kv_indptr = read_indices(reader, "kv_indptr", num_indptr);
  batch->kv_last_page_lens = read_indices(reader, "kv_last_page_lens", num_indptr - 1);
  check_indptr("qo_indptr", batch->qo_indptr);
  check_indptr("kv_indptr", batch->kv_indptr);
  if (batch->qo_indptr.back() != batch->total_q)
    fail("qo_indptr ends with ", batch->qo_indptr.back(), ", but q has ", batch->total_q,
         " tokens");

  const SafetensorsEntry* indices = reader.find("kv_indices");
  if (indices == nullptr || indices->shape != std::vector<int64_t>{0})  // no page at all is fine
    batch->kv_indices = read_indices(reader, "kv_indices", -1);
  const auto listed = static_cast<size_t>(batch->kv_indptr.back());
  if (listed > batch->kv_indices.size())
    fail("kv_indptr ends with ", listed, ", but kv_indices has ", batch->kv_indices.size(),
         " elements");
  for (size_t i = 0; i < listed; ++i)
    if (batch->kv_indices[i] < 0 || batch->kv_indices[i] >= batch->num_pages)
      fail("kv_indices[", i, "] is ", batch->kv_indices[i], "; must be in [0, ", batch->num_pages,
           ")");

  for (size_t b = 0; b < batch->kv_last_page_lens.size(); ++b) {
    const int64_t pages = int64_t{batch->kv_indptr[b + 1]} - batch->kv_indptr[b];
    const int32_t last = batch->kv_last_page_lens[b];
    if (pages > 0 && (last < 1 || last > batch->spec.page_size))
      fail("kv_last_page_lens[", b, "] is ", last, "; must be in 1..", batch->spec.page_size);
    const int64_t kv_len = pages == 0 ? 0 : (pages - 1) * batch->spec.page_size + last;
    if (kv_len > std::numeric_limits<int32_t>::max())
      fail("sequence ", b, " has ", kv_len, " tokens; too many");
    batch->spec.kv_lens.push_back(static_cast<int32_t>(kv_len));
    batch->spec.q_lens.push_back(batch->qo_indptr[b + 1] - batch->qo_indptr[b]);
  }
  batch->spec.max_seqlen_q =
      std::max(1, *std::max_element(batch->spec.q_lens.begin(), batch->spec.q_lens.end()));
  if (reader.has_metadata("max_seqlen_q")) {
    const double bound = parse_number("max_seqlen_q", reader.metadata("max_seqlen_q"));
    if (bound != std::floor(bound) || bound < batch->spec.max_seqlen_q ||
        bound > std::numeric_limits<int32_t>::max())
      fail("metadata max_seqlen_q is ", printable(reader.metadata("max_seqlen_q")),
           "; must be an integer of at least ", batch->spec.max_seqlen_q);
    batch->spec.max_seqlen_q = static_cast<int32_t>(bound);
  }
}

void read_expectation(const Reader& reader, DecodeDump* dump) {
  const int64_t total_q = dump->batch.total_q;
  const int64_t heads = dump->batch.spec.num_heads;
  if (reader.find("o_expected") != nullptr) {
    const auto o =
        reader.copy<float>(reader.get("o_expected", {total_q, heads, kHeadDimV}, {"F32"}));
    dump->o_expected.assign(o.begin(), o.end());
  }
  if (reader.find("final_lse_expected") != nullptr) {
    const auto lse =
        reader.copy<float>(reader.get("final_lse_expected", {total_q, heads}, {"F32"}));
    dump->lse_expected.assign(lse.begin(), lse.end());
  }
}

}  // namespace

bool make_decode_dump(const SafetensorsFile& file, DecodeDump* dump, std::string* error) {
  *dump = DecodeDump();
  const Reader reader(file);
  try {
    if (reader.has_metadata("name")) dump->name = printable(reader.metadata("name"));
    read_options(reader, &dump->batch.spec);
    read_tensors(reader, &dump->batch);
    read_lengths(reader, &dump->batch);
    read_expectation(reader, dump);
  } catch (const BadDump& bad) {
    *error = bad.text;
    return false;
  }
  return true;
}

bool read_decode_dump(const std::string& path, DecodeDump* dump, std::string* error) {
  SafetensorsFile file;
  return read_safetensors(path, &file, error) && make_decode_dump(file, dump, error);
}

}  // namespace hipmla::test
