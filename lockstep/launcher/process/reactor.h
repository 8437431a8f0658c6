// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "lockstep/base/unique_fd.h"
#include "lockstep/launcher/process/clock.h"

namespace lockstep::launcher {

/// Calls back when descriptors are ready and deadlines are reached, on the launcher's one thread.
/// The reactor's descriptor is readable while dispatch() has work, so that another poll loop can
/// include it.
///
/// A callback may add and remove anything, itself included.
class Reactor {
 public:
  using OnReady = std::function<void(uint32_t events)>;
  using OnTime = std::function<void()>;
  using TimerId = uint64_t;

  Reactor();

  int fd() const { return epoll_.get(); }
  /// Returns the time for dispatch() if no descriptor becomes ready before.
  std::optional<Clock::time_point> deadline() const;
  /// Runs the callbacks that are ready or due; does not wait.
  void dispatch();
  /// Waits for up to `timeout` for work, or for `interrupt` (-1: none) to be readable. Returns
  /// whether `interrupt` is readable.
  bool wait(std::chrono::milliseconds timeout, int interrupt = -1) const;

  /// Calls `on_ready` for `events` of `fd`, as in epoll (EPOLLIN, EPOLLOUT). Errors and hang-ups
  /// are always reported. A descriptor is watched once; unwatch it before closing it.
  void watch(int fd, uint32_t events, OnReady on_ready);
  void change(int fd, uint32_t events);
  void unwatch(int fd);

  TimerId at(Clock::time_point time, OnTime on_time);
  void cancel(TimerId timer);

 private:
  struct Watched {
    uint64_t generation;  // A unique number, since descriptor numbers are reused.
    OnReady on_ready;
  };

  UniqueFd epoll_;
  std::map<int, std::shared_ptr<Watched>> watched_;
  std::map<std::pair<Clock::time_point, TimerId>, OnTime> timers_;
  std::map<TimerId, Clock::time_point> times_;
  uint64_t last_number_ = 0;
};

}  // namespace lockstep::launcher
