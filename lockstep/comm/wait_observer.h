// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace lockstep::comm {

/// Receives the times at which a thread starts an operation of a group, or waits for one. The calls
/// come from that thread only.
class WaitObserver {
 public:
  WaitObserver() = default;
  virtual ~WaitObserver() = default;
  WaitObserver(const WaitObserver&) = delete;
  WaitObserver& operator=(const WaitObserver&) = delete;
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;
};

/// Sets the observer of the calling thread; null: none. Returns the previous one. Other threads,
/// such as that of an asynchronous save, have their own. Cost without an observer: a few ns an
/// operation.
std::shared_ptr<WaitObserver> observe_waits(std::shared_ptr<WaitObserver> observer);

/// Returns the observer of the calling thread; null: none.
WaitObserver* wait_observer();

/// RAII scope: the calling thread is busy with an operation of a group.
class WaitScope {
 public:
  WaitScope() : observer_(wait_observer()) {
    if (observer_ != nullptr) {
      observer_->begin_wait();
    }
  }
  ~WaitScope() {
    if (observer_ != nullptr) {
      observer_->end_wait();
    }
  }
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  WaitObserver* observer_;
};

}  // namespace lockstep::comm
