// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/host/address.h"
#include "lockstep/launcher/multi_host/message_connection.h"
#include "lockstep/launcher/multi_host/node_message.h"
#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/multi_host/relay.h"
#include "lockstep/launcher/multi_host/rendezvous_client.h"

namespace lockstep::launcher {

/// Implements NodeSession on every node but 0.
class NodeMember final : public NodeSession {
 public:
  NodeMember(
      Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message);
  ~NodeMember() override;

  bool join(const std::function<bool()>& is_cancelled) override;
  const std::string& run_id() const override { return run_id_; }
  int store_port(int /*rank_0_port*/) override { return store_port_; }
  void begin_attempt() override;
  void report_failure(const NodeResult& result) override;
  void report_signal(const NodeSignal& signal) override;
  void report_timeout(double seconds) override;
  void report_views(const std::vector<watch::RankView>& views) override;
  void report_result(const NodeResult& result) override;

 private:
  /// A connection from a rank of this host to the store.
  struct StoreConnection {
    UniqueFd from_rank;
    std::unique_ptr<RendezvousClient> client{};
    std::unique_ptr<Relay> relay{};
  };

  std::string where() const;
  void connect_to_node_0(Clock::time_point deadline);
  void set_unreachable(const std::string& why);
  void send_hello(RendezvousClient::Answer answer);
  void listen_for_ranks();
  void accept_rank();
  void start_relay(uint64_t number, RendezvousClient::Answer answer);
  void on_message(const nlohmann::json& message);
  void on_lost(const std::string& why);
  /// Handles the loss of the launcher of node 0: `how` is "is lost: ..." or similar.
  void lose_node_0(const std::string& how, int exit_code);
  void pause_heartbeat(int signal);
  void send(nlohmann::json message);
  /// Decides the result without node 0, if it is lost and the ranks here have ended.
  void decide_alone();

  Reactor& reactor_;
  const JobPlan& plan_;
  NodeOptions options_;
  ShowMessage show_message_;
  bool lookup_reported_ = false;  // The unresolved name of node 0 was reported.
  std::vector<Address> master_;   // As last resolved.
  size_t lookups_ = 0;
  Reactor::TimerId lookup_timer_ = 0;
  std::unique_ptr<RendezvousClient> client_;
  std::unique_ptr<MessageConnection> link_;
  std::string run_id_;
  bool started_ = false;
  std::string refused_;      // Why node 0 refuses this launcher.
  std::string unreachable_;  // Why node 0 could not be reached.
  std::string lost_;         // "the launcher of node 0 is lost: ...".
  int lost_code_ = 0;        // The job's exit code for that.
  UniqueFd listener_;
  int store_port_ = 0;
  std::map<uint64_t, StoreConnection> store_connections_;
  uint64_t last_number_ = 0;
  bool result_reported_ = false;
};

}  // namespace lockstep::launcher
