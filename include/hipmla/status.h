// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

namespace hipmla {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  ///< the caller is wrong: a null pointer, a wrong shape, a bad length
  kUnsupported,  ///< a sound request that no kernel serves; the text names the nearest that one does
  kWorkspaceTooSmall,  ///< the workspace has fewer bytes than the plan needs
  kStalePlan,          ///< the plan was built for something else than this call
  /// The HIP runtime refused a call of ours; the text carries its error, the kernel and the shape. An error that an earlier
  /// call of somebody else left in the runtime is neither reported nor cleared.
  kDeviceError,
};

/// "ok", "invalid argument", ...
constexpr const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kWorkspaceTooSmall:
      return "workspace too small";
    case StatusCode::kStalePlan:
      return "stale plan";
    case StatusCode::kDeviceError:
      return "device error";
  }
  return "unknown";
}

/// The outcome of a call: a code and a text that names the values at fault. Empty text when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& text() const { return text_; }

  /// Equal code and equal text.
  bool operator==(const Status& other) const {
    return code_ == other.code_ && text_ == other.text_;
  }
  bool operator!=(const Status& other) const { return !(*this == other); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string text_;
};

}  // namespace hipmla
