// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Receives commands from the other launchers of the job, and from the process that started this
/// launcher, as lines on stdin. Not thread-safe.
class ControlChannel {
 public:
  /// `command_fd`: the descriptor of lines `signal N`; its end ends the job. -1: none.
  explicit ControlChannel(int command_fd);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  Reactor& reactor() { return reactor_; }
  /// Null in a job of one host.
  NodeSession* session() { return session_.get(); }
  void set_session(std::unique_ptr<NodeSession> session) { session_ = std::move(session); }

  /// The next signal that the starter has sent; it has the effect of a signal to this process.
  std::optional<int> next_command();
  /// Another process has started this launcher and forwards its user's commands.
  bool has_starter() const { return command_fd_ >= 0; }
  /// The starter of this launcher has ended.
  bool commands_ended() const { return commands_ended_; }
  /// The reason why the ranks here must stop, if there is one.
  std::optional<std::string> end() const;

 private:
  void on_ready();

  Reactor reactor_;
  std::unique_ptr<NodeSession> session_;
  int command_fd_;
  std::string read_;
  std::deque<int> signals_;
  bool commands_ended_ = false;
};

}  // namespace lockstep::launcher
