// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/env.h"
#include "lockstep/base/host/world.h"

namespace lockstep {

/// Determines this process's rank from `environment` and sets its log label. Unless OMP_NUM_THREADS
/// is set, the process computes with its share of the host's cores from now on. Throws ConfigError
/// as world_from_environment does.
WorldSpec enter_world(const Environment& environment);

}  // namespace lockstep
