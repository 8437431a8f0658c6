// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/port.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/host/address.h"
#include "lockstep/base/system_error.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNamePrefix = "lockstep-master-port-";

/// The process that holds a socket.
struct SocketOwner {
  pid_t pid = 0;
  std::string name;  // The program's name, as in ps.
};

/// Returns the words of each line of a file in /proc/net, without the first line.
std::vector<std::vector<std::string>> rows_of(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) {
      rows.back().push_back(word);
    }
  }
  return rows;
}

/// Formats an inode as the links in /proc/PID/fd do.
std::string link_to(const std::string& inode) {
  return "socket:[" + inode + "]";
}

std::optional<SocketOwner> holder_of(const std::set<std::string>& links) {
  std::error_code error;
  for (auto process = fs::directory_iterator("/proc", error); process != fs::directory_iterator();
       process.increment(error)) {
    const auto pid = parse_integer(process->path().filename());
    if (!pid || links.empty()) {
      continue;
    }
    std::error_code hidden;
    for (auto fd = fs::directory_iterator(process->path() / "fd", hidden);
         fd != fs::directory_iterator();
         fd.increment(hidden)) {
      if (links.count(fs::read_symlink(fd->path(), hidden)) != 0) {
        std::string name;
        std::getline(std::ifstream(process->path() / "comm"), name);
        return SocketOwner{static_cast<pid_t>(*pid), name};
      }
    }
  }
  return std::nullopt;
}

/// Returns the process that has bound TCP port `port` of any address of this machine. Nothing if
/// there is none, or if it belongs to another user or container. Scans /proc once.
std::optional<SocketOwner> owner_of_port(int port) {
  // sl, ADDRESS:PORT in hexadecimal, remote, state, queues, timers, retransmits, uid, timeout,
  // inode.
  constexpr size_t kLocal = 1;
  constexpr size_t kInode = 9;
  const std::string end = fmt::format(":{:04X}", port);
  std::set<std::string> links;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const auto& row : rows_of(table)) {
      if (row.size() > kInode && row[kLocal].ends_with(end) && row[kInode] != "0") {
        links.insert(link_to(row[kInode]));
      }
    }
  }
  return holder_of(links);
}

/// Returns the process that has bound the abstract Unix socket of that name.
std::optional<SocketOwner> owner_of_name(const std::string& name) {
  // Number, references, protocol, flags, type, state, inode, path.
  constexpr size_t kInode = 6;
  constexpr size_t kPath = 7;
  std::set<std::string> links;
  for (const auto& row : rows_of("/proc/net/unix")) {
    if (row.size() > kPath && row[kPath] == "@" + name) {
      links.insert(link_to(row[kInode]));
    }
  }
  return holder_of(links);
}

std::string by_process(const std::optional<SocketOwner>& owner) {
  return owner ? fmt::format(" (process {}, {})", owner->pid, owner->name) : "";
}

UniqueFd open_socket(int domain) {
  UniqueFd fd(::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    throw Error("master port", fmt::format("cannot create a socket: {}", system_error_text(errno)));
  }
  return fd;
}

void allow_reuse(const UniqueFd& fd) {
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    throw Error("master port", fmt::format("cannot set SO_REUSEADDR; {}", std::strerror(errno)));
  }
}

/// Returns 0, or errno.
int bind_loopback(const UniqueFd& fd, int port) {
  const Address address = loopback(port);
  return ::bind(fd.get(), address.get(), address.length) == 0 ? 0 : errno;
}

int bound_port(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(
        "master port", fmt::format("the bound port cannot be read; {}", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

/// Returns 0, or errno. Two bound sockets with SO_REUSEADDR do not exclude each other; this name
/// does.
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
    // Without SO_REUSEADDR the kernel returns a port that no other socket is bound to.
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
      "master port", "no port could be reserved for this job in 100 attempts; set --master-port");
}

PortReservation PortReservation::of(int port) {
  UniqueFd name = open_socket(AF_UNIX);
  if (const int error = claim_name(name, port); error != 0) {
    throw ConfigError(
        "master port",
        fmt::format(
            "port {} is reserved by another lockstep job{}; try another one, or --master-port 0 "
            "for any",
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
