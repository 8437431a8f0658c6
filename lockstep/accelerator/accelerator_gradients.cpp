// SPDX-License-Identifier: Apache-2.0
// Gradients that backwards within no_sync have left, and those that there are none of.
#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"

namespace lockstep {

void Accelerator::average_gradients() {
  State& state = *state_;
  if (state.loop->no_sync_depth > 0) {
    throw ConfigError(
        "average_gradients", "within no_sync(), where nothing is averaged; leave it first");
  }
  drop_unended();
  state.loop->clipped.clear();
  try {
    for (const State::Model& model : state.models) {
      model.sync->begin_backward();
      model.sync->finish_backward();
    }
  } catch (...) {
    abandon_backward();
    throw;
  }
}

std::vector<std::string> Accelerator::parameters_without_gradient() const {
  const State& state = *state_;
  if (state.sharding) {
    return state.sharding->without_gradient();
  }
  std::vector<std::string> without;
  const ParameterName names = state.parameter_names("parameters_without_gradient");
  for (const Optimizer& optimizer : state.optimizers) {
    for (const at::Tensor& parameter : optimizer.parameters()) {
      if (parameter.requires_grad() && !parameter.grad().defined()) {
        without.push_back(names(parameter));
      }
    }
  }
  return without;
}

}  // namespace lockstep
