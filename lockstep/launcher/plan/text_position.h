// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace lockstep::launcher {

/// What separates words of a line.
inline constexpr const char* kSpaces = " \t";

/// A line of a file of ours and where it is, for errors that say so.
struct FileLine {
  const std::string& file;
  int number;        ///< From 1.
  std::string text;  ///< Without its end, Windows' included.

  /// Throws ConfigError "file:line:column: what"; `at`: the offset in the line.
  [[noreturn]] void refuse(size_t at, const std::string& what) const;
};

/// Calls `take` with each line of `text`, in order. A line that holds a NUL, or other bytes that no
/// text holds, is refused.
void for_each_line(
    const std::string& text,
    const std::string& file,
    const std::function<void(const FileLine&)>& take);

/// All of a small text file; ConfigError if it cannot be read, is no regular file or pipe, or holds
/// more than 1 MiB.
std::string read_small_file(const std::string& file);

}  // namespace lockstep::launcher
