// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_member.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/launcher/process/machine_name.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using Json = nlohmann::json;

// Afterwards the name is resolved again.
constexpr auto kLongestUseOfAddress = 5s;

}  // namespace

NodeMember::NodeMember(
    Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message)
    : reactor_(reactor), plan_(plan), options_(options), show_message_(std::move(show_message)) {
  listen_for_ranks();
}

NodeMember::~NodeMember() {
  reactor_.cancel(lookup_timer_);
  if (listener_.is_open()) {
    reactor_.unwatch(listener_.get());
  }
}

bool NodeMember::join(const std::function<bool()>& is_cancelled) {
  // Node 0 waits equally long, and reports the missing nodes: wait longer for that report.
  const auto last = in_seconds(2 * options_.join_timeout_seconds);
  connect_to_node_0(in_seconds(options_.join_timeout_seconds));
  while (!started_) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (is_cancelled()) {
      return false;
    }
    if (!lost_.empty()) {
      throw Error("lockstep launch", fmt::format("the job did not start: {}", lost_));
    }
    if (!unreachable_.empty()) {
      throw Error("lockstep launch", unreachable_);
    }
    if (!refused_.empty()) {
      throw ConfigError("lockstep launch", refused_);
    }
    if (link_ && Clock::now() >= last) {
      throw Error(
          "lockstep launch",
          fmt::format(
              "node 0 at {} did not start the job; it still waits for other nodes", where()));
    }
  }
  return true;
}

std::string NodeMember::where() const {
  return fmt::format("{} port {}", plan_.common.master_addr, plan_.common.master_port);
}

/// Resolves the name, and again if it is unknown or no launcher accepts: a restarted pod has
/// another address.
void NodeMember::connect_to_node_0(Clock::time_point deadline) {
  std::string why;
  master_ = resolve(plan_.common.master_addr, plan_.common.master_port, why);
  if (master_.empty()) {
    why = fmt::format("the address '{}' cannot be resolved: {}", plan_.common.master_addr, why);
    if (Clock::now() >= deadline) {
      set_unreachable(why);
      return;
    }
    if (!lookup_reported_) {
      show_message_(fmt::format(
          "{}; retrying for up to {:g} s (--join-timeout)", why, options_.join_timeout_seconds));
      lookup_reported_ = true;
    }
    lookup_timer_ = reactor_.at(
        std::min<Clock::time_point>(Clock::now() + kLookupInterval, deadline),
        [this, deadline] { connect_to_node_0(deadline); });
    return;
  }
  // A silent address uses all of the time, so each attempt starts with another one.
  std::rotate(
      master_.begin(),
      master_.begin() + static_cast<ptrdiff_t>(lookups_++ % master_.size()),
      master_.end());
  client_ = std::make_unique<RendezvousClient>(
      reactor_,
      master_,
      options_.token,
      "control",
      std::min<Clock::time_point>(Clock::now() + kLongestUseOfAddress, deadline),
      [this, deadline](RendezvousClient::Answer answer) {
        if (answer.socket.is_open()) {
          send_hello(std::move(answer));
        } else if (answer.final) {
          refused_ = fmt::format(
              "node 0 at {} refused this launcher: {}; check that it belongs to the same job",
              where(),
              answer.why);
        } else if (Clock::now() >= deadline) {
          set_unreachable(answer.why);
        } else {
          connect_to_node_0(deadline);
        }
      });
}

void NodeMember::set_unreachable(const std::string& why) {
  unreachable_ = fmt::format(
      "node 0 could not be reached at {} within {:g} s: {}; check --master-addr, and that the "
      "launcher there runs",
      where(),
      options_.join_timeout_seconds,
      why);
}

void NodeMember::send_hello(RendezvousClient::Answer answer) {
  set_host_address(own_address(answer.socket.get()).host());
  link_ = std::make_unique<MessageConnection>(
      reactor_,
      std::move(answer.socket),
      std::move(answer.read),
      [this](const Json& message) { on_message(message); },
      [this](const std::string& why) { on_lost(why); });
  NodeHello hello = NodeHello::of(plan_, plan_.here);
  hello.host = host_name();
  link_->send({{"hello", to_json(hello)}});
}

void NodeMember::listen_for_ranks() {
  listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const Address any = loopback(0);
  if (!listener_.is_open() || ::bind(listener_.get(), any.get(), any.length) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0) {
    throw Error(
        "lockstep launch", fmt::format("cannot listen at loopback: {}", std::strerror(errno)));
  }
  store_port_ = own_address(listener_.get()).port();
  reactor_.watch(listener_.get(), EPOLLIN, [this](uint32_t /*events*/) { accept_rank(); });
}

void NodeMember::accept_rank() {
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.is_open()) {
    return;
  }
  const uint64_t number = ++last_number_;
  StoreConnection& connection = store_connections_[number];
  connection.from_rank = std::move(fd);
  connection.client = std::make_unique<RendezvousClient>(
      reactor_,
      master_,
      options_.token,
      "store",
      in_seconds(options_.join_timeout_seconds),
      [this, number](RendezvousClient::Answer answer) { start_relay(number, std::move(answer)); });
}

void NodeMember::start_relay(uint64_t number, RendezvousClient::Answer answer) {
  StoreConnection& connection = store_connections_.at(number);
  if (!answer.socket.is_open()) {
    store_connections_.erase(number);
    return;
  }
  connection.relay = std::make_unique<Relay>(
      reactor_,
      std::move(answer.socket),
      std::move(connection.from_rank),
      std::move(answer.read),
      [this, number] { store_connections_.erase(number); });
  connection.client.reset();
}

void NodeMember::on_message(const Json& message) {
  if (message.contains("refused")) {
    refused_ = message.at("refused").get<std::string>();
  } else if (message.contains("start")) {
    run_id_ = message.at("start").get<std::string>();
    started_ = true;
    link_->start_heartbeat(options_.stall_timeout_seconds, [this](double seconds) {
      lose_node_0(silence_text(seconds), kExitTimedOut);
    });
  } else if (!is_current(message, 0)) {
    return;
  } else if (message.contains("stop")) {
    set_stop(message.at("stop").get<std::string>());
  } else if (message.contains("signal")) {
    const NodeSignal signal = signal_of(message);
    pause_heartbeat(signal.signal);
    queue_signal(signal);
  } else if (message.contains("verdict")) {
    const Json& job_result = message.at("verdict");
    set_job_result(
        {.exit_code = job_result.at("exit_code").get<int>(),
         .cause = job_result.at("cause").get<std::string>(),
         .restart = job_result.at("restart").get<bool>()});
  }
}

void NodeMember::on_lost(const std::string& why) {
  lose_node_0("is lost: " + why, kExitFailure);
}

void NodeMember::lose_node_0(const std::string& how, int exit_code) {
  lost_ = fmt::format("the launcher of node 0 ({}) {}", plan_.common.master_addr, how);
  lost_code_ = exit_code;
  link_.reset();
  if (started_ && !job_result()) {
    set_stop(lost_);
    decide_alone();
  }
}

void NodeMember::pause_heartbeat(int signal) {
  if (link_ && changes_pause(signal)) {
    link_->pause_heartbeat(signal == SIGTSTP);
  }
}

void NodeMember::decide_alone() {
  if (result_reported_ && !lost_.empty() && !job_result()) {
    set_job_result({.exit_code = lost_code_, .cause = lost_});
  }
}

void NodeMember::begin_attempt() {
  NodeSession::begin_attempt();
  result_reported_ = false;
  if (!lost_.empty()) {
    set_stop(lost_);
  }
  for (const Json& message : take_next_attempt_messages()) {
    on_message(message);
  }
}

void NodeMember::send(Json message) {
  if (link_) {
    message["attempt"] = attempt();
    link_->send(message);
  }
}

void NodeMember::report_failure(const NodeResult& result) {
  send({{"failure", to_json(result)}});
}

void NodeMember::report_signal(const NodeSignal& signal) {
  pause_heartbeat(signal.signal);
  if (link_) {
    link_->send(to_json(signal));
  }
}

void NodeMember::report_timeout(double seconds) {
  send({{"timeout", seconds}});
}

void NodeMember::report_views(const std::vector<watch::RankView>& views) {
  send({{"views", views_to_json(views, watch::now_ns())}});
}

void NodeMember::report_result(const NodeResult& result) {
  result_reported_ = true;
  send({{"result", to_json(result)}});
  decide_alone();
}

}  // namespace lockstep::launcher
