// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launcher/job/attempt_spec.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/job/job_state_machine.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/watch/flight_dump.h"

namespace lockstep::launcher {

/// Names the rank that left the job earlier, if its departure caused the failure. If that rank has
/// ended, it becomes the cause, without lines of its stderr, and the failure the first of
/// also_failed.
void explain_by_departed_rank(FailureReport& report, const std::vector<watch::RankView>& ranks);

/// Collects the facts on a failed attempt: the states of all ranks, the flight dump, the report.
class FailureDiagnosis {
 public:
  /// All arguments must outlive this object.
  FailureDiagnosis(
      const AttemptSpec& spec, Console& console, const RankSet& ranks, FlightWatch& flights)
      : spec_(spec), console_(console), ranks_(ranks), flights_(flights) {}

  /// Returns the operations of the ranks here and, on node 0, of the other hosts. Sends those of
  /// this host to node 0.
  std::vector<watch::RankView> all_views();
  /// Returns a failure of `rank`, for which the others wait; `what` describes it to the user. Keeps
  /// the states of all ranks for the report.
  RankFailure failure_of(
      int rank, const std::string& what, const std::vector<watch::RankView>& views);
  /// Writes the operations of all ranks to a file, on node 0 only. Failures are reported on the
  /// console.
  void write_dump(const std::string& why);
  /// Returns the path of the written dump; empty if there is none.
  const std::string& dump_path() const { return dump_path_; }
  /// Returns the report of a failed attempt.
  FailureReport report(const JobStateMachine& state_machine, int exit_code);

 private:
  std::string try_write(const watch::FlightDump& dump) const;

  const AttemptSpec& spec_;
  Console& console_;
  const RankSet& ranks_;
  FlightWatch& flights_;
  std::vector<std::string> rank_states_;  // At a stall, one line for each rank.
  std::string stalled_host_;              // The host of the stalled rank.
  std::string dump_path_;
};

}  // namespace lockstep::launcher
