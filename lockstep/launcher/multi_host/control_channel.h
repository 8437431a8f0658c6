// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/launcher/multi_host/node_session.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Receives commands from the job's other launchers and from this launcher's starter.
///
/// The starter is the process that started this launcher; its commands are lines on stdin.
class ControlChannel {
 public:
  /// Reads lines `signal N` from `command_fd`; -1: no starter. End of file ends the job.
  explicit ControlChannel(int command_fd);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  Reactor& reactor() { return reactor_; }
  /// Null in a job of one host.
  NodeSession* session() { return session_.get(); }
  void set_session(std::unique_ptr<NodeSession> session) { session_ = std::move(session); }

  /// Returns the next signal that the starter has sent. It has the effect of a signal to this
  /// process.
  std::optional<int> next_command();
  /// Returns whether another process has started this launcher and forwards its user's commands.
  bool has_starter() const { return command_fd_ >= 0; }
  /// Returns whether the starter has ended.
  bool commands_ended() const { return commands_ended_; }
  /// Returns the reason why the ranks here must stop, if there is one.
  std::optional<std::string> stop_reason() const;

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
