// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/torch_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"

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
      "this optimizer's state cannot be kept in a checkpoint; expected one of lockstep::optim's, "
      "torch::optim's SGD, Adam, AdamW, Adagrad or RMSprop, or a class of your own with "
      "state_dict() and load_state_dict(), passed to prepare as that class");
}

}  // namespace lockstep::optim
