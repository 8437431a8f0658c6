// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launcher {

/// Where many sources write lines and one descriptor shows them: the launcher's stdout or stderr.
///
/// Never blocks, whatever the reader does: text waits here until the descriptor takes it, and
/// full() tells the sources to wait. The descriptor's own flags are left alone, for others share
/// them. A line a source has left unfinished is ended before another source writes; alone, a
/// source's bytes pass through unchanged. Not thread-safe.
class Sink {
 public:
  /// `fd` stays the caller's. `bar`, if not null, is shared by all sinks of one terminal and says
  /// that its last line is a progress bar (text ending in a carriage return): whoever writes a line
  /// there, through whichever stream, clears it first. The rank that draws it cannot: its own
  /// clearing travels through another pipe than its stdout.
  explicit Sink(int fd, bool* bar = nullptr) : fd_(fd), bar_(bar) {}

  /// Appends `text` of `source` (any number from 0), with `prefix` before it unless it continues
  /// the source's unfinished line.
  void write(int source, std::string_view prefix, std::string_view text);
  /// Writes what the descriptor takes now.
  void flush();

  int fd() const { return fd_; }
  bool empty() const { return waiting_bytes() == 0; }
  bool full() const;
  /// errno of the write that failed (EPIPE: nobody reads any more), or 0. After it, all text is
  /// dropped.
  int error() const { return error_; }

 private:
  size_t waiting_bytes() const { return text_.size() - written_; }
  int fd_;
  bool* bar_;
  std::string text_;
  size_t written_ = 0;
  int unfinished_source_ = -1;
  int error_ = 0;
};

}  // namespace lockstep::launcher
