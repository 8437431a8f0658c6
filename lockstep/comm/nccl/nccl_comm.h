// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <c10/core/Event.h>

#include "lockstep/base/rank.h"
#include "lockstep/comm/nccl/nccl_api.h"
#include "lockstep/comm/transport/flight.h"
#include "lockstep/comm/transport/transport.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {

/// Holds an NCCL communicator, and watches its operations on a thread. A failure or timeout aborts
/// the communicator, and with it all device work that waits for it.
///
/// Thread safety: run and watch from one thread; the other functions from any.
class NcclComm {
 public:
  /// Begins to join the ranks with the same `id`. Throws CommError with NCCL's reason if it cannot.
  NcclComm(const NcclApi& api, const NcclApi::UniqueId& id, int rank, int size, at::Device device);
  /// Blocks until all ranks have joined. Throws CommError if they do not within `timeout`.
  void join(Milliseconds timeout);
  /// Blocks until this rank's started operations are done or have failed. Other ranks may need
  /// them, and later work may read the results. During stack unwinding it aborts at once.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Calls NCCL through `launch`, for operation `op`, and waits until it is enqueued. Throws
  /// CommError if NCCL refuses it, or does not enqueue it within `timeout`.
  void run(
      Op op,
      Milliseconds timeout,
      const std::function<NcclApi::Result(const NcclApi& api, NcclApi::Comm comm)>& launch);
  /// Watches an operation until event `done`, which marks its end. `begun`: an event with device
  /// time like `done`, if the duration is measured; else null.
  void watch(
      std::shared_ptr<c10::Event> begun,
      std::shared_ptr<c10::Event> done,
      const FlightEntry& entry,
      Op op,
      Milliseconds timeout);
  /// Throws CommError if an operation has failed.
  void check_alive(Op op) const { failure_.check(op); }
  /// Aborts the communicator on this rank, permanently. Only the first reason counts.
  void fail(const std::string& why);
  /// Aborts the communicator without a reason: it is about to be destroyed.
  void abort();

 private:
  using Clock = std::chrono::steady_clock;
  struct RunningOperation {
    std::shared_ptr<c10::Event> begun;
    std::shared_ptr<c10::Event> done;
    FlightEntry entry;
    Op op;
    Clock::time_point started;
    Milliseconds timeout;
  };

  /// Blocks until NCCL has finished an asynchronous call. Throws CommError if that fails.
  void wait_for_call(const char* what, NcclApi::Result result, Milliseconds timeout);
  std::string reason(NcclApi::Result result) const;
  void watch_all();
  /// Returns the reason why `first` cannot succeed; empty while it may.
  std::string failure_of(const RunningOperation& first);

  const NcclApi& api_;
  RankLabel label_;
  at::Device device_;
  std::atomic<bool> aborting_{false};  ///< Ends wait_for_call, which holds the next mutex.
  std::mutex comm_mutex_;              ///< Serializes calls of NCCL.
  NcclApi::Comm comm_ = nullptr;
  GroupFailure failure_;
  std::mutex mutex_;  ///< Protects the members below.
  std::deque<RunningOperation> running_;
  bool stopping_ = false;
  bool failed_ = false;
  std::condition_variable changed_;
  std::thread watcher_;
};

}  // namespace lockstep::comm
