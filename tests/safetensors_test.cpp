// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// The reader of recorded decode steps: right on good files, a clear error on bad ones, and no crash
// on any.

#include "tests/test_support/safetensors.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/test_support/decode_dump.h"
#include "tests/test_support/decode_test.h"
#include "tests/test_support/float_bits.h"
#include "tests/test_support/random_spec.h"

namespace hipmla::test {
namespace {

using Json = nlohmann::json;

std::string data_path(const std::string& name) {
  return std::string(HIPMLA_TEST_DATA_DIR "/") + name;
}

// A small decode step as a file, to be spoilt piece by piece.
struct FileWriter {
  Json header;
  std::vector<uint8_t> data;

  template <typename T>
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::vector<T>& values) {
    const size_t begin = data.size();
    data.resize(begin + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(data.data() + begin, values.data(), values.size() * sizeof(T));
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  // Replaces the values of a tensor of the same size.
  template <typename T>
  void set(const std::string& name, size_t index, T value) {
    const size_t begin = header[name]["data_offsets"][0].get<size_t>();
    std::memcpy(data.data() + begin + index * sizeof(T), &value, sizeof(T));
  }
  std::vector<uint8_t> bytes() const { return bytes_with(header.dump()); }
  std::vector<uint8_t> bytes_with(const std::string& text) const {
    std::vector<uint8_t> out;
    for (size_t i = 0; i < 8; ++i)
      out.push_back(static_cast<uint8_t>(uint64_t{text.size()} >> (8 * i)));
    out.insert(out.end(), text.begin(), text.end());
    out.insert(out.end(), data.begin(), data.end());
    return out;
  }
};

// Two sequences of 5 and 3 tokens, one query each, two heads, pages of 4.
FileWriter small_file() {
  BatchSpec spec = uniform_spec(DataType::kBf16, 2, 1, 0, 2, 4);
  spec.kv_lens = {5, 3};
  const Batch batch = build_batch(spec);
  FileWriter file;
  file.header["__metadata__"] = {
      {"sm_scale", "0.04"}, {"causal", "1"}, {"max_seqlen_q", "1"}, {"name", "small"}};
  file.add("q", "BF16", {2, 2, 576}, batch.q);
  file.add("kv_buffer", "BF16", {batch.num_pages, 4, 1, 576}, batch.kv);
  file.add("qo_indptr", "I32", {3}, batch.qo_indptr);
  file.add("kv_indptr", "I32", {3}, batch.kv_indptr);
  file.add("kv_indices", "I32", {3},
           std::vector<int32_t>(batch.kv_indices.begin(), batch.kv_indices.begin() + 3));
  file.add("kv_last_page_lens", "I32", {2}, batch.kv_last_page_lens);
  return file;
}

std::string number_text(double x) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", x);
  return text;
}

// The file of a batch without padding and device factors.
FileWriter file_of(const Batch& batch) {
  const BatchSpec& spec = batch.spec;
  const auto dtype = [](DataType type, bool raw) -> std::string {
    if (type == DataType::kBf16) return "BF16";
    if (type == DataType::kF16) return "F16";
    return type == DataType::kFp8E4m3Fn && !raw ? "F8_E4M3" : "U8";
  };
  FileWriter file;
  Json& meta = file.header["__metadata__"];
  meta = {{"sm_scale", number_text(static_cast<double>(spec.softmax_scale))},
          {"causal", spec.causal ? "1" : "0"},
          {"max_seqlen_q", std::to_string(spec.max_seqlen_q)},
          {"kv_layout", kv_layout_name(spec.kv_layout)},
          {"q_scale", number_text(static_cast<double>(spec.q_scale()))},
          {"kv_scale", number_text(static_cast<double>(spec.kv_scale()))},
          {"logits_soft_cap", number_text(static_cast<double>(spec.logits_soft_cap))},
          {"sliding_window", std::to_string(spec.sliding_window)},
          {"lse_base2", spec.lse_base2 ? "1" : "0"},
          {"topk", std::to_string(spec.topk)}};
  const bool raw = spec.seed % 2 == 0;
  if (is_fp8(spec.kv_type))
    meta["fp8_format"] = spec.kv_type == DataType::kFp8E4m3Fn ? "fn" : "fnuz";
  file.add("q", dtype(spec.q_type, raw), {batch.total_q, spec.num_heads, 576}, batch.q);
  file.add("kv_buffer", dtype(spec.kv_type, raw),
           {batch.num_pages, spec.page_size, 1, spec.token_elements()}, batch.kv);
  const auto add_list = [&](const char* name, const std::vector<int32_t>& list) {
    file.add(name, "I32", {static_cast<int64_t>(list.size())}, list);
  };
  add_list("qo_indptr", batch.qo_indptr);
  if (!batch.kv_token_scales.empty())
    file.add("kv_token_scales", "F32", {batch.num_pages, spec.page_size}, batch.kv_token_scales);
  if (!batch.sink.empty()) file.add("sink", "F32", {spec.num_heads}, batch.sink);
  if (spec.topk > 0) {
    file.add("topk_indices", "I32", {batch.total_q, spec.topk}, batch.topk_indices);
    return file;
  }
  add_list("kv_indptr", batch.kv_indptr);
  add_list("kv_indices", batch.kv_indices);
  add_list("kv_last_page_lens", batch.kv_last_page_lens);
  if (spec.kv_shard == KvShard::kWhole) return file;
  add_list("kv_global_lens", batch.kv_global_lens);
  const bool is_contiguous = spec.kv_shard == KvShard::kContiguous;
  meta["kv_shard"] = is_contiguous ? "contiguous" : "round_robin";
  if (is_contiguous) {
    add_list("kv_shard_begins", batch.kv_shard_begins);
  } else {
    meta["cp_world_size"] = std::to_string(spec.cp_world_size);
    meta["cp_rank"] = std::to_string(spec.cp_rank);
  }
  return file;
}

// A random batch that file_of can write.
Batch random_batch(uint64_t seed) {
  Random random(seed);
  for (;;) {
    BatchSpec spec = random_spec(random, test_device().arch);
    spec.padded = false;
    spec.q_scale_host = spec.q_scale();
    spec.kv_scale_host = spec.kv_scale();
    spec.q_scale_device = spec.kv_scale_device = 0.0f;
    spec.o_type = is_fp8(spec.q_type) ? DataType::kBf16 : spec.q_type;
    if (spec.page_size > 500) spec.page_size = 48;
    Batch batch = build_batch(spec);
    if (batch.total_q > 0) return batch;
  }
}

// The error of reading `bytes` as a decode step, or "".
std::string error_of(const std::vector<uint8_t>& bytes) {
  SafetensorsFile file;
  DecodeDump dump;
  std::string error;
  if (parse_safetensors(bytes, &file, &error) && make_decode_dump(file, &dump, &error)) return "";
  return error.empty() ? "no reason given" : error;
}

void expect_error(const std::vector<uint8_t>& bytes, const std::string& part) {
  const std::string error = error_of(bytes);
  EXPECT_NE(error.find(part), std::string::npos)
      << "got \"" << error << "\", expected \"" << part << "\"";
}

TEST(Safetensors, ReadsASmallFile) {
  DecodeDump dump;
  SafetensorsFile file;
  std::string error;
  ASSERT_TRUE(parse_safetensors(small_file().bytes(), &file, &error)) << error;
  ASSERT_TRUE(make_decode_dump(file, &dump, &error)) << error;
  EXPECT_EQ(dump.name, "small");
  EXPECT_EQ(dump.batch.spec.num_heads, 2);
  EXPECT_EQ(dump.batch.spec.kv_lens, (std::vector<int32_t>{5, 3}));
  EXPECT_FLOAT_EQ(dump.batch.spec.softmax_scale, 0.04f);
  EXPECT_TRUE(dump.o_expected.empty());
}

TEST(Safetensors, DamagedFilesHaveAClearError) {
  const FileWriter good = small_file();
  ASSERT_EQ(error_of(good.bytes()), "");
  const std::vector<uint8_t> bytes = good.bytes();
  expect_error({}, "0 bytes");
  expect_error({1, 2, 3}, "3 bytes");
  expect_error({255, 255, 255, 255, 255, 255, 255, 255}, "truncated");
  expect_error({bytes.begin(), bytes.begin() + 100}, "truncated");
  expect_error({bytes.begin(), bytes.end() - 1}, "truncated");
  std::vector<uint8_t> longer = bytes;
  longer.push_back(0);
  expect_error(longer, "1 bytes follow");
  expect_error(good.bytes_with("{"), "no valid JSON");
  expect_error(good.bytes_with(""), "no valid JSON");
  expect_error(good.bytes_with("[]"), "no JSON object");
  expect_error(good.bytes_with("17"), "no JSON object");
  expect_error(good.bytes_with(std::string(100000, '[')), "nested too deeply");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  expect_error(good.bytes_with(deep), "nested too deeply");
  std::string twice = good.header.dump();
  twice.insert(1, R"("q": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},)");
  expect_error(good.bytes_with(twice), "\"q\" twice");
}

TEST(Safetensors, InconsistentHeadersHaveAClearError) {
  const auto spoilt = [](auto change) {
    FileWriter file = small_file();
    change(file.header);
    return file.bytes();
  };
  expect_error(spoilt([](Json& h) { h["q"] = 3; }), "\"q\": its entry is no JSON object");
  expect_error(spoilt([](Json& h) { h["q"].erase("dtype"); }), "dtype is missing");
  expect_error(spoilt([](Json& h) { h["q"]["dtype"] = 7; }), "dtype is missing or no string");
  expect_error(spoilt([](Json& h) { h["q"]["dtype"] = "BF17"; }), "\"BF17\" is unknown");
  expect_error(spoilt([](Json& h) { h["q"].erase("shape"); }), "shape is missing");
  expect_error(spoilt([](Json& h) { h["q"]["shape"] = {2, -2, 576}; }), "no size");
  expect_error(spoilt([](Json& h) { h["q"]["shape"] = {2, 2.5, 576}; }), "no size");
  expect_error(spoilt([](Json& h) { h["q"]["shape"] = {2, UINT64_MAX, 576}; }), "no size");
  expect_error(spoilt([](Json& h) {
                 h["q"]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
               }),
               "too large");
  expect_error(spoilt([](Json& h) { h["q"]["shape"] = {2, 3, 576}; }), "data_offsets hold");
  expect_error(spoilt([](Json& h) { h["q"]["shape"] = std::vector<int>(40, 1); }), "40 dimensions");
  expect_error(spoilt([](Json& h) { h["q"].erase("data_offsets"); }), "data_offsets are missing");
  expect_error(spoilt([](Json& h) { h["q"]["data_offsets"] = {4608, 0}; }), "no range");
  expect_error(spoilt([](Json& h) { h["q"]["data_offsets"] = {-4608, 0}; }), "no range");
  expect_error(spoilt([](Json& h) {
                 h["q"]["data_offsets"] = {UINT64_MAX - 4607, UINT64_MAX};
               }),
               "no range");
  expect_error(spoilt([](Json& h) {
                 h["q"]["data_offsets"] = {INT64_MAX - 4608, INT64_MAX};
               }),
               "truncated");
  expect_error(spoilt([](Json& h) {
                 h["q"]["data_offsets"] = {2, 4610};
               }),
               "no tensor holds the bytes from 0");
  expect_error(spoilt([](Json& h) { h["z"] = h["q"]; }), "overlaps");
  expect_error(spoilt([](Json& h) { h.erase("qo_indptr"); }), "no tensor holds the bytes");
  expect_error(spoilt([](Json& h) { h["__metadata__"] = 1; }), "__metadata__ is no JSON object");
  expect_error(spoilt([](Json& h) { h["__metadata__"]["causal"] = true; }),
               "\"causal\" is no string");
}

TEST(Safetensors, DecodeStepsThatMakeNoSenseHaveAClearError) {
  const auto spoilt = [](auto change) {
    FileWriter file = small_file();
    change(file);
    return file.bytes();
  };
  const auto meta = [&](const char* key, const char* value) {
    return spoilt([&](FileWriter& f) { f.header["__metadata__"][key] = value; });
  };
  expect_error(spoilt([](FileWriter& f) { f.header["__metadata__"].erase("sm_scale"); }),
               "\"sm_scale\" is missing");
  expect_error(spoilt([](FileWriter& f) { f.header.erase("__metadata__"); }),
               "\"sm_scale\" is missing");
  for (const char* text : {"", "x", "0.04x", "nan", "inf", "1e999"})
    expect_error(meta("sm_scale", text), "sm_scale is");
  expect_error(meta("sm_scale", "1e200"), "does not fit a float");
  expect_error(meta("causal", "2"), "causal is \"2\"");
  for (const char* text : {"0", "1.5", "many", "1e30"})
    expect_error(meta("max_seqlen_q", text), "max_seqlen_q is");

  const auto renamed = [&](const char* from, const char* to) {
    return spoilt([&](FileWriter& f) {
      f.header[to] = f.header[from];
      f.header.erase(from);
    });
  };
  for (const char* name :
       {"q", "kv_buffer", "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens"})
    expect_error(renamed(name, "other"), std::string("tensor \"") + name + "\" is missing");

  const auto relabelled = [&](const char* name, const char* dtype, std::vector<int64_t> shape) {
    return spoilt([&](FileWriter& f) {
      f.header[name]["dtype"] = dtype;
      f.header[name]["shape"] = shape;
    });
  };
  expect_error(relabelled("q", "F32", {1, 2, 576}),
               "q is F32 [1, 2, 576]; must be BF16 or F16 or F8_E4M3 or U8");
  expect_error(relabelled("q", "F16", {2, 2, 576}), "q is F16, kv_buffer BF16");
  expect_error(relabelled("q", "BF16", {2, 2, 288, 2}), "its shape must be [n, n, 576]");
  expect_error(relabelled("q", "BF16", {4, 576}), "its shape must be [n, n, 576]");
  expect_error(relabelled("qo_indptr", "F32", {3}), "qo_indptr is F32 [3]; must be I32");
  expect_error(relabelled("qo_indptr", "BF16", {6}), "must be I32");
  expect_error(relabelled("kv_indptr", "I32", {3, 1}), "its shape must be [3]");
  expect_error(spoilt([](FileWriter& f) {
                 f.add<int64_t>("x", "I64", {1}, {1});
                 f.header["kv_indices"] = f.header["x"];
                 f.header.erase("x");
               }),
               "");

  const auto set = [&](const char* name, size_t index, int32_t value) {
    return spoilt([&](FileWriter& f) { f.set(name, index, value); });
  };
  expect_error(set("qo_indptr", 0, 1), "qo_indptr[0] is 1");
  expect_error(set("qo_indptr", 1, 3), "qo_indptr[2] is 2, less than 3");
  expect_error(set("qo_indptr", 1, -1), "qo_indptr[1] is -1");
  expect_error(set("qo_indptr", 2, 3), "q has 2 tokens");
  expect_error(set("kv_indptr", 0, -5), "kv_indptr[0] is -5");
  expect_error(set("kv_indptr", 2, 4), "kv_indices has 3 elements");
  expect_error(set("kv_indptr", 2, INT32_MAX), "kv_indices has 3 elements");
  expect_error(set("kv_indices", 1, -1), "kv_indices[1] is -1");
  expect_error(set("kv_indices", 2, 1 << 30), "kv_indices[2] is 1073741824");
  expect_error(set("kv_last_page_lens", 0, 0), "kv_last_page_lens[0] is 0; must be in 1..4");
  expect_error(set("kv_last_page_lens", 1, 5), "kv_last_page_lens[1] is 5");

  expect_error(spoilt([](FileWriter& f) {
                 f.add<float>("o_expected", "F32", {3}, {1, 2, 3});
               }),
               "o_expected is F32 [3]");
  expect_error(spoilt([](FileWriter& f) {
                 f.add<uint16_t>("final_lse_expected", "BF16", {2, 2}, {1, 2, 3, 4});
               }),
               "final_lse_expected is BF16 [2, 2]; must be F32");
}

// ---- all features

// What is read from a file gives the bits that the batch gave.
TEST(Safetensors, RandomStepsSurviveTheFile) {
  const int64_t count = test_option("HIPMLA_TEST_COUNT", 60);
  const auto seed = static_cast<uint64_t>(test_option("HIPMLA_TEST_SEED", 1));
  for (int64_t i = 0; i < count; ++i) {
    if (!begin_case()) continue;
    const Batch batch = random_batch(seed + static_cast<uint64_t>(i));
    SafetensorsFile file;
    DecodeDump dump;
    std::string error;
    ASSERT_TRUE(parse_safetensors(file_of(batch).bytes(), &file, &error) &&
                make_decode_dump(file, &dump, &error))
        << error << "\n  " << batch.spec.description() << "\n  run again: " << rerun_command();
    const MlaReference before = mla_reference(batch.host_inputs());
    const MlaReference after = mla_reference(dump.batch.host_inputs());
    EXPECT_TRUE(same_bits(before.o, after.o)) << batch.spec.description();
    EXPECT_TRUE(same_bits(before.lse, after.lse)) << batch.spec.description();
    const DecodeResult a = DeviceBatch(batch, test_device()).run(persistent_run());
    const DecodeResult b = DeviceBatch(dump.batch, test_device()).run(persistent_run());
    ASSERT_TRUE(a.ok() && b.ok()) << a.status.text() << a.problems << b.status.text() << b.problems
                                  << "\n  " << batch.spec.description();
    EXPECT_TRUE(same_bits(a.o, b.o) && same_bits(a.lse, b.lse)) << batch.spec.description();
  }
}

// A batch of one kind, as a file to be spoilt.
FileWriter file_with(const std::function<void(BatchSpec*)>& change) {
  BatchSpec spec = uniform_spec(DataType::kBf16, 2, 1, 0, 2, 4);
  spec.kv_lens = {5, 3};
  spec.seed = 2;  // fp8 as U8
  change(&spec);
  return file_of(build_batch(spec));
}

TEST(Safetensors, ContradictionsOfTheFeaturesHaveAClearError) {
  const auto spoilt = [](FileWriter file, auto change) {
    change(file.header["__metadata__"], file);
    return file.bytes();
  };
  const auto meta = [&](const FileWriter& file, const char* key, const char* value) {
    return spoilt(file, [&](Json& m, FileWriter&) { m[key] = value; });
  };
  const auto without = [&](const FileWriter& file, const char* key) {
    return spoilt(file, [&](Json& m, FileWriter&) { m.erase(key); });
  };
  const FileWriter plain = file_with([](BatchSpec*) {});
  ASSERT_EQ(error_of(plain.bytes()), "");
  for (const char* text : {"", "1x", "nan", "1e39", "-inf"}) {
    expect_error(meta(plain, "q_scale", text), "q_scale is");
    expect_error(meta(plain, "kv_scale", text), "kv_scale is");
    expect_error(meta(plain, "logits_soft_cap", text), "logits_soft_cap is");
  }
  expect_error(meta(plain, "logits_soft_cap", "-1"), "logits_soft_cap is");
  expect_error(meta(plain, "q_scale", "1e38"), "");
  expect_error(spoilt(plain,
                      [](Json& m, FileWriter&) {
                        m["q_scale"] = "1e30";
                        m["kv_scale"] = "1e30";
                      }),
               "too large for a float");
  for (const char* text : {"-1", "1.5", "1e10", "all"})
    expect_error(meta(plain, "sliding_window", text), "sliding_window is");
  expect_error(meta(plain, "lse_base2", "2"), "lse_base2 is \"2\"");
  expect_error(meta(plain, "kv_layout", "sparse"), "must be dense or packed");
  expect_error(meta(plain, "kv_layout", "packed"), "must be F8_E4M3 or U8");
  expect_error(meta(plain, "fp8_format", "e5m2"), "");  // not read: nothing is fp8
  expect_error(meta(plain, "kv_shard", "half"), "must be whole or round_robin or contiguous");
  expect_error(meta(plain, "kv_shard", "round_robin"), "\"kv_global_lens\" is missing");
  expect_error(meta(plain, "kv_shard", "contiguous"), "\"kv_global_lens\" is missing");
  expect_error(meta(plain, "cp_world_size", "2"), "without kv_shard");
  for (const char* text : {"0", "-3", "1025", "x"})
    expect_error(meta(plain, "cp_world_size", text), "cp_world_size is");
  expect_error(meta(plain, "cp_rank", "1"), "cp_rank is");
  for (const char* text : {"-1", "65537", "2.5"})
    expect_error(meta(plain, "topk", text), "topk is");
  expect_error(meta(plain, "topk", "3"), "\"topk_indices\" is missing");
  expect_error(spoilt(plain,
                      [](Json&, FileWriter& f) {
                        f.add<float>("sink", "F32", {3}, {1, 2, 3});
                      }),
               "its shape must be [2]");
  expect_error(spoilt(plain,
                      [](Json&, FileWriter& f) {
                        f.add<float>("kv_token_scales", "F32", {1, 4}, {1, 2, 3, 4});
                      }),
               "not dense fp8");

  const FileWriter fp8 = file_with([](BatchSpec* s) {
    s->q_type = s->kv_type = DataType::kFp8E4m3Fnuz;
    s->token_scales = true;
  });
  ASSERT_EQ(error_of(fp8.bytes()), "");
  expect_error(without(fp8, "fp8_format"), "fp8_format must be fn or fnuz");
  expect_error(meta(fp8, "fp8_format", "e5m2"), "must be fn or fnuz");
  expect_error(spoilt(fp8, [](Json&, FileWriter& f) { f.header["q"]["dtype"] = "F8_E4M3"; }),
               "q is F8_E4M3, which is fn; metadata fp8_format is fnuz");
  expect_error(spoilt(fp8, [](Json&, FileWriter& f) { f.header["q"]["dtype"] = "F8_E5M2"; }),
               "must be BF16 or F16 or F8_E4M3 or U8");
  expect_error(spoilt(fp8,
                      [](Json&, FileWriter& f) {
                        const int64_t pages = f.header["kv_token_scales"]["shape"][0];
                        f.header["kv_token_scales"]["shape"] = {pages * 2, 2};
                      }),
               "kv_token_scales is");

  const FileWriter packed = file_with([](BatchSpec* s) {
    s->kv_type = DataType::kFp8E4m3Fn;
    s->kv_layout = KvLayout::kPacked;
  });
  ASSERT_EQ(error_of(packed.bytes()), "");
  expect_error(meta(packed, "kv_layout", "dense"), "its shape must be [n, n, 1, 576]");
  expect_error(meta(packed, "kv_scale", "0.5"), "a packed cache has its own scales");

  const FileWriter sparse = file_with([](BatchSpec* s) { s->topk = 7; });
  ASSERT_EQ(error_of(sparse.bytes()), "");
  expect_error(meta(sparse, "topk", "6"), "its shape must be [2, 6]");
  expect_error(meta(sparse, "sliding_window", "6"), "not together");
  expect_error(meta(sparse, "kv_shard", "round_robin"), "not together");

  const FileWriter ranks = file_with([](BatchSpec* s) {
    s->kv_shard = KvShard::kRoundRobin;
    s->cp_world_size = 2;
  });
  ASSERT_EQ(error_of(ranks.bytes()), "");
  expect_error(meta(ranks, "cp_rank", "2"), "cp_rank is");
  expect_error(meta(ranks, "cp_rank", "1"), "rank 1 of 2 has");
  expect_error(spoilt(ranks, [](Json&, FileWriter& f) { f.set("kv_global_lens", 1, -1); }),
               "kv_global_lens[1] is -1");

  const FileWriter part = file_with([](BatchSpec* s) {
    s->kv_shard = KvShard::kContiguous;
    s->cp_world_size = 2;
    s->cp_rank = 1;
  });
  ASSERT_EQ(error_of(part.bytes()), "");
  expect_error(spoilt(part, [](Json&, FileWriter& f) { f.set("kv_shard_begins", 0, -1); }),
               "kv_shard_begins -1");
  expect_error(spoilt(part, [](Json&, FileWriter& f) { f.set("kv_shard_begins", 0, INT32_MAX); }),
               "kv_shard_begins 2147483647");
}

// Flips, overwrites, cuts and repeats bytes of a good file. The header gets most of it: there is
// little to hit elsewhere.
std::vector<uint8_t> mutate(const std::vector<uint8_t>& good, size_t interesting, Random& random) {
  std::vector<uint8_t> bytes = good;
  for (int64_t n = random.between(1, 6); n > 0 && !bytes.empty(); --n) {
    const auto limit =
        static_cast<int64_t>(random.below(4) ? std::min(interesting, bytes.size()) : bytes.size());
    const auto at = static_cast<size_t>(random.below(limit));
    switch (random.below(6)) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1u << random.below(8));
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(random.next());
        break;
      case 2:
        bytes[at] = static_cast<uint8_t>("0123456789-.,:[]{}\"e"[random.below(20)]);
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.erase(bytes.begin() + static_cast<int64_t>(at));
        break;
      case 5:
        bytes.insert(bytes.begin() + static_cast<int64_t>(at),
                     static_cast<size_t>(random.between(1, 4)), bytes[at]);
        break;
    }
  }
  return bytes;
}

// What passes all checks must also run: no index in it leads outside.
void run_dump(const std::vector<uint8_t>& bytes) {
  SafetensorsFile file;
  DecodeDump dump;
  std::string error;
  ASSERT_TRUE(parse_safetensors(bytes, &file, &error) && make_decode_dump(file, &dump, &error));
  int64_t tokens = 0;
  for (int32_t kv_len : dump.batch.spec.kv_lens) tokens += kv_len;
  if (tokens > 1000) return;
  (void)mla_reference(dump.batch.host_inputs());
  const DecodeResult result = DeviceBatch(dump.batch, test_device()).run(persistent_run());
  EXPECT_EQ(result.problems, "");
}

TEST(Safetensors, MutatedFilesNeverCrash) {
  const std::vector<FileWriter> files = {
      small_file(),
      file_with([](BatchSpec* s) {
        s->q_type = s->kv_type = DataType::kFp8E4m3Fnuz;
        s->token_scales = s->sink = true;
        s->kv_shard = KvShard::kContiguous;
        s->cp_world_size = 2;
      }),
      file_with([](BatchSpec* s) {
        s->kv_type = DataType::kFp8E4m3Fn;
        s->kv_layout = KvLayout::kPacked;
        s->topk = 9;
        s->logits_soft_cap = 10.0f;
      }),
      file_with([](BatchSpec* s) {
        s->kv_shard = KvShard::kRoundRobin;
        s->cp_world_size = 3;
        s->sliding_window = 4;
      }),
  };
  const int64_t count = test_option("HIPMLA_TEST_COUNT", 8000);
  const auto seed = static_cast<uint64_t>(test_option("HIPMLA_TEST_SEED", 1));
  int64_t read = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!begin_case()) continue;
    const FileWriter& good = files[static_cast<size_t>(i) % files.size()];
    Random random(seed + static_cast<uint64_t>(i));
    const std::vector<uint8_t> bytes = mutate(good.bytes(), 8 + good.header.dump().size(), random);
    if (!error_of(bytes).empty()) continue;
    if (++read <= 400) run_dump(bytes);
  }
  std::printf("[ FUZZ     ] %lld files, %lld still readable\n", static_cast<long long>(count),
              static_cast<long long>(read));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::vector<uint8_t> good = small_file().bytes();
  const size_t header_end = 8 + small_file().header.dump().size();
  for (size_t size = 0; size < good.size(); size += size < header_end + 64 ? 1 : 97)
    EXPECT_NE(error_of({good.begin(), good.begin() + static_cast<int64_t>(size)}), "")
        << size << " bytes";
}

TEST(Safetensors, MissingFilesAndFoldersHaveAnError) {
  SafetensorsFile file;
  std::string error;
  EXPECT_FALSE(read_safetensors(data_path("no such file"), &file, &error));
  EXPECT_NE(error.find("cannot be opened"), std::string::npos) << error;
  EXPECT_FALSE(read_safetensors(HIPMLA_TEST_DATA_DIR, &file, &error));
  EXPECT_NE(error.find("cannot be"), std::string::npos) << error;
}

// ---- real inputs

class RecordedSteps : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedSteps, BothModesMatchTheExpectation) {
  DecodeDump dump;
  std::string error;
  ASSERT_TRUE(read_decode_dump(data_path(GetParam() + std::string(".safetensors")), &dump, &error))
      << error;
  ASSERT_FALSE(dump.o_expected.empty());
  ASSERT_FALSE(dump.lse_expected.empty());
  const MlaReference reference = mla_reference(dump.batch.host_inputs());
  const DeviceBatch device_batch(dump.batch, test_device());
  for (const DecodeRun& run : {persistent_run(), split_run(), split_run(1), split_run(7)}) {
    if (!begin_case()) continue;
    const DecodeResult result = expect_run(device_batch, reference, run);
    const BatchSpec& spec = dump.batch.spec;
    EXPECT_EQ(compare_o(reference, dump.o_expected, result.o, arithmetic_of(spec), rerun_command())
                  .failure,
              "");
    EXPECT_EQ(
        compare_lse(reference, dump.lse_expected, result.lse, arithmetic_of(spec), rerun_command())
            .failure,
        "");
  }
}

// The expectations were computed by other code, in double precision, and stored as f32.
TEST_P(RecordedSteps, ReferenceMatchesTheExpectation) {
  DecodeDump dump;
  std::string error;
  ASSERT_TRUE(read_decode_dump(data_path(GetParam() + std::string(".safetensors")), &dump, &error))
      << error;
  const MlaReference reference = mla_reference(dump.batch.host_inputs());
  ASSERT_EQ(reference.o.size(), dump.o_expected.size());
  for (size_t i = 0; i < reference.o.size(); ++i)
    ASSERT_NEAR(reference.o[i], dump.o_expected[i], 1e-6 * (1.0 + std::abs(reference.o[i]))) << i;
  for (size_t i = 0; i < reference.lse.size(); ++i)
    ASSERT_NEAR(reference.lse[i], dump.lse_expected[i], 1e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(Data, RecordedSteps,
                         ::testing::Values("decode_16h_page1", "mtp4_16h_page64",
                                           "decode_128h_page64"),
                         [](const auto& info) { return std::string(info.param); });

// ---- the tool

class ReplayTool : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string self = ::testing::internal::GetArgvs()[0];
    tool_ = self.substr(0, self.rfind('/') + 1) + "../bin/mla_replay";
    if (!std::ifstream(tool_))
      GTEST_SKIP() << tool_ << " was not built (HIPMLA_BUILD_TOOLS is off)";
  }
  int run(const std::string& arguments) {
    output_.clear();
    std::FILE* pipe = popen(("'" + tool_ + "' " + arguments + " 2>&1").c_str(), "r");
    if (pipe == nullptr) return -1;
    char part[4096];
    while (const size_t n = std::fread(part, 1, sizeof(part), pipe)) output_.append(part, n);
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string write(const std::string& name, const std::vector<uint8_t>& bytes) {
    const std::string path = ::testing::TempDir() + name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return "'" + path + "'";
  }
  std::string tool_;
  std::string output_;
};

TEST_F(ReplayTool, ExitStatusAndText) {
  const std::string good = "'" + data_path("mtp4_16h_page64.safetensors") + "'";
  EXPECT_EQ(run(good), 0) << output_;
  EXPECT_NE(output_.find("OK: 2 of 2 runs right"), std::string::npos) << output_;
  EXPECT_EQ(run("--schedule split --splits 3 --o-type f32 " + good), 0) << output_;
  EXPECT_NE(output_.find("OK: 1 of 1 runs right"), std::string::npos) << output_;

  EXPECT_EQ(run(""), 2);
  EXPECT_NE(output_.find("usage:"), std::string::npos) << output_;
  EXPECT_EQ(run("--help"), 0);
  EXPECT_EQ(run("--wrong " + good), 2);
  EXPECT_EQ(run("--splits 0 " + good), 2);
  EXPECT_EQ(run("--splits 3 --schedule persistent " + good), 2);
  EXPECT_EQ(run("'/no such file'"), 2);
  EXPECT_NE(output_.find("cannot be opened"), std::string::npos) << output_;

  std::vector<uint8_t> bytes = small_file().bytes();
  EXPECT_EQ(run(write("hipmla_small.safetensors", bytes)), 0) << output_;
  bytes.pop_back();
  EXPECT_EQ(run(good + " " + write("hipmla_cut.safetensors", bytes)), 2) << output_;
  EXPECT_NE(output_.find("truncated"), std::string::npos) << output_;

  FileWriter wrong = small_file();
  wrong.add<float>("o_expected", "F32", {2, 2, 512}, std::vector<float>(2048, 0.25f));
  EXPECT_EQ(run(write("hipmla_wrong.safetensors", wrong.bytes())), 1) << output_;
  EXPECT_NE(output_.find("MISMATCH"), std::string::npos) << output_;
  EXPECT_NE(output_.find("o[0, 0, 0] is"), std::string::npos) << output_;
}

// Files of all kinds, with an expectation: right, and wrong once it is spoilt.
TEST_F(ReplayTool, RandomSteps) {
  std::string paths;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Batch batch = random_batch(seed + 4000);
    const MlaReference reference = mla_reference(batch.host_inputs());
    FileWriter file = file_of(batch);
    const int64_t heads = batch.spec.num_heads;
    file.add("o_expected", "F32", {batch.total_q, heads, 512},
             std::vector<float>(reference.o.begin(), reference.o.end()));
    file.add("final_lse_expected", "F32", {batch.total_q, heads},
             std::vector<float>(reference.lse.begin(), reference.lse.end()));
    paths += " " + write("hipmla_random_" + std::to_string(seed) + ".safetensors", file.bytes());
  }
  EXPECT_EQ(run(paths), 0) << output_;
  EXPECT_NE(output_.find("OK: 24 of 24 runs right"), std::string::npos) << output_;
}

TEST_F(ReplayTool, Json) {
  EXPECT_EQ(run("--json '" + data_path("decode_16h_page1.safetensors") + "'"), 0) << output_;
  const Json json = Json::parse(output_, nullptr, false);
  ASSERT_TRUE(json.is_object()) << output_;
  EXPECT_EQ(json["ok"], true);
  ASSERT_EQ(json["files"].size(), 1u);
  ASSERT_EQ(json["files"][0]["runs"].size(), 2u);
  for (const Json& entry : json["files"][0]["runs"])
    for (const char* against : {"file", "reference"})
      for (const char* tensor : {"o", "final_lse"})
        EXPECT_EQ(entry[against][tensor]["ok"], true) << entry;
}

}  // namespace
}  // namespace hipmla::test
