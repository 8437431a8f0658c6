// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::launcher {

/// A message from another process of this user, in a memfd: it needs no file system and is freed
/// with this process.
class MemfdMessage {
 public:
  /// Creates an empty message. Throws Error if the kernel refuses.
  MemfdMessage();

  /// The path for the other process, valid while this object lives.
  const std::string& path() const { return path_; }
  std::string read() const { return read_from(path_); }

  /// Replaces the content by `bytes`. Throws Error if that fails.
  static void write_to(const std::string& path, const std::string& bytes);
  /// Returns the content. Throws Error if it does not exist.
  static std::string read_from(const std::string& path);

 private:
  UniqueFd file_;
  std::string path_;
};

}  // namespace lockstep::launcher
