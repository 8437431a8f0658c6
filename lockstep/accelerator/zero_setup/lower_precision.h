// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/named_tensor.h"
#include "lockstep/flat/layout.h"

namespace lockstep {

/// Whether a module of the C++ class `type` ("torch::nn::LinearImpl") is what `name` says: that, or
/// "torch::nn::Linear", or "Linear"; or Python's "torch.nn.Linear",
/// "torch.nn.modules.linear.Linear". A namespace counts if it is there, and torch.nn is one; other
/// packages of Python have none here.
bool is_of_class(const std::string& type, const std::string& name);

/// ConfigError, in the name of `where`, for a class that no module has, or only modules without
/// parameters of their own; but of torch.nn's some may be listed that the model has none of, if it
/// has one of the others. `option`: who lists them. Local.
void check_lower_precision(
    const std::vector<std::string>& classes,
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::string& where,
    const std::string& option);

/// The parameters that modules of these classes have themselves. ConfigError, in the name of
/// prepare, as check_lower_precision, and for a dtype that has not 16 bits.
flat::CommDtypes comm_dtypes(
    const LowerPrecisionModules& told, const NamedTensors& parameters, const NamedClasses& modules);

/// What gradients of all parameters of fp32 are to travel in, if in 16 bits. ConfigError if `told`
/// says so of some.
std::optional<at::ScalarType> narrow_wire(
    const std::optional<at::ScalarType>& communication_data_type,
    const LowerPrecisionModules& told);
flat::CommDtypes all_narrow(const NamedTensors& parameters, at::ScalarType dtype);

}  // namespace lockstep
