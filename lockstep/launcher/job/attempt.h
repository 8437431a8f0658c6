// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launcher/job/attempt_spec.h"
#include "lockstep/launcher/job/failure_diagnosis.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/job/job_state_machine.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/job/start_ranks.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/process/signals.h"
#include "lockstep/launcher/process/watchdog.h"

namespace lockstep::launcher {

/// Runs one attempt on this host: starts its ranks and watches them until all have ended.
class Attempt {
 public:
  /// `console` gets the ranks' output and messages; `inbox` the user's signals.
  Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox);

  /// Starts the ranks. Throws ConfigError or Error if not all could be started; the destructor
  /// leaves none behind.
  void start() { start_ranks(spec_, console_, watchdog_, flights_, ranks_); }
  /// Runs until no rank is left.
  NodeResult run();
  /// Returns the path of node 0's dump of the ranks' last operations; empty if there is none.
  const std::string& flight_dump_path() const { return diagnosis_.dump_path(); }
  /// Returns the total time for which the job was paused.
  Clock::duration paused() const { return paused_; }
  /// Returns the last operations of the ranks of this host.
  std::vector<watch::RankView> views() { return flights_.read_views(ranks_); }

 private:
  /// The last signal from any source.
  struct ReceivedSignal {
    int signal;
    Clock::time_point time;
    bool own;  // Sent to this launcher, not to another one.
  };

  void wait();
  int poll_timeout_ms() const;
  bool is_duplicate(int signal) const;
  void on_local_signal(int signal);
  void on_peer_signals();
  /// Handles SIGTSTP to this process (Ctrl-Z). Returns after the job continues.
  void on_terminal_stop();
  /// Handles SIGTSTP or SIGCONT from another launcher. This launcher is not stopped by it.
  void change_pause(int signal);
  void pause_ranks();
  void continue_ranks();
  void on_signal(int signal);
  /// Returns whether a restart may help: no signal ended the job, and there was no usage error.
  bool may_restart_after(int exit_code) const { return !end_requested_ && exit_code != kExitUsage; }
  void watch_output();
  void check_control_channel();
  void watch_flights();
  void on_rank_exits();
  void check_deadlines();
  void end_for_stall(const watch::Stall& stall, const std::vector<watch::RankView>& views);
  /// Ends the job if a rank that the others wait for has ended before it joined. Returns whether
  /// one has.
  bool end_if_absent(const std::vector<watch::RankView>& views);
  void report_failure_to_session();

  AttemptSpec spec_;
  Console& console_;
  SignalInbox& inbox_;
  Watchdog watchdog_;
  RankSet ranks_;
  JobStateMachine state_machine_;
  FlightWatch flights_;
  FailureDiagnosis diagnosis_;
  bool failure_reported_ = false;  // Reported to the other hosts.
  bool diagnosed_ = false;         // The cause of the failure was searched for.
  bool ended_elsewhere_ = false;   // The job ended on another host, or the starter has ended.
  std::optional<ReceivedSignal> received_signal_;
  std::optional<Clock::time_point> paused_since_;  // Set while the ranks are stopped (SIGSTOP).
  Clock::duration paused_{};                       // Total of earlier pauses.
  bool end_requested_ = false;                     // By a signal, at any time.
};

}  // namespace lockstep::launcher
