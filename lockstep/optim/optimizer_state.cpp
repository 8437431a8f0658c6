// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/optimizer_state.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/state/optimizer_settings.h"
#include "lockstep/optim/torch_state.h"

namespace lockstep {
namespace {

namespace torch_optim = torch::optim;

using optim::torch_kind_of;
using optim::TorchFields;
using optim::TorchKind;

/// Calls `visit` with each parameter and the number of its group.
template <typename Visit>
void for_each_parameter(torch_optim::Optimizer& optimizer, const Visit& visit) {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    for (at::Tensor& parameter : optimizer.param_groups()[group].params()) {
      visit(parameter, group);
    }
  }
}

const char* type_of(torch_optim::Optimizer& optimizer) {
  const auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  return flat != nullptr ? flat->traits().name : torch_kind_of(optimizer).name;
}

optim::NamedOptions named_options(
    torch_optim::Optimizer& optimizer, torch_optim::OptimizerOptions& options) {
  const auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer);
  if (flat == nullptr) {
    return optim::torch_named_options(options);
  }
  optim::NamedOptions named = flat->named_options(options);
  // How a program runs its updates, not what they are.
  std::erase_if(
      named, [](const auto& option) { return option.name == std::string_view("capturable"); });
  return named;
}

NamedTensors flat_tensors(optim::FlatOptimizer& optimizer, const ParameterName& name_of) {
  NamedTensors tensors;
  const optim::RuleTraits& traits = optimizer.traits();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t /*group*/) {
    const auto state = optimizer.state_of(parameter);
    const bool any = std::any_of(state.fields.begin(), state.fields.end(), [](const auto& field) {
      return field.defined();
    });
    if (!any) {
      return;
    }
    const std::string name = name_of(parameter);
    for (size_t field = 0; field < traits.fields.size(); ++field) {
      if (state.fields[field].defined()) {
        tensors.push_back({name + "." + traits.fields[field], state.fields[field].detach()});
      }
    }
    for (size_t i = 0; i < state.scalars.size(); ++i) {
      tensors.push_back(
          {name + "." + traits.scalars[i], at::full({}, state.scalars[i], at::kFloat)});
    }
    if (traits.counts_steps) {
      tensors.push_back({name + ".step", at::full({}, state.step, at::kLong)});
    }
  });
  return tensors;
}

/// Saved tensors by name; whoever has a use for one takes it out.
using Left = std::map<std::string, at::Tensor>;

/// Takes `name` out of `left` and checks its shape; undefined if it is not there.
at::Tensor take(
    Left& left, const std::string& name, at::IntArrayRef sizes, const std::string& path) {
  const auto found = left.find(name);
  if (found == left.end()) {
    return {};
  }
  const at::Tensor tensor = found->second;
  if (tensor.sizes() != sizes) {
    throw CheckpointError(
        path,
        fmt::format(
            "has shape [{}]; expected [{}]",
            fmt::join(tensor.sizes(), ", "),
            fmt::join(sizes, ", ")),
        name);
  }
  left.erase(found);
  return tensor;
}

/// The options of each parameter group.
using GroupOptions = std::vector<std::unique_ptr<torch_optim::OptimizerOptions>>;

/// torch::optim's options have no maximize, torch.optim's none of DeepSpeed's own, and files of
/// both fit ours.
bool may_be_missing(std::string_view option) {
  return option == "maximize" || option == "bias_correction" || option == "eps_inside_sqrt";
}

/// The saved options of one group, on top of the program's `options`.
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
      flat->check(options);
    } catch (const ConfigError& error) {
      throw CheckpointError(path, fmt::format("holds impossible options: {}", error.what()));
    }
  }
}

/// What the options will be.
GroupOptions check_settings(
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
  GroupOptions all;
  for (size_t i = 0; i < groups.size(); ++i) {
    all.push_back(optimizer.param_groups()[i].options().clone());
    check_group(optimizer, *all.back(), groups[i], path);
  }
  return all;
}

/// Whether an option is there and neither 0 nor false.
bool is_on(const optim::NamedOptions& options, std::string_view name) {
  for (const optim::NamedOption& option : options) {
    if (option.name == name) {
      auto* const* flag = std::get_if<bool*>(&option.value);
      auto* const* number = std::get_if<double*>(&option.value);
      return (flag != nullptr && **flag) || (number != nullptr && **number != 0);
    }
  }
  return false;
}

/// Whether torch's optimizers have `field` of a parameter that was updated with `options`.
bool torch_wants(std::string_view field, const optim::NamedOptions& options) {
  if (field == "max_exp_avg_sq") {
    return is_on(options, "amsgrad");
  }
  if (field == "grad_avg") {
    return is_on(options, "centered");
  }
  return field != "momentum_buffer" || is_on(options, "momentum");
}

/// CheckpointError if a parameter has some of its state, but not all.
class Completeness {
 public:
  /// `name`: the tensor's; `wanted`: whether it belongs to the state.
  void note(const std::string& name, bool found, bool wanted) {
    any_ = any_ || found;
    if (wanted && !found && missing_.empty()) {
      missing_ = name;
    }
  }
  bool any() const { return any_; }
  void check(const std::string& path) const {
    if (any_ && !missing_.empty()) {
      throw CheckpointError(
          path, "is missing, while other state of the parameter is there", missing_);
    }
  }

 private:
  bool any_ = false;
  std::string missing_;
};

/// `whole`: sizes of what the parameter is a slice of, or its own.
std::vector<int64_t> sizes_of(
    const at::Tensor& parameter, std::vector<int64_t> whole, optim::StateShape shape) {
  if (shape == optim::StateShape::kRow) {
    whole[whole.size() - 1] = 1;
  } else if (shape == optim::StateShape::kColumn) {
    whole[whole.size() - 2] = 1;
  } else {
    return parameter.sizes().vec();
  }
  return whole;
}

std::function<void()> check_flat(
    optim::FlatOptimizer& optimizer,
    const ParameterName& name_of,
    const GroupOptions& options,
    Left& left,
    const std::string& path) {
  using State = optim::FlatOptimizer::ParameterState;
  auto loaded = std::make_shared<std::vector<std::pair<at::Tensor, State>>>();
  const optim::RuleTraits& traits = optimizer.traits();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t group) {
    const std::string name = name_of(parameter) + ".";
    const std::vector<int64_t> whole = optimizer.whole_sizes(parameter);
    State state;
    Completeness completeness;
    for (size_t field = 0; field < traits.fields.size(); ++field) {
      const optim::StateShape shape = optimizer.shape(*options[group], whole, field);
      const std::string field_name = name + traits.fields[field];
      state.fields.push_back(take(left, field_name, sizes_of(parameter, whole, shape), path));
      completeness.note(
          field_name, state.fields.back().defined(), shape != optim::StateShape::kNone);
    }
    for (const char* scalar : traits.scalars) {
      const at::Tensor value = take(left, name + scalar, {}, path);
      completeness.note(name + scalar, value.defined(), true);
      if (value.defined()) {
        state.scalars.push_back(value.item<float>());
      }
    }
    const at::Tensor step =
        traits.counts_steps ? take(left, name + "step", {}, path) : at::Tensor();
    completeness.note(name + "step", step.defined(), traits.counts_steps);
    completeness.check(path);
    state.step = step.defined() ? step.item<int64_t>() : 0;
    loaded->emplace_back(parameter, std::move(state));
  });
  return [&optimizer, loaded] {
    for (const auto& [parameter, state] : *loaded) {
      optimizer.set_state(parameter, state);
    }
  };
}

std::function<void()> check_torch(
    torch_optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const GroupOptions& options,
    Left& left,
    const std::string& path) {
  const TorchKind kind = torch_kind_of(optimizer);
  using Loaded = std::vector<std::pair<void*, std::unique_ptr<torch_optim::OptimizerParamState>>>;
  auto loaded = std::make_shared<Loaded>();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t group) {
    const std::string name = name_of(parameter) + ".";
    const optim::NamedOptions named = optim::torch_named_options(*options[group]);
    auto state = kind.make();
    const TorchFields fields = kind.fields(*state);
    Completeness completeness;
    for (const auto& [field, tensor] : fields.tensors) {
      const at::Tensor saved = take(left, name + field, parameter.sizes(), path);
      if (saved.defined()) {
        *tensor =
            at::empty_like(parameter.detach(), parameter.options().dtype(saved.scalar_type()));
        flat::copy_values(*tensor, saved);
      }
      completeness.note(name + field, saved.defined(), torch_wants(field, named));
    }
    for (const auto& [field, count] : fields.counts) {
      const at::Tensor saved = take(left, name + field, {}, path);
      if (saved.defined()) {
        *count = saved.item<int64_t>();
      }
      completeness.note(name + field, saved.defined(), true);
    }
    completeness.check(path);
    if (completeness.any()) {
      loaded->emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  });
  return [&optimizer, loaded] {
    optimizer.state().clear();
    for (auto& [key, state] : *loaded) {
      optimizer.state()[key] = std::move(state);
    }
  };
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
    return flat_tensors(*flat, name_of);
  }
  const TorchKind kind = torch_kind_of(optimizer);
  NamedTensors tensors;
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t /*group*/) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) {
      return;
    }
    const std::string name = name_of(parameter);
    const TorchFields fields = kind.fields(*found->second);
    for (const auto& [field, tensor] : fields.tensors) {
      if (tensor->defined()) {
        tensors.push_back({name + "." + field, tensor->detach()});
      }
    }
    for (const auto& [field, count] : fields.counts) {
      tensors.push_back({name + "." + field, at::full({}, *count, at::kLong)});
    }
  });
  return tensors;
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
  const GroupOptions options = check_settings(optimizer, settings, of_settings);
  Left left;
  for (const NamedTensor& item : tensors) {
    left.emplace(item.name, item.tensor);
  }
  std::function<void()> put_state = flat != nullptr
                                        ? check_flat(*flat, name_of, options, left, path)
                                        : check_torch(optimizer, name_of, options, left, path);
  if (!left.empty()) {
    throw CheckpointError(
        path, "belongs to no parameter of this program's optimizer", left.begin()->first);
  }
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

}  // namespace lockstep
