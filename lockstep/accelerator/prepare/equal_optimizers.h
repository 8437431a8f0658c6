// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/accelerator/prepare/prepared_objects.h"

namespace lockstep::internal {

/// Gives each optimizer, on every process, the state of a process with the most updates. Throws
/// ConfigError, in the name of `where`, for an optimizer whose state cannot be read. Collective.
void make_optimizers_equal(PreparedObjects& objects, const char* where);

}  // namespace lockstep::internal
