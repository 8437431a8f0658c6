// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/gradient_accumulation.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

GradientScope GradientAccumulation::begin_micro_step(const std::vector<const void*>& models) {
  AccumulationState& accumulation = loop_.accumulation;
  if (accumulation.in_micro_step) {
    throw ConfigError(
        "accumulate",
        "accumulate() was called inside another accumulate(); pass all models of the micro-step to "
        "one call");
  }
  update_check_.refuse_unprepared_update();
  GradientSyncs syncs = syncs_of(models);
  loop_.scaling.update_if_due();
  if (accumulation.sync_gradients) {
    accumulation.in_group = 0;
  }
  ++accumulation.in_group;
  const GradientAccumulationPlugin& plugin = accumulation.plugin;
  const bool at_end = plugin.sync_with_dataloader && active_.at_last_global_batch();
  accumulation.step = at_end ? 0 : accumulation.step + 1;
  accumulation.sync_gradients = at_end || accumulation.step % plugin.num_steps == 0;
  accumulation.in_micro_step = true;
  update_check_.begin_micro_step();
  accumulation.counts_in_micro_step = 0;
  if (accumulation.sync_gradients && !accumulation.counted && accumulation.in_group > 1) {
    // The earlier losses were divided by num_steps; the group may turn out to be shorter.
    gradients_.scale(
        static_cast<double>(plugin.num_steps) / static_cast<double>(accumulation.in_group));
  }
  const bool each =
      plugin.sync_each_batch || (objects_.uses_zero() && objects_.context.options.zero->stage >= 2);
  const bool hold = !accumulation.sync_gradients && !each;
  return GradientScope([this, held = hold_back(hold ? syncs : GradientSyncs())] {
    release(held);
    loop_.accumulation.in_micro_step = false;
  });
}

GradientScope GradientAccumulation::begin_no_sync(const std::vector<const void*>& models) {
  GradientSyncs held = hold_back(syncs_of(models));
  ++loop_.accumulation.no_sync_depth;
  return GradientScope([this, held = std::move(held)] {
    release(held);
    AccumulationState& accumulation = loop_.accumulation;
    accumulation.no_sync_depth = std::max(0, accumulation.no_sync_depth - 1);
    accumulation.sync_triggered = false;
  });
}

void GradientAccumulation::trigger_sync(const std::vector<const void*>& models) {
  if (loop_.accumulation.no_sync_depth == 0) {
    throw ConfigError(
        "trigger_sync_in_backward",
        "trigger_sync_in_backward() was called outside no_sync(), where every backward averages; "
        "remove the call");
  }
  loop_.accumulation.sync_triggered = true;
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
  for (const auto& sync : syncs) {
    ++holds_[sync.get()];
    sync->set_sync(false);
  }
  return syncs;
}

void GradientAccumulation::release(const GradientSyncs& held) {
  for (const auto& sync : held) {
    const auto count = holds_.find(sync.get());
    if (count != holds_.end() && --count->second == 0) {
      sync->set_sync(true);
    }
  }
}

}  // namespace lockstep
