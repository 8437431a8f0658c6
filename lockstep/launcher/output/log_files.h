// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/output/stream_choice.h"

namespace lockstep::launcher {

/// A file that one stream of one rank is copied to, byte by byte.
///
/// A write waits for the disk, and with it the launcher. Once one fails (the disk is full), the
/// rest is dropped and `say` gets the remark, so that the job goes on without the file. Not
/// thread-safe.
class LogFile {
 public:
  using Say = std::function<void(const std::string& text)>;

  LogFile(std::string path, UniqueFd fd, Say say)
      : path_(std::move(path)), fd_(std::move(fd)), say_(std::move(say)) {}

  void write(std::string_view bytes);
  const std::string& path() const { return path_; }
  bool has_failed() const { return !fd_.is_open(); }

 private:
  std::string path_;
  UniqueFd fd_;
  Say say_;
};

/// The files of one rank; null for a stream that goes to none.
struct RankLogs {
  std::unique_ptr<LogFile> out;
  std::unique_ptr<LogFile> err;
};

/// The log files of a job: DIR/<run id>/attempt_<n>/<local rank>/{stdout,stderr}.log, as
/// torchrun's.
///
/// Folders are made as they are needed, for their owner alone (0700, the files 0600). What is there
/// already is kept: a file is written on at its end, and a link in the place of one is refused.
class LogFolder {
 public:
  /// Makes the job's folder in `dir`, or one for temporary files if that is empty. ConfigError if
  /// it cannot be made or written to.
  LogFolder(const std::string& dir, const std::string& run_id);

  const std::string& path() const { return path_; }
  /// Opens the files of every local rank's `streams`. `say` is told once that writing has failed,
  /// whichever file it was. ConfigError if one cannot be made.
  std::vector<RankLogs> open(
      int attempt, const std::vector<Streams>& streams, const LogFile::Say& say) const;

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
