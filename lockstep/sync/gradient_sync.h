// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

namespace lockstep {

/// How the ranks of a model make one gradient out of theirs: DataParallel, or zero::Sharding.
class GradientSync {
 public:
  GradientSync() = default;
  virtual ~GradientSync() = default;
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  /// Says that a backward is about to run in which this rank takes part, whether or not it reaches
  /// the model.
  virtual void begin_backward() = 0;
  /// Completes the averaging of the backward begun, unless autograd has already. Throws CommError.
  virtual void finish_backward() = 0;
  /// After a backward that threw: forgets it, once nothing is under way any more. The gradients are
  /// worthless then.
  virtual void abandon_backward() noexcept = 0;
  /// While false, backward only accumulates locally: nothing travels until the next backward with
  /// true, which averages all that was accumulated.
  virtual void set_sync(bool sync) = 0;
  /// See Group::check_alive.
  virtual void check_alive() const = 0;
};

using GradientSyncs = std::vector<std::shared_ptr<GradientSync>>;

}  // namespace lockstep
