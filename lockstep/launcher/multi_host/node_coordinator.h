// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launcher/multi_host/message_connection.h"
#include "lockstep/launcher/multi_host/node_message.h"
#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/multi_host/rendezvous_listener.h"
#include "lockstep/launcher/multi_host/store_relay.h"

namespace lockstep::launcher {

/// Implements NodeSession on node 0: accepts the other launchers, and decides the result of an
/// attempt.
class NodeCoordinator final : public NodeSession {
 public:
  NodeCoordinator(
      Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message);
  ~NodeCoordinator() override;

  bool join(const std::function<bool()>& is_cancelled) override;
  const std::string& run_id() const override { return plan_.common.run_id; }
  int store_port(int rank_0_port) override;
  void begin_attempt() override;
  void report_failure(const NodeResult& result) override { note_failure(0, result); }
  void report_signal(const NodeSignal& signal) override;
  void report_timeout(double seconds) override { on_timeout(0, seconds); }
  /// Does nothing: node 0 needs the views of other hosts only.
  void report_views(const std::vector<watch::RankView>& /*views*/) override {}
  void report_result(const NodeResult& result) override { note_result(0, result); }
  std::vector<watch::RankView> other_views() const override;
  bool others_left() const override;

 private:
  /// A joined launcher and its reports.
  struct Member {
    std::unique_ptr<MessageConnection> link;  // Null once it is gone.
    std::string host;
    std::vector<watch::RankView> views{};
  };
  /// Returns false, with listener_error_, if the master's address is a name that does not resolve
  /// to an address of this machine yet. Throws ConfigError if it is a number of another machine.
  bool open_listener();
  /// Returns false if `is_cancelled`. Throws Error after `deadline`.
  bool await_listener(const std::function<bool()>& is_cancelled, Clock::time_point deadline);
  void on_connection(const std::string& purpose, UniqueFd socket, std::string read);
  void on_hello(uint64_t number, const nlohmann::json& message);
  void on_message(int node, const nlohmann::json& message);
  /// Handles the loss of the launcher of `node`: `how` is "is lost: ..." or similar.
  void on_lost(int node, const std::string& how, int exit_code);
  /// Suspends heartbeats while the job is paused by `signal`.
  void pause_heartbeats(int signal);
  void on_timeout(int node, double seconds);
  void broadcast(const nlohmann::json& message, int except = 0);
  void note_result(int node, const NodeResult& result);
  void note_failure(int node, const NodeResult& result);
  void stop_all();
  void end_all(const std::string& why, int exit_code);
  void decide_job_result();
  std::string missing_nodes() const;

  Reactor& reactor_;
  const JobPlan& plan_;
  NodeOptions options_;
  ShowMessage show_message_;
  std::unique_ptr<RendezvousListener> listener_;  // Null until the master's address is known.
  std::string listener_error_;
  std::map<uint64_t, std::unique_ptr<MessageConnection>>
      unidentified_;                                         // Connections without a hello yet.
  std::vector<std::unique_ptr<MessageConnection>> refused_;  // Refused launchers, until they close.
  std::map<int, Member> members_;
  uint64_t last_number_ = 0;
  StoreRelay store_relay_;
  std::map<int, NodeResult> results_;                 // By node, of this attempt.
  std::vector<std::pair<int, NodeResult>> failures_;  // In order of arrival.
  /// A reason other than a failed rank for which the job ends, and its exit code.
  std::optional<std::pair<std::string, int>> other_cause_;
  Reactor::TimerId grace_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::launcher
