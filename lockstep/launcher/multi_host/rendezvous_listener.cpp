// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/rendezvous_listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/host/machine.h"
#include "lockstep/launcher/plan/rank_environment.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""s;

constexpr size_t kLongestLine = 300;
constexpr auto kHelloTimeout = 5s;
constexpr auto kReportInterval = 10s;

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) {
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return differ == 0;
}

void answer(int fd, std::string_view text) {
  // A few bytes fit into the empty buffer of a healthy connection; another one is closed anyway.
  [[maybe_unused]] const ssize_t sent =
      ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

UniqueFd listen_at(const Address& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const int off = 0;
  if (fd.is_open()) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.family() == AF_INET6) {
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
  }
  if (!fd.is_open() || ::bind(fd.get(), address.get(), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    throw ConfigError(
        "lockstep launch",
        fmt::format(
            "cannot listen for the other hosts at {} port {}: {}; {}",
            address.host(),
            address.port(),
            std::strerror(error),
            error == EADDRINUSE ? "another job may use it; set another --master-port on all hosts"
                                : "--master-addr must be an address of the host with node rank 0"));
  }
  return fd;
}

}  // namespace

std::optional<Address> listener_address(
    const std::string& master_addr, int port, std::string& why) {
  if (master_addr == "localhost") {
    return loopback(port);
  }
  const std::vector<Address> all = resolve(master_addr, port, why);
  if (all.empty()) {
    why = fmt::format(
        "the address '{}' cannot be resolved: {}; set --master-addr to a number like 10.0.0.1, or "
        "to a name that all hosts resolve",
        master_addr,
        why);
    return std::nullopt;
  }
  bool is_own_name = false;
  for (const Address& address : all) {
    if (address.is_own()) {
      if (!address.is_loopback() || is_numeric(master_addr)) {
        return address;
      }
      is_own_name = true;
    }
  }
  if (is_own_name) {
    const UniqueFd ipv6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return any_address(port, ipv6.is_open());
  }
  why = fmt::format(
      "--master-addr must be an address of this host, which has node rank 0; got '{}' ({}), "
      "expected one of {}, or its name; give every launcher an address that all hosts reach",
      master_addr,
      all.front().host(),
      fmt::join(interface_addresses(), ", "));
  return std::nullopt;
}

RendezvousListener::RendezvousListener(
    Reactor& reactor,
    const Address& address,
    std::string token,
    OnConnection on_connection,
    OnRefused on_refused)
    : reactor_(reactor),
      listener_(listen_at(address)),
      port_(own_address(listener_.get()).port()),
      token_(std::move(token)),
      on_connection_(std::move(on_connection)),
      on_refused_(std::move(on_refused)) {
  reactor_.watch(listener_.get(), EPOLLIN, [this](uint32_t /*events*/) { accept(); });
}

RendezvousListener::~RendezvousListener() {
  reactor_.unwatch(listener_.get());
  for (const auto& [number, connection] : connections_) {
    reactor_.unwatch(connection.fd.get());
    reactor_.cancel(connection.timer);
  }
}

void RendezvousListener::accept() {
  for (;;) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.is_open()) {
      // No descriptor is free: close the oldest connection.
      if ((errno == EMFILE || errno == ENFILE) && !connections_.empty()) {
        reject(connections_.begin()->first, "this process has no free file descriptor");
        continue;
      }
      return;
    }
    if (connections_.size() == kMaxPending) {
      reject(connections_.begin()->first, "too many connections sent nothing");
    }
    const uint64_t number = ++last_connection_;
    Connection& connection = connections_[number];
    connection.fd = std::move(fd);
    connection.timer = reactor_.at(Clock::now() + kHelloTimeout, [this, number] {
      reject(number, "it sent nothing for 5 s");
    });
    reactor_.watch(
        connection.fd.get(), EPOLLIN, [this, number](uint32_t /*events*/) { on_ready(number); });
  }
}

void RendezvousListener::on_ready(uint64_t number) {
  Connection& connection = connections_.at(number);
  std::array<char, kLongestLine> buffer;
  const ssize_t got = ::recv(connection.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    reject(number, "it closed the connection without a message");
    return;
  }
  connection.read.append(buffer.data(), static_cast<size_t>(got));
  const size_t compared = std::min(connection.read.size(), kGreeting.size());
  const size_t end = connection.read.find('\n');
  if (connection.read.compare(0, compared, kGreeting, 0, compared) != 0 ||
      (end == std::string::npos && connection.read.size() > kLongestLine)) {
    reject(number, "it did not send a message of Lockstep");
  } else if (end != std::string::npos) {
    const std::string line = connection.read.substr(kGreeting.size(), end - kGreeting.size());
    connection.read.erase(0, end + 1);
    check_token(number, line);
  }
}

void RendezvousListener::check_token(uint64_t number, const std::string& line) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || !equal_in_constant_time(line.substr(0, space), token_)) {
    reject(
        number,
        "it has another token; it may belong to another job",
        "NO this job has another token\n");
    return;
  }
  auto connection = std::move(connections_.extract(number).mapped());
  reactor_.unwatch(connection.fd.get());
  reactor_.cancel(connection.timer);
  answer(connection.fd.get(), "OK\n");
  on_connection_(line.substr(space + 1), std::move(connection.fd), std::move(connection.read));
}

void RendezvousListener::reject(uint64_t number, const std::string& why, const char* text) {
  auto connection = std::move(connections_.extract(number).mapped());
  reactor_.unwatch(connection.fd.get());
  reactor_.cancel(connection.timer);
  answer(connection.fd.get(), text);
  ++refused_;
  const auto now = Clock::now();
  if (last_report_ == Clock::time_point() || now - last_report_ >= kReportInterval) {
    on_refused_(fmt::format(
        "refused {} connection{} at port {}; the last one, from {}: {}",
        refused_,
        refused_ == 1 ? "" : "s",
        port_,
        peer_address(connection.fd.get()).host(),
        why));
    last_report_ = now;
    refused_ = 0;
  }
}

bool is_token(const std::string& text) {
  constexpr size_t kShortest = 16;
  constexpr size_t kLongest = 128;
  return text.size() >= kShortest && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '_';
         });
}

std::string random_token() {
  constexpr size_t kBytes = 16;
  return random_hex(kBytes);
}

}  // namespace lockstep::launcher
