// SPDX-FileCopyrightText: hipmla contributors
// SPDX-License-Identifier: MIT
#pragma once

// Status texts, put together from pieces and numbers.

#include <string>
#include <type_traits>

#include "hipmla/status.h"

namespace hipmla::internal {

template <typename Piece>
void append_piece(std::string* text, const Piece& piece) {
  if constexpr (std::is_arithmetic_v<Piece>) {
    *text += std::to_string(piece);
  } else {
    *text += piece;
  }
}

// concat("page_size is ", 0, "; must be ", 1) and the like.
template <typename... Pieces>
std::string concat(const Pieces&... pieces) {
  std::string text;
  (append_piece(&text, pieces), ...);
  return text;
}

template <typename... Pieces>
Status invalid_argument(const Pieces&... pieces) {
  return Status(StatusCode::kInvalidArgument, concat(pieces...));
}

template <typename... Pieces>
Status unsupported(const Pieces&... pieces) {
  return Status(StatusCode::kUnsupported, concat(pieces...));
}

}  // namespace hipmla::internal
