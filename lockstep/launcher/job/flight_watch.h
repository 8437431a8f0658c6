// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/config/settings/job_options.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/watch/flight_memory.h"
#include "lockstep/watch/rank_view.h"
#include "lockstep/watch/slow_rank.h"
#include "lockstep/watch/stall.h"

namespace lockstep::launcher {

/// Reads the flight records of the ranks of this host, and detects stalls and slow ranks.
///
/// The flight record: a rank's last operations, in memory that the launcher reads (as PyTorch's
/// Flight Recorder). Cost: one read copies 45 KiB per rank and a line of /proc.
class FlightWatch {
 public:
  /// `stall_timeout_seconds` 0: stalls are not detected.
  FlightWatch(int ranks, int first_rank, double stall_timeout_seconds);

  /// Returns the value of LOCKSTEP_FLIGHT for local rank `local_rank`.
  const std::string& path(int local_rank) const {
    return memories_[static_cast<size_t>(local_rank)].path();
  }
  /// Returns the time for the next read_views(): often enough to detect a stall within a tenth of
  /// its timeout.
  Clock::time_point deadline() const { return next_read_; }
  /// Returns the current operations of the ranks.
  const std::vector<watch::RankView>& read_views(const RankSet& ranks);
  /// Returns the stall of the job, if `views` show one. They may be of several hosts.
  std::optional<watch::Stall> stall(const std::vector<watch::RankView>& views) const;
  /// Returns the stopped ranks of `views`, a little later than stall() does. Hosts that do not see
  /// all ranks use it, in case node 0 has stopped working.
  std::optional<watch::Stall> stopped(const std::vector<watch::RankView>& views) const;
  /// Resets the timers after a pause of the job.
  void restart_clocks();
  /// Returns whether the last recorded operation of a rank failed.
  bool last_operation_failed(size_t local_rank) const;
  /// Returns whether a rank of this host saves a checkpoint and makes progress, see
  /// watch::save_progresses. A disk may block it for as long as the stall timeout.
  bool is_saving(const RankSet& ranks);
  /// Returns a slow rank of `views`, for a warning; each at most once in five minutes.
  std::optional<watch::SlowRank> slow_rank(const std::vector<watch::RankView>& views);

 private:
  /// The time of a rank's last progress, and its clock at that time.
  struct Progress {
    int64_t progress_ns = 0;
    int64_t cpu_ms = 0;
    int64_t bytes = 0;  // Known during a save.
    int64_t since_ns = 0;
    int64_t stopped_since_ns = 0;  // 0: not stopped.
  };

  static void update_process(watch::RankView& view, pid_t started);
  void update_idleness(watch::RankView& view, Progress& progress, int64_t now) const;
  static void update_stop(watch::RankView& view, Progress& progress, int64_t now);

  std::vector<watch::FlightMemory> memories_;
  std::vector<Progress> progress_;
  std::vector<watch::RankView> views_;
  int first_rank_;
  double stall_timeout_seconds_;
  std::chrono::milliseconds interval_;
  Clock::time_point next_read_;
  int64_t clocks_started_ns_ = 0;            // End of the last pause.
  std::map<int, Clock::time_point> warned_;  // By rank.
};

/// Returns the seconds without progress after which a job with these options counts as stalled; 0:
/// never.
double stall_timeout_seconds(const config::JobOptions& options);

/// Returns the default of stall_timeout_seconds(): nine tenths of an operation's timeout
/// (LOCKSTEP_TIMEOUT_MS, 10 minutes), so that the launcher, which sees all ranks, reports first.
double default_stall_timeout_seconds(const Environment& environment);

/// Returns the folder of dumps without a log folder: $XDG_STATE_HOME/lockstep/flights, by default
/// in ~/.local/state. Returns nothing if neither is known.
std::optional<std::filesystem::path> flight_folder(const Environment& environment);

/// Prepares flight_folder() for one more dump: creates it, and removes the oldest of 20. Returns
/// nothing if that fails.
std::optional<std::filesystem::path> prepare_flight_folder(const Environment& environment);

/// Returns the dumps in `folder`, oldest first.
std::vector<std::filesystem::path> dumps_in(const std::filesystem::path& folder);

}  // namespace lockstep::launcher
