// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

namespace lockstep {

/// The gradient averaging of a model: DataParallel, or zero::Sharding.
class GradientSync {
 public:
  GradientSync() = default;
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  /// Announces a backward of this rank, which may or may not reach the model.
  virtual void begin_backward() = 0;
  /// Completes the averaging of that backward, unless autograd has already. Throws CommError.
  virtual void finish_backward() = 0;
  /// Drops a backward that threw, after no operation is running any more. The gradients are
  /// invalid.
  virtual void abandon_backward() noexcept = 0;
  /// While false, backward only accumulates locally. The next backward with true averages
  /// everything that was accumulated.
  virtual void set_sync(bool sync) = 0;
  /// See Group::check_alive.
  virtual void check_alive() const = 0;
};

using GradientSyncs = std::vector<std::shared_ptr<GradientSync>>;

}  // namespace lockstep
