// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <poll.h>
#include <vector>

#include "lockstep/launcher/output/line_forwarder.h"
#include "lockstep/launcher/output/sink.h"
#include "lockstep/launcher/process/child.h"
#include "lockstep/launcher/process/exit_status.h"

namespace lockstep::launcher {

/// A started rank.
struct RankProcess {
  pid_t pid;  ///< Also the id of its process group.
  UniqueFd pidfd;
  LineForwarder out;
  LineForwarder err;
  bool stop_sent = false;  ///< The launcher has sent a signal to end it.
  std::optional<ExitStatus> exit_status{};
  double ended_seconds = 0;
};

/// The processes of a job, until no process is left in their process groups.
///
/// A rank that has ended is reaped only in close(): its pid, and so the id of its group, cannot be
/// reused before. Processes that a rank leaves behind become children of this process (a
/// subreaper), so that their end can be awaited. A process that has left the rank's group (setsid)
/// is ignored.
class RankSet {
 public:
  /// Sinks must outlive the set. `prefix` puts "[rank N] " before each line; N counts from
  /// `first_rank`, the number of ranks on previous hosts.
  RankSet(Sink& out, Sink& err, bool prefix, int first_rank = 0);
  /// Calls close().
  ~RankSet();
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;

  /// Adds the next rank, in order from 0.
  void add(Child child);
  /// The number of the first rank.
  int first_rank() const { return first_rank_; }
  std::vector<RankProcess>& all() { return ranks_; }
  const std::vector<RankProcess>& all() const { return ranks_; }
  /// Adds to `items` the descriptors for poll(): exits of ranks, and output that can be accepted.
  void await(std::vector<pollfd>& items);
  /// Copies the output that poll() has reported in the `items` of the last await().
  void pump(const std::vector<pollfd>& items);
  /// Records and returns the ranks that ended since the last call. `seconds` is the current time.
  std::vector<int> collect_exits(double seconds);
  /// Sends `signal` to every rank's group, also if only children of the rank are left.
  void send(int signal);
  /// Sends `signal` to every living rank to end it, and SIGCONT, so that a stopped rank receives
  /// it. Returns the number of living ranks.
  int stop(int signal);
  /// Returns whether every rank's process has ended.
  bool ended() const;
  /// Returns whether all ranks' processes, and all other processes with an open output, have ended.
  bool outputs_closed() const;
  /// Kills remaining processes, reads remaining output, and reaps. Afterwards the groups are empty,
  /// and every rank has its exit status.
  void close();

 private:
  Sink* out_;  // [not null]
  Sink* err_;  // [not null]
  bool prefix_;
  int first_rank_;
  std::vector<RankProcess> ranks_;
  size_t first_awaited_ = 0;  // The first output's index in the items of the last await().
  std::vector<LineForwarder*> awaited_;
  int was_subreaper_ = 0;  // The previous setting of this process.
  bool closed_ = false;
};

}  // namespace lockstep::launcher
