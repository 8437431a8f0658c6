// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/accelerator/prepare/preparer.h"
#include "lockstep/accelerator/zero_setup/zero_init.h"
#include "python/bindings/bindings.h"

namespace lockstep::python {

/// Hands the shards of `zero_inits` over to an Accelerator that has prepared `model`: tensors of
/// the model that it does not shard become full, and those of other models move to its sharding.
/// Collective.
void transfer_zero_init(
    Accelerator& accelerator,
    const std::vector<std::shared_ptr<internal::ZeroInit>>& zero_inits,
    const internal::GivenModel& model);

/// Binds ZeroInit and GatheredScope.
void bind_gathered(py::module_& module);

}  // namespace lockstep::python
