// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/optim/flat/rule.h"

namespace torch::optim {
class OptimizerOptions;
}

namespace lockstep::optim {

/// Returns pointers to the hyperparameters of torch::optim's own options, by their Python names;
/// empty for other options.
NamedOptions torch_named_options(torch::optim::OptimizerOptions& options);

/// Returns {"lr": 0.1, "betas": [0.9, 0.999], ...}: one group of Python's
/// `state_dict()["param_groups"]`.
nlohmann::json options_to_json(const NamedOptions& options);

/// Sets each option in `json`; others are unchanged. Throws CheckpointError, naming `path`, for an
/// unknown name or a value of another type; some options may be set by then.
void options_from_json(
    const NamedOptions& options, const nlohmann::json& json, const std::string& path);

}  // namespace lockstep::optim
