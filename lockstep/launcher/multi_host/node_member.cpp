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

// After which the name is looked up again.
constexpr auto kLongestUseOfAddress = 5s;

}  // namespace

NodeMember::NodeMember(Reactor& reactor, const JobPlan& plan, const NodeOptions& options, Say say)
    : reactor_(reactor), plan_(plan), options_(options), say_(std::move(say)) {
  listen_for_ranks();
}

NodeMember::~NodeMember() {
  reactor_.cancel(next_look_);
  if (listener_.is_open()) {
    reactor_.unwatch(listener_.get());
  }
}

bool NodeMember::join(const std::function<bool()>& called_off) {
  // Node 0 waits as long for the others, and says who is missing: a little more for it to say so.
  const auto last = in_seconds(2 * options_.join_timeout_seconds);
  seek_node_0(in_seconds(options_.join_timeout_seconds));
  while (!started_) {
    reactor_.wait(100ms);
    reactor_.dispatch();
    if (called_off()) {
      return false;
    }
    if (!lost_.empty()) {
      throw Error("lockstep launch", fmt::format("the job did not begin, since {}", lost_));
    }
    if (!unreached_.empty()) {
      throw Error("lockstep launch", unreached_);
    }
    if (!refused_.empty()) {
      throw ConfigError("lockstep launch", refused_);
    }
    if (link_ && Clock::now() >= last) {
      throw Error(
          "lockstep launch",
          fmt::format("node 0 at {} did not start the job; it waits for other nodes", where()));
    }
  }
  return true;
}

std::string NodeMember::where() const {
  return fmt::format("{} port {}", plan_.common.master_addr, plan_.common.master_port);
}

/// Looks the name up, and again if it is not known yet or nobody opens there: where hosts come and
/// go, as pods do, it may mean another address by then.
void NodeMember::seek_node_0(Clock::time_point deadline) {
  std::string why;
  master_ = resolve(plan_.common.master_addr, plan_.common.master_port, why);
  if (master_.empty()) {
    why = fmt::format("the address '{}' cannot be resolved: {}", plan_.common.master_addr, why);
    if (Clock::now() >= deadline) {
      be_unreached(why);
      return;
    }
    if (!said_) {
      say_(fmt::format(
          "{}; it is looked up again for up to {:g} s (--join-timeout)",
          why,
          options_.join_timeout_seconds));
      said_ = true;
    }
    next_look_ = reactor_.at(
        std::min<Clock::time_point>(Clock::now() + kBetweenLooks, deadline),
        [this, deadline] { seek_node_0(deadline); });
    return;
  }
  // An address that says nothing takes all of its time; the next has its turn then.
  std::rotate(
      master_.begin(),
      master_.begin() + static_cast<ptrdiff_t>(looks_++ % master_.size()),
      master_.end());
  client_ = std::make_unique<RendezvousClient>(
      reactor_,
      master_,
      options_.token,
      "control",
      std::min<Clock::time_point>(Clock::now() + kLongestUseOfAddress, deadline),
      [this, deadline](RendezvousClient::Answer answer) {
        if (answer.socket.is_open()) {
          say_hello(std::move(answer));
        } else if (answer.final) {
          refused_ =
              fmt::format("node 0 at {} answers: {}; is it of another job?", where(), answer.why);
        } else if (Clock::now() >= deadline) {
          be_unreached(answer.why);
        } else {
          seek_node_0(deadline);
        }
      });
}

void NodeMember::be_unreached(const std::string& why) {
  unreached_ = fmt::format(
      "node 0 was not to be reached at {} within {:g} s: {}; is --master-addr right, and the "
      "launcher there running?",
      where(),
      options_.join_timeout_seconds,
      why);
}

void NodeMember::say_hello(RendezvousClient::Answer answer) {
  host_address_ = own_address(answer.socket.get()).host();
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
  StoreConnection& connection = store_guests_[number];
  connection.from_rank = std::move(fd);
  connection.client = std::make_unique<RendezvousClient>(
      reactor_,
      master_,
      options_.token,
      "store",
      in_seconds(options_.join_timeout_seconds),
      [this, number](RendezvousClient::Answer answer) { carry(number, std::move(answer)); });
}

void NodeMember::carry(uint64_t number, RendezvousClient::Answer answer) {
  StoreConnection& connection = store_guests_.at(number);
  if (!answer.socket.is_open()) {
    store_guests_.erase(number);
    return;
  }
  connection.relay = std::make_unique<Relay>(
      reactor_,
      std::move(answer.socket),
      std::move(connection.from_rank),
      std::move(answer.read),
      [this, number] { store_guests_.erase(number); });
  connection.client.reset();
}

void NodeMember::on_message(const Json& message) {
  if (message.contains("refused")) {
    refused_ = message.at("refused").get<std::string>();
  } else if (message.contains("start")) {
    run_id_ = message.at("start").get<std::string>();
    started_ = true;
    link_->begin_heartbeat(options_.stall_timeout_seconds, [this](double seconds) {
      lose_node_0(silence_text(seconds), kExitTimedOut);
    });
  } else if (!is_due(message, 0)) {
    return;
  } else if (message.contains("stop")) {
    be_stopped(message.at("stop").get<std::string>());
  } else if (message.contains("signal")) {
    const NodeSignal signal = signal_of(message);
    hold_heartbeat(signal.signal);
    be_signalled(signal);
  } else if (message.contains("verdict")) {
    const Json& verdict = message.at("verdict");
    be_judged(
        {.exit_code = verdict.at("exit_code").get<int>(),
         .cause = verdict.at("cause").get<std::string>(),
         .restart = verdict.at("restart").get<bool>()});
  }
}

void NodeMember::on_lost(const std::string& why) {
  lose_node_0("is gone: " + why, kExitFailure);
}

void NodeMember::lose_node_0(const std::string& how, int exit_code) {
  lost_ = fmt::format("the launcher of node 0 ({}) {}", plan_.common.master_addr, how);
  lost_code_ = exit_code;
  link_.reset();
  if (started_ && !verdict()) {
    be_stopped(lost_);
    judge_alone();
  }
}

void NodeMember::hold_heartbeat(int signal) {
  if (link_ && changes_pause(signal)) {
    link_->hold_heartbeat(signal == SIGTSTP);
  }
}

/// Without node 0 there is nobody to wait for.
void NodeMember::judge_alone() {
  if (told_result_ && !lost_.empty() && !verdict()) {
    be_judged({.exit_code = lost_code_, .cause = lost_});
  }
}

void NodeMember::begin_attempt() {
  NodeSession::begin_attempt();
  told_result_ = false;
  if (!lost_.empty()) {
    be_stopped(lost_);
  }
  for (const Json& message : take_early_messages()) {
    on_message(message);
  }
}

void NodeMember::send(Json message) {
  if (link_) {
    message["attempt"] = attempt();
    link_->send(message);
  }
}

void NodeMember::tell_failure(const NodeResult& result) {
  send({{"failure", to_json(result)}});
}

void NodeMember::tell_signal(const NodeSignal& signal) {
  hold_heartbeat(signal.signal);
  if (link_) {
    link_->send(to_json(signal));
  }
}

void NodeMember::tell_timeout(double seconds) {
  send({{"timeout", seconds}});
}

void NodeMember::tell_views(const std::vector<watch::RankView>& views) {
  send({{"views", views_to_json(views, watch::now_ns())}});
}

void NodeMember::tell_result(const NodeResult& result) {
  told_result_ = true;
  send({{"result", to_json(result)}});
  judge_alone();
}

}  // namespace lockstep::launcher
