// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/step/training_step_observer.h"
#include "lockstep/comm/group.h"

namespace lockstep::internal {

/// Warns of losses that are NaN or infinite when no NonFinitePolicy handles them.
///
/// A loss on the CPU is read at once, and processes report the first such loss when they average
/// gradients. A device's loss is read at the end only, so that no step waits for the device. Cost:
/// one number read a backward. Not thread-safe, but for last_on_cpu().
class LossWatch final : public TrainingStepObserver {
 public:
  /// `group`: all processes. Without `enabled` it ignores all losses.
  explicit LossWatch(bool enabled, Group group = {})
      : enabled_(enabled), group_(std::move(group)) {}

  /// Records the loss of a backward. Warns at once in a single process.
  void loss_given(const GivenLoss& given) override;
  /// Returns whether this process has had a non-finite loss that was not reported.
  bool has_report() const { return first_not_finite_ > 0 && !is_reported_; }
  /// Warns of the first non-finite loss of each process. Collective.
  void exchange_reports();
  /// Returns the last loss; nothing before the first one, and for a device's. Thread-safe.
  std::optional<double> last_on_cpu() const {
    return has_last_on_cpu_ ? std::optional(last_.load()) : std::nullopt;
  }
  /// Warns if any rank's last loss is not finite. Collective.
  void warn_at_end();

 private:
  void note(const at::Tensor& loss);
  std::string report() const;

  bool enabled_;
  Group group_;
  at::Tensor last_on_device_;
  std::atomic<double> last_ = 0;
  std::atomic<bool> has_last_on_cpu_ = false;
  int64_t noted_ = 0;
  int64_t first_not_finite_ = 0;  ///< Counted from 1; 0: none.
  double first_value_ = 0;
  bool is_reported_ = false;  ///< Some process has reported one.
};

}  // namespace lockstep::internal
