// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/torch_state.h"

#include <string>
#include <string_view>
#include <variant>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/flat/copy_values.h"
#include "lockstep/optim/state/optimizer_settings.h"

namespace lockstep::optim {
namespace {

template <typename State>
TorchFields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      {{"step", &state.step()}}};
}

TorchFields fields_of(torch::optim::SGDParamState& state) {
  return {{{"momentum_buffer", &state.momentum_buffer()}}, {}};
}
TorchFields fields_of(torch::optim::AdamParamState& state) {
  return adam_fields(state);
}
TorchFields fields_of(torch::optim::AdamWParamState& state) {
  return adam_fields(state);
}
TorchFields fields_of(torch::optim::AdagradParamState& state) {
  return {{{"sum", &state.sum()}}, {{"step", &state.step()}}};
}
TorchFields fields_of(torch::optim::RMSpropParamState& state) {
  return {
      {{"square_avg", &state.square_avg()},
       {"momentum_buffer", &state.momentum_buffer()},
       {"grad_avg", &state.grad_avg()}},
      {{"step", &state.step()}}};
}

template <typename State>
TorchKind kind(const char* name) {
  return {
      name,
      []() -> std::unique_ptr<torch::optim::OptimizerParamState> {
        return std::make_unique<State>();
      },
      [](torch::optim::OptimizerParamState& state) {
        return fields_of(static_cast<State&>(state));
      }};
}

/// Returns whether an option exists and is neither 0 nor false.
bool is_on(const NamedOptions& options, std::string_view name) {
  for (const NamedOption& option : options) {
    if (option.name == name) {
      auto* const* flag = std::get_if<bool*>(&option.value);
      auto* const* number = std::get_if<double*>(&option.value);
      return (flag != nullptr && **flag) || (number != nullptr && **number != 0);
    }
  }
  return false;
}

/// Returns whether torch's optimizers have state `field` after an update with `options`.
bool torch_wants(std::string_view field, const NamedOptions& options) {
  if (field == "max_exp_avg_sq") {
    return is_on(options, "amsgrad");
  }
  if (field == "grad_avg") {
    return is_on(options, "centered");
  }
  return field != "momentum_buffer" || is_on(options, "momentum");
}

}  // namespace

std::optional<TorchKind> find_torch_kind(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) {
    return kind<torch::optim::SGDParamState>("SGD");
  }
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return kind<torch::optim::AdamWParamState>("AdamW");
  }
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return kind<torch::optim::AdamParamState>("Adam");
  }
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
    return kind<torch::optim::AdagradParamState>("Adagrad");
  }
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
    return kind<torch::optim::RMSpropParamState>("RMSprop");
  }
  return std::nullopt;
}

TorchKind torch_kind_of(torch::optim::Optimizer& optimizer) {
  if (const auto kind = find_torch_kind(optimizer)) {
    return *kind;
  }
  throw ConfigError(
      "save_state",
      "this optimizer's state cannot be saved in a checkpoint; expected one of lockstep::optim's, "
      "torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop, or your own class with state_dict() "
      "and load_state_dict(), passed to prepare() with its own type");
}

NamedTensors torch_tensors(torch::optim::Optimizer& optimizer, const ParameterName& name_of) {
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

std::function<void()> check_torch_state(
    torch::optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const OptionsOfGroups& options,
    SavedTensors& saved) {
  const TorchKind kind = torch_kind_of(optimizer);
  using Loaded = std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>;
  auto loaded = std::make_shared<Loaded>();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t group) {
    SavedParameter saved_parameter(saved, name_of(parameter));
    const NamedOptions named = torch_named_options(*options[group]);
    auto state = kind.make();
    const TorchFields fields = kind.fields(*state);
    for (const auto& [field, tensor] : fields.tensors) {
      const at::Tensor value =
          saved_parameter.take(field, parameter.sizes(), torch_wants(field, named));
      if (value.defined()) {
        *tensor =
            at::empty_like(parameter.detach(), parameter.options().dtype(value.scalar_type()));
        flat::copy_values(*tensor, value);
      }
    }
    for (const auto& [field, count] : fields.counts) {
      const at::Tensor value = saved_parameter.take(field, {}, /*required=*/true);
      if (value.defined()) {
        *count = value.item<int64_t>();
      }
    }
    if (saved_parameter.check_complete()) {
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

}  // namespace lockstep::optim
