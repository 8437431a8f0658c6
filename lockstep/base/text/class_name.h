// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

/// Returns a module's class without namespace and Impl: "Linear" for "torch::nn::LinearImpl".
std::string plain_class_name(std::string name);

}  // namespace lockstep
