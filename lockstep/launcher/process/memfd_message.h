// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// A message from another process of this user, in a memfd: nothing in the file system, and freed
/// with this process. Not thread-safe.
class MemfdMessage {
 public:
  /// Creates an empty one. Error if the kernel refuses.
  MemfdMessage();

  /// The path for the other process, valid while this object lives.
  const std::string& path() const { return path_; }
  /// Returns the content.
  std::string read() const { return read_from(path_); }

  /// Replaces the content by `bytes`. Error if that fails.
  static void write_to(const std::string& path, const std::string& bytes);
  /// Reads the content; Error if it does not exist.
  static std::string read_from(const std::string& path);

 private:
  UniqueFd file_;
  std::string path_;
};

}  // namespace lockstep::launcher
