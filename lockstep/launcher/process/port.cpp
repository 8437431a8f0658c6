// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/port.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"
#include "lockstep/base/system_error.h"
#include "lockstep/launcher/process/socket_owner.h"

namespace lockstep::launcher {
namespace {

constexpr const char* kNamePrefix = "lockstep-master-port-";

std::string by_process(const std::optional<SocketOwner>& owner) {
  return owner ? fmt::format(" (process {}, {})", owner->pid, owner->name) : "";
}

UniqueFd open_socket(int domain) {
  UniqueFd fd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    throw Error("master port", fmt::format("no socket: {}", system_error_text(errno)));
  }
  return fd;
}

void allow_reuse(const UniqueFd& fd) {
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    throw Error("master port", fmt::format("SO_REUSEADDR refused; {}", std::strerror(errno)));
  }
}

/// 0, or errno.
int bind_loopback(const UniqueFd& fd, int port) {
  const Address address = loopback(port);
  return ::bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
}

int bound_port(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(
        "master port", fmt::format("cannot tell which port was bound; {}", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

/// 0, or errno. Two bound sockets with SO_REUSEADDR do not exclude each other; this name does.
int claim_name(const UniqueFd& fd, int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = kNamePrefix + std::to_string(port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 ? 0 : errno;
}

}  // namespace

PortReservation::PortReservation(int port, UniqueFd socket, UniqueFd name)
    : port_(port), socket_(std::move(socket)), name_(std::move(name)) {}

PortReservation PortReservation::any() {
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    UniqueFd socket = open_socket(AF_INET);
    // Without SO_REUSEADDR the kernel gives a port nobody else has bound in any way.
    if (const int error = bind_loopback(socket, 0); error != 0) {
      throw Error(
          "master port", fmt::format("no free port on 127.0.0.1; {}", std::strerror(error)));
    }
    allow_reuse(socket);
    const int port = bound_port(socket);
    UniqueFd name = open_socket(AF_UNIX);
    if (claim_name(name, port) == 0) {
      return {port, std::move(socket), std::move(name)};
    }
  }
  throw Error(
      "master port", "no port could be held for this job in 100 attempts; try --master-port");
}

PortReservation PortReservation::of(int port) {
  UniqueFd name = open_socket(AF_UNIX);
  if (const int error = claim_name(name, port); error != 0) {
    throw ConfigError(
        "master port",
        fmt::format(
            "port {} is held by another lockstep job{}; try another one, or --master-port 0 for "
            "any",
            port,
            by_process(owner_of_name(kNamePrefix + std::to_string(port)))));
  }
  UniqueFd socket = open_socket(AF_INET);
  allow_reuse(socket);
  if (const int error = bind_loopback(socket, port); error != 0) {
    throw ConfigError(
        "master port",
        fmt::format(
            "port {} cannot be used; {}{}; try another one, or --master-port 0 for any",
            port,
            std::strerror(error),
            by_process(owner_of_port(port))));
  }
  return {port, std::move(socket), std::move(name)};
}

}  // namespace lockstep::launcher
