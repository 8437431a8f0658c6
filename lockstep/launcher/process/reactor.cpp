// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launcher/process/reactor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/epoll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::launcher {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error("lockstep launch", fmt::format("{}: {}", what, system_error_text(errno)));
}

}  // namespace

Reactor::Reactor() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.is_open()) {
    fail("epoll_create1");
  }
}

std::optional<Clock::time_point> Reactor::deadline() const {
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first.first);
}

void Reactor::dispatch() {
  constexpr int kAtOnce = 64;
  std::array<epoll_event, kAtOnce> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kAtOnce, 0);
  std::array<std::pair<int, uint64_t>, kAtOnce> ready;
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    const int fd = events[index].data.fd;
    ready[index] = {fd, watched_.at(fd)->generation};
  }
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    const auto found = watched_.find(ready[index].first);
    // An earlier callback may have closed the descriptor, and another one may have its number now.
    if (found != watched_.end() && found->second->generation == ready[index].second) {
      const std::shared_ptr<Watched> kept = found->second;
      kept->on_ready(events[index].events);
    }
  }
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto due = timers_.extract(timers_.begin());
    times_.erase(due.key().second);
    due.mapped()();
  }
}

bool Reactor::wait(std::chrono::milliseconds timeout, int interrupt) const {
  if (const auto next = deadline()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
    timeout = std::clamp(left, std::chrono::milliseconds(0), timeout);
  }
  pollfd items[] = {
      {.fd = epoll_.get(), .events = POLLIN, .revents = 0},
      {.fd = interrupt, .events = POLLIN, .revents = 0}};
  return ::poll(items, 2, static_cast<int>(timeout.count())) > 0 && items[1].revents != 0;
}

void Reactor::watch(int fd, uint32_t events, OnReady on_ready) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    fail("epoll_ctl");
  }
  watched_[fd] = std::make_shared<Watched>(Watched{++last_number_, std::move(on_ready)});
}

void Reactor::change(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    fail("epoll_ctl");
  }
}

void Reactor::unwatch(int fd) {
  if (watched_.erase(fd) != 0) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

Reactor::TimerId Reactor::at(Clock::time_point time, OnTime on_time) {
  const TimerId id = ++last_number_;
  timers_.emplace(std::pair(time, id), std::move(on_time));
  times_.emplace(id, time);
  return id;
}

void Reactor::cancel(TimerId timer) {
  const auto found = times_.find(timer);
  if (found != times_.end()) {
    timers_.erase({found->second, timer});
    times_.erase(found);
  }
}

}  // namespace lockstep::launcher
