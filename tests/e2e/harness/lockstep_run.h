// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/base/unique_fd.h"

namespace lockstep::e2e {

struct Outcome {
  int code = 0;  ///< The exit code, or 128 + the signal.
  std::string out;
  std::string err;
};

/// One run of the real `lockstep`, or another program that starts ranks, whose processes can all be
/// found by a mark in their environment. What waits here waits for an event, and fails the test
/// after half a minute.
class LockstepRun {
 public:
  /// `variables`: NAME=value, added to this process's environment, in which no configuration file
  /// of the user's is found. `input`: its stdin.
  explicit LockstepRun(
      const std::vector<std::string>& arguments,
      const std::vector<std::string>& variables = {},
      const std::string& input = "",
      const std::string& program = LOCKSTEP_BIN_DIR "/lockstep");
  /// Kills what is left.
  ~LockstepRun();
  LockstepRun(const LockstepRun&) = delete;
  LockstepRun& operator=(const LockstepRun&) = delete;

  pid_t pid() const { return pid_; }
  /// To the launcher. Fails the test if there is none any more.
  void send(int signal) const;
  /// To a rank that has said that it is ready, see rank_pid. Fails the test if it never does.
  void send_to_rank(int rank, int signal);
  /// Until stdout holds `text` `times` times.
  void await_out(const std::string& text, int times = 1);
  /// Until stderr holds `text`; stdout is not read meanwhile.
  void await_err(const std::string& text);
  /// Closes our end of its stdout.
  void stop_reading_out() { out_fd_.reset(); }
  /// The number after "ready RANK ": the rank's pid.
  pid_t rank_pid(int rank);
  /// What lies in its stdout, unread.
  int waiting_out_bytes() const;
  /// Processes of the job besides the launcher and its watchdog.
  int rank_count() const;
  Outcome wait();
  /// Waits until no process of the job is left; those that are, after two seconds.
  std::vector<pid_t> survivors() const;
  const std::string& out() const { return out_; }

 private:
  /// Reads what comes next; false when there is nothing more to come.
  bool read_more(bool out_too = true);
  std::vector<pid_t> processes() const;

  pid_t pid_ = -1;
  std::string mark_;
  UniqueFd out_fd_;
  UniqueFd err_fd_;
  std::string out_;
  std::string err_;
};

/// Runs `lockstep` to its end.
Outcome run_lockstep(
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& variables = {},
    const std::string& input = "");

/// The same, but the test fails unless that comes within ten seconds and leaves no process.
Outcome run_clean(
    const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {});

/// How often `part` is in `text`.
int count(const std::string& text, const std::string& part);

/// The words of `lockstep launch -n RANKS REST...`.
std::vector<std::string> launch(const std::string& ranks, const std::vector<std::string>& rest);

/// A number from /proc/PID/status, in its own unit.
long process_status(pid_t pid, const std::string& field);

/// How many descriptors this process has open.
int open_descriptors();

}  // namespace lockstep::e2e
