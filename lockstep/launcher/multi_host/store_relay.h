// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/multi_host/relay.h"
#include "lockstep/launcher/process/reactor.h"

namespace lockstep::launcher {

/// Connects other hosts' ranks with rank 0's store at loopback of node 0. The listener of node 0
/// has accepted their connections.
class StoreRelay {
 public:
  /// `reactor` must outlive this object. A connection is closed if the store does not accept it
  /// within `timeout_seconds`.
  StoreRelay(Reactor& reactor, double timeout_seconds)
      : reactor_(reactor), timeout_seconds_(timeout_seconds) {}
  ~StoreRelay();
  StoreRelay(const StoreRelay&) = delete;
  StoreRelay& operator=(const StoreRelay&) = delete;

  /// Sets the port of the store; connections wait until it is known.
  void set_port(int port) { port_ = port; }
  /// Takes over an accepted connection; `read` is the data that was received from it already.
  void add(UniqueFd socket, std::string read);

 private:
  struct Connection {
    UniqueFd from_listener;
    std::string read;
    UniqueFd to_store{};
    Reactor::TimerId timer = 0;
    Clock::time_point deadline{};
    std::unique_ptr<Relay> relay{};
  };

  void connect(uint64_t number);
  void remove(uint64_t number);

  Reactor& reactor_;
  double timeout_seconds_;
  int port_ = 0;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Connection> connections_;
};

}  // namespace lockstep::launcher
