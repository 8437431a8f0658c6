// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::data {

/// Runs job(begin), job(begin + 1), ... job(end - 1) on threads, in this order, at most `window`
/// ahead of the consumer. Threads have gradients off and the consumer's rank label.
///
/// With 0 workers there is no thread, and wait() runs the job, also with gradients off.
/// Thread safety: wait() and release() from one consumer; `job` is called from all workers at once.
class OrderedWorkers {
 public:
  OrderedWorkers(
      int workers, int64_t window, int64_t begin, int64_t end, std::function<void(int64_t)> job);
  /// Waits for running jobs; starts no other.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  /// Blocks until job(index) is done; throws its exception. After a failure no further job starts.
  void wait(int64_t index);
  /// Reports that the consumer does not need the result of job(index) any more; the window moves
  /// on.
  void release(int64_t index);

 private:
  void work();
  void stop() noexcept;

  std::function<void(int64_t)> job_;
  int64_t window_;
  int64_t end_;
  std::mutex mutex_;
  std::condition_variable can_start_;
  std::condition_variable finished_;
  // mutex_ protects all members below except threads_, which the consumer uses.
  int64_t next_;      ///< First job that has not started.
  int64_t released_;  ///< First job whose result is still needed.
  bool stopping_ = false;
  std::vector<char> done_;                   ///< [index % window]
  std::vector<std::exception_ptr> failure_;  ///< [index % window]
  std::vector<std::thread> threads_;
};

/// Computes T(begin), T(begin + 1), ... ahead of the consumer, and returns them in this order. At
/// most workers + ahead of them exist or are being computed, in addition to the one returned last.
template <typename T>
class Prefetcher {
 public:
  template <typename Compute>
  Prefetcher(int workers, int64_t ahead, int64_t begin, int64_t end, Compute compute)
      : next_(begin),
        end_(end),
        slots_(workers > 0 ? workers + ahead : 1),
        workers_(
            workers,
            static_cast<int64_t>(slots_.size()),
            begin,
            end,
            [this, compute = std::move(compute)](int64_t index) {
              slot(index).emplace(compute(index));
            }) {}

  bool done() const { return next_ == end_; }
  /// Returns the next value; throws the exception of its computation, in every later call, too.
  /// Must not be called when done.
  T next() {
    workers_.wait(next_);
    T value = std::move(*slot(next_));
    slot(next_).reset();
    workers_.release(next_);
    ++next_;
    return value;
  }

 private:
  std::optional<T>& slot(int64_t index) {
    return slots_[static_cast<size_t>(index) % slots_.size()];
  }

  int64_t next_;
  int64_t end_;
  std::vector<std::optional<T>> slots_;
  OrderedWorkers workers_;  ///< Last: its threads write to the slots until it is gone.
};

}  // namespace lockstep::data
