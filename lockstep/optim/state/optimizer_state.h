// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/tensor/named_tensor.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Maps a parameter to its name in checkpoints.
using ParameterName = std::function<std::string(const at::Tensor& parameter)>;

/// Returns the state of an optimizer by parameter names and the field names of Python's state_dict:
/// "fc.weight.exp_avg", "fc.weight.step", ... torch's own files use memory addresses instead. A
/// parameter without state has no entries. Supports all of lockstep::optim, and torch::optim's SGD,
/// Adam, AdamW, Adagrad and RMSprop. Throws ConfigError for any other.
NamedTensors optimizer_tensors(torch::optim::Optimizer& optimizer, const ParameterName& name_of);

/// Returns whether optimizer_tensors supports it.
bool is_known_optimizer(torch::optim::Optimizer& optimizer);

/// Returns whether the entry `name` is a scalar, for a parameter of any shape: its "step", NAdam's
/// "mu_product", ASGD's "eta" and "mu".
bool is_scalar_state(std::string_view name);

/// Returns {"type": "Adam", "param_groups": [{"lr": 0.1, "betas": [0.9, 0.999], ...}]}: all
/// hyperparameters of every group by their Python names. Without `capturable`, which belongs to the
/// program, not to the state.
nlohmann::json optimizer_settings(torch::optim::Optimizer& optimizer);

/// Checks that `tensors` and `settings` fit `optimizer`, and returns a function that applies them.
/// It applies state and, as Python's load_state_dict does, the hyperparameters. A torch::optim
/// optimizer's state fits ours of the same name. Throws CheckpointError naming `settings_path`, the
/// source of `settings` (empty: `path`), for another type, another number of groups, or an unknown,
/// invalid or missing hyperparameter. Throws CheckpointError naming `path` for an unknown
/// parameter, a wrong shape, and a parameter with part of its state.
std::function<void()> check_optimizer(
    torch::optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const NamedTensors& tensors,
    const nlohmann::json& settings,
    const std::string& path,
    const std::string& settings_path = "");

/// Moves the state of `optimizer` to the current device of its parameters. Optimizers of
/// lockstep::optim lay out their buffers again. Supports all of those, and torch::optim's SGD,
/// Adam, AdamW, Adagrad and RMSprop. Throws ConfigError for any other that already has state.
void follow_parameters(torch::optim::Optimizer& optimizer);

}  // namespace lockstep
