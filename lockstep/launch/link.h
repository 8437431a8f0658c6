// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launch/reactor.h"

namespace lockstep::launcher {

/// Messages between two launchers of one job: JSON, a line each, over a socket that a Door has let
/// in. The connection is kept alive and counts as broken when the other host has not answered for
/// 15 s. Not thread-safe.
class Link {
 public:
  using OnMessage = std::function<void(const nlohmann::json& message)>;
  /// `why` for people; nothing follows.
  using OnEnd = std::function<void(const std::string& why)>;

  /// `socket` must not block; `read` is what has come from it already. Callbacks come from the
  /// reactor, never from here, and may destroy this.
  Link(Reactor& reactor, UniqueFd socket, std::string read, OnMessage on_message, OnEnd on_end);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// From the next message on others are told.
  void hand_over(OnMessage on_message, OnEnd on_end);
  /// Sends as soon as the other side takes it.
  void send(const nlohmann::json& message);
  int fd() const { return fd_.get(); }

 private:
  void on_ready(uint32_t events);
  void read_more();
  void deliver();
  void write_more();
  void end(const std::string& why);

  Reactor& reactor_;
  UniqueFd fd_;
  std::string read_;
  std::string waiting_;
  OnMessage on_message_;
  OnEnd on_end_;
  Reactor::TimerId timer_ = 0;
  bool* alive_ = nullptr;  // Of a callback under way: whether this still exists.
  bool ended_ = false;
};

}  // namespace lockstep::launcher
