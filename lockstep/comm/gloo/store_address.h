// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "lockstep/base/world.h"

namespace lockstep::comm {

/// Where a socket can listen, IPv4 or IPv6.
struct ListenAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  /// Whether a socket of this machine can have it, whatever the port.
  bool is_own() const;
  /// As a number, without the port.
  std::string text() const;
};

/// The addresses of `host`, a name or a number, in the system's order; not empty. ConfigError if
/// there is none. May ask a name server, for as long as that takes.
std::vector<ListenAddress> listen_addresses(const std::string& host, int port);

/// The addresses of this machine's interfaces that are up, without loopback, as numbers.
std::set<std::string> interface_addresses();

/// Where rank 0's store listens: one address of this machine, never all of them. It is loopback if
/// all ranks share the host, else an own address of master_addr, else LOCKSTEP_HOST_ADDR.
/// ConfigError if none of these is this machine's.
ListenAddress store_address(const WorldSpec& world);

/// A listening socket for the store, which the caller owns. ConfigError if the port is taken.
int bind_store_port(const ListenAddress& address, int port);

}  // namespace lockstep::comm
