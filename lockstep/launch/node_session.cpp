// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/node_session.h"

#include <utility>

#include "lockstep/launch/node_coordinator.h"
#include "lockstep/launch/node_member.h"

namespace lockstep::launcher {

std::unique_ptr<NodeSession> NodeSession::make(
    Reactor& reactor, const JobPlan& plan, const NodeOptions& options, Say say) {
  if (plan.here == 0) {
    return std::make_unique<NodeCoordinator>(reactor, plan, options, std::move(say));
  }
  return std::make_unique<NodeMember>(reactor, plan, options, std::move(say));
}

void NodeSession::begin_attempt() {
  stop_.reset();
  verdict_.reset();
}

std::optional<int> NodeSession::next_signal() {
  if (signals_.empty()) {
    return std::nullopt;
  }
  const int signal = signals_.front();
  signals_.pop_front();
  return signal;
}

void NodeSession::be_stopped(const std::string& why) {
  if (!stop_) {
    stop_ = why;
  }
}

}  // namespace lockstep::launcher
