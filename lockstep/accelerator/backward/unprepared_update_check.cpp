// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/backward/unprepared_update_check.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/sync/unfrozen.h"

namespace lockstep {

void UnpreparedUpdateCheck::watch_prepared() {
  if (watched_models_ != objects_.models.size()) {
    check_.forget();  // prepare() has given the new models rank 0's weights.
    watched_models_ = objects_.models.size();
  }
  if ((loop_.accumulation.plugin.num_steps == 1 && !loop_.scaling.scaler) || objects_.sharding) {
    check_.watch({});
    return;
  }
  std::set<const void*> guarded;  // The step of their optimizer refuses such calls itself.
  for (const Optimizer& optimizer : objects_.optimizers) {
    if (dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner()) != nullptr) {
      for (const at::Tensor& parameter : optimizer.parameters()) {
        guarded.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  NamedTensors watched;
  for (const PreparedModel& model : objects_.models) {
    for (const NamedTensor& item : trainable(model.parameters())) {
      if (!guarded.contains(item.tensor.unsafeGetTensorImpl())) {
        watched.push_back({model.prefix + item.name, item.tensor});
      }
    }
  }
  check_.watch(std::move(watched));
}

void UnpreparedUpdateCheck::note_backward() {
  const AccumulationState& accumulation = loop_.accumulation;
  if (loop_.scaling.scaler || (accumulation.in_micro_step && !accumulation.sync_gradients)) {
    steps_when_noted_ = loop_.prepared_steps;
    check_.note();
  }
}

void UnpreparedUpdateCheck::refuse_unprepared_update() {
  if (steps_when_noted_ != loop_.prepared_steps) {
    check_.forget();
    return;
  }
  const std::optional<NamedTensor> changed = check_.changed_again();
  if (!changed) {
    return;
  }
  const AccumulationState& accumulation = loop_.accumulation;
  const bool is_prepared = objects_.is_in_optimizer(changed->tensor);
  const bool is_scaled = loop_.scaling.scaler && accumulation.sync_gradients;
  const std::string_view remedy =
      is_prepared && is_scaled
          ? "call step() of the optimizer that prepare returned, and move code that writes to "
            "parameters after it"
      : is_prepared
          ? "call step() of the optimizer that prepare returned, and run code that writes to "
            "parameters only where sync_gradients() is true"
          : "pass the parameter's optimizer to prepare, and use the one that prepare returns";
  if (is_scaled) {
    throw ConfigError(
        "backward",
        fmt::format(
            "parameter {} was changed before its gradient was unscaled (fp16 loss scale {}); {}",
            changed->name,
            loop_.scaling.scaler->get_scale(),
            remedy));
  }
  throw ConfigError(
      "accumulate",
      fmt::format(
          "parameter {} was changed after micro-step {} of {}, before the gradients were averaged; "
          "{}",
          changed->name,
          accumulation.in_group,
          accumulation.plugin.num_steps,
          remedy));
}

void UnpreparedUpdateCheck::clear() {
  check_.watch({});
  watched_models_ = 0;
}

}  // namespace lockstep
