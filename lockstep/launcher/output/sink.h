// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::launcher {

/// Merges lines from many sources into one descriptor: the launcher's stdout or stderr.
///
/// Never blocks: text is buffered until the descriptor accepts it, and full() makes the sources
/// wait. The descriptor's flags are unchanged, since other processes share them. An unfinished line
/// of a source is ended before another source writes; the bytes of a single source pass unchanged.
class Sink {
 public:
  /// The caller keeps `fd`. `bar`, if not null, is shared by all sinks of one terminal: its last
  /// line is a progress bar (text ending in a carriage return). Every writer clears the bar first.
  /// The rank that draws the bar cannot clear it: its stdout uses another pipe than the bar.
  explicit Sink(int fd, bool* bar = nullptr) : fd_(fd), bar_(bar) {}

  /// Appends `text` of `source` (any number from 0), with `prefix` before it unless it continues
  /// the source's unfinished line.
  void write(int source, std::string_view prefix, std::string_view text);
  /// Writes as much as the descriptor accepts now.
  void flush();

  int fd() const { return fd_; }
  bool empty() const { return waiting_bytes() == 0; }
  bool full() const;
  /// Returns errno of the failed write (EPIPE: the reader has closed it), or 0. Text after a failed
  /// write is dropped.
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
