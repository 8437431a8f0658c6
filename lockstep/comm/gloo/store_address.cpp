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

constexpr std::chrono::milliseconds kBetweenLooks{250};

bool is_written_as_loopback(const std::string& host) {
  std::string why;
  return host == "localhost" || (is_numeric(host) && resolve(host, 0, why).front().is_loopback());
}

std::vector<Address> own_addresses(std::vector<Address> addresses) {
  std::erase_if(addresses, [](const Address& address) { return !address.is_own(); });
  return addresses;
}

/// What to do if MASTER_ADDR says nothing that can be listened at.
std::string remedy(const WorldSpec& world) {
  return fmt::format(
      "if the others reach this machine at '{}' all the same, set LOCKSTEP_HOST_ADDR on rank 0 to "
      "the address at which their connections arrive (this machine has {})",
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
    std::this_thread::sleep_for(kBetweenLooks);
    all = resolve(world.master_addr, port, why);
  }
  if (all.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "cannot resolve the master's address '{}': {}; set MASTER_ADDR to a name or number of "
            "rank 0's host that all hosts know",
            world.master_addr,
            why));
  }
  std::vector<Address> candidates = own_addresses(all);
  // A reachable address first, IPv4 before IPv6.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Address& a, const Address& b) {
    return std::pair(a.is_loopback(), a.family()) < std::pair(b.is_loopback(), b.family());
  });
  // Loopback is meant where it is written: several launchers of ours carry what the ranks of other
  // hosts say to rank 0's, which is master_addr then.
  if (!candidates.empty() &&
      (!candidates.front().is_loopback() || is_written_as_loopback(world.master_addr))) {
    return candidates.front();
  }
  if (const auto told = Environment::process().text("LOCKSTEP_HOST_ADDR")) {
    const std::vector<Address> own = own_addresses(resolve(*told, port, why));
    if (!own.empty()) {
      return own.front();
    }
  }
  if (candidates.empty()) {
    throw ConfigError(
        "join",
        fmt::format(
            "MASTER_ADDR must be an address of rank 0's machine; got '{}', which is another's; {}",
            world.master_addr,
            remedy(world)));
  }
  log_warning(fmt::format(
      "'{}' (MASTER_ADDR) means {} on rank 0's machine, where no other host can reach it; {}",
      world.master_addr,
      candidates.front().host(),
      remedy(world)));
  return candidates.front();
}

int bind_store_port(const Address& address, int port) {
  const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
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
