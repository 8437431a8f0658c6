// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/ds_config/parameters.h"
#include "lockstep/schedule/schedule.h"

namespace lockstep::ds_config {

/// Creates the schedule of a section. Throws ConfigError for contradictory numbers.
schedule::Schedule schedule_of(const SchedulerSection& section);

}  // namespace lockstep::ds_config
