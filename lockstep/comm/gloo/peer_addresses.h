// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::comm {

/// Holds the address at which a rank accepts connections; port 0 if it is not known. Ranks exchange
/// its bytes.
struct ListenAddress {
  std::array<char, 60> host{};
  int32_t port = 0;
};

/// Returns the address of a listening socket; `listener` -1: port 0.
ListenAddress listen_address(int listener);

/// Returns the port from which this process is connected to each of `listeners`: 0 if it is not, or
/// by several sockets, as ranks that are threads are.
std::vector<int32_t> ports_to(const std::vector<ListenAddress>& listeners);

/// Finds the rank that an error message of Gloo's speaks of.
///
/// A message has the address of the peer's socket: where the peer listens if this rank has
/// connected to it, else the port from which the peer has connected, at the same host. Ranks are
/// those of the group. Thread-safe.
class PeerAddresses {
 public:
  PeerAddresses() = default;
  /// `listeners`: [rank]. `ports`: [rank] the port from which it has connected to this rank, its
  /// ports_to() of this one; 0 if it has not.
  PeerAddresses(const std::vector<ListenAddress>& listeners, const std::vector<int32_t>& ports);

  /// Returns the rank whose address is in `text`; -1 if there is none.
  int rank_in(const std::string& text) const;

 private:
  std::vector<std::vector<std::string>> written_;  ///< [rank] Its addresses, as messages have them.
};

}  // namespace lockstep::comm
