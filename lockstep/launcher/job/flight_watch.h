// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/plan/job_options.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/watch/flight_memory.h"
#include "lockstep/watch/rank_view.h"
#include "lockstep/watch/slow_rank.h"
#include "lockstep/watch/stall.h"

namespace lockstep::launcher {

/// Looks at what the ranks of this host note of themselves, from the launcher's side.
///
/// Cost: a look reads 45 KiB a rank and one line of /proc. Not thread-safe.
class FlightWatch {
 public:
  /// `stall_timeout_seconds` 0: it judges nobody.
  FlightWatch(int ranks, int first_rank, double stall_timeout_seconds);

  /// LOCKSTEP_FLIGHT of local rank `local_rank`.
  const std::string& path(int local_rank) const {
    return memories_[static_cast<size_t>(local_rank)].path();
  }
  /// When look() is wanted next: often enough to notice a stall within a tenth of its timeout.
  Clock::time_point deadline() const { return next_look_; }
  /// What the ranks are doing now.
  const std::vector<watch::RankView>& look(const RankSet& ranks);
  /// The stall of all `views`, which may be of several hosts.
  std::optional<watch::Stall> stall(const std::vector<watch::RankView>& views) const;
  /// The ranks of `views` that are stopped, a little later than stall() says so: for a host that
  /// does not see all ranks, in case the one that does judges no more.
  std::optional<watch::Stall> stopped(const std::vector<watch::RankView>& views) const;
  /// The job was paused: what was before counts for no stall.
  void restart_clocks();
  /// Whether the last operation that a rank has noted failed.
  bool lost_peer(size_t local_rank) const;
  /// Whether a rank of this host saves a checkpoint and gets on with it, see watch::save_gets_on.
  /// A disk may keep it waiting as long as ranks may stall.
  bool is_saving(const RankSet& ranks);
  /// A rank of `views` to be warned of; each at most once in five minutes.
  std::optional<watch::SlowRank> slow_rank(const std::vector<watch::RankView>& views);

 private:
  /// When a rank last did anything, and what its clock then said.
  struct Progress {
    int64_t progress_ns = 0;
    int64_t cpu_ms = 0;
    int64_t bytes = 0;  // Known while it saves.
    int64_t since_ns = 0;
    int64_t stopped_since_ns = 0;  // 0: it is not stopped.
  };

  static void note_process(watch::RankView& view, pid_t started);
  void note_idleness(watch::RankView& view, Progress& progress, int64_t now) const;
  static void note_stop(watch::RankView& view, Progress& progress, int64_t now);

  std::vector<watch::FlightMemory> memories_;
  std::vector<Progress> progress_;
  std::vector<watch::RankView> views_;
  int first_rank_;
  double stall_timeout_seconds_;
  std::chrono::milliseconds interval_;
  Clock::time_point next_look_;
  int64_t clocks_started_ns_ = 0;            // The end of the last pause.
  std::map<int, Clock::time_point> warned_;  // By rank.
};

/// Seconds without progress after which a job with these options counts as stalled; 0: never.
double stall_timeout_seconds(const JobOptions& options);

/// Seconds without progress after which a job counts as stalled unless the user says otherwise:
/// nine tenths of what an operation may take (LOCKSTEP_TIMEOUT_MS, 10 minutes), so that the
/// launcher, who sees all ranks, speaks first.
double default_stall_timeout_seconds(const Environment& environment);

/// Where dumps go that no log folder takes: $XDG_STATE_HOME/lockstep/flights, by default in
/// ~/.local/state. Nothing if neither is known.
std::optional<std::filesystem::path> flight_folder(const Environment& environment);

/// The same, ready for one more dump: made if it is not there, without the oldest if there are 20.
/// Nothing if that cannot be.
std::optional<std::filesystem::path> prepare_flight_folder(const Environment& environment);

/// The dumps in that folder, oldest first.
std::vector<std::filesystem::path> dumps_in(const std::filesystem::path& folder);

}  // namespace lockstep::launcher
