// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/multi_host/control_channel.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/job/job_state_machine.h"
#include "lockstep/launcher/output/log_files.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/program.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/process/signals.h"
#include "lockstep/launcher/process/watchdog.h"

namespace lockstep::launcher {

/// What an attempt is given. All that is pointed to outlives it.
struct AttemptSpec {
  const Program* program = nullptr;               ///< [not null]
  const JobOptions* options = nullptr;            ///< [not null]
  const JobPlan* plan = nullptr;                  ///< [not null]
  const LogFolder* logs = nullptr;                ///< Null: no files.
  int number = 0;                                 ///< How often the job was started before.
  int master_port = 0;                            ///< Held for it.
  std::optional<Clock::time_point> time_limit{};  ///< Of the whole job.
  ControlChannel* control_channel = nullptr;      ///< Null: this host is all there is.
};

/// Adds who had left before to a cause that failed for want of another rank.
void name_who_left(RankFailure& cause, const std::vector<watch::RankView>& ranks);

/// One start of this host's ranks: from none to none. Not thread-safe.
class Attempt {
 public:
  /// `console` gets the ranks' output, and remarks; `inbox` the user's signals.
  Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox);

  /// Throws ConfigError or Error when not all ranks could be started; none is left once this is
  /// gone.
  void start();
  /// Stays with the ranks until none is left.
  NodeResult run();
  /// Where node 0 has kept what the ranks were doing when they failed; empty if nowhere.
  const std::string& flight() const { return flight_; }
  /// For how long the job was paused, in all.
  Clock::duration paused() const { return paused_; }
  /// What the ranks here were doing last.
  std::vector<watch::RankView> views() { return flights_.look(ranks_); }

 private:
  /// The last signal of anybody's.
  struct ReceivedSignal {
    int signal;
    Clock::time_point time;
    bool own;  // This launcher itself has been sent it.
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
  /// SIGTSTP to this process: the user has pressed Ctrl-Z. Returns once the job goes on.
  void on_terminal_stop();
  /// SIGTSTP or SIGCONT from another launcher, which stays stopped meanwhile; this one does not.
  void change_pause(int signal);
  void pause_ranks();
  void continue_ranks();
  void on_signal(int signal);
  /// That the job was not told to end, and not called wrongly: no reason to fail again.
  bool may_restart_after(int exit_code) const { return !told_to_end_ && exit_code != kExitUsage; }
  void watch_output();
  void check_control_channel();
  void watch_flights();
  void on_rank_endings();
  void meet_deadlines();
  void end_stalled(const watch::Stall& stall, const std::vector<watch::RankView>& views);
  /// Ends the job if a rank that the others wait for has ended before it joined; whether it has.
  bool end_without(const std::vector<watch::RankView>& views);
  /// What `rank` keeps the others from; notes what all were doing.
  RankFailure failure_of(
      int rank, const std::string& what, const std::vector<watch::RankView>& views);
  void tell_of_failure();
  std::vector<watch::RankView> all_views();
  /// Keeps what the ranks were doing; the path, or nothing.
  std::string dump_flights(const std::string& why);
  FailureReport failure_report(int exit_code);

  AttemptSpec spec_;
  Console& console_;
  SignalInbox& inbox_;
  Watchdog watchdog_;
  RankSet ranks_;
  JobStateMachine state_machine_;
  FlightWatch flights_;
  std::vector<std::string> doing_;  // Of a stall.
  std::string stalled_host_;        // Whose rank has stalled.
  std::string flight_;              // The dump's path.
  bool failure_told_ = false;       // To the other hosts.
  bool failure_seen_ = false;       // And its cause looked for.
  bool ended_elsewhere_ = false;
  std::optional<ReceivedSignal> received_signal_;
  std::optional<Clock::time_point> paused_since_;  // The ranks are stopped (SIGSTOP) meanwhile.
  Clock::duration paused_{};                       // In earlier pauses.
  bool told_to_end_ = false;                       // By a signal, at any time.
};

}  // namespace lockstep::launcher
