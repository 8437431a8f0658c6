// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/accelerator/prepare/prepared_objects.h"
#include "lockstep/accelerator/zero_setup/zero_init.h"

namespace lockstep::internal {

/// Shards the prepared model and its optimizer under ZeRO, if they are new: `in_call` are the
/// optimizers of this prepare(). Takes over the shards of `zero_init`. Throws ConfigError for
/// several models or optimizers, and for options that do not fit them. Collective.
void shard_objects(
    PreparedObjects& objects, const std::vector<Optimizer>& in_call, ZeroInit& zero_init);

/// With shared_parameters, moves parameters and state of the optimizers `in_call` to memory that
/// all processes map. Throws ConfigError for an optimizer of another library, and for parameters of
/// no prepared model. Collective.
void share_parameters(const PreparedObjects& objects, const std::vector<Optimizer>& in_call);

}  // namespace lockstep::internal
