// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/reactor.h"
#include "lockstep/launcher/output/report.h"
#include "lockstep/watch/rank_view.h"

namespace lockstep::launcher {

inline constexpr double kDefaultJoinTimeoutSeconds = 120;
/// After which a name that is not known yet is looked up again.
inline constexpr std::chrono::milliseconds kBetweenLooks{500};

/// What one launcher of a job has to know to find the others.
struct NodeOptions {
  std::string token{};                                       ///< The job's; see door.h.
  double join_timeout_seconds = kDefaultJoinTimeoutSeconds;  ///< For all launchers to appear.
  int max_restarts = 0;
  /// Of silence, after which another launcher counts as stopped; 0: never.
  double stall_timeout_seconds = 0;
};

/// How a start of the job ended on one host.
struct NodeResult {
  int exit_code = 0;
  std::optional<FailureReport> failure{};  ///< If a rank's failure ended it there.
  bool may_restart = false;  ///< It did, and that is no reason to believe that it would again.
};

/// A signal to the whole job.
struct NodeSignal {
  int signal = 0;
  bool again = false;  ///< To a job that was told to end before: its user will not wait any more.
};

/// How it ended on all of them.
struct Verdict {
  int exit_code = 0;
  /// Of all hosts', the failure that the others follow from. Known to the launcher of node 0 alone.
  std::optional<FailureReport> failure{};
  std::string cause{};   ///< What ended the job, in a line; empty: it ran to its end.
  bool restart = false;  ///< All hosts start their ranks anew.
};

/// One launcher's part in a job of several hosts, each of which has a launcher.
///
/// That of node 0 listens at the job's address and port, behind a Door; the others come to it. The
/// ranks' store is rank 0's, at loopback of node 0: the other launchers hold a port at loopback of
/// their own hosts, and what a rank says there is carried through the door. So nothing of the
/// rendezvous listens for other hosts but the door, and any program that meets by MASTER_ADDR and
/// MASTER_PORT passes through it.
///
/// A job starts when all launchers are there, and ends on all hosts when it ends on one: by a
/// failure, a signal, or a launcher that is gone or stopped. SIGTSTP pauses it on all hosts until
/// SIGCONT; meanwhile nobody minds a launcher that is stopped. Not thread-safe; everything comes
/// from the reactor.
class NodeSession {
 public:
  using Say = std::function<void(const std::string& text)>;

  /// `plan` outlives it; `say` gets remarks for the user. ConfigError if node 0 cannot listen where
  /// the others look for it. A name that means no address is no error yet: join() looks it up
  /// again, since pods and their names come and go.
  static std::unique_ptr<NodeSession> make(
      Reactor& reactor, const JobPlan& plan, const NodeOptions& options, Say say);
  NodeSession() = default;
  virtual ~NodeSession() = default;
  NodeSession(const NodeSession&) = delete;
  NodeSession& operator=(const NodeSession&) = delete;

  /// Waits until all launchers are there; false if `called_off`, which is asked every 0.1 s, says
  /// so before. ConfigError or Error that names who is missing, or says why this one is not wanted.
  /// Signals wait while a name server is asked, which may take it seconds.
  virtual bool join(const std::function<bool()>& called_off) = 0;
  /// The id of the run, of node 0's making, once all are there.
  virtual const std::string& run_id() const = 0;
  /// Where the ranks of this host find the store, at loopback. `held`: the port that rank 0 is to
  /// serve it at, were it here.
  virtual int store_port(int held) = 0;
  /// How the other hosts reach this one.
  virtual std::string host_address() const = 0;

  /// A new start of the ranks: forgets how the last one ended.
  virtual void begin_attempt();
  /// A rank here has failed.
  virtual void tell_failure(const NodeResult& result) = 0;
  /// The user has signalled this launcher.
  virtual void tell_signal(const NodeSignal& signal) = 0;
  /// The ranks here have run as long as the job may.
  virtual void tell_timeout(double seconds) = 0;
  /// What the ranks here are doing, by this host's clock.
  virtual void tell_views(const std::vector<watch::RankView>& views) = 0;
  /// How the ranks here have ended, all of them.
  virtual void tell_result(const NodeResult& result) = 0;

  /// Why the ranks here are to stop, if it is because of another host.
  const std::optional<std::string>& stop() const { return stop_; }
  /// The next signal of another launcher's user.
  std::optional<NodeSignal> next_signal();
  /// What the other hosts' ranks are doing, by this host's clock. Node 0 alone knows.
  virtual std::vector<watch::RankView> other_views() const { return {}; }
  /// The launchers of the other hosts have heard the verdict, and gone.
  virtual bool others_left() const { return true; }
  /// Known some time after tell_result(), when the ranks of all hosts have ended.
  const std::optional<Verdict>& verdict() const { return verdict_; }

 protected:
  /// "is stopped or hangs: ...", of a launcher that has said nothing for so long.
  static std::string silence_text(double seconds);
  /// Whether `signal` to the job pauses it (SIGTSTP) or ends a pause: SIGCONT, and all that end the
  /// job.
  static bool changes_pause(int signal);
  void be_stopped(const std::string& why);
  void be_signalled(const NodeSignal& signal) { signals_.push_back(signal); }
  void be_judged(Verdict verdict) { verdict_ = std::move(verdict); }
  /// From 0.
  int attempt() const { return attempt_; }
  /// Whether `message` is about this attempt, or none; one of the next is kept for
  /// take_early_messages(), its "node" being who has sent it.
  bool is_due(const nlohmann::json& message, int node);
  std::vector<nlohmann::json> take_early_messages() { return std::exchange(early_, {}); }

 private:
  int attempt_ = -1;
  std::vector<nlohmann::json> early_;  // Messages of the next attempt.
  std::optional<std::string> stop_;
  std::deque<NodeSignal> signals_;
  std::optional<Verdict> verdict_;
};

}  // namespace lockstep::launcher
