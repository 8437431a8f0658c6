// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// Runs blocking operations one after the other on a thread of its own, so that a caller may go on
/// while they are under way. The thread starts with the first job.
///
/// Destroying it never waits for a job under way: that job, and whatever it holds, is left behind
/// with its thread, since the peers it waits for may never come. Queued jobs are dropped unstarted.
///
/// Thread safety: submit from any thread.
class OrderedWorker {
 public:
  using Job = std::function<void()>;

  /// `name`: the operation's name, for the error a caller gets whose patience ends before the job
  /// does.
  /// `on_timeout` is told what a caller was told whose patience ended: the job may still be under
  /// way.
  using OnTimeout = std::function<void(const std::string& why)>;
  std::shared_ptr<Work> submit(const char* name, Job job, OnTimeout on_timeout = nullptr);
  OrderedWorker();
  ~OrderedWorker();
  OrderedWorker(const OrderedWorker&) = delete;
  OrderedWorker& operator=(const OrderedWorker&) = delete;

 private:
  struct Queue;
  static void run(const std::shared_ptr<Queue>& queue);
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace lockstep::comm
