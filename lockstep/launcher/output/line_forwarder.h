// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/output/sink.h"

namespace lockstep::launcher {

/// When the lines of a stream get to its sink.
enum class Shown {
  kAlways,
  kWithoutFile,  ///< When there is no file, or it cannot be written any more.
  kNever
};

/// Copies whole lines from one stream of one rank to a sink, and remembers the last few.
///
/// A carriage return ends a line too, so that a progress bar moves; such a line is not remembered.
/// What is unfinished is passed on when the stream ends or the line is longer than
/// kLongestLineBytes. Holds at most that much, plus the remembered lines, each cut at
/// kKeptLineBytes. Not thread-safe.
class LineForwarder {
 public:
  static constexpr size_t kLongestLineBytes = size_t{64} << 10;
  static constexpr size_t kKeptLineBytes = 500;

  /// `from` must not block. `sink` must outlive the pump. Remembers `kept_lines`.
  LineForwarder(UniqueFd from, Sink& sink, int source, std::string prefix, size_t kept_lines);

  /// From now on all that is read goes to `file`, too, byte by byte, unless that is null; `shown`
  /// says what the sink still gets.
  void copy_to(std::unique_ptr<LogFile> file, Shown shown);
  /// -1 when the stream has ended.
  int fd() const { return from_.get(); }
  bool is_open() const { return from_.is_open(); }
  bool must_wait() const { return is_shown() && sink_->full(); }
  /// Reads once; call when fd() is readable.
  void pump();
  /// Reads what has been written so far and closes the stream, whoever still holds the other end.
  void drain();
  uint64_t bytes() const { return bytes_; }  ///< Read so far.
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  /// The path of the file that copy_to() gave; empty if there is none.
  std::string file() const { return file_ ? file_->path() : ""; }

 private:
  bool is_shown() const {
    return shown_ == Shown::kAlways ||
           (shown_ == Shown::kWithoutFile && (!file_ || file_->has_failed()));
  }
  void take(std::string_view bytes);
  void forward_to_group(std::string_view line);
  void pass_on_finished_lines();
  void remember(std::string_view line);
  void finish();

  UniqueFd from_;
  Sink* sink_;  // [not null]
  int source_;
  std::string prefix_;
  size_t kept_lines_;
  std::unique_ptr<LogFile> file_;
  Shown shown_ = Shown::kAlways;
  std::string unfinished_;
  size_t searched_ = 0;        // Of unfinished_: holds no line end before here.
  bool after_return_ = false;  // The last byte passed on was a lone '\r': a '\n' now belongs to it.
  uint64_t bytes_ = 0;
  std::deque<std::string> last_lines_;
};

}  // namespace lockstep::launcher
