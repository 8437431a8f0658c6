// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <c10/core/Event.h>

#include "lockstep/base/rank.h"
#include "lockstep/comm/flight.h"
#include "lockstep/comm/group_error.h"
#include "lockstep/comm/nccl/nccl_api.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

/// One of NCCL's communicators, with the thread that watches what is under way in it: what fails or
/// takes too long ends the communicator, and with it everything that waits for it on the device.
///
/// Thread safety: run and watch from one thread; the rest from any.
class NcclComm {
 public:
  /// Begins to join the others that have `id`. CommError with NCCL's reason.
  NcclComm(const NcclApi& api, const NcclApi::UniqueId& id, int rank, int size, at::Device device);
  /// Until all are there. CommError.
  void join(Milliseconds timeout);
  /// Waits until what this rank has started is done, or has failed: others may need its part, and
  /// whoever has waited already reads the result when the device comes to it. While an exception is
  /// on its way it ends at once, whatever is under way.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Calls NCCL by `launch`, for operation `op`, and waits until it is on its stream. CommError.
  void run(
      Op op,
      Milliseconds timeout,
      const std::function<NcclApi::Result(const NcclApi& api, NcclApi::Comm comm)>& launch);
  /// From now on looks after what ends with `done`. `begun`: where its time is wanted, an event as
  /// `done` is, that knows the device's time; else null.
  void watch(
      std::shared_ptr<c10::Event> begun,
      std::shared_ptr<c10::Event> done,
      const FlightEntry& note,
      Op op,
      Milliseconds timeout);
  /// Throws if an operation has failed.
  void refuse(Op op) const { death_.refuse(op); }
  /// Ends it on this rank, for good.
  void fail(const std::string& why);

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    std::shared_ptr<c10::Event> begun;
    std::shared_ptr<c10::Event> done;
    FlightEntry note;
    Op op;
    Clock::time_point started;
    Milliseconds timeout;
  };

  /// Until NCCL has done what it said is in progress. Throws CommError otherwise.
  void settle(const char* what, NcclApi::Result result, Milliseconds timeout);
  std::string reason(NcclApi::Result result) const;
  void watch_all();
  /// Why `first` will not end well; empty while it may.
  std::string trouble_of(const UnderWay& first);
  void abort();

  const NcclApi& api_;
  RankLabel label_;
  at::Device device_;
  std::mutex comm_mutex_;  ///< Of calls of NCCL.
  NcclApi::Comm comm_ = nullptr;
  GroupError death_;
  std::mutex mutex_;  ///< Of what follows.
  std::deque<UnderWay> under_way_;
  bool stopping_ = false;
  bool failed_ = false;
  std::condition_variable changed_;
  std::thread watcher_;
};

}  // namespace lockstep::comm
