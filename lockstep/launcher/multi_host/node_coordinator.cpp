// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_coordinator.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"
#include "lockstep/base/host/machine.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""ms;
using Json = nlohmann::json;

// The death of a rank and of the peers that it takes along are heard of in any order.
constexpr auto kGracePeriod = 200ms;
constexpr auto kBetweenTries = 10ms;

/// Where node 0 listens: at the address that the others were told, so at no other. Many a host
/// resolves its own name to 127.0.1.1, where no other host could find it: then at all addresses.
/// Nothing, with `why`, if `master_addr` means no address of this machine.
std::optional<Address> listener_address(
    const std::string& master_addr, int port, std::string& why) {
  if (master_addr == "localhost") {
    return loopback(port);
  }
  const std::vector<Address> all = resolve(master_addr, port, why);
  if (all.empty()) {
    why = fmt::format(
        "the address '{}' cannot be resolved: {}; try --master-addr with a number like 10.0.0.1, "
        "or a name that all hosts know",
        master_addr,
        why);
    return std::nullopt;
  }
  bool is_own_name = false;
  for (const Address& address : all) {
    if (address.is_own()) {
      if (!address.is_loopback() || is_numeric(master_addr)) {
        return address;
      }
      is_own_name = true;
    }
  }
  if (is_own_name) {
    const UniqueFd ipv6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return any_address(port, ipv6.is_open());
  }
  why = fmt::format(
      "--master-addr must be an address of this host, which has node rank 0; got '{}' ({}), "
      "expected one of {}, or a name of it; give every launcher the one that all hosts reach",
      master_addr,
      all.front().host(),
      fmt::join(interface_addresses(), ", "));
  return std::nullopt;
}

}  // namespace

NodeCoordinator::NodeCoordinator(
    Reactor& reactor, const JobPlan& plan, const NodeOptions& options, Say say)
    : reactor_(reactor), plan_(plan), options_(options), say_(std::move(say)) {
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
      [this](const std::string& text) { say_(text); });
  return true;
}

bool NodeCoordinator::await_listener(
    const std::function<bool()>& called_off, Clock::time_point deadline) {
  if (!listener_) {
    say_(fmt::format(
        "{}; it is looked up again for up to {:g} s (--join-timeout)",
        listener_error_,
        options_.join_timeout_seconds));
  }
  auto next = Clock::now() + kBetweenLooks;
  while (!listener_) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (called_off()) {
      return false;
    }
    if (Clock::now() >= next) {
      if (!open_listener() && Clock::now() >= deadline) {
        throw Error("lockstep launch", listener_error_);
      }
      next = Clock::now() + kBetweenLooks;
    }
  }
  return true;
}

NodeCoordinator::~NodeCoordinator() {
  reactor_.cancel(grace_timer_);
  while (!store_guests_.empty()) {
    forget_store_connection(store_guests_.begin()->first);
  }
}

void NodeCoordinator::on_connection(const std::string& purpose, UniqueFd socket, std::string read) {
  const uint64_t number = ++last_number_;
  if (purpose == "store") {
    StoreConnection& connection = store_guests_[number];
    connection.from_listener = std::move(socket);
    connection.read = std::move(read);
    connection.deadline = in_seconds(options_.join_timeout_seconds);
    connect_to_store(number);
  } else if (purpose == "control") {
    newcomers_[number] = std::make_unique<MessageConnection>(
        reactor_,
        std::move(socket),
        std::move(read),
        [this, number](const Json& message) { on_newcomer(number, message); },
        [this, number](const std::string& /*why*/) { newcomers_.erase(number); });
  }
}

void NodeCoordinator::on_newcomer(uint64_t number, const Json& message) {
  const NodeHello hello = hello_of(message.at("hello"));
  std::string fault;
  if (hello.protocol == kNodeProtocol && (hello.node < 1 || hello.node >= plan_.common.nodes)) {
    fault = fmt::format(
        "there is no node {} to come; expected 1 to {}", hello.node, plan_.common.nodes - 1);
  } else {
    fault = mismatch(hello, NodeHello::of(plan_, static_cast<size_t>(std::max(hello.node, 1))));
  }
  if (fault.empty() && members_.contains(hello.node)) {
    fault = fmt::format(
        "node {} is there already, on {}; give every launcher a --node-rank of its own",
        hello.node,
        members_.at(hello.node).host);
  }
  auto link = std::move(newcomers_.extract(number).mapped());
  if (!fault.empty()) {
    link->send({{"refused", fault}});
    say_(fmt::format(
        "refused a launcher on {} ({}): {}", hello.host, peer_address(link->fd()).host(), fault));
    link->hand_over([](const Json& /*message*/) {}, [](const std::string& /*why*/) {});
    unwanted_.push_back(std::move(link));
    return;
  }
  if (host_address_.empty()) {
    host_address_ = own_address(link->fd()).host();
  }
  link->hand_over(
      [this, node = hello.node](const Json& later) { on_message(node, later); },
      [this, node = hello.node](const std::string& why) {
        on_lost(node, "is gone: " + why, kExitFailure);
      });
  members_[hello.node] = {.link = std::move(link), .host = hello.host};
}

bool NodeCoordinator::join(const std::function<bool()>& called_off) {
  const auto deadline = in_seconds(options_.join_timeout_seconds);
  if (!await_listener(called_off, deadline)) {
    return false;
  }
  const auto told = in_seconds(2);
  bool said = false;
  while (members_.size() + 1 < plan_.hosts.size()) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (called_off()) {
      return false;
    }
    if (!said && Clock::now() >= told) {
      say_(fmt::format(
          "waiting at {} port {} for {}",
          plan_.common.master_addr,
          listener_->port(),
          missing_nodes()));
      said = true;
    }
    if (Clock::now() >= deadline) {
      throw Error(
          "lockstep launch",
          fmt::format(
              "{} did not come to {} port {} within {:g} s; is a launcher running there, with the "
              "same --master-addr, --master-port and token? (--join-timeout says how long to wait)",
              missing_nodes(),
              plan_.common.master_addr,
              listener_->port(),
              options_.join_timeout_seconds));
    }
  }
  broadcast({{"start", plan_.common.run_id}});
  for (auto& [node, member] : members_) {
    if (member.link) {
      member.link->begin_heartbeat(
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

int NodeCoordinator::store_port(int held) {
  store_port_ = held;
  return held;
}

void NodeCoordinator::begin_attempt() {
  NodeSession::begin_attempt();
  results_.clear();
  failures_.clear();
  other_cause_.reset();
  stopped_ = false;
  for (auto& [node, member] : members_) {
    member.views.clear();  // Of the last attempt.
    if (!member.link) {
      results_[node] = {.exit_code = 1};
      end_all(fmt::format("the launcher of node {} ({}) is gone", node, member.host), 1);
    }
  }
  for (const Json& message : take_early_messages()) {
    on_message(message.at("node").get<int>(), message);
  }
}

/// Rank 0 may not serve the store yet: tried until it does.
void NodeCoordinator::connect_to_store(uint64_t number) {
  StoreConnection& connection = store_guests_.at(number);
  const Address address = loopback(store_port_);
  connection.to_store = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // At loopback a connection is made or refused at once.
  const bool there = store_port_ != 0 && connection.to_store.is_open() &&
                     ::connect(connection.to_store.get(), address.get(), address.length) == 0;
  if (there) {
    connection.relay = std::make_unique<Relay>(
        reactor_,
        std::move(connection.from_listener),
        std::move(connection.to_store),
        std::move(connection.read),
        [this, number] { forget_store_connection(number); });
  } else if (Clock::now() >= connection.deadline) {
    forget_store_connection(number);
  } else {
    connection.timer =
        reactor_.at(Clock::now() + kBetweenTries, [this, number] { connect_to_store(number); });
  }
}

void NodeCoordinator::forget_store_connection(uint64_t number) {
  const auto found = store_guests_.find(number);
  if (found != store_guests_.end()) {
    reactor_.cancel(found->second.timer);
    store_guests_.erase(found);
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
  if (!is_due(message, node)) {
    return;
  }
  if (message.contains("failure")) {
    note_failure(node, result_of(message.at("failure")));
  } else if (message.contains("result")) {
    note_result(node, result_of(message.at("result")));
  } else if (message.contains("signal")) {
    const NodeSignal signal = signal_of(message);
    broadcast(message, node);
    hold_heartbeats(signal.signal);
    be_signalled(signal);
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
    judge();
  }
}

void NodeCoordinator::hold_heartbeats(int signal) {
  for (auto& [node, member] : members_) {
    if (member.link && changes_pause(signal)) {
      member.link->hold_heartbeat(signal == SIGTSTP);
    }
  }
}

void NodeCoordinator::tell_failure(const NodeResult& result) {
  note_failure(0, result);
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
  be_stopped(why);
}

void NodeCoordinator::tell_signal(const NodeSignal& signal) {
  hold_heartbeats(signal.signal);
  broadcast(to_json(signal));
}

void NodeCoordinator::tell_timeout(double seconds) {
  on_timeout(0, seconds);
}

/// What fails of it on the other hosts is no failure, in whichever order it is heard of.
void NodeCoordinator::on_timeout(int node, double seconds) {
  if (other_cause_ || stopped_) {
    return;
  }
  other_cause_ = {fmt::format("it has run for {:g} s, its time limit", seconds), kExitTimedOut};
  const NodeSignal signal{.signal = SIGTERM};
  broadcast(to_json(signal), node);
  if (node != 0) {
    be_signalled(signal);
  }
}

void NodeCoordinator::tell_views(const std::vector<watch::RankView>& /*views*/) {}

void NodeCoordinator::end_all(const std::string& why, int exit_code) {
  if (!other_cause_ && failures_.empty()) {
    other_cause_ = {why, exit_code};
  }
  stop_all();
}

void NodeCoordinator::tell_result(const NodeResult& result) {
  note_result(0, result);
}

void NodeCoordinator::note_result(int node, const NodeResult& result) {
  const auto known = std::find_if(
      failures_.begin(), failures_.end(), [node](const auto& each) { return each.first == node; });
  if (known != failures_.end()) {
    known->second = result;  // The whole of what it has told the beginning of.
  } else {
    note_failure(node, result);
  }
  results_[node] = result;
  judge();
}

void NodeCoordinator::judge() {
  if (results_.size() < plan_.hosts.size() || verdict()) {
    return;
  }
  // All have ended: nobody needs to be told any more, least of all in the next attempt.
  reactor_.cancel(grace_timer_);
  grace_timer_ = 0;
  Verdict verdict;
  for (const auto& [node, result] : results_) {
    verdict.exit_code = std::max(verdict.exit_code, result.exit_code);
  }
  std::erase_if(failures_, [](const auto& each) { return !each.second.failure.has_value(); });
  if (other_cause_) {
    verdict.cause = other_cause_->first;
    verdict.exit_code = other_cause_->second;
  } else if (!failures_.empty()) {
    std::vector<RankFailure> causes;
    for (const auto& [node, result] : failures_) {
      causes.push_back(result.failure->cause);
      causes.back().round = static_cast<int>(causes.size());  // What was heard of first.
    }
    const int rank = root_cause(causes).rank;
    const auto& root = std::find_if(failures_.begin(), failures_.end(), [rank](const auto& each) {
                         return each.second.failure->cause.rank == rank;
                       })->second;
    verdict.failure = root.failure;
    verdict.failure->ranks = plan_.world_size();
    verdict.failure->stopped =
        plan_.world_size() - 1 - static_cast<int>(verdict.failure->also_failed.size());
    verdict.exit_code = root.exit_code;
    verdict.cause = fmt::format(
        "rank {} on {} {}", rank, root.failure->host, root.failure->cause.description());
    const bool all_there = std::all_of(members_.begin(), members_.end(), [](const auto& each) {
      return each.second.link != nullptr;
    });
    verdict.restart = root.may_restart && attempt() < options_.max_restarts && all_there;
  }
  broadcast(
      {{"verdict",
        {{"exit_code", verdict.exit_code}, {"cause", verdict.cause}, {"restart", verdict.restart}}},
       {"attempt", attempt()}});
  be_judged(std::move(verdict));
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
