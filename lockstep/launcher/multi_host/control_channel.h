// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// What reaches a launcher from beyond its own ranks and its user: from the other launchers of its
/// job, and from the process that started it on this host, as lines on its stdin. Not thread-safe.
class ControlChannel {
 public:
  /// `orders`: where lines `signal N` come from; when it ends, so does the job. -1: nobody orders.
  explicit ControlChannel(int orders);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  Reactor& reactor() { return reactor_; }
  /// Null in a job of one host.
  NodeSession* session() { return session_.get(); }
  void set_session(std::unique_ptr<NodeSession> session) { session_ = std::move(session); }

  /// The next signal that was ordered: as if the user had sent it to this process.
  std::optional<int> next_order();
  /// Another process has started this launcher and passes on what its user wants.
  bool is_ordered() const { return orders_ >= 0; }
  /// Who started this launcher is gone.
  bool orders_ended() const { return orders_ended_; }
  /// Why the ranks here are to stop, if they are.
  std::optional<std::string> end() const;

 private:
  void on_ready();

  Reactor reactor_;
  std::unique_ptr<NodeSession> session_;
  int orders_;
  std::string read_;
  std::deque<int> signals_;
  bool orders_ended_ = false;
};

}  // namespace lockstep::launcher
