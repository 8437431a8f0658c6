// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/ds_config/parameters.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep::ds_config {

/// The schedule that a section describes. ConfigError for numbers that do not go together.
optim::Schedule schedule_of(const SchedulerSection& section);

}  // namespace lockstep::ds_config
