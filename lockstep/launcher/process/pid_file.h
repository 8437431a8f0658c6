// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launcher {

/// A file that holds this process's pid and a newline for as long as the object lives:
/// `kill -TERM $(cat FILE)` ends the job. Written whole or not at all, in place of an older one.
/// After a SIGKILL it stays.
class PidFile {
 public:
  /// `path` empty: no file. ConfigError if it cannot be written.
  explicit PidFile(std::string path);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
