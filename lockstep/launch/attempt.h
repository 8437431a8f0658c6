// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/console.h"
#include "lockstep/launch/course.h"
#include "lockstep/launch/flight_watch.h"
#include "lockstep/launch/job_options.h"
#include "lockstep/launch/log_files.h"
#include "lockstep/launch/outside.h"
#include "lockstep/launch/plan.h"
#include "lockstep/launch/program.h"
#include "lockstep/launch/rank_set.h"
#include "lockstep/launch/report.h"
#include "lockstep/launch/signals.h"
#include "lockstep/launch/watchdog.h"

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
  Outside* outside = nullptr;                     ///< Null: this host is all there is.
};

/// How it ended.
struct AttemptResult {
  int exit_code = 0;
  std::optional<FailureReport> failure{};  ///< If a rank's failure ended it.
  bool may_restart = false;  ///< It did, and that is no reason to believe that it would again.
};

/// One start of this host's ranks: from none to none. Not thread-safe.
class Attempt {
 public:
  /// `console` gets the ranks' output, and remarks; `inbox` the user's signals.
  Attempt(const AttemptSpec& spec, Console& console, SignalInbox& inbox);

  /// Throws ConfigError or Error when not all ranks could be started; none is left once this is
  /// gone.
  void start();
  /// Stays with the ranks until none is left.
  AttemptResult run();

 private:
  void wait();
  std::vector<RankLogs> open_logs() const;
  int poll_timeout_ms() const;
  void take_signals();
  void on_signal(int signal);
  void watch_output();
  void hear_outside();
  void watch_flights();
  void end_stalled(const watch::Stall& stall, const std::vector<watch::RankView>& views);
  void tell_of_failure();
  std::vector<watch::RankView> all_views();
  /// Keeps what the ranks were doing; the path, or nothing.
  std::string dump_flights(const std::string& why);
  FailureReport failure_report(int exit_code);
  /// Whom the others missed, though it ended well; empty if there is none.
  std::string who_had_left();

  AttemptSpec spec_;
  Console& console_;
  SignalInbox& inbox_;
  Watchdog watchdog_;
  RankSet ranks_;
  Course course_;
  FlightWatch flights_;
  std::vector<std::string> doing_;                          // Of a stall.
  std::string flight_;                                      // The dump's path.
  bool failure_told_ = false;                               // To the other hosts.
  std::optional<std::pair<int, Clock::time_point>> heard_;  // The last signal of anybody's.
  bool told_to_end_ = false;                                // By a signal, at any time.
};

}  // namespace lockstep::launcher
