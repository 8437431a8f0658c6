// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace lockstep {

/// Where a socket is or goes, IPv4 or IPv6. Thread safety: that of a value.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_loopback() const;
  /// Whether a socket of this machine can have it, whatever the port.
  bool is_own() const;
  int port() const;
  /// "10.0.0.7", "fe80::1".
  std::string host() const;
};

/// The addresses of `host`, a name or a number, in the system's order. Empty, with `why` saying
/// what the system says, if there is none: none yet, it may be, where names come and go. May ask a
/// name server, and then blocks for as long as that takes.
std::vector<Address> resolve(const std::string& host, int port, std::string& why);

/// Any address of this machine (IPv6's that takes IPv4 too, else IPv4's), and its loopback.
Address any_address(int port, bool ipv6);
Address loopback(int port);

/// Whether `host` is written as a number, not a name.
bool is_numeric(const std::string& host);

/// Of a socket: this end and the other one.
Address own_address(int fd);
Address peer_address(int fd);

}  // namespace lockstep
