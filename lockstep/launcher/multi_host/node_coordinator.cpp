// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_coordinator.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""ms;
using Json = nlohmann::json;

// The failures of a rank, and of the peers that fail because of it, are reported in any order.
constexpr auto kGracePeriod = 200ms;

}  // namespace

NodeCoordinator::NodeCoordinator(
    Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message)
    : reactor_(reactor),
      plan_(plan),
      options_(options),
      show_message_(std::move(show_message)),
      store_relay_(reactor, options.join_timeout_seconds) {
  open_listener();
}

bool NodeCoordinator::open_listener() {
  const std::string& name = plan_.common.master_addr;
  const auto address = listener_address(name, plan_.common.master_port, listener_error_);
  if (!address) {
    if (is_numeric(name)) {
      throw ConfigError("lockstep launch", listener_error_);
    }
    return false;
  }
  listener_ = std::make_unique<RendezvousListener>(
      reactor_,
      *address,
      options_.token,
      [this](const std::string& purpose, UniqueFd socket, std::string read) {
        on_connection(purpose, std::move(socket), std::move(read));
      },
      [this](const std::string& text) { show_message_(text); });
  return true;
}

bool NodeCoordinator::await_listener(
    const std::function<bool()>& is_cancelled, Clock::time_point deadline) {
  if (!listener_) {
    show_message_(fmt::format(
        "{}; retrying for up to {:g} s (--join-timeout)",
        listener_error_,
        options_.join_timeout_seconds));
  }
  auto next = Clock::now() + kLookupInterval;
  while (!listener_) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (is_cancelled()) {
      return false;
    }
    if (Clock::now() >= next) {
      if (!open_listener() && Clock::now() >= deadline) {
        throw Error("lockstep launch", listener_error_);
      }
      next = Clock::now() + kLookupInterval;
    }
  }
  return true;
}

NodeCoordinator::~NodeCoordinator() {
  reactor_.cancel(grace_timer_);
}

void NodeCoordinator::on_connection(const std::string& purpose, UniqueFd socket, std::string read) {
  if (purpose == "store") {
    store_relay_.add(std::move(socket), std::move(read));
  } else if (purpose == "control") {
    const uint64_t number = ++last_number_;
    unidentified_[number] = std::make_unique<MessageConnection>(
        reactor_,
        std::move(socket),
        std::move(read),
        [this, number](const Json& message) { on_hello(number, message); },
        [this, number](const std::string& /*why*/) { unidentified_.erase(number); });
  }
}

void NodeCoordinator::on_hello(uint64_t number, const Json& message) {
  const NodeHello hello = hello_of(message.at("hello"));
  std::string fault;
  if (hello.protocol == kNodeProtocol && (hello.node < 1 || hello.node >= plan_.common.nodes)) {
    fault = fmt::format(
        "node rank {} is out of range; expected 1 to {}", hello.node, plan_.common.nodes - 1);
  } else {
    fault = mismatch(hello, NodeHello::of(plan_, static_cast<size_t>(std::max(hello.node, 1))));
  }
  if (fault.empty() && members_.contains(hello.node)) {
    fault = fmt::format(
        "node {} has already joined, from {}; give every launcher another --node-rank",
        hello.node,
        members_.at(hello.node).host);
  }
  auto link = std::move(unidentified_.extract(number).mapped());
  if (!fault.empty()) {
    link->send({{"refused", fault}});
    show_message_(fmt::format(
        "refused a launcher on {} ({}): {}", hello.host, peer_address(link->fd()).host(), fault));
    link->set_callbacks([](const Json& /*message*/) {}, [](const std::string& /*why*/) {});
    refused_.push_back(std::move(link));
    return;
  }
  if (host_address().empty()) {
    set_host_address(own_address(link->fd()).host());
  }
  link->set_callbacks(
      [this, node = hello.node](const Json& later) { on_message(node, later); },
      [this, node = hello.node](const std::string& why) {
        on_lost(node, "is lost: " + why, kExitFailure);
      });
  members_[hello.node] = {.link = std::move(link), .host = hello.host};
}

bool NodeCoordinator::join(const std::function<bool()>& is_cancelled) {
  const auto deadline = in_seconds(options_.join_timeout_seconds);
  if (!await_listener(is_cancelled, deadline)) {
    return false;
  }
  const auto report_at = in_seconds(2);
  bool reported = false;
  while (members_.size() + 1 < plan_.hosts.size()) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (is_cancelled()) {
      return false;
    }
    if (!reported && Clock::now() >= report_at) {
      show_message_(fmt::format(
          "waiting at {} port {} for {}",
          plan_.common.master_addr,
          listener_->port(),
          missing_nodes()));
      reported = true;
    }
    if (Clock::now() >= deadline) {
      throw Error(
          "lockstep launch",
          fmt::format(
              "{} did not connect to {} port {} within {:g} s (--join-timeout); check that a "
              "launcher runs there, with the same --master-addr, --master-port and token",
              missing_nodes(),
              plan_.common.master_addr,
              listener_->port(),
              options_.join_timeout_seconds));
    }
  }
  broadcast({{"start", plan_.common.run_id}});
  for (auto& [node, member] : members_) {
    if (member.link) {
      member.link->start_heartbeat(
          options_.stall_timeout_seconds,
          [this, at = node](double seconds) { on_lost(at, silence_text(seconds), kExitTimedOut); });
    }
  }
  return true;
}

std::string NodeCoordinator::missing_nodes() const {
  std::vector<std::string> missing;
  for (int node = 1; node < plan_.common.nodes; ++node) {
    if (!members_.contains(node)) {
      const std::string& name = plan_.hosts[static_cast<size_t>(node)].name;
      missing.push_back(name.empty() ? std::to_string(node) : fmt::format("{} ({})", node, name));
    }
  }
  return fmt::format(
      "node{} {} of {}",
      missing.size() == 1 ? "" : "s",
      fmt::join(missing, ", "),
      plan_.common.nodes);
}

int NodeCoordinator::store_port(int rank_0_port) {
  store_relay_.set_port(rank_0_port);
  return rank_0_port;
}

void NodeCoordinator::begin_attempt() {
  NodeSession::begin_attempt();
  results_.clear();
  failures_.clear();
  other_cause_.reset();
  stopped_ = false;
  for (auto& [node, member] : members_) {
    member.views.clear();
    if (!member.link) {
      results_[node] = {.exit_code = 1};
      end_all(fmt::format("the launcher of node {} ({}) is lost", node, member.host), 1);
    }
  }
  for (const Json& message : take_next_attempt_messages()) {
    on_message(message.at("node").get<int>(), message);
  }
}

void NodeCoordinator::broadcast(const Json& message, int except) {
  for (auto& [node, member] : members_) {
    if (node != except && member.link) {
      member.link->send(message);
    }
  }
}

void NodeCoordinator::on_message(int node, const Json& message) {
  if (!is_current(message, node)) {
    return;
  }
  if (message.contains("failure")) {
    note_failure(node, result_of(message.at("failure")));
  } else if (message.contains("result")) {
    note_result(node, result_of(message.at("result")));
  } else if (message.contains("signal")) {
    const NodeSignal signal = signal_of(message);
    broadcast(message, node);
    pause_heartbeats(signal.signal);
    queue_signal(signal);
  } else if (message.contains("timeout")) {
    on_timeout(node, message.at("timeout").get<double>());
  } else if (message.contains("views")) {
    members_.at(node).views = views_of(message.at("views"), watch::now_ns());
  }
}

void NodeCoordinator::on_lost(int node, const std::string& how, int exit_code) {
  Member& member = members_.at(node);
  member.link.reset();
  member.views.clear();
  if (!results_.contains(node)) {
    end_all(fmt::format("the launcher of node {} ({}) {}", node, member.host, how), exit_code);
    results_[node] = {.exit_code = exit_code};
    decide_job_result();
  }
}

void NodeCoordinator::pause_heartbeats(int signal) {
  for (auto& [node, member] : members_) {
    if (member.link && changes_pause(signal)) {
      member.link->pause_heartbeat(signal == SIGTSTP);
    }
  }
}

void NodeCoordinator::note_failure(int node, const NodeResult& result) {
  if (stopped_ || !result.failure) {
    return;
  }
  failures_.emplace_back(node, result);
  if (grace_timer_ == 0) {
    grace_timer_ = reactor_.at(Clock::now() + kGracePeriod, [this] {
      grace_timer_ = 0;
      stop_all();
    });
  }
}

void NodeCoordinator::stop_all() {
  if (stopped_) {
    return;
  }
  stopped_ = true;
  std::string why = other_cause_ ? other_cause_->first : "";
  if (!failures_.empty()) {
    const FailureReport& first = *failures_.front().second.failure;
    why = fmt::format("rank {} on {} {}", first.cause.rank, first.host, first.cause.description());
  }
  broadcast({{"stop", why}, {"attempt", attempt()}});
  set_stop(why);
}

void NodeCoordinator::report_signal(const NodeSignal& signal) {
  pause_heartbeats(signal.signal);
  broadcast(to_json(signal));
}

/// Failures that follow from the time limit on other hosts do not count, in any order of arrival.
void NodeCoordinator::on_timeout(int node, double seconds) {
  if (other_cause_ || stopped_) {
    return;
  }
  other_cause_ = {fmt::format("it reached its time limit of {:g} s", seconds), kExitTimedOut};
  const NodeSignal signal{.signal = SIGTERM};
  broadcast(to_json(signal), node);
  if (node != 0) {
    queue_signal(signal);
  }
}

void NodeCoordinator::end_all(const std::string& why, int exit_code) {
  if (!other_cause_ && failures_.empty()) {
    other_cause_ = {why, exit_code};
  }
  stop_all();
}

void NodeCoordinator::note_result(int node, const NodeResult& result) {
  const auto known = std::find_if(
      failures_.begin(), failures_.end(), [node](const auto& each) { return each.first == node; });
  if (known != failures_.end()) {
    known->second = result;  // The complete result replaces the early report.
  } else {
    note_failure(node, result);
  }
  results_[node] = result;
  decide_job_result();
}

void NodeCoordinator::decide_job_result() {
  if (results_.size() < plan_.hosts.size() || job_result()) {
    return;
  }
  // All ranks have ended: no stop is needed now, nor at the start of the next attempt.
  reactor_.cancel(grace_timer_);
  grace_timer_ = 0;
  JobResult job_result;
  for (const auto& [node, result] : results_) {
    job_result.exit_code = std::max(job_result.exit_code, result.exit_code);
  }
  std::erase_if(failures_, [](const auto& each) { return !each.second.failure.has_value(); });
  if (other_cause_) {
    job_result.cause = other_cause_->first;
    job_result.exit_code = other_cause_->second;
  } else if (!failures_.empty()) {
    std::vector<RankFailure> causes;
    for (const auto& [node, result] : failures_) {
      causes.push_back(result.failure->cause);
      causes.back().order = static_cast<int>(causes.size());  // The order of arrival.
    }
    const int rank = root_cause(causes).rank;
    const auto& root = std::find_if(failures_.begin(), failures_.end(), [rank](const auto& each) {
                         return each.second.failure->cause.rank == rank;
                       })->second;
    job_result.failure = root.failure;
    job_result.failure->ranks = plan_.world_size();
    job_result.failure->stopped =
        plan_.world_size() - 1 - static_cast<int>(job_result.failure->also_failed.size());
    job_result.exit_code = root.exit_code;
    job_result.cause = fmt::format(
        "rank {} on {} {}", rank, root.failure->host, root.failure->cause.description());
    const bool all_connected = std::all_of(members_.begin(), members_.end(), [](const auto& each) {
      return each.second.link != nullptr;
    });
    job_result.restart = root.may_restart && attempt() < options_.max_restarts && all_connected;
  }
  broadcast(
      {{"verdict",
        {{"exit_code", job_result.exit_code},
         {"cause", job_result.cause},
         {"restart", job_result.restart}}},
       {"attempt", attempt()}});
  set_job_result(std::move(job_result));
}

bool NodeCoordinator::others_left() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& each) {
    return each.second.link == nullptr;
  });
}

std::vector<watch::RankView> NodeCoordinator::other_views() const {
  std::vector<watch::RankView> all;
  for (const auto& [node, member] : members_) {
    all.insert(all.end(), member.views.begin(), member.views.end());
  }
  return all;
}

}  // namespace lockstep::launcher
