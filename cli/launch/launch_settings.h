// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "cli/launch/launch_flags.h"
#include "lockstep/base/env.h"

namespace lockstep::cli {

/// `flags` of the parsed `command`, with what they leave open taken from the environment, then from
/// the configuration file (see config/config_file.h). ConfigError as config::resolve throws it.
LaunchFlags with_settings(
    const CLI::App& command, const LaunchFlags& flags, const Environment& environment);

}  // namespace lockstep::cli
