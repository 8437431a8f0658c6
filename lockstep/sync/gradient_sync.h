// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/sync/rank_facts.h"

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
  /// Compares these facts over the ranks in each backward that averages; a difference is a
  /// ConfigError there on all ranks. Costs no message of its own for parameters on the CPU and
  /// under ZeRO, else one of 65 bytes that overlaps with backward.
  virtual void set_facts(RankFacts facts) = 0;
  /// Returns whether any parameter has a gradient to update with, on any rank after a backward that
  /// averaged.
  virtual bool has_gradients() const = 0;
  /// See Group::check_alive.
  virtual void check_alive() const = 0;
};

using GradientSyncs = std::vector<std::shared_ptr<GradientSync>>;

}  // namespace lockstep
