// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep::internal {

/// See Accelerator::with_gathered_parameters. Throws ConfigError for a `modifier_rank` that does
/// not exist. Collective.
void with_gathered_parameters(
    const PreparedObjects& objects,
    const std::vector<at::Tensor>& parameters,
    const std::function<void()>& body,
    std::optional<int> modifier_rank);

}  // namespace lockstep::internal
