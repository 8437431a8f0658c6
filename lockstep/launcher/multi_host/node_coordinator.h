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
#include "lockstep/launcher/multi_host/relay.h"
#include "lockstep/launcher/multi_host/rendezvous_listener.h"

namespace lockstep::launcher {

/// Node 0's part of NodeSession: the listener, and the verdict.
class NodeCoordinator final : public NodeSession {
 public:
  NodeCoordinator(Reactor& reactor, const JobPlan& plan, const NodeOptions& options, Say say);
  ~NodeCoordinator() override;

  bool join(const std::function<bool()>& called_off) override;
  const std::string& run_id() const override { return plan_.common.run_id; }
  int store_port(int held) override;
  std::string host_address() const override { return host_address_; }
  void begin_attempt() override;
  void tell_failure(const NodeResult& result) override;
  void tell_signal(const NodeSignal& signal) override;
  void tell_timeout(double seconds) override;
  void tell_views(const std::vector<watch::RankView>& views) override;
  void tell_result(const NodeResult& result) override;
  std::vector<watch::RankView> other_views() const override;
  bool others_left() const override;

 private:
  /// A joined launcher and its reports.
  struct Member {
    std::unique_ptr<MessageConnection> link;  // Null once it is gone.
    std::string host;
    std::vector<watch::RankView> views{};
  };
  /// A connection of another host's rank to the store.
  struct StoreConnection {
    UniqueFd from_listener;
    std::string read;
    UniqueFd to_store{};
    Reactor::TimerId timer = 0;
    Clock::time_point deadline{};
    std::unique_ptr<Relay> relay{};
  };

  /// Returns false, with listener_error_, if the master's address is a name that means no address
  /// of this machine, possibly not yet. ConfigError if it never will.
  bool open_listener();
  /// Returns false if `called_off`; Error after `deadline`.
  bool await_listener(const std::function<bool()>& called_off, Clock::time_point deadline);
  void on_connection(const std::string& purpose, UniqueFd socket, std::string read);
  void on_newcomer(uint64_t number, const nlohmann::json& message);
  void on_message(int node, const nlohmann::json& message);
  /// The launcher of `node` is lost: `how` says "is gone: ..." or the like.
  void on_lost(int node, const std::string& how, int exit_code);
  /// Suspends heartbeats while the job is paused by `signal`.
  void hold_heartbeats(int signal);
  void on_timeout(int node, double seconds);
  void connect_to_store(uint64_t number);
  void forget_store_connection(uint64_t number);
  void broadcast(const nlohmann::json& message, int except = 0);
  void note_result(int node, const NodeResult& result);
  void note_failure(int node, const NodeResult& result);
  void stop_all();
  void end_all(const std::string& why, int exit_code);
  void judge();
  std::string missing_nodes() const;

  Reactor& reactor_;
  const JobPlan& plan_;
  NodeOptions options_;
  Say say_;
  std::unique_ptr<RendezvousListener> listener_;  // Null until the master's address is known.
  std::string listener_error_;
  std::map<uint64_t, std::unique_ptr<MessageConnection>>
      newcomers_;                                             // Connections without a hello yet.
  std::vector<std::unique_ptr<MessageConnection>> unwanted_;  // Refused, until they close.
  std::map<int, Member> members_;
  std::map<uint64_t, StoreConnection> store_guests_;
  uint64_t last_number_ = 0;
  int store_port_ = 0;
  std::string host_address_;
  std::map<int, NodeResult> results_;                 // By node, of this attempt.
  std::vector<std::pair<int, NodeResult>> failures_;  // In order of arrival.
  /// Another reason why it ends; exit code.
  std::optional<std::pair<std::string, int>> other_cause_;
  Reactor::TimerId grace_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::launcher
