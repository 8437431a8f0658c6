// SPDX-License-Identifier: Apache-2.0
#include "lockstep/engine/state/engine_context.h"

#include <string_view>
#include <tuple>
#include <variant>

#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_settings.h"

namespace lockstep {

double EngineContext::loss_scale() const {
  GradScaler* const scaler = accelerator->scaler();  // Applies the result of the last update.
  if (dynamic_loss_scale) {
    return dynamic_loss_scale->scale();
  }
  return scaler == nullptr ? 1 : scaler->get_scale();
}

std::vector<double> EngineContext::learning_rates() const {
  return has_optimizer() ? optimizer.learning_rates() : std::vector<double>();
}

std::vector<double> EngineContext::momenta() const {
  std::vector<double> all;
  if (!has_optimizer()) {
    return all;
  }
  const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer.inner());
  for (auto& group : optimizer.inner().param_groups()) {
    const optim::NamedOptions named = flat != nullptr ? flat->rule().named_options(group.options())
                                                      : optim::torch_named_options(group.options());
    for (const optim::NamedOption& option : named) {
      const std::string_view name = option.name;
      if (auto* const* momentum = std::get_if<double*>(&option.value);
          momentum != nullptr && name == "momentum") {
        all.push_back(**momentum);
      }
      if (name != "betas") {
        continue;
      }
      if (auto* const* pair = std::get_if<std::pair<double, double>*>(&option.value)) {
        all.push_back((*pair)->first);
      }
      if (auto* const* tuple = std::get_if<std::tuple<double, double>*>(&option.value)) {
        all.push_back(std::get<0>(**tuple));
      }
    }
  }
  return all;
}

void EngineContext::release() {
  if (has_optimizer()) {
    optimizer.set_sharding(nullptr);  // The program's handles would keep its hooks.
  }
  optimizer = {};
  scheduler = {};
  parameters = nullptr;
  modules = nullptr;
  reporter->finish();
  reporter.reset();
  accelerator->free_memory();
  accelerator.reset();
  comms_log.reset();
  activation_checkpointing.reset();
}

}  // namespace lockstep
