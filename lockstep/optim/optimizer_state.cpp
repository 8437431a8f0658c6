// SPDX-License-Identifier: Apache-2.0
#include "lockstep/accelerator/optimizer_state.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace optim = torch::optim;

/// The fields of one parameter's state: tensors shaped like the parameter, and counts.
struct Fields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, int64_t*>> counts;
};

template <typename State>
Fields adam_fields(State& state) {
  return {
      {{"exp_avg", &state.exp_avg()},
       {"exp_avg_sq", &state.exp_avg_sq()},
       {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
      {{"step", &state.step()}}};
}

Fields fields_of(optim::SGDParamState& state) {
  return {{{"momentum_buffer", &state.momentum_buffer()}}, {}};
}
Fields fields_of(optim::AdamParamState& state) {
  return adam_fields(state);
}
Fields fields_of(optim::AdamWParamState& state) {
  return adam_fields(state);
}
Fields fields_of(optim::AdagradParamState& state) {
  return {{{"sum", &state.sum()}}, {{"step", &state.step()}}};
}
Fields fields_of(optim::RMSpropParamState& state) {
  return {
      {{"square_avg", &state.square_avg()},
       {"momentum_buffer", &state.momentum_buffer()},
       {"grad_avg", &state.grad_avg()}},
      {{"step", &state.step()}}};
}

/// How to treat one kind of optimizer.
struct Kind {
  const char* name;
  std::unique_ptr<optim::OptimizerParamState> (*make)();
  Fields (*fields)(optim::OptimizerParamState&);
};

template <typename State>
Kind kind(const char* name) {
  return {
      name,
      []() -> std::unique_ptr<optim::OptimizerParamState> { return std::make_unique<State>(); },
      [](optim::OptimizerParamState& state) { return fields_of(static_cast<State&>(state)); }};
}

Kind kind_of(optim::Optimizer& optimizer) {
  if (dynamic_cast<optim::SGD*>(&optimizer) != nullptr) {
    return kind<optim::SGDParamState>("SGD");
  }
  if (dynamic_cast<optim::AdamW*>(&optimizer) != nullptr) {
    return kind<optim::AdamWParamState>("AdamW");
  }
  if (dynamic_cast<optim::Adam*>(&optimizer) != nullptr) {
    return kind<optim::AdamParamState>("Adam");
  }
  if (dynamic_cast<optim::Adagrad*>(&optimizer) != nullptr) {
    return kind<optim::AdagradParamState>("Adagrad");
  }
  if (dynamic_cast<optim::RMSprop*>(&optimizer) != nullptr) {
    return kind<optim::RMSpropParamState>("RMSprop");
  }
  throw ConfigError(
      "save_state",
      "this optimizer's state cannot be kept in a checkpoint; expected torch::optim's SGD, Adam, "
      "AdamW, Adagrad or "
      "RMSprop");
}

template <typename Visit>
void for_each_parameter(optim::Optimizer& optimizer, const Visit& visit) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      visit(parameter);
    }
  }
}

}  // namespace

NamedTensors optimizer_tensors(optim::Optimizer& optimizer, const ParameterName& name_of) {
  const Kind kind = kind_of(optimizer);
  NamedTensors tensors;
  for_each_parameter(optimizer, [&](const at::Tensor& parameter) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) {
      return;
    }
    const std::string name = name_of(parameter);
    const Fields fields = kind.fields(*found->second);
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

nlohmann::json optimizer_settings(optim::Optimizer& optimizer) {
  nlohmann::json rates = nlohmann::json::array();
  for (const auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return {{"type", kind_of(optimizer).name}, {"lr", rates}};
}

std::function<void()> check_optimizer(
    optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const NamedTensors& tensors,
    const nlohmann::json& settings,
    const std::string& path) {
  const Kind kind = kind_of(optimizer);
  if (settings.at("type") != kind.name) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds the state of {}; this program's optimizer is {}",
            settings.at("type").dump(),
            kind.name));
  }
  const auto rates = settings.at("lr").get<std::vector<double>>();
  if (rates.size() != optimizer.param_groups().size()) {
    throw CheckpointError(
        path,
        fmt::format(
            "holds {} parameter groups; this program's optimizer has {}",
            rates.size(),
            optimizer.param_groups().size()));
  }
  std::map<std::string, at::Tensor> left;
  for (const NamedTensor& item : tensors) {
    left.emplace(item.name, item.tensor);
  }
  using Loaded = std::vector<std::pair<void*, std::unique_ptr<optim::OptimizerParamState>>>;
  auto loaded = std::make_shared<Loaded>();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter) {
    const std::string name = name_of(parameter);
    auto state = kind.make();
    const Fields fields = kind.fields(*state);
    bool any = false;
    for (const auto& [field, tensor] : fields.tensors) {
      const auto found = left.find(name + "." + field);
      if (found == left.end()) {
        continue;
      }
      if (found->second.sizes() != parameter.sizes()) {
        throw CheckpointError(
            path,
            fmt::format(
                "has shape [{}]; expected [{}]",
                fmt::join(found->second.sizes(), ", "),
                fmt::join(parameter.sizes(), ", ")),
            found->first);
      }
      *tensor =
          at::empty_like(parameter.detach()).to(found->second.scalar_type()).copy_(found->second);
      left.erase(found);
      any = true;
    }
    for (const auto& [field, count] : fields.counts) {
      const auto found = left.find(name + "." + field);
      if (found != left.end()) {
        *count = found->second.item<int64_t>();
        left.erase(found);
        any = true;
      }
    }
    if (any) {
      loaded->emplace_back(parameter.unsafeGetTensorImpl(), std::move(state));
    }
  });
  if (!left.empty()) {
    throw CheckpointError(
        path, "belongs to no parameter of this program's optimizer", left.begin()->first);
  }
  return [&optimizer, loaded, rates] {
    optimizer.state().clear();
    for (auto& [key, state] : *loaded) {
      optimizer.state()[key] = std::move(state);
    }
    for (size_t i = 0; i < rates.size(); ++i) {
      optimizer.param_groups()[i].options().set_lr(rates[i]);
    }
  };
}

}  // namespace lockstep
