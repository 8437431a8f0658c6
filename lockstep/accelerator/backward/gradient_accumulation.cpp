// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/gradient_accumulation.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::internal {

GradientScope GradientAccumulation::begin_micro_step(const std::vector<const void*>& models) {
  const GradientSyncs syncs = syncs_of(models);
  const GradientAccumulationPlugin& plugin = step_.accumulation();
  const double correction =
      step_.begin_micro_step(plugin.sync_with_dataloader && active_.at_last_global_batch());
  if (correction != 1) {
    gradients_.scale(correction);
  }
  const bool each =
      plugin.sync_each_batch || (objects_.uses_zero() && objects_.context.options.zero->stage >= 2);
  const bool hold = !step_.sync_gradients() && !each;
  return GradientScope([this, held = hold_back(hold ? syncs : GradientSyncs())] {
    release(held);
    step_.end_micro_step();
  });
}

GradientScope GradientAccumulation::begin_no_sync(const std::vector<const void*>& models) {
  GradientSyncs held = hold_back(syncs_of(models));
  step_.begin_no_sync();
  return GradientScope([this, held = std::move(held)] {
    release(held);
    step_.end_no_sync();
  });
}

void GradientAccumulation::trigger_sync(const std::vector<const void*>& models) {
  step_.trigger_sync();
  for (const auto& sync : syncs_of(models)) {
    sync->set_sync(true);
  }
}

GradientSyncs GradientAccumulation::syncs_of(const std::vector<const void*>& models) const {
  GradientSyncs chosen;
  if (models.empty()) {
    for (const PreparedModel& model : objects_.models) {
      chosen.push_back(model.sync);
    }
  }
  for (const void* id : models) {
    const PreparedModel* const model = objects_.find_model(id);
    if (model == nullptr) {
      throw ConfigError("accumulate", "one of the models was not prepared; prepare it first");
    }
    chosen.push_back(model->sync);
  }
  return chosen;
}

GradientSyncs GradientAccumulation::hold_back(GradientSyncs syncs) {
  if (!syncs.empty()) {
    step_.mark_not_averaged();
  }
  for (const auto& sync : syncs) {
    ++no_sync_counts_[sync.get()];
    sync->set_sync(false);
  }
  return syncs;
}

void GradientAccumulation::release(const GradientSyncs& held) {
  for (const auto& sync : held) {
    const auto count = no_sync_counts_.find(sync.get());
    if (count != no_sync_counts_.end() && --count->second == 0) {
      sync->set_sync(true);
    }
  }
}

}  // namespace lockstep::internal
