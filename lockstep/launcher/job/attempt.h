// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/job/job_state_machine.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/multi_host/control_channel.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"
#include "lockstep/launcher/process/signals.h"
#include "lockstep/launcher/process/watchdog.h"

namespace lockstep::launcher {

/// The inputs of an attempt. All pointers must outlive it.
struct AttemptSpec {
  const Program* program = nullptr;               ///< [not null]
  const JobOptions* options = nullptr;            ///< [not null]
  const JobPlan* plan = nullptr;                  ///< [not null]
  const LogFolder* logs = nullptr;                ///< Null: no files.
  int number = 0;                                 ///< Previous starts of the job.
  int master_port = 0;                            ///< Reserved for it.
  std::optional<Clock::time_point> time_limit{};  ///< Of the whole job.
  ControlChannel* control_channel = nullptr;      ///< Null: this is the only host.
};

/// Appends the ranks that had left before to a failure that was caused by a lost rank.
void name_who_left(RankFailure& cause, const std::vector<watch::RankView>& ranks);

/// One start of this host's ranks, until none is left. Not thread-safe.
class Attempt {
 public:
  /// `console` gets the ranks' output and messages; `inbox` the user's signals.
  Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox);

  /// Starts the ranks. Throws ConfigError or Error if not all could be started; the destructor
  /// leaves none behind.
  void start();
  /// Runs until no rank is left.
  NodeResult run();
  /// The path of node 0's dump of the ranks' last operations at the failure; empty if there is
  /// none.
  const std::string& flight() const { return flight_; }
  /// The total time for which the job was paused.
  Clock::duration paused() const { return paused_; }
  /// The last operations of the ranks of this host.
  std::vector<watch::RankView> views() { return flights_.look(ranks_); }

 private:
  /// The last signal from any source.
  struct ReceivedSignal {
    int signal;
    Clock::time_point time;
    bool own;  // It was sent to this launcher.
  };

  void wait();
  std::vector<RankLogs> open_logs() const;
  int poll_timeout_ms() const;
  NodeSession* session() const {
    return spec_.control_channel == nullptr ? nullptr : spec_.control_channel->session();
  }
  bool is_heard(int signal) const;
  void on_own_signal(int signal);
  void hear_signals();
  /// Handles SIGTSTP to this process (Ctrl-Z). Returns after the job continues.
  void on_terminal_stop();
  /// Handles SIGTSTP or SIGCONT from another launcher, which stays stopped meanwhile; this one does
  /// not.
  void change_pause(int signal);
  void pause_ranks();
  void continue_ranks();
  void on_signal(int signal);
  /// Whether a restart may help: the job was not told to end, and has no usage error.
  bool may_restart_after(int exit_code) const { return !told_to_end_ && exit_code != kExitUsage; }
  void watch_output();
  void check_control_channel();
  void watch_flights();
  void on_rank_endings();
  void meet_deadlines();
  void end_stalled(const watch::Stall& stall, const std::vector<watch::RankView>& views);
  /// Ends the job if a rank that the others wait for has ended before it joined; returns whether it
  /// did.
  bool end_without(const std::vector<watch::RankView>& views);
  /// Describes what the others wait for `rank` to do; records the state of all.
  RankFailure failure_of(
      int rank, const std::string& what, const std::vector<watch::RankView>& views);
  void tell_of_failure();
  std::vector<watch::RankView> all_views();
  /// Writes a dump of the ranks' operations; returns the path, or nothing.
  std::string dump_flights(const std::string& why);
  FailureReport failure_report(int exit_code);

  AttemptSpec spec_;
  Console& console_;
  SignalInbox& inbox_;
  Watchdog watchdog_;
  RankSet ranks_;
  JobStateMachine state_machine_;
  FlightWatch flights_;
  std::vector<std::string> doing_;  // Ranks' states at a stall.
  std::string stalled_host_;        // The host of the stalled rank.
  std::string flight_;              // The dump's path.
  bool failure_told_ = false;       // Reported to the other hosts.
  bool failure_seen_ = false;       // Its cause was searched for.
  bool ended_elsewhere_ = false;
  std::optional<ReceivedSignal> received_signal_;
  std::optional<Clock::time_point> paused_since_;  // Set while the ranks are stopped (SIGSTOP).
  Clock::duration paused_{};                       // Total of earlier pauses.
  bool told_to_end_ = false;                       // By a signal, at any time.
};

}  // namespace lockstep::launcher
