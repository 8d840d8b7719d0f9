// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT

// mla_replay FILE.safetensors...: runs recorded decode steps and compares with what is expected of
// them.
//
// Exit status: 0 all right, 1 a result is wrong, 2 a file or the command line is unusable.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hipmla/mla_decode.h"
#include "hipmla/version.h"
#include "tests/compare.h"
#include "tests/mla_reference.h"
#include "tests/test_support/decode_check.h"
#include "tests/test_support/decode_dump.h"
#include "tests/test_support/decode_runner.h"

namespace hipmla::test {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

enum ExitStatus { kAllRight = 0, kMismatch = 1, kUnusable = 2 };

constexpr char kUsage[] =
    R"(usage: mla_replay [options] FILE.safetensors...

Runs each recorded decode step with both schedules and compares o and final_lse with the
expectation in the file, if it has one, and with a double-precision reference.

  --schedule NAME   persistent, split or both (default)
  --splits N        parts per sequence for the split schedule, 1..256; default: the library chooses
  --o-type TYPE     type of o, bf16, f16 or f32; default: that of q, or bf16 if q is fp8
  --json            print JSON instead of a table
  --help            print this text

Exit status: 0 all right, 1 a result is wrong, 2 a file or the command line is unusable.
)";

struct Settings {
  std::vector<std::string> files;
  bool persistent = true;
  bool split = true;
  int32_t num_splits = 0;
  bool has_o_type = false;
  DataType o_type = DataType::kBf16;
  bool json = false;
};

// ---- command line

// "" if fine, else what is wrong.
std::string parse_arguments(int argc, char** argv, Settings* settings) {
  bool options_end = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (options_end || argument.empty() || argument[0] != '-') {
      settings->files.push_back(argument);
      continue;
    }
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (argument == "--") {
      options_end = true;
    } else if (argument == "--json") {
      settings->json = true;
    } else if (argument == "--schedule") {
      const std::string name = value();
      if (name != "persistent" && name != "split" && name != "both")
        return "--schedule is \"" + printable(name) + "\"; must be persistent, split or both";
      settings->persistent = name != "split";
      settings->split = name != "persistent";
    } else if (argument == "--splits") {
      const std::string text = value();
      char* end = nullptr;
      errno = 0;
      const long number = std::strtol(text.c_str(), &end, 10);
      if (text.empty() || *end != '\0' || errno != 0 || number < 1 || number > 256)
        return "--splits is \"" + printable(text) + "\"; must be in 1..256";
      settings->num_splits = static_cast<int32_t>(number);
    } else if (argument == "--o-type") {
      const std::string name = value();
      settings->has_o_type = false;
      for (DataType type : {DataType::kBf16, DataType::kF16, DataType::kF32})
        if (name == data_type_name(type)) {
          settings->o_type = type;
          settings->has_o_type = true;
        }
      if (!settings->has_o_type)
        return "--o-type is \"" + printable(name) + "\"; must be bf16, f16 or f32";
    } else {
      return "unknown option " + printable(argument);
    }
  }
  if (settings->files.empty()) return "no file given";
  if (settings->num_splits > 0 && !settings->split) return "--splits needs the split schedule";
  return "";
}

// ---- progress

// A line on stderr about long work: at once on a terminal, else only after two seconds and then
// rarely.
class Progress {
 public:
  void report(const std::string& what, double done) {
    const auto now = Clock::now();
    const double since_last = std::chrono::duration<double>(now - last_).count();
    if (since_last < (is_terminal_ ? 0.2 : shown_ ? 10.0 : 2.0)) return;
    last_ = now;
    shown_ = true;
    std::fprintf(stderr, is_terminal_ ? "\r\x1b[K%s %3.0f %%" : "%s %3.0f %%\n", what.c_str(),
                 100.0 * done);
    std::fflush(stderr);
  }
  void clear() {
    if (is_terminal_ && shown_) std::fprintf(stderr, "\r\x1b[K");
    shown_ = false;
    last_ = Clock::now();
  }

 private:
  bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  Clock::time_point last_ = Clock::now();
};

// ---- results

struct Deviation {
  std::string against;  // "file" or "reference"
  bool has_o = false;
  bool has_lse = false;
  Comparison o, lse;
  bool ok() const { return o.ok && lse.ok; }
};

struct RunReport {
  std::string mode;
  DecodeResult result;
  std::vector<Deviation> deviations;
  std::string failure;  // first thing that is wrong, "" if nothing
};

struct FileReport {
  std::string path;
  std::string error;  // why it cannot be replayed
  DecodeDump dump;    // without tensors
  std::vector<RunReport> runs;
};

// What --o-type is by default.
DataType default_o_type(DataType q_type) { return is_fp8(q_type) ? DataType::kBf16 : q_type; }

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string quoted(const std::string& path) {
  std::string out = "'";
  for (char c : path) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string rerun_command(const std::string& path, const DecodeRun& run, const BatchSpec& spec) {
  const bool split = run.options.schedule == Schedule::kSplitKv;
  return std::string("mla_replay --schedule ") + (split ? "split" : "persistent") +
         (run.options.num_kv_splits > 0 ? " --splits " + std::to_string(run.options.num_kv_splits)
                                        : "") +
         (spec.o_type != default_o_type(spec.q_type)
              ? std::string(" --o-type ") + data_type_name(spec.o_type)
              : "") +
         " " + quoted(printable(path));
}

// A user's data need not be random: bounds are those of the worst case.
Deviation compare_with(const std::string& against, const MlaReference& reference,
                       const std::vector<double>& o, const std::vector<double>& lse,
                       const BatchSpec& spec, const DecodeResult& result, Arch arch,
                       const std::string& rerun) {
  Deviation deviation;
  deviation.against = against;
  deviation.has_o = !o.empty();
  deviation.has_lse = !lse.empty();
  const Arithmetic arithmetic = arithmetic_of(spec, arch, ErrorModel::kWorstCase);
  if (deviation.has_o) deviation.o = compare_o(reference, o, result.o, arithmetic, rerun);
  if (deviation.has_lse) deviation.lse = compare_lse(reference, lse, result.lse, arithmetic, rerun);
  return deviation;
}

RunReport replay_run(const FileReport& file, const DecodeRun& run, const DeviceBatch& device_batch,
                     const MlaReference& reference, Arch arch) {
  const BatchSpec& spec = device_batch.batch().spec;
  const std::string rerun = rerun_command(file.path, run, spec);
  RunReport report;
  report.mode = run.options.schedule == Schedule::kPersistent ? "persistent" : "split-KV";
  try {
    report.result = device_batch.run(run);
  } catch (const HipError& error) {
    report.failure = std::string(error.what()) + "\n  run again: " + rerun;
    return report;
  }
  if (!report.result.ok()) {
    report.failure =
        report.result.problems.empty() ? report.result.status.text() : report.result.problems;
    report.failure += "\n  run again: " + rerun;
    return report;
  }
  if (!file.dump.o_expected.empty() || !file.dump.lse_expected.empty())
    report.deviations.push_back(compare_with("file", reference, file.dump.o_expected,
                                             file.dump.lse_expected, spec, report.result, arch,
                                             rerun));
  report.deviations.push_back(compare_with("reference", reference, reference.o, reference.lse, spec,
                                           report.result, arch, rerun));
  for (const Deviation& deviation : report.deviations)
    for (const Comparison* comparison : {&deviation.o, &deviation.lse})
      if (report.failure.empty() && !comparison->ok)
        report.failure = "against the " + deviation.against + ": " + comparison->failure;
  return report;
}

// Asks the library first: what it refuses is not worth computing a reference for.
std::string check_support(const Batch& batch, const std::vector<DecodeRun>& runs,
                          const DeviceInfo& device) {
  for (const DecodeRun& run : runs) {
    MlaDecodeOptions options = run.options;
    batch.set_options(&options);
    MlaDecodePlan plan;
    const Status status = mla_decode_plan(batch.shape(), options, device, batch.lengths(), &plan);
    if (!status.ok())
      return std::string("the library refuses it: ") + status_code_name(status.code()) + ": " +
             status.text();
  }
  return "";
}

FileReport replay_file(const std::string& path, const Settings& settings, const DeviceInfo& device,
                       Progress* progress) {
  FileReport report;
  report.path = path;
  try {
    if (!read_decode_dump(path, &report.dump, &report.error)) return report;
    Batch batch = std::move(report.dump.batch);
    if (settings.has_o_type) batch.spec.o_type = settings.o_type;
    report.dump.batch.spec = batch.spec;

    std::vector<DecodeRun> runs;
    if (settings.persistent) runs.push_back(persistent_run());
    if (settings.split) runs.push_back(split_run(settings.num_splits));
    report.error = check_support(batch, runs, device);
    if (!report.error.empty()) return report;

    const std::string name = printable(base_name(path));
    const MlaReference reference = mla_reference(
        batch.host_inputs(), [&](double done) { progress->report(name + ": reference", done); });
    const DeviceBatch device_batch(batch, device);
    for (size_t i = 0; i < runs.size(); ++i) {
      progress->report(
          name + ": run " + std::to_string(i + 1) + " of " + std::to_string(runs.size()),
          static_cast<double>(i) / static_cast<double>(runs.size()));
      report.runs.push_back(replay_run(report, runs[i], device_batch, reference, device.arch));
      DecodeResult& result = report.runs.back().result;
      for (std::vector<float>* values : {&result.o, &result.lse})
        std::vector<float>().swap(*values);
    }
  } catch (const std::bad_alloc&) {
    report.error = "not enough memory";
  } catch (const std::exception& error) {
    report.error = error.what();
  }
  progress->clear();
  return report;
}

ExitStatus exit_status(const std::vector<FileReport>& reports) {
  ExitStatus status = kAllRight;
  for (const FileReport& file : reports) {
    if (!file.error.empty()) return kUnusable;
    for (const RunReport& run : file.runs)
      if (!run.failure.empty()) status = kMismatch;
  }
  return status;
}

// ---- text

std::string range_text(const std::vector<int32_t>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low == *high ? std::to_string(*low) : std::to_string(*low) + ".." + std::to_string(*high);
}

// "bf16", "bf16/fp8_e4m3fn packed", ...
std::string types_text(const BatchSpec& spec) {
  std::string text = data_type_name(spec.q_type);
  if (spec.kv_type != spec.q_type) text += std::string("/") + data_type_name(spec.kv_type);
  if (spec.kv_layout == KvLayout::kPacked) text += " packed";
  return text;
}

std::string modifiers_text(const BatchSpec& spec) {
  std::string text;
  if (spec.token_scales) text += ", token scales";
  if (spec.logits_soft_cap > 0.0f) text += ", soft cap";
  if (spec.sink) text += ", sink";
  if (spec.sliding_window > 0) text += ", window of " + std::to_string(spec.sliding_window);
  if (spec.lse_base2) text += ", base-2 LSE";
  if (spec.kv_shard == KvShard::kContiguous) text += ", contiguous shard";
  if (spec.kv_shard == KvShard::kRoundRobin)
    text += ", rank " + std::to_string(spec.cp_rank) + " of " + std::to_string(spec.cp_world_size);
  return text;
}

void print_comparison(bool has, const Comparison& c) {
  if (has)
    std::printf("  %9.2e %9.2e %10.2e", c.max_abs, c.max_rel, c.cosine_distance);
  else
    std::printf("  %9s %9s %10s", "-", "-", "-");
}

void print_file(const FileReport& file) {
  const BatchSpec& spec = file.dump.batch.spec;
  std::printf("\n%s\n", printable(file.path).c_str());
  if (!file.error.empty()) {
    std::printf("  cannot be replayed: %s\n", printable(file.error).c_str());
    return;
  }
  std::printf(
      "  %d heads, %zu sequences, %s query and %s KV tokens each, page_size %d, %s -> %s, %s%s\n",
      spec.num_heads, spec.q_lens.size(), range_text(spec.q_lens).c_str(),
      range_text(spec.kv_lens).c_str(), spec.page_size, types_text(spec).c_str(),
      data_type_name(spec.o_type),
      spec.topk > 0 ? "sparse"
      : spec.causal ? "causal"
                    : "not causal",
      modifiers_text(spec).c_str());
  std::printf("  %-10s %6s %9s  %-9s  %9s %9s %10s  %9s %9s %10s\n", "mode", "splits", "time",
              "against", "o max abs", "max rel", "1-cosine", "lse abs", "max rel", "1-cosine");
  for (const RunReport& run : file.runs) {
    bool first = true;
    for (const Deviation& deviation : run.deviations) {
      if (first)
        std::printf("  %-10s %6d %6.1f ms", run.mode.c_str(), run.result.num_partials,
                    run.result.milliseconds);
      else
        std::printf("  %-10s %6s %9s", "", "", "");
      first = false;
      std::printf("  %-9s", deviation.against.c_str());
      print_comparison(deviation.has_o, deviation.o);
      print_comparison(deviation.has_lse, deviation.lse);
      std::printf("  %s\n", deviation.ok() ? "ok" : "MISMATCH");
    }
    if (run.deviations.empty()) std::printf("  %-10s FAILED\n", run.mode.c_str());
    if (!run.failure.empty()) std::printf("    %s\n", run.failure.c_str());
  }
}

void print_verdict(const std::vector<FileReport>& reports) {
  size_t bad_files = 0;
  size_t runs = 0;
  size_t wrong = 0;
  for (const FileReport& file : reports) {
    bad_files += file.error.empty() ? 0 : 1;
    runs += file.runs.size();
    for (const RunReport& run : file.runs) wrong += run.failure.empty() ? 0 : 1;
  }
  std::printf("\n%s: %zu of %zu runs right",
              wrong > 0       ? "MISMATCH"
              : bad_files > 0 ? "UNUSABLE"
                              : "OK",
              runs - wrong, runs);
  if (bad_files > 0)
    std::printf(", %zu of %zu files cannot be replayed", bad_files, reports.size());
  std::printf("\n");
}

// ---- JSON

// JSON has no infinity or NaN; they become null.
Json comparison_json(const Comparison& c) {
  return {{"max_abs", c.max_abs},
          {"max_rel", c.max_rel},
          {"cosine_distance", c.cosine_distance},
          {"num_failures", c.num_failures},
          {"ok", c.ok}};
}

Json file_json(const FileReport& file) {
  Json json = {{"file", file.path}};
  if (!file.error.empty()) {
    json["error"] = file.error;
    return json;
  }
  const BatchSpec& spec = file.dump.batch.spec;
  json["name"] = file.dump.name;
  json["num_heads"] = spec.num_heads;
  json["page_size"] = spec.page_size;
  json["q_type"] = data_type_name(spec.q_type);
  json["kv_type"] = data_type_name(spec.kv_type);
  json["kv_layout"] = kv_layout_name(spec.kv_layout);
  json["o_type"] = data_type_name(spec.o_type);
  json["causal"] = spec.causal;
  json["q_scale"] = spec.q_scale();
  json["kv_scale"] = spec.kv_scale();
  json["token_scales"] = spec.token_scales;
  json["logits_soft_cap"] = spec.logits_soft_cap;
  json["sink"] = spec.sink;
  json["sliding_window"] = spec.sliding_window;
  json["lse_base2"] = spec.lse_base2;
  json["kv_shard"] = spec.kv_shard == KvShard::kWhole        ? "whole"
                     : spec.kv_shard == KvShard::kRoundRobin ? "round_robin"
                                                             : "contiguous";
  json["cp_world_size"] = spec.cp_world_size;
  json["cp_rank"] = spec.cp_rank;
  json["topk"] = spec.topk;
  json["q_lens"] = spec.q_lens;
  json["kv_lens"] = spec.kv_lens;
  json["runs"] = Json::array();
  for (const RunReport& run : file.runs) {
    Json entry = {{"mode", run.mode},
                  {"splits", run.result.num_partials},
                  {"milliseconds", run.result.milliseconds},
                  {"plan", run.result.plan},
                  {"ok", run.failure.empty()}};
    if (!run.failure.empty()) entry["failure"] = run.failure;
    for (const Deviation& deviation : run.deviations) {
      Json against = Json::object();
      if (deviation.has_o) against["o"] = comparison_json(deviation.o);
      if (deviation.has_lse) against["final_lse"] = comparison_json(deviation.lse);
      entry[deviation.against] = against;
    }
    json["runs"].push_back(entry);
  }
  return json;
}

void print_json(const std::vector<FileReport>& reports, const DeviceInfo& device) {
  Json json = {{"version", version()},
               {"platform", platform_name()},
               {"arch", arch_name(device.arch)},
               {"num_compute_units", device.num_compute_units},
               {"ok", exit_status(reports) == kAllRight},
               {"files", Json::array()}};
  for (const FileReport& file : reports) json["files"].push_back(file_json(file));
  std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

int replay(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string(argv[i]) == "--help") {
      std::printf("%s", kUsage);
      return kAllRight;
    }
  Settings settings;
  const std::string problem = parse_arguments(argc, argv, &settings);
  if (!problem.empty()) {
    std::fprintf(stderr, "mla_replay: %s\n\n%s", problem.c_str(), kUsage);
    return kUnusable;
  }
  DeviceInfo device;
  const Status status = query_device(0, &device);
  if (!status.ok()) {
    std::fprintf(stderr, "mla_replay: no device: %s\n", status.text().c_str());
    return kUnusable;
  }
  if (!settings.json)
    std::printf("hipmla %s, platform %s, device 0: %s with %d compute units\n", version(),
                platform_name(), arch_name(device.arch), device.num_compute_units);

  Progress progress;
  std::vector<FileReport> reports;
  for (const std::string& path : settings.files) {
    reports.push_back(replay_file(path, settings, device, &progress));
    if (!settings.json) print_file(reports.back());
    std::fflush(stdout);
  }
  if (settings.json)
    print_json(reports, device);
  else
    print_verdict(reports);
  return exit_status(reports);
}

}  // namespace
}  // namespace hipmla::test

int main(int argc, char** argv) {
  try {
    return hipmla::test::replay(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mla_replay: %s\n", error.what());
    return 2;
  }
}
