// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/tensor/named_tensor.h"

namespace lockstep::internal {

/// The modules of a model: their paths ("layers.0") and their C++ classes.
using NamedClasses = std::vector<std::pair<std::string, std::string>>;

/// Returns the parameters of each module whose class, without its namespace and Impl, is one of
/// `classes`; for nested modules the outer one counts. Throws ConfigError for a class that no
/// module has.
std::vector<std::vector<at::Tensor>> units_of(
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::vector<std::string>& classes);

}  // namespace lockstep::internal
