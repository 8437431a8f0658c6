// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/nccl/nccl_comm.h"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <c10/core/DeviceGuard.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"
#include "lockstep/comm/transport/transport_error.h"

namespace lockstep::comm {
namespace {

constexpr auto kPollPause = std::chrono::microseconds(20);
constexpr auto kWatchPause = std::chrono::milliseconds(10);

double seconds(Milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

NcclComm::NcclComm(
    const NcclApi& api, const NcclApi::UniqueId& id, int rank, int size, at::Device device)
    : api_(api), label_{rank, size}, device_(device) {
  const c10::DeviceGuard guard(device_);
  NcclApi::Config config;
  const NcclApi::Result result = api_.comm_init_rank_config(&comm_, size, id, rank, &config);
  if (result != NcclApi::kSuccess && result != NcclApi::kInProgress) {
    const std::string why = reason(result);
    abort();
    throw CommError("join", why);
  }
}

void NcclComm::join(Milliseconds timeout) {
  wait_for_call("join", NcclApi::kInProgress, timeout);
  watcher_ = std::thread([this] {
    const ThreadRankScope label(label_);
    watch_all();
  });
}

NcclComm::~NcclComm() {
  bool succeeded = watcher_.joinable() && std::uncaught_exceptions() == 0;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (succeeded) {  // The watcher ends operations at their timeout.
      changed_.wait(lock, [this] { return running_.empty() || failed_; });
    }
    succeeded = succeeded && !failed_;
    stopping_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) {
    watcher_.join();
  }
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (comm_ != nullptr) {
    succeeded ? api_.comm_destroy(comm_) : api_.comm_abort(comm_);
  }
}

std::string NcclComm::reason(NcclApi::Result result) const {
  const char* const last = comm_ != nullptr ? api_.get_last_error(comm_) : nullptr;
  return fmt::format(
      "NCCL: {}{}{}",
      api_.get_error_string(result),
      last != nullptr && *last != '\0' ? ": " : "",
      last != nullptr ? last : "");
}

void NcclComm::wait_for_call(const char* what, NcclApi::Result result, Milliseconds timeout) {
  const auto start = Clock::now();
  while (result == NcclApi::kInProgress) {
    if (aborting_) {
      throw CommError(what, "the communicator was aborted");
    }
    if (Clock::now() - start > timeout) {
      throw CommError(
          what, fmt::format("NCCL did not complete the call within {} s", seconds(timeout)));
    }
    std::this_thread::sleep_for(kPollPause);
    const NcclApi::Result asked = api_.comm_get_async_error(comm_, &result);
    result = asked == NcclApi::kSuccess ? result : asked;
  }
  if (result != NcclApi::kSuccess) {
    throw CommError(what, reason(result));
  }
}

void NcclComm::run(
    Op op,
    Milliseconds timeout,
    const std::function<NcclApi::Result(const NcclApi& api, NcclApi::Comm comm)>& launch) {
  std::unique_lock<std::mutex> lock(comm_mutex_);
  check_alive(op);
  if (comm_ == nullptr) {
    throw CommError(name_of(op), "the group was destroyed before the operation started");
  }
  try {
    wait_for_call(name_of(op), launch(api_, comm_), timeout);
  } catch (const CommError& error) {
    lock.unlock();
    fail(error.what());
    throw;
  }
}

void NcclComm::watch(
    std::shared_ptr<c10::Event> begun,
    std::shared_ptr<c10::Event> done,
    const FlightEntry& entry,
    Op op,
    Milliseconds timeout) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failed_) {
      entry.end(false);
      return;
    }
    running_.push_back({std::move(begun), std::move(done), entry, op, Clock::now(), timeout});
  }
  changed_.notify_all();
}

std::string NcclComm::failure_of(const RunningOperation& first) {
  if (Clock::now() - first.started > first.timeout) {
    return fmt::format(
        "{} was not done within {} s; a rank or its GPU may be stuck",
        name_of(first.op),
        seconds(first.timeout));
  }
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  NcclApi::Result result = NcclApi::kSuccess;
  if (comm_ == nullptr) {
    return fmt::format("{} was aborted", name_of(first.op));
  }
  const NcclApi::Result asked = api_.comm_get_async_error(comm_, &result);
  result = asked == NcclApi::kSuccess ? result : asked;
  return result == NcclApi::kSuccess || result == NcclApi::kInProgress
             ? ""
             : fmt::format("{}: {}", name_of(first.op), reason(result));
}

void NcclComm::watch_all() {
  const c10::DeviceGuard guard(device_);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_ && !failed_) {
    if (running_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const RunningOperation first = running_.front();
    lock.unlock();
    bool done = false;
    std::optional<double> measured_ms;
    std::string failure;
    try {
      done = first.done->query();
      if (done && first.begun) {  // This thread polls too seldom to measure the time itself.
        measured_ms = first.begun->elapsedTime(*first.done);
      }
      failure = done ? "" : failure_of(first);
    } catch (const std::exception& error) {  // CUDA itself has failed.
      failure = fmt::format("{}: {}", name_of(first.op), first_line(error.what()));
    }
    if (!failure.empty()) {
      fail(failure);
      return;
    }
    if (done) {
      first.entry.end(true, measured_ms);
    }
    lock.lock();
    if (failed_) {
      return;
    }
    if (done) {
      running_.pop_front();
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, kWatchPause, [this] { return stopping_ || failed_; });
    }
  }
}

void NcclComm::fail(const std::string& why) {
  if (!failure_.mark_failed(why)) {
    return;
  }
  if (!aborting_) {  // Else its owner is gone, and nobody waits for the operation.
    log_error("the NCCL communicator was aborted: " + without_rank_suffix(why));
  }
  abort();
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_ = true;
  for (const RunningOperation& each : running_) {
    each.entry.end(false);
  }
  running_.clear();
  changed_.notify_all();
}

void NcclComm::abort() {
  aborting_ = true;
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (comm_ != nullptr) {
    api_.comm_abort(comm_);
    comm_ = nullptr;
  }
}

}  // namespace lockstep::comm
