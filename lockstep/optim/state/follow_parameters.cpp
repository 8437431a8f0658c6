// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/state/follow_parameters.h"

#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/flat_optimizer.h"
#include "lockstep/optim/torch_state.h"

namespace lockstep::optim {

void follow_parameters(torch::optim::Optimizer& optimizer) {
  if (auto* flat = dynamic_cast<FlatOptimizer*>(&optimizer)) {
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
      for (const auto& [name, tensor] : torch_kind_of(optimizer).fields(*found->second).tensors) {
        *tensor = tensor->defined() ? tensor->to(parameter.device()) : *tensor;
      }
    }
  }
}

}  // namespace lockstep::optim
