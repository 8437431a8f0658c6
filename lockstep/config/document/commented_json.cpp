// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "lockstep/config/document/tree_builder.h"

namespace lockstep::config {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/// Returns the position after the string that begins at `at`; the end of the text if it is open.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    at += text[at] == '\\' ? 1 : 0;
  }
  return std::min(at + 1, text.size());
}

/// Returns the position after the comment that begins at `at`; `at` without a comment.
size_t end_of_comment(std::string_view text, size_t at, const TreeBuilder& builder) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with('#') || rest.starts_with("//")) {
    return std::min(text.find('\n', at), text.size());
  }
  if (!rest.starts_with("/*")) {
    return at;
  }
  const size_t end = text.find("*/", at + 2);
  if (end == std::string_view::npos) {
    builder.fail(place_at(text, at), "a comment begins here and does not end; expected */");
  }
  return end + 2;
}

/// Returns whether `c` may end a value: only a comma after a value may be trailing.
bool ends_value(char c) {
  return c != ',' && c != ':' && c != '[' && c != '{';
}

}  // namespace

std::string without_comments(std::string_view text, const TreeBuilder& builder) {
  std::string bare(text);
  size_t comma = std::string::npos;  // After a value, with only spaces since.
  char before = ',';                 // The last character before `at` that is not a space.
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_comment(text, at, builder);
    if (end != at) {
      std::replace_if(
          bare.begin() + static_cast<std::ptrdiff_t>(at),
          bare.begin() + static_cast<std::ptrdiff_t>(end),
          [](char c) { return c != '\n'; },
          ' ');
      at = end;
      continue;
    }
    const char c = text[at];
    if ((c == ']' || c == '}') && comma != std::string::npos) {
      bare[comma] = ' ';
    }
    if (!is_space(c)) {
      comma = c == ',' && ends_value(before) ? at : std::string::npos;
      before = c;
    }
    at = c == '"' ? end_of_string(text, at) : at + 1;
  }
  return bare;
}

}  // namespace lockstep::config
