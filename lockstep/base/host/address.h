// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace lockstep {

/// An IPv4 or IPv6 socket address. Thread safety: that of a value.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_loopback() const;
  /// Returns whether a socket of this machine can bind to the address; the port is ignored.
  bool is_own() const;
  int port() const;
  /// Formats "10.0.0.7" or "fe80::1".
  std::string host() const;
};

/// Resolves `host`, a name or a number, to its addresses in the system's order. If it has none,
/// returns an empty list, and the system's reason in `why`. Blocks while a name server is asked.
std::vector<Address> resolve(const std::string& host, int port, std::string& why);

/// Returns the wildcard address: IPv6's, which accepts IPv4 too, or IPv4's.
Address any_address(int port, bool ipv6);
/// Returns IPv4's loopback address.
Address loopback(int port);

/// Returns whether `host` is written as a number, not a name.
bool is_numeric(const std::string& host);
/// Returns whether `host` is "localhost" or the number of a loopback address. Asks no name server.
bool is_written_as_loopback(const std::string& host);

/// Returns the local or the remote address of a socket.
Address own_address(int fd);
Address peer_address(int fd);

}  // namespace lockstep
