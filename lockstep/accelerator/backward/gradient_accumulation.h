// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/backward/unprepared_update_check.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/loop/loop_state.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep {

/// Decides which backward passes average gradients: micro-steps, accumulation groups, no_sync.
/// `models` are the addresses of modules; none means all prepared ones. Throws ConfigError for a
/// model that was not prepared. Not thread-safe.
class GradientAccumulation {
 public:
  GradientAccumulation(
      const PreparedObjects& objects,
      LoopState& loop,
      const ActiveLoaders& active,
      Gradients& gradients,
      UnpreparedUpdateCheck& update_check)
      : objects_(objects),
        loop_(loop),
        active_(active),
        gradients_(gradients),
        update_check_(update_check) {}

  /// See Accelerator::accumulate.
  GradientScope begin_micro_step(const std::vector<const void*>& models);
  /// See Accelerator::no_sync.
  GradientScope begin_no_sync(const std::vector<const void*>& models);
  /// See Accelerator::trigger_sync_in_backward.
  void trigger_sync(const std::vector<const void*>& models);
  /// Returns whether any scope has so far kept gradients on their process, not averaged.
  bool has_held() const { return !holds_.empty(); }
  void forget() { holds_.clear(); }

 private:
  GradientSyncs syncs_of(const std::vector<const void*>& models) const;
  GradientSyncs hold_back(GradientSyncs syncs);
  void release(const GradientSyncs& held);

  const PreparedObjects& objects_;
  LoopState& loop_;
  const ActiveLoaders& active_;
  Gradients& gradients_;
  UnpreparedUpdateCheck& update_check_;
  /// The number of running scopes that hold a model's gradients back.
  std::map<const GradientSync*, int> holds_;
};

}  // namespace lockstep
