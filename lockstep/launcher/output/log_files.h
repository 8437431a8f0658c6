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

/// A file with a copy of one stream of one rank.
///
/// A write blocks the launcher until the disk accepts it. After a failed write (the disk is full)
/// the rest is dropped and `show_message` gets a message, so that the job continues without the
/// file.
class LogFile {
 public:
  using ShowMessage = std::function<void(const std::string& text)>;

  LogFile(std::string path, UniqueFd fd, ShowMessage show_message)
      : path_(std::move(path)), fd_(std::move(fd)), show_message_(std::move(show_message)) {}

  void write(std::string_view bytes);
  const std::string& path() const { return path_; }
  bool has_failed() const { return !fd_.is_open(); }

 private:
  std::string path_;
  UniqueFd fd_;
  ShowMessage show_message_;
};

/// The files of one rank; null for a stream without a file.
struct RankLogs {
  std::unique_ptr<LogFile> out;
  std::unique_ptr<LogFile> err;
};

/// The log files of a job: DIR/<run id>/attempt_<n>/<local rank>/{stdout,stderr}.log, as
/// torchrun's.
///
/// Folders are created when needed, with mode 0700 (files 0600). Existing files are appended to; a
/// symbolic link in the place of a file is refused.
class LogFolder {
 public:
  /// Creates the job's folder in `dir`, or a temporary one if that is empty. Throws ConfigError if
  /// it cannot be created or written to.
  LogFolder(const std::string& dir, const std::string& run_id);

  const std::string& path() const { return path_; }
  /// Opens the files of every local rank's `streams`. `show_message` gets one message after the
  /// first failed write. Throws ConfigError if a file cannot be created.
  std::vector<RankLogs> open(
      int attempt,
      const std::vector<Streams>& streams,
      const LogFile::ShowMessage& show_message) const;

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
