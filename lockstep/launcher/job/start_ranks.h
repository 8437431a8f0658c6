// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/launcher/job/attempt_spec.h"
#include "lockstep/launcher/job/flight_watch.h"
#include "lockstep/launcher/job/rank_set.h"
#include "lockstep/launcher/output/console.h"
#include "lockstep/launcher/process/watchdog.h"

namespace lockstep::launcher {

/// Starts all ranks of this host, with their environment, cores and log files, and adds them to
/// `ranks`. Throws ConfigError or Error if a rank cannot be started; earlier ones stay in `ranks`.
void start_ranks(
    const AttemptSpec& spec,
    Console& console,
    const Watchdog& watchdog,
    const FlightWatch& flights,
    RankSet& ranks);

}  // namespace lockstep::launcher
