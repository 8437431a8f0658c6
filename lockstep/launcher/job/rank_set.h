// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <poll.h>
#include <vector>

#include "lockstep/launcher/process/child.h"
#include "lockstep/launcher/process/exit_status.h"
#include "lockstep/launcher/output/line_forwarder.h"
#include "lockstep/launcher/output/sink.h"

namespace lockstep::launcher {

/// One started rank.
struct RankProcess {
  pid_t pid;  ///< Also the id of its process group.
  UniqueFd pidfd;
  LineForwarder out;
  LineForwarder err;
  bool told_to_stop = false;  ///< What happens to it from now on is our doing.
  std::optional<ExitStatus> exit_status{};
  double ended_seconds = 0;
};

/// The processes of a job, from their start until none of them, nor anything in their process
/// groups, is left.
///
/// A rank that has ended stays unreaped until close(): its pid, and so the id of its group, cannot
/// pass to a stranger meanwhile. What a rank has started and left behind becomes our child (this
/// process is made a subreaper), so that its end can be awaited; unless it has left the rank's
/// group (setsid), in which case it is let be. Not thread-safe.
class RankSet {
 public:
  /// Sinks must outlive the set; `prefix` puts "[rank N] " before each line, where N counts from
  /// `first_rank`, the number of ranks on the hosts before this one.
  RankSet(Sink& out, Sink& err, bool prefix, int first_rank = 0);
  /// As close().
  ~RankSet();
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;

  /// Takes over the next rank, in order from 0.
  void add(Child child);
  /// The rank of the first.
  int first_rank() const { return first_rank_; }
  std::vector<RankProcess>& all() { return ranks_; }
  const std::vector<RankProcess>& all() const { return ranks_; }
  /// Adds to `items` what poll() is to wait for: ranks' ends, and output there is room for.
  void await(std::vector<pollfd>& items);
  /// Copies what poll() has found in the `items` of the last await().
  void pump(const std::vector<pollfd>& items);
  /// Records who has ended since the last call; returns those ranks. `seconds` is the time now.
  std::vector<int> notice_endings(double seconds);
  /// Sends `signal` to every rank's group, also where only children of the rank are left.
  void send(int signal);
  /// Tells every living rank to stop with `signal`; a stopped one (SIGSTOP) is woken to hear it.
  /// Returns how many there were.
  int stop(int signal);
  /// Every rank itself has ended.
  bool ended() const;
  /// And nobody holds its output open any more: what it started has ended, too.
  bool silent() const;
  /// Kills what is left, collects what was written, reaps. When it returns, the groups are empty,
  /// and every rank has its ending.
  void close();

 private:
  Sink* out_;  // [not null]
  Sink* err_;  // [not null]
  bool prefix_;
  int first_rank_;
  std::vector<RankProcess> ranks_;
  size_t first_awaited_ = 0;  // Of the items of the last await().
  std::vector<LineForwarder*> awaited_;
  int was_subreaper_ = 0;  // This process, before.
  bool closed_ = false;
};

}  // namespace lockstep::launcher
