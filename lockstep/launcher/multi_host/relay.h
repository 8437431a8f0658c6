// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <string>
#include <sys/types.h>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Copies data between two connected sockets, in both directions, until both have ended or one
/// breaks. The end of one direction is forwarded, so that half-closed connections work. Data is
/// sent at once: TCP_NODELAY.
///
/// Memory: up to 64 KiB in each direction; a slow reader makes the other side wait.
class Relay {
 public:
  /// Takes ownership of both sockets, which must be non-blocking. `to_second` is data already read
  /// from `first`. `on_end` is called once, and may destroy this.
  Relay(
      Reactor& reactor,
      UniqueFd first,
      UniqueFd second,
      std::string to_second,
      std::function<void()> on_end);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  struct Side {
    UniqueFd fd;
    std::string waiting;      // Data to write to it.
    bool ended = false;       // Its stream has ended.
    bool write_shut = false;  // shutdown(SHUT_WR) was called: the other side has ended.
    uint32_t events = 0;
  };

  void on_ready(size_t side, uint32_t events);
  bool read_from(Side& from, Side& to);
  bool write_to(Side& to, const Side& from);
  void update(Side& side, const Side& other);
  void end();

  Reactor& reactor_;
  std::array<Side, 2> sides_;
  std::function<void()> on_end_;
};

}  // namespace lockstep::launcher
