// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/launcher/job/job.h"
#include "lockstep/launcher/multi_host/control_channel.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/signals.h"

namespace lockstep::launcher {

/// Receives a job's signals and commands while no rank runs, and holds the job's time limit.
class JobControl {
 public:
  /// Both arguments must outlive this object.
  JobControl(const config::JobOptions& options, Console& console);

  /// Connects this launcher with its starter and with the launchers of other hosts, if there are
  /// any. `plan` must outlive this object. Throws ConfigError without a valid token.
  void connect(const JobPlan& plan, const NodeContext& context);

  SignalInbox& inbox() { return inbox_; }
  /// Null if this launcher was not started by another one, and there is only one host.
  ControlChannel* channel() { return channel_.get(); }
  /// Null in a job of one host.
  NodeSession* session() { return channel_ ? channel_->session() : nullptr; }
  /// Returns the end of the whole job; nothing if it has no time limit.
  const std::optional<Clock::time_point>& time_limit() const { return time_limit_; }
  /// Moves the time limit by the duration of a pause.
  void extend_time_limit(Clock::duration pause);

  /// Returns the next signal to this process, or the next command of the starter. Stops at Ctrl-Z.
  std::optional<int> next_signal();
  /// Waits for the delay before restart number `restart`, which follows `why`. Returns an exit code
  /// if the job ends instead.
  std::optional<int> await_restart(int restart, const std::string& why);
  /// Blocks until all output is written, or until a signal, which then takes its default effect.
  void write_all_output();

 private:
  bool stop_if_requested(const std::optional<int>& signal);
  std::optional<int> wait_until(Clock::time_point then);
  std::optional<int> exit_code_of(int signal);

  const config::JobOptions& options_;
  Console& console_;
  SignalInbox inbox_;
  std::unique_ptr<ControlChannel> channel_;
  std::optional<Clock::time_point> time_limit_;
};

}  // namespace lockstep::launcher
