// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/door.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::launcher {
namespace {

using std::chrono_literals::operator""s;

constexpr size_t kLongestLine = 300;
constexpr auto kPatience = 5s;
constexpr auto kTellEvery = 10s;

/// Takes as long for a wrong token as for the right one.
bool same(std::string_view a, std::string_view b) {
  unsigned differ = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) {
    differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return differ == 0;
}

void answer(int fd, std::string_view text) {
  // A few bytes into an empty buffer: whoever cannot take them does not get them.
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
            error == EADDRINUSE ? "another job may use it; try another --master-port on all hosts"
                                : "is --master-addr an address of the host with node rank 0?"));
  }
  return fd;
}

}  // namespace

Door::Door(
    Reactor& reactor,
    const Address& address,
    std::string token,
    OnGuest on_guest,
    OnRefused on_refused)
    : reactor_(reactor),
      listener_(listen_at(address)),
      port_(own_address(listener_.get()).port()),
      token_(std::move(token)),
      on_guest_(std::move(on_guest)),
      on_refused_(std::move(on_refused)) {
  reactor_.watch(listener_.get(), EPOLLIN, [this](uint32_t /*events*/) { accept(); });
}

Door::~Door() {
  reactor_.unwatch(listener_.get());
  for (const auto& [number, guest] : guests_) {
    reactor_.unwatch(guest.fd.get());
    reactor_.cancel(guest.timer);
  }
}

void Door::accept() {
  for (;;) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.is_open()) {
      // Out of descriptors: the oldest guest's may serve the next one.
      if ((errno == EMFILE || errno == ENFILE) && !guests_.empty()) {
        turn_away(guests_.begin()->first, "no descriptors are left");
        continue;
      }
      return;
    }
    if (guests_.size() == kMostGuests) {
      turn_away(guests_.begin()->first, "too many came at once and said nothing");
    }
    const uint64_t number = ++last_guest_;
    Guest& guest = guests_[number];
    guest.fd = std::move(fd);
    guest.timer = reactor_.at(
        Clock::now() + kPatience, [this, number] { turn_away(number, "it said nothing for 5 s"); });
    reactor_.watch(
        guest.fd.get(), EPOLLIN, [this, number](uint32_t /*events*/) { on_ready(number); });
  }
}

void Door::on_ready(uint64_t number) {
  Guest& guest = guests_.at(number);
  std::array<char, kLongestLine> buffer;
  const ssize_t got = ::recv(guest.fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (got <= 0) {
    turn_away(number, "it left without a word");
    return;
  }
  guest.read.append(buffer.data(), static_cast<size_t>(got));
  const size_t compared = std::min(guest.read.size(), kGreeting.size());
  const size_t end = guest.read.find('\n');
  if (guest.read.compare(0, compared, kGreeting, 0, compared) != 0 ||
      (end == std::string::npos && guest.read.size() > kLongestLine)) {
    turn_away(number, "it does not speak Lockstep's language");
  } else if (end != std::string::npos) {
    const std::string line = guest.read.substr(kGreeting.size(), end - kGreeting.size());
    guest.read.erase(0, end + 1);
    judge(number, line);
  }
}

void Door::judge(uint64_t number, const std::string& line) {
  const size_t space = line.find(' ');
  if (space == std::string::npos || !same(line.substr(0, space), token_)) {
    turn_away(
        number, "it has another token; is it of another job?", "NO another token is needed here\n");
    return;
  }
  auto guest = std::move(guests_.extract(number).mapped());
  reactor_.unwatch(guest.fd.get());
  reactor_.cancel(guest.timer);
  answer(guest.fd.get(), "OK\n");
  on_guest_(line.substr(space + 1), std::move(guest.fd), std::move(guest.read));
}

void Door::turn_away(uint64_t number, const std::string& why, const char* text) {
  auto guest = std::move(guests_.extract(number).mapped());
  reactor_.unwatch(guest.fd.get());
  reactor_.cancel(guest.timer);
  answer(guest.fd.get(), text);
  ++refused_;
  const auto now = Clock::now();
  if (told_ == Clock::time_point() || now - told_ >= kTellEvery) {
    on_refused_(fmt::format(
        "turned away {} connection{} at port {}; the last, from {}: {}",
        refused_,
        refused_ == 1 ? "" : "s",
        port_,
        peer_address(guest.fd.get()).host(),
        why));
    told_ = now;
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
