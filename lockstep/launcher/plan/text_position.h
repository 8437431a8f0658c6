// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace lockstep::launcher {

/// The characters that separate the words of a line.
inline constexpr const char* kSpaces = " \t";

/// A line of a text file with its position, for errors.
struct FileLine {
  const std::string& file;
  int number;        ///< From 1.
  std::string text;  ///< Without its "\n" or "\r\n".

  /// Throws ConfigError "file:line:column: what"; `at` is the offset in the line.
  [[noreturn]] void refuse(size_t at, const std::string& what) const;
};

/// Calls `take` with each line of `text`, in order. Throws ConfigError for a line with a control
/// character.
void for_each_line(
    const std::string& text,
    const std::string& file,
    const std::function<void(const FileLine&)>& take);

/// Reads a small text file. Throws ConfigError if it cannot be read or is larger than 1 MiB.
std::string read_small_file(const std::string& file);

}  // namespace lockstep::launcher
