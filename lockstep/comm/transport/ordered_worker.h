// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/transport/transport.h"

namespace lockstep::comm {

/// RAII scope: writes to a lost peer give EPIPE instead of SIGPIPE in this thread and threads that
/// it starts. SIGPIPE would end the process silently, and Gloo does not prevent it.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlocked() {
    if (sigismember(&before_, SIGPIPE) == 1) {
      return;
    }
    const timespec at_once{};
    while (::sigtimedwait(&sigpipe_, nullptr, &at_once) == SIGPIPE) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t before_{};
};

/// Runs blocking operations one after the other on a thread, so that the caller can continue. The
/// thread starts with the first job.
///
/// The destructor never waits for a running job: it leaves the job and its thread behind, since its
/// peers may never arrive. Queued jobs are dropped.
///
/// Thread safety: submit is thread-safe.
class OrderedWorker {
 public:
  using Job = std::function<void()>;

  /// `name`: the operation's name, for the error of a caller whose timeout ends before the job.
  /// `on_timeout` gets that error; the job may still be running.
  using OnTimeout = std::function<void(const std::string& why)>;
  std::shared_ptr<Work> submit(const char* name, Job job, OnTimeout on_timeout = nullptr);
  /// Returns whether no job is queued or running.
  bool idle() const;
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
