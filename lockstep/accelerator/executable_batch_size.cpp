// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/executable_batch_size.h"

#include <chrono>
#include <malloc.h>
#include <new>
#include <string_view>

#include <fmt/format.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/full.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/internals.h"
#include "lockstep/accelerator/setup/run_context.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"

namespace lockstep {

bool is_out_of_memory(const std::exception& failure) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&failure) != nullptr) {
    return true;
  }
  // The host allocator throws a plain c10::Error, which only its text distinguishes.
  const auto* error = dynamic_cast<const c10::Error*>(&failure);
  return error != nullptr &&
         std::string_view(error->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

void release_cached_memory() {
  const auto device = at::accelerator::getAccelerator();
  // torch asserts that there is a cache; a device of another library may have none.
  if (device && dynamic_cast<const c10::DeviceAllocator*>(c10::GetAllocator(*device)) != nullptr) {
    at::accelerator::emptyCache();
  }
  malloc_trim(0);
}

BatchSizeAttempt::BatchSizeAttempt(Accelerator* accelerator) : accelerator_(accelerator) {
  if (!has_peers()) {
    return;
  }
  const internal::RunContext& context = internal::AcceleratorInternals::context(*accelerator_);
  if (!context.transport) {
    throw ConfigError(
        "find_executable_batch_size",
        "the Accelerator was constructed with a group, so its processes cannot reconnect before "
        "each attempt; construct it without a group");
  }
  context.transport->renew(context.options.connect.join_timeout);
}

bool BatchSizeAttempt::has_peers() const {
  return accelerator_ != nullptr && accelerator_->use_distributed();
}

std::optional<BatchSizeAttempt::End> BatchSizeAttempt::end_of(const std::exception& failure) const {
  if (is_out_of_memory(failure)) {
    return End::kOutOfMemory;
  }
  const bool lost = has_peers() && dynamic_cast<const CommError*>(&failure) != nullptr;
  return lost ? std::optional(End::kLostOthers) : std::nullopt;
}

BatchSizeAttempt::End BatchSizeAttempt::agree(End here) {
  if (here != End::kDone) {
    clean_up();
  }
  if (!has_peers()) {
    return here;
  }
  comm::RenewableTransport& transport =
      *internal::AcceleratorInternals::context(*accelerator_).transport;
  if (here != End::kDone) {
    transport.abandon();
  }
  // Others may still compute for long; one that has died is detected nevertheless.
  constexpr comm::Milliseconds kWeek{std::chrono::hours(24 * 7)};
  Group all(transport.first(), kWeek);
  const at::Tensor worst = at::full({1}, static_cast<int64_t>(here), at::kLong);
  all.all_reduce(worst, ReduceOp::kMax).wait();
  const auto end = static_cast<End>(worst.item<int64_t>());
  if (here == End::kDone && end != End::kDone) {
    clean_up();
  }
  return end;
}

void BatchSizeAttempt::clean_up() {
  if (accelerator_ != nullptr) {
    accelerator_->free_memory();
  }
  release_cached_memory();
}

namespace detail {

void attempt_lost_elsewhere() {
  throw CommError(
      "find_executable_batch_size",
      "the attempt succeeded on this rank, but another rank lost the connection without running "
      "out of memory; see that rank's error");
}

void no_executable_batch_size() {
  throw Error(
      "find_executable_batch_size",
      "memory ran out even for the smallest batch; no executable batch size exists");
}

int64_t checked_batch_size(int64_t next, int64_t was) {
  if (next < 1 || next >= was) {
    throw ConfigError(
        "find_executable_batch_size",
        fmt::format("expected a batch size of 1 to {}; got {}", was - 1, next));
  }
  return next;
}

void report_smaller_batch_size(int64_t was, int64_t next, bool agreed) {
  log_info(fmt::format("out of memory with a batch of {}; trying {}", was, next));
  if (!agreed && current_rank().size > 1) {
    log_warning(
        "only this rank tries a smaller batch, unless the others run out of memory, too; call "
        "find_executable_batch_size(accelerator, body), so that all ranks agree",
        LogAudience::kEveryRank);
  }
}

}  // namespace detail
}  // namespace lockstep
