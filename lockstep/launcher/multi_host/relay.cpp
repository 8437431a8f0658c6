// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/multi_host/relay.h"

#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

namespace lockstep::launcher {
namespace {

constexpr size_t kMostWaiting = size_t{64} << 10;

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

Relay::Relay(
    Reactor& reactor,
    UniqueFd first,
    UniqueFd second,
    std::string to_second,
    std::function<void()> on_end)
    : reactor_(reactor), on_end_(std::move(on_end)) {
  sides_[0].fd = std::move(first);
  sides_[1].fd = std::move(second);
  sides_[1].waiting = std::move(to_second);
  for (size_t side = 0; side < 2; ++side) {
    const int on = 1;
    ::setsockopt(sides_[side].fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sides_[side].events = EPOLLIN | (sides_[side].waiting.empty() ? 0U : EPOLLOUT);
    reactor_.watch(sides_[side].fd.get(), sides_[side].events, [this, side](uint32_t events) {
      on_ready(side, events);
    });
  }
}

Relay::~Relay() {
  for (const Side& side : sides_) {
    reactor_.unwatch(side.fd.get());
  }
}

void Relay::on_ready(size_t side, uint32_t events) {
  Side& own = sides_[side];
  Side& other = sides_[1 - side];
  bool ok = true;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !own.ended) {
    ok = read_from(own, other) && write_to(other, own);
  }
  if (ok && (events & EPOLLOUT) != 0) {
    ok = write_to(own, other);
  }
  if (!ok || (own.write_shut && other.write_shut)) {
    end();
    return;
  }
  update(own, other);
  update(other, own);
}

/// Returns false if the connection broke.
bool Relay::read_from(Side& from, Side& to) {
  std::array<char, kMostWaiting> buffer;
  while (to.waiting.size() < kMostWaiting) {
    const ssize_t got =
        ::recv(from.fd.get(), buffer.data(), kMostWaiting - to.waiting.size(), MSG_DONTWAIT);
    if (got == 0) {
      from.ended = true;
      return true;
    }
    if (got < 0) {
      return would_block(errno);
    }
    to.waiting.append(buffer.data(), static_cast<size_t>(got));
  }
  return true;
}

bool Relay::write_to(Side& to, const Side& from) {
  while (!to.waiting.empty()) {
    const ssize_t written =
        ::send(to.fd.get(), to.waiting.data(), to.waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (written < 0) {
      return would_block(errno);
    }
    to.waiting.erase(0, static_cast<size_t>(written));
  }
  if (from.ended && !to.write_shut) {
    to.write_shut = true;
    ::shutdown(to.fd.get(), SHUT_WR);
  }
  return true;
}

void Relay::update(Side& side, const Side& other) {
  const bool reads = !side.ended && other.waiting.size() < kMostWaiting;
  const bool writes = !side.waiting.empty() || (other.ended && !side.write_shut);
  const uint32_t events = (reads ? EPOLLIN : 0U) | (writes ? EPOLLOUT : 0U);
  // A side that is closed in both directions would report its hang-up in every dispatch().
  if (side.ended && side.write_shut) {
    reactor_.unwatch(side.fd.get());
  } else if (events != side.events) {
    reactor_.change(side.fd.get(), events);
  }
  side.events = events;
}

void Relay::end() {
  const std::function<void()> on_end = std::move(on_end_);
  for (Side& side : sides_) {
    reactor_.unwatch(side.fd.get());
  }
  on_end();
}

}  // namespace lockstep::launcher
