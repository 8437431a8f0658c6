// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace lockstep::offload {

/// Runs jobs one after the other on a thread, which starts with the first job. The destructor waits
/// for all jobs. Thread-safe.
class SerialExecutor {
 public:
  SerialExecutor() = default;
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Queues `job`. An exception of `job` is stored in the future.
  std::shared_future<void> submit(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::offload
