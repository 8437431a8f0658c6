// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace lockstep::offload {

/// Does jobs one after the other on a thread of its own, which starts with the first. Destroying it
/// waits for all. Thread-safe.
class SerialExecutor {
 public:
  SerialExecutor() = default;
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// What `job` throws comes out of the future.
  std::shared_future<void> submit(std::function<void()> job);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> jobs_;
  bool exit_status_ = false;
  std::thread thread_;
};

}  // namespace lockstep::offload
