// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep::launcher {

/// A file with this process's pid and a newline, removed by the destructor: `kill -TERM $(cat
/// FILE)` ends the job. Written atomically, replacing an older one. After a SIGKILL it stays.
class PidFile {
 public:
  /// Writes the file, unless `path` is empty. Throws ConfigError if that fails.
  explicit PidFile(std::string path);
  ~PidFile();
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
