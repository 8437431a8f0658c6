// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/named_tensor.h"

namespace lockstep {

/// Modules of a model: where they stand in it ("layers.0"), and their C++ class.
using NamedClasses = std::vector<std::pair<std::string, std::string>>;

/// "torch::nn::LinearImpl" is a Linear to whoever writes a model.
std::string plain_class(std::string name);

/// The parameters of each module whose class is one of `classes`, without its namespace and Impl;
/// of such a module within another, the outer one counts. ConfigError for a class that no module
/// has.
std::vector<std::vector<at::Tensor>> units_of(
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::vector<std::string>& classes);

}  // namespace lockstep
