// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/named_tensor.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Gives a parameter the name a checkpoint knows it by.
using ParameterName = std::function<std::string(const at::Tensor& parameter)>;

/// The state of a torch::optim optimizer, keyed by parameter name, where torch's own files use
/// memory addresses: "fc.weight.exp_avg", "fc.weight.step", ... A parameter without state yet has
/// no entries. SGD, Adam, AdamW, Adagrad and RMSprop; ConfigError for any other.
NamedTensors optimizer_tensors(torch::optim::Optimizer& optimizer, const ParameterName& name_of);

/// {"type": "Adam", "lr": [...]}: what is not a tensor. One learning rate a parameter group.
nlohmann::json optimizer_settings(torch::optim::Optimizer& optimizer);

/// Checks that both fit `optimizer`, changes nothing, and returns what puts them into it.
/// Everything else (betas, weight decay) stays as the program constructed it. CheckpointError,
/// naming `path`, for another type, another number of groups, an unknown parameter or a wrong
/// shape.
std::function<void()> check_optimizer(
    torch::optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const NamedTensors& tensors,
    const nlohmann::json& settings,
    const std::string& path);

}  // namespace lockstep
