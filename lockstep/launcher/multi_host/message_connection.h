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

/// Messages between two launchers of one job: JSON, a line each, over a socket that a Door has let
/// in. The connection is kept alive and counts as broken when the other host has not answered for
/// 15 s. That a host answers says nothing of the launcher there: see begin_heartbeat(). Not
/// thread-safe.
class MessageConnection {
 public:
  using OnMessage = std::function<void(const nlohmann::json& message)>;
  /// `why` for people; nothing follows.
  using OnEnd = std::function<void(const std::string& why)>;
  using OnSilence = std::function<void(double seconds)>;

  /// `socket` must not block; `read` is what has come from it already. Callbacks come from the
  /// reactor, never from here, and may destroy this.
  MessageConnection(
      Reactor& reactor, UniqueFd socket, std::string read, OnMessage on_message, OnEnd on_end);
  ~MessageConnection();
  MessageConnection(const MessageConnection&) = delete;
  MessageConnection& operator=(const MessageConnection&) = delete;

  /// From the next message on others are told.
  void hand_over(OnMessage on_message, OnEnd on_end);
  /// Sends as soon as the other side takes it.
  void send(const nlohmann::json& message);
  /// From now on tells the other side twice a second that this process runs. Calls `on_silence`,
  /// once, when nothing has come from there for `limit_seconds`, at least 2: it is stopped or
  /// hangs. Time in which this process itself was stopped does not count. 0: never.
  void begin_heartbeat(double limit_seconds, OnSilence on_silence);
  /// While held, neither side needs to say that it runs.
  void hold_heartbeat(bool held);
  int fd() const { return fd_.get(); }

 private:
  void on_ready(uint32_t events);
  void read_more();
  void deliver();
  void write_more();
  void end(const std::string& why);
  void beat();

  Reactor& reactor_;
  UniqueFd fd_;
  std::string read_;
  std::string waiting_;
  OnMessage on_message_;
  OnEnd on_end_;
  Reactor::TimerId timer_ = 0;
  OnSilence on_silence_;
  std::chrono::duration<double> silence_limit_{0};
  Clock::time_point received_signal_;  // When something came from the other side, or has to from.
  Clock::time_point beat_due_;
  Reactor::TimerId beat_timer_ = 0;
  bool held_ = false;
  bool* alive_ = nullptr;  // Of a callback under way: whether this still exists.
  bool ended_ = false;
};

}  // namespace lockstep::launcher
