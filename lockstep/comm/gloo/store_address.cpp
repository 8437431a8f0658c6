// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/store_address.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/machine.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::comm {

bool ListenAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(four->sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

bool ListenAddress::is_own() const {
  ListenAddress any_port = *this;
  // sin_port and sin6_port lie at the same place.
  reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port = 0;
  const UniqueFd fd(::socket(storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.is_open() && ::bind(fd.get(), any_port.get(), length) == 0;
}

std::string ListenAddress::text() const {
  std::array<char, NI_MAXHOST> host{};
  const int failed =
      ::getnameinfo(get(), length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? host.data() : "an unknown address";
}

std::vector<ListenAddress> listen_addresses(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed != 0) {
    throw ConfigError(
        "join",
        fmt::format(
            "cannot resolve the master's address '{}': {}; set MASTER_ADDR to a name or number of "
            "rank 0's host that all hosts know",
            host,
            ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  std::vector<ListenAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    ListenAddress& address = found.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  return found;
}

std::set<std::string> interface_addresses() {
  std::set<std::string> all;
  for (const Machine::Interface& interface : describe_interfaces()) {
    if (interface.up && !interface.loopback) {
      all.insert(interface.addresses.begin(), interface.addresses.end());
    }
  }
  return all;
}

ListenAddress store_address(const WorldSpec& world) {
  const int port = world.master_port;
  if (world.on_one_host()) {
    return listen_addresses("127.0.0.1", port).front();
  }
  // Several launchers of ours carry what the ranks of other hosts say to rank 0's loopback, which
  // is master_addr then.
  std::vector<ListenAddress> candidates = listen_addresses(world.master_addr, port);
  std::erase_if(candidates, [](const ListenAddress& address) { return !address.is_own(); });
  // A reachable address first, IPv4 before IPv6.
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const ListenAddress& a, const ListenAddress& b) {
        return std::pair(a.is_loopback(), a.storage.ss_family) <
               std::pair(b.is_loopback(), b.storage.ss_family);
      });
  if (!candidates.empty()) {
    return candidates.front();
  }
  if (const auto told = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    const ListenAddress address = listen_addresses(*told, port).front();
    if (address.is_own()) {
      return address;
    }
  }
  throw ConfigError(
      "join",
      fmt::format(
          "MASTER_ADDR is no address of rank 0's machine; got '{}', expected one of {}; if the "
          "others reach this machine at '{}' all the same, set LOCKSTEP_HOST_ADDR on rank 0 to the "
          "address at which their connections arrive",
          world.master_addr,
          fmt::join(interface_addresses(), ", "),
          world.master_addr));
}

int bind_store_port(const ListenAddress& address, int port) {
  const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    throw Error("join", fmt::format("cannot make a socket: {}", std::strerror(errno)));
  }
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, address.get(), address.length) != 0 || ::listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    ::close(fd);
    throw ConfigError(
        "join",
        fmt::format(
            "rank 0 cannot listen on port {}: {}; another job may use it; set MASTER_PORT to a "
            "free port",
            port,
            std::strerror(error)));
  }
  return fd;
}

}  // namespace lockstep::comm
