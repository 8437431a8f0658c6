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

/// Runs job(begin), job(begin + 1), ... job(end - 1) on threads, at most `window` of them ahead of
/// the consumer. Jobs start in this order. Threads run with gradients off and under the consumer's
/// rank label.
///
/// With 0 workers there is no thread, and wait() runs the job itself, likewise with gradients off.
/// Thread safety: wait() and release() from one consumer; `job` is called from all workers at once.
class OrderedWorkers {
 public:
  OrderedWorkers(
      int workers, int64_t window, int64_t begin, int64_t end, std::function<void(int64_t)> job);
  /// Lets running jobs finish, starts no other, joins.
  ~OrderedWorkers();
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  /// Returns once job(index) is done, or throws what it threw. After a failure no further job
  /// starts.
  void wait(int64_t index);
  /// The consumer is done with what job(index) left behind; the window moves on.
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
  // All below is guarded by mutex_, except that threads_ belongs to the consumer.
  int64_t next_;      ///< First job nobody has taken.
  int64_t released_;  ///< First job whose result is still needed.
  bool stopping_ = false;
  std::vector<char> done_;                   ///< [index % window]
  std::vector<std::exception_ptr> failure_;  ///< [index % window]
  std::vector<std::thread> threads_;
};

/// Computes T(begin), T(begin + 1), ... ahead of whoever asks for them, and hands them out in this
/// order. At most workers + ahead of them exist, or are being computed, beside the one handed out
/// last.
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
  /// The next one, or what was thrown while computing it; again the same then. Not to be called
  /// when done.
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
