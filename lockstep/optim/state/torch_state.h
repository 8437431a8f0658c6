// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/state/optimizer_state.h"
#include "lockstep/optim/state/saved_tensors.h"

namespace lockstep::optim {

/// The fields of one parameter's state: tensors shaped like the parameter, and counts.
struct TorchFields {
  std::vector<std::pair<const char*, at::Tensor*>> tensors;
  std::vector<std::pair<const char*, int64_t*>> counts;
};

/// Access to the state of one kind of torch::optim optimizer.
struct TorchKind {
  const char* name;
  std::unique_ptr<torch::optim::OptimizerParamState> (*make)();
  TorchFields (*fields)(torch::optim::OptimizerParamState&);
};

/// Returns the kind of `optimizer`; none if its state is not supported: LBFGS, and other classes.
std::optional<TorchKind> find_torch_kind(torch::optim::Optimizer& optimizer);
/// Does the same. Throws ConfigError if its state is not supported.
TorchKind torch_kind_of(torch::optim::Optimizer& optimizer);

/// Does what optimizer_tensors does, for torch::optim's optimizers.
NamedTensors torch_tensors(torch::optim::Optimizer& optimizer, const ParameterName& name_of);

/// Checks that `saved` fits the state of `optimizer` with these options, and takes the tensors.
/// Returns a function that applies them. Throws CheckpointError as check_optimizer.
std::function<void()> check_torch_state(
    torch::optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const OptionsOfGroups& options,
    SavedTensors& saved);

}  // namespace lockstep::optim
