// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/optimizer_state.h"

#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/flat_state.h"
#include "lockstep/optim/state/optimizer_settings.h"
#include "lockstep/optim/state/saved_tensors.h"
#include "lockstep/optim/state/torch_state.h"

namespace lockstep {
namespace {

namespace torch_optim = torch::optim;

using optim::OptionsOfGroups;

const char* type_of(torch_optim::Optimizer& optimizer) {
  const auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  return flat != nullptr ? flat->traits().name : optim::torch_kind_of(optimizer).name;
}

optim::NamedOptions named_options(
    torch_optim::Optimizer& optimizer, torch_optim::OptimizerOptions& options) {
  const auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  if (flat == nullptr) {
    return optim::torch_named_options(options);
  }
  optim::NamedOptions named = flat->rule().named_options(options);
  // The option belongs to the program, not to the state.
  std::erase_if(
      named, [](const auto& option) { return option.name == std::string_view("capturable"); });
  return named;
}

/// Returns whether a saved group may lack `option`: torch::optim has no maximize, and torch.optim
/// none of DeepSpeed's own options.
bool may_be_missing(std::string_view option) {
  return option == "maximize" || option == "bias_correction" || option == "eps_inside_sqrt";
}

/// Checks the saved options of one group, and sets them in `options`, the program's.
void check_group(
    torch_optim::Optimizer& optimizer,
    torch_optim::OptimizerOptions& options,
    const nlohmann::json& group,
    const std::string& path) {
  const optim::NamedOptions named = named_options(optimizer, options);
  optim::options_from_json(named, group, path);
  for (const optim::NamedOption& option : named) {
    if (!group.contains(option.name) && !may_be_missing(option.name)) {
      throw CheckpointError(
          path, fmt::format("a parameter group lacks the option {}", option.name));
    }
  }
  if (const auto* flat = dynamic_cast<const optim::FlatOptimizer*>(&optimizer)) {
    try {
      flat->rule().check(options);
    } catch (const ConfigError& error) {
      throw CheckpointError(path, fmt::format("holds invalid options: {}", error.what()));
    }
  }
}

/// Checks `settings`. Returns the options that the groups will have.
OptionsOfGroups check_settings(
    torch_optim::Optimizer& optimizer, const nlohmann::json& settings, const std::string& path) {
  const char* type = type_of(optimizer);
  const nlohmann::json saved = settings.is_object() ? settings : nlohmann::json::object();
  if (saved.value("type", nlohmann::json()) != type) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds the state of {}; this program's optimizer is {}",
            saved.value("type", nlohmann::json()).dump(),
            type));
  }
  const nlohmann::json groups = saved.value("param_groups", nlohmann::json::array());
  if (groups.size() != optimizer.param_groups().size()) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds {} parameter groups; this program's optimizer has {}",
            groups.size(),
            optimizer.param_groups().size()));
  }
  OptionsOfGroups all;
  for (size_t i = 0; i < groups.size(); ++i) {
    all.push_back(optimizer.param_groups()[i].options().clone());
    check_group(optimizer, *all.back(), groups[i], path);
  }
  return all;
}

}  // namespace

bool is_known_optimizer(torch_optim::Optimizer& optimizer) {
  return dynamic_cast<optim::FlatOptimizer*>(&optimizer) != nullptr ||
         optim::find_torch_kind(optimizer).has_value();
}

bool is_scalar_state(std::string_view name) {
  const std::string_view field = name.substr(name.rfind('.') + 1);
  return field == "step" || field == "mu_product" || field == "eta" || field == "mu";
}

NamedTensors optimizer_tensors(torch_optim::Optimizer& optimizer, const ParameterName& name_of) {
  if (auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer)) {
    flat->adopt_parameters();
    flat->complete_state();
    return optim::flat_tensors(*flat, name_of);
  }
  return optim::torch_tensors(optimizer, name_of);
}

nlohmann::json optimizer_settings(torch_optim::Optimizer& optimizer) {
  const char* type = type_of(optimizer);
  nlohmann::json groups = nlohmann::json::array();
  for (auto& group : optimizer.param_groups()) {
    groups.push_back(optim::options_to_json(named_options(optimizer, group.options())));
  }
  return {{"type", type}, {"param_groups", groups}};
}

std::function<void()> check_optimizer(
    torch_optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const NamedTensors& tensors,
    const nlohmann::json& settings,
    const std::string& path,
    const std::string& settings_path) {
  const std::string& of_settings = settings_path.empty() ? path : settings_path;
  auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  if (flat != nullptr) {
    flat->adopt_parameters();
  }
  const OptionsOfGroups options = check_settings(optimizer, settings, of_settings);
  optim::SavedTensors saved(tensors, path);
  std::function<void()> put_state =
      flat != nullptr ? optim::check_flat_state(*flat, name_of, options, saved)
                      : optim::check_torch_state(optimizer, name_of, options, saved);
  saved.check_all_taken();
  return [&optimizer, settings, path = of_settings, put_state = std::move(put_state)] {
    for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
      const optim::NamedOptions named =
          named_options(optimizer, optimizer.param_groups()[i].options());
      optim::options_from_json(named, settings["param_groups"][i], path);
    }
    put_state();
    if (auto* ours = dynamic_cast<optim::FlatOptimizer*>(&optimizer)) {
      ours->write_rates();
    }
  };
}

void follow_parameters(torch_optim::Optimizer& optimizer) {
  if (auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer)) {
    flat->follow_parameters();
    return;
  }
  const c10::AutoGradMode no_grad(false);
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || parameter.is_cpu()) {
        continue;
      }
      for (const auto& [name, tensor] :
           optim::torch_kind_of(optimizer).fields(*found->second).tensors) {
        *tensor = tensor->defined() ? tensor->to(parameter.device()) : *tensor;
      }
    }
  }
}

}  // namespace lockstep
