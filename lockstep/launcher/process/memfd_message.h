// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// Bytes that another process of this user leaves for this one: nothing in the file system, and
/// gone with this process. Not thread-safe.
class MemfdMessage {
 public:
  /// Empty. Error if the kernel has none to give.
  MemfdMessage();

  /// Where the other process finds it, as long as this one lives.
  const std::string& path() const { return path_; }
  /// All that lies in it.
  std::string read() const { return read_mail(path_); }

  /// Puts `bytes` in place of what lies there. Error if that does not work.
  static void write_mail(const std::string& path, const std::string& bytes);
  /// What lies there; Error if there is no such box.
  static std::string read_mail(const std::string& path);

 private:
  UniqueFd file_;
  std::string path_;
};

}  // namespace lockstep::launcher
