// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/node_session.h"

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lockstep/launcher/multi_host/node_coordinator.h"
#include "lockstep/launcher/multi_host/node_member.h"

namespace lockstep::launcher {

std::unique_ptr<NodeSession> NodeSession::make(
    Reactor& reactor, const JobPlan& plan, const NodeOptions& options, ShowMessage show_message) {
  if (plan.here == 0) {
    return std::make_unique<NodeCoordinator>(reactor, plan, options, std::move(show_message));
  }
  return std::make_unique<NodeMember>(reactor, plan, options, std::move(show_message));
}

void NodeSession::begin_attempt() {
  ++attempt_;
  stop_.reset();
  job_result_.reset();
}

bool NodeSession::is_current(const nlohmann::json& message, int node) {
  const auto attempt = message.find("attempt");
  if (attempt == message.end() || *attempt == attempt_) {
    return true;
  }
  if (*attempt > attempt_) {
    next_attempt_messages_.push_back(message);
    next_attempt_messages_.back()["node"] = node;
  }
  return false;
}

std::optional<NodeSignal> NodeSession::next_signal() {
  if (signals_.empty()) {
    return std::nullopt;
  }
  const NodeSignal signal = signals_.front();
  signals_.pop_front();
  return signal;
}

std::string NodeSession::silence_text(double seconds) {
  return fmt::format("is stopped or hangs: it sent nothing for {:.1f} s", seconds);
}

bool NodeSession::changes_pause(int signal) {
  return signal != SIGUSR1 && signal != SIGUSR2;
}

void NodeSession::set_stop(const std::string& why) {
  if (!stop_) {
    stop_ = why;
  }
}

}  // namespace lockstep::launcher
