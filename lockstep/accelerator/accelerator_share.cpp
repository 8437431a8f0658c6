// SPDX-License-Identifier: Apache-2.0
// Parameters that the processes of a host have in common.
#include <set>
#include <string>

#include <fmt/format.h>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/accelerator_state.h"
#include "lockstep/base/error.h"
#include "lockstep/base/memory/keep_memory.h"
#include "lockstep/optim/flat_optimizer.h"

namespace lockstep {

void Accelerator::refuse_shared_parameters(const char* where, const char* because) const {
  if (state_->options.shared_parameters && use_distributed()) {
    throw ConfigError(
        where,
        fmt::format(
            "does not go with shared_parameters: {}; construct the Accelerator without", because));
  }
}

void Accelerator::share_parameters() {
  State& state = *state_;
  if (!state.options.shared_parameters || !use_distributed()) {
    return;
  }
  std::set<const at::TensorImpl*> averaged;
  for (const State::Model& model : state.models) {
    for (const NamedTensor& item : model.parameters()) {
      averaged.insert(item.tensor.unsafeGetTensorImpl());
    }
  }
  for (const Optimizer& optimizer : state.optimizers_in_call) {
    auto* flat = dynamic_cast<optim::FlatOptimizer*>(&optimizer.inner());
    if (flat == nullptr) {
      throw ConfigError(
          "prepare",
          "shared_parameters needs optimizers of lockstep::optim, which can update a part of a "
          "parameter; got another; use lockstep::optim's, or leave shared_parameters off");
    }
    for (const at::Tensor& parameter : optimizer.parameters()) {
      if (parameter.requires_grad() && averaged.count(parameter.unsafeGetTensorImpl()) == 0) {
        throw ConfigError(
            "prepare",
            "shared_parameters: an optimizer has parameters of a model that was not prepared, "
            "whose "
            "gradients would differ between processes; prepare the model before it or beside it");
      }
    }
    if (!flat->is_shared()) {
      flat->share(state.group);
      release_freed_memory();  // Where parameters were before.
    }
  }
}

}  // namespace lockstep
