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

/// The condition under which the lines of a stream are written to its sink.
enum class Shown {
  kAlways,
  kWithoutFile,  ///< If there is no file, or it cannot be written any more.
  kNever
};

/// Copies complete lines from one stream of one rank to a sink, and keeps the last few.
///
/// A carriage return ends a line too, so that progress bars work; such a line is not kept. An
/// unfinished line is forwarded at the end of the stream, or if it is longer than
/// kLongestLineBytes. Memory: that much, plus the kept lines, each cut at kKeptLineBytes.
class LineForwarder {
 public:
  static constexpr size_t kLongestLineBytes = size_t{64} << 10;
  static constexpr size_t kKeptLineBytes = 500;

  /// `from` must be non-blocking. `sink` must outlive this. Keeps `kept_lines`.
  LineForwarder(UniqueFd from, Sink& sink, int source, std::string prefix, size_t kept_lines);

  /// Copies all later input to `file`, too, byte by byte, unless that is null. `shown` decides
  /// whether the sink still gets it.
  void copy_to(std::unique_ptr<LogFile> file, Shown shown);
  /// Returns the descriptor to read from; -1 after the end of the stream.
  int fd() const { return from_.get(); }
  bool is_open() const { return from_.is_open(); }
  bool must_wait() const { return is_shown() && sink_->full(); }
  /// Reads once; call it when fd() is readable.
  void pump();
  /// Reads the available data and closes the stream, even if a process still has the other end
  /// open.
  void drain();
  uint64_t bytes() const { return bytes_; }  ///< Bytes read so far.
  const std::deque<std::string>& last_lines() const { return last_lines_; }
  /// The path of the file from copy_to(); empty if there is none.
  std::string file() const { return file_ ? file_->path() : ""; }

 private:
  bool is_shown() const {
    return shown_ == Shown::kAlways ||
           (shown_ == Shown::kWithoutFile && (!file_ || file_->has_failed()));
  }
  void take(std::string_view bytes);
  void forward(std::string_view line);
  void forward_finished_lines();
  void keep_line(std::string_view line);
  void finish();

  UniqueFd from_;
  Sink* sink_;  // [not null]
  int source_;
  std::string prefix_;
  size_t kept_lines_;
  std::unique_ptr<LogFile> file_;
  Shown shown_ = Shown::kAlways;
  std::string unfinished_;
  size_t searched_ = 0;        // Bytes of unfinished_ without a line end.
  bool after_return_ = false;  // The last forwarded byte was a lone '\r': a '\n' belongs to it.
  uint64_t bytes_ = 0;
  std::deque<std::string> last_lines_;
};

}  // namespace lockstep::launcher
