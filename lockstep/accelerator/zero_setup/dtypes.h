// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/accelerator/options/options.h"
#include "lockstep/accelerator/zero_setup/zero_units.h"
#include "lockstep/comm/tensor/named_tensor.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/zero/bucket/low_precision_policy.h"

/// The dtypes in which parameters and gradients are stored, accumulated and sent.
namespace lockstep::internal {

/// Returns whether `name` names the C++ class `type` ("torch::nn::LinearImpl"): that name,
/// "torch::nn::Linear", "Linear", or Python's "torch.nn.Linear" or
/// "torch.nn.modules.linear.Linear". A given namespace must match, and torch.nn matches; other
/// Python packages never do.
bool is_of_class(const std::string& type, const std::string& name);

/// Throws ConfigError, in the name of `where`, for a class that no module has, or only modules
/// without own parameters. Classes of torch.nn that the model lacks are accepted if it has another
/// listed one. `option`: the option that lists them. Local.
void check_lower_precision(
    const std::vector<std::string>& classes,
    const NamedTensors& parameters,
    const NamedClasses& modules,
    const std::string& where,
    const std::string& option);

/// Returns the own parameters of modules of these classes. Throws ConfigError, in the name of
/// prepare, as check_lower_precision, and for a dtype that is not a 16-bit type.
flat::CommDtypes comm_dtypes(
    const LowerPrecisionModules& lower,
    const NamedTensors& parameters,
    const NamedClasses& modules);

/// Returns the communication dtype of all fp32 gradients, if it is a 16-bit type. Throws
/// ConfigError if some parameters are already assigned one.
std::optional<at::ScalarType> reduced_comm_dtype(
    const std::optional<at::ScalarType>& communication_data_type,
    const LowerPrecisionModules& lower);
flat::CommDtypes all_in_comm_dtype(const NamedTensors& parameters, at::ScalarType dtype);

/// Translates a plugin's settings for fp16 and bf16 parameters into a ZeRO policy.
zero::LowPrecisionPolicy low_precision_policy(const ZeroPlugin& plugin);

/// Throws ConfigError if gradients of `parameters` cannot be accumulated in the requested dtype.
void check_sums(const ZeroPlugin& plugin, const NamedTensors& parameters);

}  // namespace lockstep::internal
