// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/unique_fd.h"

namespace lockstep::e2e {

/// The result of a process that has ended.
struct Outcome {
  int code = 0;  ///< The exit code, or 128 + the signal.
  std::string out;
  std::string err;
};

/// A running `lockstep`, or another program that starts ranks. A mark in the environment identifies
/// all processes of the job. Functions that wait do so for an event, and fail the test after half a
/// minute without one.
class LockstepRun {
 public:
  /// Starts the program. `variables`: NAME=value, added to this process's environment, in which no
  /// configuration file of the user is found. `input`: its stdin.
  explicit LockstepRun(
      const std::vector<std::string>& arguments,
      const std::vector<std::string>& variables = {},
      const std::string& input = "",
      const std::string& program = LOCKSTEP_BIN_DIR "/lockstep");
  /// Kills all remaining processes of the job.
  ~LockstepRun();
  LockstepRun(const LockstepRun&) = delete;
  LockstepRun& operator=(const LockstepRun&) = delete;

  pid_t pid() const { return pid_; }
  /// Sends a signal to the launcher. Fails the test if it has ended.
  void send(int signal) const;
  /// Sends a signal to a rank that prints "ready", see rank_pid.
  void send_to_rank(int rank, int signal);
  /// Reads until stdout contains `text` `times` times.
  void await_out(const std::string& text, int times = 1);
  /// Reads stderr, and not stdout, until stderr contains `text`.
  void await_err(const std::string& text);
  /// Closes the read end of the program's stdout.
  void stop_reading_out() { out_fd_.reset(); }
  /// Reads until stdout contains "ready RANK PID", and returns PID. Fails the test without it.
  pid_t rank_pid(int rank);
  /// Returns the number of unread bytes of stdout.
  int waiting_out_bytes() const;
  /// Returns the number of processes of the job besides the launcher and its watchdog.
  int rank_count() const;
  /// Waits for the end of the program, and kills it after half a minute without output.
  Outcome wait();
  /// Waits for the end of the program. Kills it, and fails the test, unless it ends within `limit`.
  Outcome wait(std::chrono::seconds limit);
  /// Waits until no process of the job remains; returns those that do after two seconds.
  std::vector<pid_t> survivors() const;
  const std::string& out() const { return out_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// Reads the next output. Returns false at the end of both streams. Also returns false, and fails
  /// the test, after half a minute without output or at `end`.
  bool read_more(bool out_too = true, Clock::time_point end = Clock::time_point::max());
  Outcome wait_until(Clock::time_point end);
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

/// Runs `lockstep` to its end. The test fails unless it ends within ten seconds and leaves no
/// process.
Outcome run_clean(
    const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {});

/// Runs `lockstep ... --json`, expects this exit code and schema and an empty stderr, and returns
/// the object.
nlohmann::json json_of(std::vector<std::string> arguments, int code, const std::string& schema);

/// Returns how often `part` is in `text`.
int count(const std::string& text, const std::string& part);

/// Returns the words of `lockstep launch -n RANKS REST...`.
std::vector<std::string> launch(const std::string& ranks, const std::vector<std::string>& rest);

/// Returns the options of node `node` of a job of two nodes.
std::vector<std::string> node_options(
    int node, int master_port, const std::string& master_addr = "127.0.0.1");

/// Returns a port of 127.0.0.1 that is free now.
int free_port();

/// Returns the exit code, or 128 + the signal, of a status from waitpid.
int exit_code_of(int status);

/// Returns a number from /proc/PID/status, in its own unit.
long process_status(pid_t pid, const std::string& field);

/// Returns the number of open descriptors of this process.
int open_descriptors();

}  // namespace lockstep::e2e
