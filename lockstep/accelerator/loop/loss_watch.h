// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group.h"

namespace lockstep {

/// Warns of losses that are NaN or infinite when no NonFinitePolicy handles them.
///
/// A loss on the CPU is read at once. A device's loss is read at the end only, so that no step
/// waits for the device. Cost: one number read a backward. Not thread-safe, but for last_on_cpu().
class LossWatch {
 public:
  /// Records the loss of a backward, a tensor of one element. Warns at the first non-finite one.
  void note(const at::Tensor& loss);
  /// Returns the last loss; nothing before the first one, and for a device's. Thread-safe.
  std::optional<double> last_on_cpu() const {
    return has_last_on_cpu_ ? std::optional(last_.load()) : std::nullopt;
  }
  /// Warns if any rank's last loss is not finite. Collective.
  void warn_at_end(Group& group);

 private:
  at::Tensor last_on_device_;
  std::atomic<double> last_ = 0;
  std::atomic<bool> has_last_on_cpu_ = false;
  int64_t noted_ = 0;
  int64_t first_not_finite_ = 0;  ///< Counted from 1; 0: none.
};

}  // namespace lockstep
