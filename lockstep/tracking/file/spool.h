// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/tracking/file/append_file.h"

namespace lockstep::tracking {

/// Stores lines in a file until its thread has delivered them, so that the caller never waits.
///
/// append() is one write(2). The thread reads the file from the end of the delivered lines on; that
/// position is in the file `<path>.sent`. So the lines of a killed process remain, and a Spool of a
/// later process on the same file delivers them. A line may be delivered twice if the process is
/// killed just after its delivery. A lock makes sure that one process at a time uses the file.
///
/// append() and wait_until_delivered() are called by one thread. Costs one thread, which sleeps
/// without lines, and the memory of `batch_lines` lines.
class Spool {
 public:
  /// Delivers lines in order, in the spool's thread. Returns the number of delivered ones, the
  /// first ones; if not all, the rest is tried again later. Throws if nothing can be delivered
  /// any more: the spool then warns with the exception's message, and keeps the lines.
  using Deliver = std::function<size_t(const std::vector<std::string>& lines)>;

  struct Options {
    size_t batch_lines = 1000;
    /// The pause after a delivery that delivered nothing. It doubles up to max_pause.
    std::chrono::milliseconds first_pause{500};
    std::chrono::milliseconds max_pause{30000};
  };

  /// Opens or creates the file, and delivers what it has. Throws ConfigError if the file cannot be
  /// opened, or another process uses it.
  Spool(const std::filesystem::path& path, Options options, Deliver deliver);
  /// Ends the thread after its running delivery. Lines that are not delivered remain in the file.
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  /// Appends one line, without its newline. Throws Error if the disk is full.
  void append(std::string_view line);
  /// Tries a failed delivery again at once, and waits until all lines are delivered, at most for
  /// `limit`. Returns whether they are.
  bool wait_until_delivered(std::chrono::milliseconds limit);
  /// Flushes the lines to disk.
  void sync() { file_.sync(); }
  /// Ends the thread, and removes the files if all lines are delivered. Returns whether they are.
  bool close();

  const std::filesystem::path& path() const { return file_.path(); }
  /// Returns the number of bytes that are not delivered yet.
  int64_t pending_bytes();

 private:
  void run();
  /// Returns the next complete lines after the delivered ones, and their sizes with newlines.
  std::vector<std::string> next_lines();
  void count_delivered(const std::vector<std::string>& lines, size_t count);
  int64_t stored_position() const;
  void store_position() const;

  AppendFile file_;
  UniqueFd reader_;
  UniqueFd position_;
  Options options_;
  Deliver deliver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t size_ = 0;       ///< Bytes of complete lines.
  int64_t delivered_ = 0;  ///< Bytes of delivered lines.
  bool stopping_ = false;
  bool hurry_ = false;   ///< Try again without a pause.
  bool failed_ = false;  ///< `deliver_` threw.
  std::thread thread_;
};

}  // namespace lockstep::tracking
