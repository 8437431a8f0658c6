// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/base/env.h"
#include "lockstep/base/world.h"

namespace lockstep {

/// Who this process is, by `environment`. From now on its log lines say so, and, unless
/// OMP_NUM_THREADS says how many threads it may have, it computes on its share of the host's cores.
/// ConfigError as world_from_environment.
WorldSpec enter_world(const Environment& environment);

}  // namespace lockstep
