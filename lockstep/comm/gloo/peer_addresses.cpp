// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/peer_addresses.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstddef>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/host/address.h"
#include "lockstep/comm/gloo/listener_guard.h"

namespace lockstep::comm {
namespace {

/// Returns an address as Gloo's messages have it: the port is in network byte order, read as a
/// number.
std::string written(const std::string& host, int32_t port) {
  return fmt::format("[{}]:{}", host, htons(static_cast<uint16_t>(port)));
}

}  // namespace

ListenAddress listen_address(int listener) {
  ListenAddress result;
  if (listener >= 0) {
    const Address address = own_address(listener);
    const std::string host = address.host();
    std::copy_n(host.begin(), std::min(host.size(), result.host.size() - 1), result.host.begin());
    result.port = address.port();
  }
  return result;
}

std::vector<int32_t> ports_to(const std::vector<ListenAddress>& listeners) {
  std::map<std::pair<std::string, int32_t>, std::vector<int32_t>> ports;
  for (const int socket : own_sockets()) {
    const Address peer = peer_address(socket);
    if (peer.family() == AF_INET || peer.family() == AF_INET6) {
      ports[{peer.host(), peer.port()}].push_back(own_address(socket).port());
    }
  }
  std::vector<int32_t> result;
  for (const ListenAddress& listener : listeners) {
    const auto found = ports.find({listener.host.data(), listener.port});
    result.push_back(found != ports.end() && found->second.size() == 1 ? found->second[0] : 0);
  }
  return result;
}

PeerAddresses::PeerAddresses(
    const std::vector<ListenAddress>& listeners, const std::vector<int32_t>& ports)
    : written_(listeners.size()) {
  for (size_t rank = 0; rank < listeners.size(); ++rank) {
    for (const int32_t port : {listeners[rank].port, ports[rank]}) {
      if (port != 0) {
        written_[rank].push_back(written(listeners[rank].host.data(), port));
      }
    }
  }
}

int PeerAddresses::rank_in(const std::string& text) const {
  const auto speaks_of = [&text](const std::vector<std::string>& addresses) {
    return std::ranges::any_of(addresses, [&text](const std::string& address) {
      const size_t found = text.find(address);
      const size_t end = found + address.size();
      return found != std::string::npos &&
             (end == text.size() || text[end] < '0' || text[end] > '9');
    });
  };
  const auto found = std::ranges::find_if(written_, speaks_of);
  return found == written_.end() ? -1 : static_cast<int>(found - written_.begin());
}

}  // namespace lockstep::comm
