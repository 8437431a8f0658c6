// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/named_tensor.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Gives a parameter the name a checkpoint knows it by.
using ParameterName = std::function<std::string(const at::Tensor& parameter)>;

/// The state of an optimizer, keyed by parameter name, where torch's own files use memory
/// addresses, and by the field names of Python's state_dict: "fc.weight.exp_avg", "fc.weight.step",
/// ... A parameter without state yet has no entries. For all of lockstep::optim, and torch::optim's
/// SGD, Adam, AdamW, Adagrad and RMSprop; ConfigError for any other.
NamedTensors optimizer_tensors(torch::optim::Optimizer& optimizer, const ParameterName& name_of);

/// Whether optimizer_tensors knows how to save it.
bool is_known_optimizer(torch::optim::Optimizer& optimizer);

/// Whether what is called `name` there, or in a file of Python's, is one number of a parameter,
/// whatever the parameter's shape: its "step", NAdam's "mu_product", ASGD's "eta" and "mu".
bool is_scalar_state(std::string_view name);

/// {"type": "Adam", "param_groups": [{"lr": 0.1, "betas": [0.9, 0.999], ...}]}: what is not a
/// tensor, all hyperparameters of every group by their Python names. Without `capturable`: that is
/// how a program runs, and no business of the file's.
nlohmann::json optimizer_settings(torch::optim::Optimizer& optimizer);

/// Checks that both fit `optimizer`, changes nothing, and returns what puts them into it: state
/// and, as Python's load_state_dict does, the hyperparameters, whatever the program constructed it
/// with. A torch::optim optimizer's fit ours of the same name. CheckpointError, naming
/// `settings_path`, where `settings` are from (empty: `path`), for another type, another number of
/// groups, an unknown, impossible or missing hyperparameter; naming `path` for an unknown
/// parameter, a wrong shape, and a parameter that has some of its state but not all.
std::function<void()> check_optimizer(
    torch::optim::Optimizer& optimizer,
    const ParameterName& name_of,
    const NamedTensors& tensors,
    const nlohmann::json& settings,
    const std::string& path,
    const std::string& settings_path = "");

}  // namespace lockstep
