// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "lockstep/config/document/tree_builder.h"

namespace lockstep::config {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/// Behind the string that begins at `at`, or the end of a text in which it does not end.
size_t behind_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    at += text[at] == '\\' ? 1 : 0;
  }
  return std::min(at + 1, text.size());
}

/// Behind the comment that begins at `at`; `at` itself if none does.
size_t behind_comment(std::string_view text, size_t at, const TreeBuilder& builder) {
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

/// Whether a comma there has a value before it: one may be left out only behind a last one.
bool ends_value(char c) {
  return c != ',' && c != ':' && c != '[' && c != '{';
}

}  // namespace

std::string without_comments(std::string_view text, const TreeBuilder& builder) {
  std::string bare(text);
  size_t comma = std::string::npos;  // One behind a value, with nothing but spaces after it.
  char before = ',';                 // What stands last before `at` that is no space.
  for (size_t at = 0; at < text.size();) {
    const size_t end = behind_comment(text, at, builder);
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
    at = c == '"' ? behind_string(text, at) : at + 1;
  }
  return bare;
}

}  // namespace lockstep::config
