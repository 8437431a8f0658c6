// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace lockstep::optim {

/// The way in which an optimizer updates its parameters. It updates all on this rank
/// (PlainStrategy), this rank's share (SharedMemoryStrategy) or shard slices (ShardedStrategy), or
/// updates on the host (HostStrategy).
class UpdateStrategy {
 public:
  UpdateStrategy() = default;
  virtual ~UpdateStrategy() = default;
  UpdateStrategy(const UpdateStrategy&) = delete;
  UpdateStrategy& operator=(const UpdateStrategy&) = delete;

  /// Updates each parameter that has a gradient once. Returns the number of tensors that the rule
  /// was called with; joined parameters count once.
  virtual size_t step() = 0;
};

}  // namespace lockstep::optim
