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

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

float read_float(const Reader& reader, const std::string& key, float otherwise) {
  if (!reader.has_metadata(key)) return otherwise;
  const double value = parse_number(key, reader.metadata(key));
  if (std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
    fail("metadata ", key, " is ", value, "; does not fit a float");
  return static_cast<float>(value);
}

int32_t read_integer(const Reader& reader, const std::string& key, int32_t least, int64_t most,
                     int32_t otherwise) {
  if (!reader.has_metadata(key)) return otherwise;
  const std::string text = reader.metadata(key);
  const double value = parse_number(key, text);
  if (value != std::floor(value) || value < least || value > static_cast<double>(most))
    fail("metadata ", key, " is \"", printable(text), "\"; must be an integer in ", least, "..",
         most);
  return static_cast<int32_t>(value);
}

// Index of the metadata's value in `names`.
size_t read_choice(const Reader& reader, const std::string& key,
                   const std::vector<std::string>& names) {
  if (!reader.has_metadata(key)) return 0;
  const std::string text = reader.metadata(key);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : " or ") + name;
  fail("metadata ", key, " is \"", printable(text), "\"; must be ", list);
}

bool read_flag(const Reader& reader, const std::string& key) {
  const std::string text = reader.metadata(key);
  if (text != "0" && text != "1" && text != "true" && text != "false")
    fail("metadata ", key, " is \"", printable(text), "\"; must be 0 or 1");
  return text == "1" || text == "true";
}

void read_options(const Reader& reader, BatchSpec* spec) {
  (void)reader.metadata("sm_scale");  // required
  spec->softmax_scale = read_float(reader, "sm_scale", 0.0f);
  spec->causal = read_flag(reader, "causal");
  spec->kv_layout = read_choice(reader, "kv_layout", {"dense", "packed"}) == 1 ? KvLayout::kPacked
                                                                               : KvLayout::kDense;
  spec->q_scale_host = read_float(reader, "q_scale", 1.0f);
  spec->kv_scale_host = read_float(reader, "kv_scale", 1.0f);
  if (spec->kv_layout == KvLayout::kPacked && spec->kv_scale_host != 1.0f)
    fail("metadata kv_scale is given; a packed cache has its own scales");
  // The library takes the product in base 2 as an f32.
  constexpr double kLog2E = 1.4426950408889634;
  const double product = kLog2E * static_cast<double>(spec->softmax_scale) *
                         static_cast<double>(spec->q_scale_host) *
                         static_cast<double>(spec->kv_scale_host);
  if (std::abs(product) > static_cast<double>(std::numeric_limits<float>::max()))
    fail("the product of metadata sm_scale, q_scale and kv_scale is too large for a float");
  spec->logits_soft_cap = read_float(reader, "logits_soft_cap", 0.0f);
  if (spec->logits_soft_cap < 0.0f || spec->logits_soft_cap > 2e38f)
    fail("metadata logits_soft_cap is ", spec->logits_soft_cap, "; must be in 0..2e38");
  spec->sliding_window = read_integer(reader, "sliding_window", 0, kMaxInt, 0);
  if (reader.has_metadata("lse_base2")) spec->lse_base2 = read_flag(reader, "lse_base2");
  const size_t shard = read_choice(reader, "kv_shard", {"whole", "round_robin", "contiguous"});
  spec->kv_shard = static_cast<KvShard>(shard);
  spec->cp_world_size = read_integer(reader, "cp_world_size", 1, 1024, 1);
  spec->cp_rank = read_integer(reader, "cp_rank", 0, spec->cp_world_size - 1, 0);
  spec->topk = read_integer(reader, "topk", 0, 65536, 0);
  if (spec->topk > 0 && (spec->kv_shard != KvShard::kWhole || spec->sliding_window > 0))
    fail("metadata topk is ", spec->topk, "; not together with kv_shard or sliding_window");
}

// The type of q or kv_buffer. What is stored as U8 is fp8 of the format that the metadata tells.
DataType read_type(const Reader& reader, const SafetensorsEntry& entry, const std::string& name) {
  const bool has_format = reader.has_metadata("fp8_format");
  const bool is_fnuz = read_choice(reader, "fp8_format", {"fn", "fnuz"}) == 1;
  if (entry.dtype == "BF16") return DataType::kBf16;
  if (entry.dtype == "F16") return DataType::kF16;
  if (entry.dtype == "U8" && !has_format)
    fail(name, " is U8; metadata fp8_format must be fn or fnuz then");
  if (entry.dtype == "F8_E4M3" && is_fnuz)
    fail(name, " is F8_E4M3, which is fn; metadata fp8_format is fnuz");
  return is_fnuz ? DataType::kFp8E4m3Fnuz : DataType::kFp8E4m3Fn;
}

void read_tensors(const Reader& reader, Batch* batch) {
  BatchSpec& spec = batch->spec;
  const bool is_packed = spec.kv_layout == KvLayout::kPacked;
  const std::vector<std::string> fp8 = {"F8_E4M3", "U8"};
  const std::vector<std::string> all = {"BF16", "F16", "F8_E4M3", "U8"};
  const SafetensorsEntry& q = reader.get("q", {-1, -1, kHeadDimQk}, all);
  const SafetensorsEntry& kv =
      reader.get("kv_buffer", {-1, -1, 1, spec.token_elements()}, is_packed ? fp8 : all);
  if (q.shape[1] > kMaxInt || kv.shape[1] > kMaxInt || q.shape[0] > kMaxInt)
    fail("q is ", q.description(), ", kv_buffer ", kv.description(), "; too large");
  spec.q_type = read_type(reader, q, "q");
  spec.kv_type = read_type(reader, kv, "kv_buffer");
  if (spec.q_type != spec.kv_type && !is_fp8(spec.kv_type))
    fail("q is ", q.dtype, ", kv_buffer ", kv.dtype, "; must be equal, or kv_buffer fp8");
  spec.o_type = is_fp8(spec.q_type) ? DataType::kBf16 : spec.q_type;
  spec.num_heads = static_cast<int32_t>(q.shape[1]);
  spec.page_size = static_cast<int32_t>(kv.shape[1]);
  batch->total_q = q.shape[0];
  batch->num_pages = kv.shape[0];
  batch->q = reader.copy<uint8_t>(q);
  batch->kv = reader.copy<uint8_t>(kv);
  batch->q_stride[0] = q.shape[1] * kHeadDimQk;
  batch->q_stride[1] = kHeadDimQk;
  batch->kv_stride[0] = kv.shape[1] * spec.token_elements();
  batch->kv_stride[1] = spec.token_elements();
  batch->o_stride[0] = q.shape[1] * kHeadDimV;
  batch->o_stride[1] = kHeadDimV;
  batch->lse_stride[0] = q.shape[1];
  batch->lse_stride[1] = 1;
}

void read_factors(const Reader& reader, Batch* batch) {
  BatchSpec& spec = batch->spec;
  if (reader.find("kv_token_scales") != nullptr) {
    if (!is_fp8(spec.kv_type) || spec.kv_layout == KvLayout::kPacked)
      fail("kv_token_scales are given; kv_buffer is not dense fp8");
    batch->kv_token_scales = reader.copy<float>(
        reader.get("kv_token_scales", {batch->num_pages, spec.page_size}, {"F32"}));
    batch->scale_stride[0] = spec.page_size;
    batch->scale_stride[1] = 1;
    spec.token_scales = true;
  }
  if (reader.find("sink") != nullptr) {
    batch->sink = reader.copy<float>(reader.get("sink", {spec.num_heads}, {"F32"}));
    spec.sink = true;
  }
}

void check_indptr(const char* name, const std::vector<int32_t>& indptr) {
  if (indptr[0] != 0) fail(name, "[0] is ", indptr[0], "; must be 0");
  for (size_t b = 0; b + 1 < indptr.size(); ++b)
    if (indptr[b + 1] < indptr[b])
      fail(name, "[", b + 1, "] is ", indptr[b + 1], ", less than ", indptr[b], " before it");
}

void read_queries(const Reader& reader, Batch* batch) {
  batch->qo_indptr = read_indices(reader, "qo_indptr", -1);
  const auto num_indptr = static_cast<int64_t>(batch->qo_indptr.size());
  if (num_indptr < 2)
    fail("qo_indptr has ", num_indptr, " elements; must have one more than sequences");
  batch->batch_size = static_cast<int32_t>(num_indptr - 1);
  check_indptr("qo_indptr", batch->qo_indptr);
  if (batch->qo_indptr.back() != batch->total_q)
    fail("qo_indptr ends with ", batch->qo_indptr.back(), ", but q has ", batch->total_q,
         " tokens");
  for (size_t b = 0; b + 1 < batch->qo_indptr.size(); ++b)
    batch->spec.q_lens.push_back(batch->qo_indptr[b + 1] - batch->qo_indptr[b]);
  const int32_t longest =
      std::max(1, *std::max_element(batch->spec.q_lens.begin(), batch->spec.q_lens.end()));
  batch->spec.max_seqlen_q = read_integer(reader, "max_seqlen_q", longest, kMaxInt, longest);
}

void read_page_table(const Reader& reader, Batch* batch) {
  batch->kv_indptr = read_indices(reader, "kv_indptr", batch->batch_size + int64_t{1});
  batch->kv_last_page_lens = read_indices(reader, "kv_last_page_lens", batch->batch_size);
  check_indptr("kv_indptr", batch->kv_indptr);
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
    if (kv_len > kMaxInt) fail("sequence ", b, " has ", kv_len, " tokens; too many");
    batch->spec.kv_lens.push_back(static_cast<int32_t>(kv_len));
  }
}

// Checks that the pages hold what the shard has of each sequence. spec.kv_lens becomes the lengths
// of the whole sequences.
void read_shards(const Reader& reader, Batch* batch) {
  BatchSpec& spec = batch->spec;
  if (spec.kv_shard == KvShard::kWhole) {
    if (spec.cp_world_size != 1) fail("metadata cp_world_size is given without kv_shard");
    return;
  }
  batch->kv_global_lens = read_indices(reader, "kv_global_lens", batch->batch_size);
  const bool is_contiguous = spec.kv_shard == KvShard::kContiguous;
  if (is_contiguous)
    batch->kv_shard_begins = read_indices(reader, "kv_shard_begins", batch->batch_size);
  for (size_t b = 0; b < spec.kv_lens.size(); ++b) {
    const int64_t local = spec.kv_lens[b];
    const int64_t global = batch->kv_global_lens[b];
    if (global < 0) fail("kv_global_lens[", b, "] is ", global);
    if (is_contiguous) {
      const int64_t begin = batch->kv_shard_begins[b];
      if (begin < 0 || begin + local > global)
        fail("sequence ", b, " has ", local, " tokens from kv_shard_begins ", begin,
             " on; kv_global_lens is ", global);
    } else {
      const int64_t own =
          global <= spec.cp_rank
              ? 0
              : (global - spec.cp_rank + spec.cp_world_size - 1) / spec.cp_world_size;
      if (local != own)
        fail("sequence ", b, " has ", local, " tokens; rank ", spec.cp_rank, " of ",
             spec.cp_world_size, " has ", own, " of ", global);
    }
    spec.kv_lens[b] = static_cast<int32_t>(global);
  }
}

void read_topk(const Reader& reader, Batch* batch) {
  BatchSpec& spec = batch->spec;
  batch->topk_indices =
      reader.copy<int32_t>(reader.get("topk_indices", {batch->total_q, spec.topk}, {"I32"}));
  spec.kv_lens.assign(spec.q_lens.size(), spec.topk);
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
    read_factors(reader, &dump->batch);
    read_queries(reader, &dump->batch);
    if (dump->batch.spec.topk > 0) {
      read_topk(reader, &dump->batch);
    } else {
      read_page_table(reader, &dump->batch);
      read_shards(reader, &dump->batch);
    }
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
