// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/flat_state.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>

namespace lockstep::optim {
namespace {

ParameterState take_state(
    const FlatOptimizer& optimizer,
    const at::Tensor& parameter,
    const torch::optim::OptimizerOptions& options,
    SavedParameter saved) {
  const RuleTraits& traits = optimizer.traits();
  const std::vector<int64_t> full_sizes = optimizer.full_sizes(parameter);
  ParameterState state;
  for (size_t field = 0; field < traits.fields.size(); ++field) {
    const StateShape shape = optimizer.rule().shape(options, full_sizes, field);
    state.fields.push_back(saved.take(
        traits.fields[field],
        state_sizes(shape, parameter.sizes(), full_sizes),
        shape != StateShape::kNone));
  }
  for (const char* scalar : traits.scalars) {
    const at::Tensor value = saved.take(scalar, {}, /*required=*/true);
    if (value.defined()) {
      state.scalars.push_back(value.item<float>());
    }
  }
  if (traits.counts_steps) {
    const at::Tensor step = saved.take("step", {}, /*required=*/true);
    state.step = step.defined() ? step.item<int64_t>() : 0;
  }
  saved.check_complete();
  return state;
}

}  // namespace

NamedTensors flat_tensors(FlatOptimizer& optimizer, const ParameterName& name_of) {
  NamedTensors tensors;
  const RuleTraits& traits = optimizer.traits();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t /*group*/) {
    const ParameterState state = optimizer.state_of(parameter);
    if (std::ranges::none_of(state.fields, [](const auto& field) { return field.defined(); })) {
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

std::function<void()> check_flat_state(
    FlatOptimizer& optimizer,
    const ParameterName& name_of,
    const OptionsOfGroups& options,
    SavedTensors& saved) {
  auto loaded = std::make_shared<std::vector<std::pair<at::Tensor, ParameterState>>>();
  for_each_parameter(optimizer, [&](const at::Tensor& parameter, size_t group) {
    loaded->emplace_back(
        parameter,
        take_state(
            optimizer, parameter, *options[group], SavedParameter(saved, name_of(parameter))));
  });
  return [&optimizer, loaded] {
    for (const auto& [parameter, state] : *loaded) {
      optimizer.set_state(parameter, state);
    }
  };
}

}  // namespace lockstep::optim
