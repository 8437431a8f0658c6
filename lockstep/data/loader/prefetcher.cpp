// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/loader/prefetcher.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "lockstep/base/rank.h"

namespace lockstep::data {

OrderedWorkers::OrderedWorkers(
    int workers, int64_t window, int64_t begin, int64_t end, std::function<void(int64_t)> job)
    : job_(std::move(job)),
      window_(window),
      end_(end),
      next_(begin),
      released_(begin),
      done_(static_cast<size_t>(window), 0),
      failure_(static_cast<size_t>(window)) {
  const int64_t threads = std::min<int64_t>(workers, end - begin);
  try {
    for (int64_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, label = current_rank()] {
        const ThreadRankScope scope(label);
        work();
      });
    }
  } catch (...) {
    stop();
    throw;
  }
}

OrderedWorkers::~OrderedWorkers() {
  stop();
}

void OrderedWorkers::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  can_start_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void OrderedWorkers::work() {
  const c10::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    can_start_.wait(
        lock, [this] { return stopping_ || next_ == end_ || next_ < released_ + window_; });
    if (stopping_ || next_ == end_) {
      return;
    }
    const int64_t index = next_++;
    lock.unlock();
    std::exception_ptr failure;
    try {
      job_(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    done_[index % window_] = 1;
    if (failure) {
      failure_[index % window_] = failure;
      // All jobs before this one have started; the consumer never waits for those after it.
      stopping_ = true;
      can_start_.notify_all();
    }
    finished_.notify_one();
  }
}

void OrderedWorkers::wait(int64_t index) {
  std::exception_ptr& failure = failure_[index % window_];
  if (threads_.empty()) {
    if (!failure) {
      const c10::NoGradGuard no_grad;
      try {
        job_(index);
      } catch (...) {
        failure = std::current_exception();
      }
    }
  } else {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return done_[index % window_] != 0; });
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void OrderedWorkers::release(int64_t index) {
  {
    const std::lock_guard lock(mutex_);
    done_[index % window_] = 0;
    released_ = index + 1;
  }
  can_start_.notify_one();
}

}  // namespace lockstep::data
