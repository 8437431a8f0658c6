// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/checkpointing/preemption.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "lockstep/base/error.h"

namespace lockstep::internal {

Preemption::Preemption(const RunContext& context) : context_(context), group_(context.group) {
  if (is_enabled()) {
    stop_requests_ = std::make_unique<StopRequests>();
  }
}

bool Preemption::is_enabled() const {
  return context_.options.save_when_preempted && !context_.options.project_dir.empty();
}

void Preemption::request() {
  if (!is_enabled()) {
    throw ConfigError(
        "request_preemption",
        "request_preemption() needs AcceleratorOptions::project_dir and save_when_preempted; set "
        "both");
  }
  requested_ = true;
}

bool Preemption::is_agreed() {
  if (!is_enabled()) {
    return false;
  }
  const bool own = requested_ || signal() != 0;
  if (group_.size() == 1) {
    return own;
  }
  return --batches_left_ <= 0 && exchange(own);
}

/// Exchanges requests, and chooses the next interval from the slowest rank's time for a batch:
/// short enough to react soon, long enough to cost nothing.
bool Preemption::exchange(bool own) {
  constexpr double kSecondsBetween = 0.2;
  constexpr int64_t kMostBatches = 64;  // A batch may suddenly take longer than those before.
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - last_exchange_.value_or(now)).count() /
                         static_cast<double>(interval_);
  at::Tensor values = at::zeros({2}, at::kDouble);
  values.mutable_data_ptr<double>()[0] = own ? 1 : 0;
  values.mutable_data_ptr<double>()[1] = seconds;
  const at::Tensor worst = group_.all_reduce(values, ReduceOp::kMax).wait();
  const double slowest = worst.const_data_ptr<double>()[1];
  // At most twice the last interval, since one batch may have been a quick one.
  const int64_t most = std::min(2 * interval_, kMostBatches);
  interval_ = last_exchange_ && slowest > 0
                  ? std::clamp(static_cast<int64_t>(kSecondsBetween / slowest), int64_t{1}, most)
                  : 1;
  batches_left_ = interval_;
  last_exchange_ = std::chrono::steady_clock::now();
  return worst.const_data_ptr<double>()[0] > 0;
}

int Preemption::signal() const {
  return stop_requests_ ? StopRequests::signal_received() : 0;
}

void Preemption::clear() {
  requested_ = false;
  StopRequests::clear();
}

}  // namespace lockstep::internal
