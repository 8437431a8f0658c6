// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/plan/text_position.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;

bool is_control_character(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < ' ' && c != '\t') || byte == 0x7f;
}

}  // namespace

void FileLine::refuse(size_t at, const std::string& what) const {
  throw ConfigError("lockstep launch", fmt::format("{}:{}:{}: {}", file, number, at + 1, what));
}

void for_each_line(
    const std::string& text,
    const std::string& file,
    const std::function<void(const FileLine&)>& take) {
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    FileLine line{.file = file, .number = ++number, .text = text.substr(begin, end - begin)};
    if (line.text.ends_with('\r')) {
      line.text.pop_back();
    }
    const auto odd = std::find_if(line.text.begin(), line.text.end(), is_control_character);
    if (odd != line.text.end()) {
      line.refuse(
          static_cast<size_t>(odd - line.text.begin()),
          fmt::format("holds a control character (byte {}); expected text", int{*odd}));
    }
    take(line);
    begin = end + 1;
  }
}

std::string read_small_file(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 65536> chunk;
  ssize_t size = fd.is_open() ? 1 : -1;
  while (size > 0 && text.size() <= kMostBytes) {
    size = ::read(fd.get(), chunk.data(), chunk.size());
    text.append(chunk.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  if (size < 0) {
    throw ConfigError(
        "lockstep launch", fmt::format("{} cannot be read: {}", file, std::strerror(errno)));
  }
  if (text.size() > kMostBytes) {
    throw ConfigError(
        "lockstep launch",
        fmt::format("{} is too large; expected at most {} bytes of text", file, kMostBytes));
  }
  return text;
}

}  // namespace lockstep::launcher
