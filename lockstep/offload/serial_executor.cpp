// SPDX-License-Identifier: Apache-2.0
#include "lockstep/offload/serial_executor.h"

#include <utility>

namespace lockstep::offload {

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::shared_future<void> SerialExecutor::submit(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  std::shared_future<void> done = task.get_future().share();
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(task));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { work(); });
  }
  changed_.notify_all();
  return done;
}

void SerialExecutor::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    std::packaged_task<void()> task = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace lockstep::offload
