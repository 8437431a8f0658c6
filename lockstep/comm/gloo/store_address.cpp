// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/gloo/store_address.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {

namespace {

constexpr std::chrono::milliseconds kLookupInterval{250};

std::vector<Address> own_addresses(std::vector<Address> addresses) {
  std::erase_if(addresses, [](const Address& address) { return !address.is_own(); });
  return addresses;
}

/// Returns the advice for a MASTER_ADDR at which this process cannot listen.
std::string remedy(const WorldSpec& world) {
  return fmt::format(
      "if the other hosts do reach this machine at '{}', set LOCKSTEP_HOST_ADDR on rank 0 to the "
      "address at which their connections arrive (this machine has {})",
      world.master_addr,
      fmt::join(interface_addresses(), ", "));
}

}  // namespace

Address store_address(const WorldSpec& world, std::chrono::steady_clock::time_point deadline) {
  const int port = world.master_port;
  if (world.on_one_host()) {
    return loopback(port);
  }
  std::string why;
  std::vector<Address> all = resolve(world.master_addr, port, why);
  while (all.empty() && !is_numeric(world.master_addr) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLookupInterval);
    all = resolve(world.master_addr, port, why);
  }
  if (all.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "MASTER_ADDR cannot be resolved; got '{}': {}; set it to a name or address of rank 0's "
            "host that all hosts can resolve",
            world.master_addr,
            why));
  }
  std::vector<Address> candidates = own_addresses(all);
  // A reachable address first, IPv4 before IPv6.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Address& a, const Address& b) {
    return std::pair(a.is_loopback(), a.family()) < std::pair(b.is_loopback(), b.family());
  });
  // An explicit loopback address is intended: lockstep launch on several hosts forwards connections
  // of other hosts to it.
  if (!candidates.empty() &&
      (!candidates.front().is_loopback() || is_written_as_loopback(world.master_addr))) {
    return candidates.front();
  }
  if (const auto configured = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    const std::vector<Address> own = own_addresses(resolve(*configured, port, why));
    if (!own.empty()) {
      return own.front();
    }
  }
  if (candidates.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "MASTER_ADDR is not an address of rank 0's machine; got '{}'; {}",
            world.master_addr,
            remedy(world)));
  }
  log_warning(fmt::format(
      "MASTER_ADDR '{}' resolves to {} on rank 0's machine, which other hosts cannot reach; {}",
      world.master_addr,
      candidates.front().host(),
      remedy(world)));
  return candidates.front();
}

int bind_store_port(const Address& address, int port) {
  const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    throw Error("join", fmt::format("cannot create a socket: {}", std::strerror(errno)));
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
