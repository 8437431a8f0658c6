// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/momentum.h"

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_settings.h"

namespace lockstep::optim {

namespace {

NamedOptions options_of(torch::optim::Optimizer& optimizer, size_t group) {
  torch::optim::OptimizerOptions& options = optimizer.param_groups().at(group).options();
  const auto* ours = dynamic_cast<const FlatOptimizer*>(&optimizer);
  return ours != nullptr ? ours->rule().named_options(options) : torch_named_options(options);
}

}  // namespace

void set_momentum(
    torch::optim::Optimizer& optimizer,
    size_t group,
    double momentum,
    std::optional<double> beta2) {
  const NamedOptions named = options_of(optimizer, group);
  for (const NamedOption& option : named) {
    if (option.name == std::string_view("capturable") && *std::get<bool*>(option.value)) {
      throw ConfigError(
          "scheduler",
          "this schedule cycles momentum, but the graph of a capturable optimizer keeps the "
          "captured value; switch cycle_momentum off, or set capturable = false");
    }
  }
  for (const NamedOption& option : named) {
    const std::string_view name = option.name;
    if (name == "betas") {
      if (auto* const* pair = std::get_if<std::pair<double, double>*>(&option.value)) {
        **pair = {momentum, beta2.value_or((*pair)->second)};
        return;
      }
      if (auto* const* tuple = std::get_if<std::tuple<double, double>*>(&option.value)) {
        **tuple = {momentum, beta2.value_or(std::get<1>(**tuple))};
        return;
      }
    }
    if (name == "momentum") {
      *std::get<double*>(option.value) = momentum;
      return;
    }
  }
  throw ConfigError(
      "scheduler",
      "this schedule cycles momentum, but the optimizer has neither betas nor momentum; switch "
      "cycle_momentum off");
}

bool has_betas(torch::optim::Optimizer& optimizer) {
  const size_t groups = optimizer.param_groups().size();
  for (size_t group = 0; group < groups; ++group) {
    bool found = false;
    for (const NamedOption& option : options_of(optimizer, group)) {
      const std::string_view name = option.name;
      if (name == "use_muon") {
        return false;
      }
      found = found || name == "betas";
    }
    if (!found) {
      return false;
    }
  }
  return groups > 0;
}

}  // namespace lockstep::optim
