// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text/shell.h"

#include <algorithm>
#include <string_view>

namespace lockstep {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
}

std::string in_shell_quotes(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

}  // namespace

std::string shell_quoted(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), is_plain);
    line += (line.empty() ? "" : " ") + (plain ? word : in_shell_quotes(word));
  }
  return line;
}

}  // namespace lockstep
