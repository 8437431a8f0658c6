// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "lockstep/accelerator/backward/gradient_scope.h"
#include "lockstep/accelerator/backward/gradients.h"
#include "lockstep/accelerator/loop/active_loaders.h"
#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/step/training_step.h"

namespace lockstep::internal {

/// Decides which backward passes average gradients: micro-steps, accumulation groups, no_sync.
/// `models` are the addresses of modules; none means all prepared ones. Throws ConfigError for a
/// model that was not prepared.
class GradientAccumulation {
 public:
  GradientAccumulation(
      const PreparedObjects& objects,
      TrainingStep& step,
      const ActiveLoaders& active,
      Gradients& gradients)
      : objects_(objects), step_(step), active_(active), gradients_(gradients) {}

  /// See Accelerator::accumulate.
  GradientScope begin_micro_step(const std::vector<const void*>& models);
  /// See Accelerator::no_sync.
  GradientScope begin_no_sync(const std::vector<const void*>& models);
  /// See Accelerator::trigger_sync_in_backward.
  void trigger_sync(const std::vector<const void*>& models);
  void forget() { no_sync_counts_.clear(); }

 private:
  GradientSyncs syncs_of(const std::vector<const void*>& models) const;
  GradientSyncs hold_back(GradientSyncs syncs);
  void release(const GradientSyncs& held);

  const PreparedObjects& objects_;
  TrainingStep& step_;
  const ActiveLoaders& active_;
  Gradients& gradients_;
  /// The number of running scopes that hold a model's gradients back.
  std::map<const GradientSync*, int> no_sync_counts_;
};

}  // namespace lockstep::internal
