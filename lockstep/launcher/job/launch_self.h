// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/launcher/plan/job_options.h"

namespace lockstep::launcher {

/// Implements lockstep::launch() for results that are bytes; see launch.h for its guarantees.
std::vector<std::string> launch_self(
    const std::function<std::string()>& body, const JobOptions& options);

}  // namespace lockstep::launcher
