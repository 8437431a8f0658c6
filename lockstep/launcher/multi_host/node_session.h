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

#include "lockstep/launcher/output/report.h"
#include "lockstep/launcher/plan/plan.h"
#include "lockstep/launcher/process/reactor.h"
#include "lockstep/watch/rank_view.h"

namespace lockstep::launcher {

inline constexpr double kDefaultJoinTimeoutSeconds = 120;
/// Interval of lookups of an unknown name.
inline constexpr std::chrono::milliseconds kLookupInterval{500};

/// The options of a launcher's connection with the others of its job.
struct NodeOptions {
  std::string token{};  ///< The job's secret; see rendezvous_listener.h.
  double join_timeout_seconds = kDefaultJoinTimeoutSeconds;  ///< Time for all launchers to join.
  int max_restarts = 0;
  /// Seconds of silence after which another launcher counts as stopped; 0: never.
  double stall_timeout_seconds = 0;
};

/// The result of an attempt on one host.
struct NodeResult {
  int exit_code = 0;
  std::optional<FailureReport> failure{};  ///< Set if a rank's failure ended the attempt.
  bool may_restart = false;                ///< It failed, and a restart may succeed.
};

/// A signal to all launchers of a job.
struct NodeSignal {
  int signal = 0;
  bool is_repeated = false;  ///< An earlier signal to end the job preceded it.
};

/// The result of an attempt on all hosts.
struct JobResult {
  int exit_code = 0;
  /// The failure that caused the others on all hosts; set on node 0 only.
  std::optional<FailureReport> failure{};
  std::string cause{};   ///< Why the job ended early, in a line; empty: it did not.
  bool restart = false;  ///< All hosts restart their ranks.
};

/// Coordinates this launcher with the launchers of the other hosts of a job.
///
/// Node 0's launcher listens at the job's address and port with a RendezvousListener, and the
/// others connect to it. Rank 0's store is at loopback of node 0: the other launchers listen at
/// loopback of their own hosts, and forward their ranks' connections through the listener. So the
/// listener is the only port that other hosts can reach, and any program that uses MASTER_ADDR and
/// MASTER_PORT passes through it.
///
/// A job starts when all launchers have joined. It ends on all hosts when it ends on one: by a
/// failure, a signal, or a launcher that is lost or stopped. SIGTSTP pauses it on all hosts until
/// SIGCONT. During a pause a stopped launcher does not count as lost. Not thread-safe; all
/// callbacks come from the reactor.
class NodeSession {
 public:
  using ShowMessage = std::function<void(const std::string& text)>;

  /// Creates the session of node `plan.here`; `plan` must outlive it. `show_message` gets messages
  /// for the user. Throws ConfigError if node 0 cannot listen at the address that the others use. A
  /// name that does not resolve is not an error yet: join() looks it up again, since pods start
  /// before their names resolve.
  static std::unique_ptr<NodeSession> make(
      Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message);
  NodeSession() = default;
  virtual ~NodeSession() = default;
  NodeSession(const NodeSession&) = delete;
  NodeSession& operator=(const NodeSession&) = delete;

  /// Waits until all launchers have joined. Returns false if `is_cancelled`, which is called every
  /// 0.1 s, returns true before. Throws ConfigError or Error that names the missing launchers, or
  /// the reason why this one is refused. A signal is handled after a running name lookup, which may
  /// take seconds.
  virtual bool join(const std::function<bool()>& is_cancelled) = 0;
  /// Returns the id of the run, which node 0 creates; call it after join().
  virtual const std::string& run_id() const = 0;
  /// Returns the store's port for the ranks of this host, at loopback. `rank_0_port` is the port at
  /// which rank 0 serves the store on its host.
  virtual int store_port(int rank_0_port) = 0;
  /// Returns the address of this host for other hosts, after join().
  const std::string& host_address() const { return host_address_; }

  /// Begins a new attempt: drops the result of the last one.
  virtual void begin_attempt();
  /// Reports a failed rank of this host.
  virtual void report_failure(const NodeResult& result) = 0;
  /// Reports a signal from this launcher's user.
  virtual void report_signal(const NodeSignal& signal) = 0;
  /// Reports that the ranks here have reached the time limit.
  virtual void report_timeout(double seconds) = 0;
  /// Reports the last operations of the ranks here (RankView), with times of this host's clock.
  virtual void report_views(const std::vector<watch::RankView>& views) = 0;
  /// Reports the result of this host, after all its ranks have ended.
  virtual void report_result(const NodeResult& result) = 0;

  /// Returns the reason why the ranks here must stop, if it is on another host.
  const std::optional<std::string>& stop() const { return stop_; }
  /// Returns the next signal that another launcher has received.
  std::optional<NodeSignal> next_signal();
  /// Returns the last operations of other hosts' ranks, with times of this host's clock. Empty
  /// except on node 0.
  virtual std::vector<watch::RankView> other_views() const { return {}; }
  /// Returns whether the launchers of the other hosts have received the job_result and
  /// disconnected.
  virtual bool others_left() const { return true; }
  /// Returns the result of the attempt, after the ranks of all hosts have ended.
  const std::optional<JobResult>& job_result() const { return job_result_; }

 protected:
  /// Describes a silent launcher: "is stopped or hangs: ...".
  static std::string silence_text(double seconds);
  /// Returns whether `signal` pauses the job (SIGTSTP) or ends a pause: SIGCONT, and all signals
  /// that end the job.
  static bool changes_pause(int signal);
  void set_host_address(std::string address) { host_address_ = std::move(address); }
  void set_stop(const std::string& why);
  void queue_signal(const NodeSignal& signal) { signals_.push_back(signal); }
  void set_job_result(JobResult job_result) { job_result_ = std::move(job_result); }
  /// Returns the number of the attempt, from 0.
  int attempt() const { return attempt_; }
  /// Returns whether `message` is about this attempt, or about none. Keeps a message about the next
  /// attempt, with its sender in "node".
  bool is_current(const nlohmann::json& message, int node);
  std::vector<nlohmann::json> take_next_attempt_messages() {
    return std::exchange(next_attempt_messages_, {});
  }

 private:
  int attempt_ = -1;
  std::string host_address_;
  std::vector<nlohmann::json> next_attempt_messages_;
  std::optional<std::string> stop_;
  std::deque<NodeSignal> signals_;
  std::optional<JobResult> job_result_;
};

}  // namespace lockstep::launcher
