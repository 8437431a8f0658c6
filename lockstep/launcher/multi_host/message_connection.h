// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/clock.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Sends and receives messages between two launchers of a job, one line of JSON each.
///
/// The socket is one that a RendezvousListener has accepted. It uses keepalive and counts as broken
/// if the other host has not answered for 15 s. This only checks the host; start_heartbeat() checks
/// the launcher.
class MessageConnection {
 public:
  using OnMessage = std::function<void(const nlohmann::json& message)>;
  /// `why` is a text for the user; no further callback follows.
  using OnEnd = std::function<void(const std::string& why)>;
  using OnSilence = std::function<void(double seconds)>;

  /// `socket` must be non-blocking; `read` has been received from it already. Callbacks come from
  /// the reactor, never from a call here, and may destroy this.
  MessageConnection(
      Reactor& reactor, UniqueFd socket, std::string read, OnMessage on_message, OnEnd on_end);
  ~MessageConnection();
  MessageConnection(const MessageConnection&) = delete;
  MessageConnection& operator=(const MessageConnection&) = delete;

  /// Replaces the callbacks, from the next message on.
  void set_callbacks(OnMessage on_message, OnEnd on_end);
  /// Sends as soon as the other side can receive.
  void send(const nlohmann::json& message);
  /// Sends a heartbeat twice a second from now on. Calls `on_silence`, once, if nothing is received
  /// for `limit_seconds` (at least 2; 0: never): the other launcher is stopped or hangs. Time in
  /// which this process was stopped does not count.
  void start_heartbeat(double limit_seconds, OnSilence on_silence);
  /// While paused, neither side needs to send heartbeats.
  void pause_heartbeat(bool paused);
  int fd() const { return fd_.get(); }

 private:
  void on_ready(uint32_t events);
  void read_more();
  void deliver();
  void write_more();
  void end(const std::string& why);
  void send_heartbeat();

  Reactor& reactor_;
  UniqueFd fd_;
  std::string receive_buffer_;
  std::string send_buffer_;
  OnMessage on_message_;
  OnEnd on_end_;
  Reactor::TimerId timer_ = 0;
  OnSilence on_silence_;
  std::chrono::duration<double> silence_limit_{0};
  Clock::time_point last_received_;  // Initially the start of the heartbeat.
  Clock::time_point heartbeat_due_;
  Reactor::TimerId heartbeat_timer_ = 0;
  bool heartbeat_paused_ = false;
  bool* alive_ = nullptr;  // A flag of the running callback; the destructor clears it.
  bool ended_ = false;
};

}  // namespace lockstep::launcher
