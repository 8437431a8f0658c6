// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/wait_observer.h"

#include <utility>

namespace lockstep::comm {
namespace {

std::shared_ptr<WaitObserver>& observer_of_this_thread() {
  thread_local std::shared_ptr<WaitObserver> observer;
  return observer;
}

}  // namespace

std::shared_ptr<WaitObserver> observe_waits(std::shared_ptr<WaitObserver> observer) {
  return std::exchange(observer_of_this_thread(), std::move(observer));
}

WaitObserver* wait_observer() {
  return observer_of_this_thread().get();
}

}  // namespace lockstep::comm
