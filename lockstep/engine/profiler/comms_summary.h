// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/accelerator/accelerator.h"
#include "lockstep/comm/log/comms_log.h"

namespace lockstep {

/// Renders the costs of this rank's collectives as a table. With `show_straggler` it shows the
/// fastest rank's times as well, and is collective.
std::string render_comms_summary(
    const CommsLog& log, Accelerator& accelerator, bool show_straggler);

}  // namespace lockstep
